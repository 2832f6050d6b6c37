import collections
import os

import pytest

from cifar10_lib.datasets import folders
from cifar10_lib.program import errors

Found = collections.namedtuple('Found', 'classes train test skipped')


def fill(folder, **counts):
    """Creates empty files named like images: `counts` of each class."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f'{index}.png').touch()


def find(folder):
    """The result of `folders.find`, with the names of its parts."""
    skipped = []
    return Found(*folders.find(folder, skipped), sorted(skipped))


def of(labelled_paths, label):
    return {os.path.basename(path) for label_, path in labelled_paths if label_ == label}


@pytest.mark.parametrize('count, tested', [(1, 0), (2, 1), (5, 1), (6, 1), (11, 1), (12, 2)])
def test_a_sixth_of_each_class_is_for_testing(tmp_path, count, tested):
    fill(tmp_path, dog=12, cat=count)
    found = find(tmp_path)
    assert found.classes == ('cat', 'dog')
    assert len(of(found.test, 0)) == tested and len(of(found.test, 1)) == 2
    for label, total in ((0, count), (1, 12)):
        train, test = of(found.train, label), of(found.test, label)
        assert not train & test and len(train | test) == total
    assert found.skipped == []


def test_the_split_is_reproducible_and_random(tmp_path):
    fill(tmp_path / 'a', cat=60, dog=60)
    fill(tmp_path / 'b', dog=60, cat=60)
    found, again = find(tmp_path / 'a'), find(tmp_path / 'b')
    for pairs, pairs_again in ((found.train, again.train), (found.test, again.test)):
        assert [(label, os.path.basename(path)) for label, path in pairs] == [
            (label, os.path.basename(path)) for label, path in pairs_again]
    assert of(found.test, 0) != {f'{index}.png' for index in range(10)}
    assert of(found.test, 0) != of(found.test, 1)


@pytest.mark.parametrize('train, name, other', [
    ('train', 'test', 'val'), ('train', 'val', None), ('train', 'valid', None),
    ('train', 'validation', 'unlabeled'), ('Train', 'Test', None), ('training', 'testing', None),
    ('training_set', 'test_set', 'single_prediction'), ('seg_train', 'seg_test', 'seg_pred'),
    ('train', 'dev', None), ('train2017', 'val2017', None), ('train', 'test', 'old_train'),
    ('Train Images', 'VALIDATION', 'train_val'), ('train', 'val', 'prétest')])
def test_an_existing_split_is_used(tmp_path, train, name, other):
    fill(tmp_path / train, dog=3, cat=2)
    fill(tmp_path / name, dog=1)
    if other:
        fill(tmp_path / other, dog=1)
    found = find(tmp_path)
    assert found.classes == ('cat', 'dog')
    assert (len(of(found.train, 0)), len(of(found.train, 1))) == (2, 3)
    assert found.test == [(1, f'{tmp_path}/{name}/dog/0.png')]
    assert found.skipped == ([(f'{tmp_path}/{other}', 'is not part of the split')] if other else [])


def test_a_split_without_classes_is_named_and_left_out(tmp_path):
    """A flat `test`, as in competitions, beside a labelled `validation`."""
    fill(tmp_path / 'train', dog=3, cat=2)
    fill(tmp_path / 'validation', dog=1, cat=1)
    fill(tmp_path, test=4)
    found = find(tmp_path)
    assert (len(found.train), len(found.test)) == (5, 2)
    assert found.skipped == [(str(tmp_path / 'test'), 'is not part of the split')]


def test_the_folder_that_macos_adds_to_a_zip_is_no_class(tmp_path):
    fill(tmp_path, dog=3, cat=2)
    (tmp_path / '__MACOSX' / 'dog').mkdir(parents=True)
    (tmp_path / '__MACOSX' / 'dog' / '._0.png').touch()
    found = find(tmp_path)
    assert (found.classes, found.skipped) == (('cat', 'dog'), [])


def test_a_training_set_alone_is_split(tmp_path):
    """One sixth of each class. A file or a second training folder beside it is reported."""
    fill(tmp_path / 'train', dog=6, cat=12)
    fill(tmp_path / 'training', cat=1)
    (tmp_path / 'list.csv').touch()
    found = find(tmp_path)
    assert sorted(found.skipped) == [(f'{tmp_path}/{name}', 'is not part of the split')
                                     for name in ('list.csv', 'training')]
    assert (found.classes, len(found.train), len(found.test)) == (('cat', 'dog'), 15, 3)
    fill(tmp_path, test=4)
    with pytest.raises(errors.DataError, match=f'has test, without .*or convert only {tmp_path}/'):
        find(tmp_path)


def test_a_test_set_alone(tmp_path):
    """Its own folders are the classes, of which one may be empty."""
    fill(tmp_path / 'test', dog=2, cat=0)
    found = find(tmp_path)
    assert (found.classes, found.train, found.skipped) == (('cat', 'dog'), None, [])
    assert found.test == [(1, f'{tmp_path}/test/dog/{index}.png') for index in range(2)]


@pytest.mark.parametrize('names', [
    ('test', 'train'), ('test_set', 'training_set'), ('test', 'val'), ('dev', 'train')])
def test_parts_may_be_classes(tmp_path, names):
    """CIFAR-100 has a class `train`. But with no other class, the labels are missing."""
    fill(tmp_path, **dict.fromkeys(names, 6))
    with pytest.raises(errors.DataError, match=f'has {", ".join(names)}, without a folder for each '
                       'class in it: sort the images by class$'):
        find(tmp_path)
    fill(tmp_path, bus=6)
    if names == ('test', 'train'):
        assert find(tmp_path).classes == ('bus', 'test', 'train')


@pytest.mark.parametrize('names', [
    ('freight train', 'passenger train'), ('train', 'tram'), ('covid_test', 'rapid_test')])
def test_classes_whose_names_mean_a_part(tmp_path, names):
    fill(tmp_path, **dict.fromkeys(names, 6))
    assert find(tmp_path).classes == names


FORM = ('holds only folders of folders; expected images in CLASS/, or in train/CLASS/ and '
        'test/CLASS/, where names may contain one of train, training, test, testing, val, valid, '
        'validation, dev as a word')


@pytest.mark.parametrize('paths, place, remedy', [
    (['images/cat', 'images/dog'], '', 'images'),
    (['Images/cat', 'Images/dog', 'Annotation/cat/xml'], '', 'Images'),
    (['data/train/cat', 'data/train/dog', 'data/val/cat'], '', 'data'),
    (['train/train/cat', 'train/train/dog', 'test/test/cat'], '/train', 'train'),
    (['train/cat', 'train/dog', 'test/test/cat', 'test/test/dog'], '/test', 'test'),
    (['v1/cat', 'v1/dog', 'v2/cat', 'v2/dog'], '', None), (['cat/2025/may', 'dog/2026'], '', None)])
def test_folders_of_folders(tmp_path, paths, place, remedy):
    fill(tmp_path, **dict.fromkeys(paths, 3))
    skipped = []
    with pytest.raises(errors.DataError) as error:
        folders.find(str(tmp_path), skipped)
    line = f'{tmp_path}{place} {FORM}'
    if remedy:
        line += f': pass {tmp_path}{place}/{remedy}, or move its folders up'
    assert (str(error.value), skipped) == (line, [])


def test_folders_that_link_to_themselves(tmp_path):
    """A search through all of their folders would not end."""
    for name in 'abc':
        (tmp_path / name).mkdir()
        for link in 'abc':
            (tmp_path / name / link).symlink_to(tmp_path)
    with pytest.raises(errors.DataError, match='holds only folders of folders.*as a word$'):
        find(tmp_path)


def test_names_in_another_unicode_form_are_the_same_class(tmp_path):
    """macOS writes é as e and an accent, most other systems as one character."""
    one, two = 'caf\u00e9', 'cafe\u0301'
    fill(tmp_path / 'train', **{one: 3}, bar=2)
    fill(tmp_path / 'test', **{two: 2}, bar=1)
    found = find(tmp_path)
    assert found.classes == ('bar', one)
    assert len(of(found.train, 1)) == 3
    assert found.test[1:] == [(1, f'{tmp_path}/test/{two}/{k}.png') for k in range(2)]
    fill(tmp_path / 'train', **{two: 1})  # Both forms in one folder.
    assert [label for label, _ in find(tmp_path).train] == [0, 0, 1, 1, 1, 1]


def test_a_name_that_is_not_utf_8(tmp_path):
    fill(tmp_path, cat=2, dog=2)
    os.rename(tmp_path / 'dog', os.fsencode(tmp_path) + b'/caf\xe9')
    with pytest.raises(errors.DataError, match='the name of .*/caf\udce9 is not UTF-8: rename'):
        find(tmp_path)


def test_skipped_files(tmp_path):
    fill(tmp_path, cat=6, dog=6)
    (tmp_path / 'notes.txt').touch()
    (tmp_path / 'photo.png').touch()
    (tmp_path / 'cat' / 'list.csv').touch()
    (tmp_path / 'cat' / '.hidden.png').touch()
    (tmp_path / 'cat' / 'more').mkdir()
    (tmp_path / 'cat' / 'more' / '1.png').touch()
    (tmp_path / '.git').mkdir()
    found = find(tmp_path)
    assert len(found.train) + len(found.test) == 12
    assert found.skipped == [
        (f'{tmp_path}/cat/list.csv', 'is not a file named like an image'),
        (f'{tmp_path}/cat/more', 'is not a file named like an image'),
        (f'{tmp_path}/notes.txt', 'is not in the folder of a class'),
        (f'{tmp_path}/photo.png', 'is not in the folder of a class')]


def test_links_are_followed(tmp_path):
    fill(tmp_path / 'kept', cat=6, dog=6)
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images' / 'cat').symlink_to(tmp_path / 'kept' / 'cat')
    (tmp_path / 'images' / 'dog').mkdir()
    (tmp_path / 'images' / 'dog' / '1.png').symlink_to(tmp_path / 'kept' / 'dog' / '1.png')
    (tmp_path / 'images' / 'dog' / '2.png').symlink_to(tmp_path / 'nowhere')
    (tmp_path / 'images' / 'dog' / 'loop').symlink_to(tmp_path / 'images')
    found = find(tmp_path / 'images')
    assert len(found.train) + len(found.test) == 7
    assert found.skipped == [
        (f'{tmp_path}/images/dog/{name}', 'is not a file named like an image')
        for name in ('2.png', 'loop')]


@pytest.mark.parametrize('counts, words', [
    ({}, 'has 0 folders and 1 files, such as train.mat; expected 2 to 256 classes, each a folder '
     'with its images, or an .npz file: docs/usage.md shows how'),
    ({'cat': 9}, 'has 1 folders and 1 files'),
    ({'train/dog': 3, 'train/cat': 2, 'test/cow': 1}, 'test has cow, missing from .*/train'),
    ({f'c{index}': 1 for index in range(257)}, 'has 257 folders and 1 files')])
def test_folders_that_are_not_classes(tmp_path, counts, words):
    fill(tmp_path, **counts)
    (tmp_path / 'train.mat').touch()
    with pytest.raises(errors.DataError, match=words):
        find(tmp_path)


@pytest.mark.parametrize('name', ['nowhere', 'file.png'])
def test_a_path_that_is_not_a_folder(tmp_path, name):
    (tmp_path / 'file.png').touch()
    with pytest.raises(errors.DataError, match=f'{name} is not a folder; expected one with'):
        find(tmp_path / name)
