import os

import pytest

from cifar10_lib.datasets import folders
from cifar10_lib.program import errors


def fill(folder, **counts):
    """Creates empty files named like images: `counts` of each class."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            (folder / name / f'{index}.png').touch()


def of(labelled_paths, label):
    return {os.path.basename(path) for label_, path in labelled_paths if label_ == label}


@pytest.mark.parametrize('count, tested', [(1, 0), (2, 1), (5, 1), (6, 1), (11, 1), (12, 2)])
def test_a_sixth_of_each_class_is_for_testing(tmp_path, count, tested):
    fill(tmp_path, dog=12, cat=count)
    found = folders.find(tmp_path)
    assert found.classes == ('cat', 'dog')
    assert len(of(found.test, 0)) == tested and len(of(found.test, 1)) == 2
    for label, total in ((0, count), (1, 12)):
        train, test = of(found.train, label), of(found.test, label)
        assert not train & test and len(train | test) == total
    assert found.skipped == []


def test_the_split_is_reproducible_and_mixed(tmp_path):
    fill(tmp_path / 'a', cat=60, dog=60)
    fill(tmp_path / 'b', dog=60, cat=60)
    found, again = folders.find(tmp_path / 'a'), folders.find(tmp_path / 'b')
    for pairs, pairs_again in ((found.train, again.train), (found.test, again.test)):
        assert [(label, os.path.basename(path)) for label, path in pairs] == [
            (label, os.path.basename(path)) for label, path in pairs_again]
    assert {label for label, _ in found.train[:10]} == {0, 1}
    assert of(found.test, 0) != {f'{index}.png' for index in range(10)}
    assert of(found.test, 0) != of(found.test, 1)


@pytest.mark.parametrize('train, name, other', [
    ('train', 'test', 'val'), ('train', 'val', None), ('train', 'valid', None),
    ('train', 'validation', 'unlabeled'), ('Train', 'Test', None), ('training', 'testing', None)])
def test_an_existing_split_is_used(tmp_path, train, name, other):
    fill(tmp_path / train, dog=3, cat=2)
    fill(tmp_path / name, dog=1)
    if other:
        fill(tmp_path / other, dog=1)
    found = folders.find(tmp_path)
    assert found.classes == ('cat', 'dog')
    assert (len(of(found.train, 0)), len(of(found.train, 1))) == (2, 3)
    assert found.test == [(1, f'{tmp_path}/{name}/dog/0.png')]
    assert found.skipped == (
        [(f'{tmp_path}/{other}', 'is not part of the split')] if other else [])


def test_train_and_test_may_be_classes(tmp_path):
    """CIFAR-100 has a class `train`. But with no other class, the labels are missing."""
    fill(tmp_path, train=6, test=6)
    with pytest.raises(errors.DataError, match='has test, train, without a folder for each class '
                       'in them or a trainLabels.csv: sort the images by class'):
        folders.find(tmp_path)
    fill(tmp_path, bus=6)
    assert folders.find(tmp_path).classes == ('bus', 'test', 'train')


def kaggle(folder, labels, images=4):
    """Creates Kaggle's layout with these lines of labels and empty files."""
    fill(folder, train=images, test=3)
    (folder / 'trainLabels.csv').write_text('id,label\n' + ''.join(f'{line}\n' for line in labels))


def test_kaggles_labels(tmp_path):
    """Image 2 has no label; of the two dogs, one is for testing; the test images have no labels."""
    kaggle(tmp_path, ['0,dog', '1,cat', '3,dog'])
    found = folders.find(tmp_path)
    assert found.classes == ('cat', 'dog')
    assert of(found.train, 0) == {'1.png'}
    assert of(found.train, 1) | of(found.test, 1) == {'0.png', '3.png'}
    assert len(found.train) == 2
    assert found.skipped == [(f'{tmp_path}/test', 'has no label in trainLabels.csv'),
                             (f'{tmp_path}/train/2.png', 'has no label in trainLabels.csv')]


@pytest.mark.parametrize('labels, words', [
    (['0,dog', '1'], 'trainLabels.csv has the line 1; expected ID,LABEL'),
    (['0,"' + 'dog' * 50000], 'trainLabels.csv is damaged \\(field larger than'),
    (['0,dog', '1,cat,x' + 80 * 'y'], 'has the line 1,cat,xyy+; expected'),
    ([], 'has 0 classes; expected 2 to 256')])
def test_kaggles_labels_with_mistakes(tmp_path, labels, words):
    kaggle(tmp_path, labels)
    with pytest.raises(errors.DataError, match=words):
        folders.find(tmp_path)


def test_a_label_cannot_name_a_file_outside(tmp_path):
    kaggle(tmp_path, ['../../etc/0,dog', '1,cat'])
    assert {path for _, path in folders.find(tmp_path).train} == {
        f'{tmp_path}/train/0.png', f'{tmp_path}/train/1.png'}


def test_a_class_without_training_images(tmp_path):
    fill(tmp_path / 'train', dog=3, cat=2)
    fill(tmp_path / 'test', cow=1)
    with pytest.raises(errors.DataError, match='test has cow, missing from .*/train'):
        folders.find(tmp_path)


def test_skipped_files(tmp_path):
    fill(tmp_path, cat=6, dog=6)
    (tmp_path / 'notes.txt').touch()
    (tmp_path / 'photo.png').touch()
    (tmp_path / 'cat' / 'list.csv').touch()
    (tmp_path / 'cat' / '.hidden.png').touch()
    (tmp_path / 'cat' / 'more').mkdir()
    (tmp_path / 'cat' / 'more' / '1.png').touch()
    (tmp_path / '.git').mkdir()
    found = folders.find(tmp_path)
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
    found = folders.find(tmp_path / 'images')
    assert len(found.train) + len(found.test) == 7
    assert found.skipped == [
        (f'{tmp_path}/images/dog/{name}', 'is not a file named like an image')
        for name in ('2.png', 'loop')]


@pytest.mark.parametrize('counts, words', [
    ({}, 'has 0 classes; expected 2 to 256, each a folder with its images'),
    ({'cat': 9}, 'has 1 classes'),
    ({f'c{index}': 1 for index in range(257)}, 'has 257 classes'),
    ({'cat': 9, 'dog': 0}, r'dog has no image \(.jpg, .jpeg, .png, .gif, .bmp, .webp,')])
def test_folders_that_are_not_classes(tmp_path, counts, words):
    fill(tmp_path, **counts)
    with pytest.raises(errors.DataError, match=words):
        folders.find(tmp_path)


@pytest.mark.parametrize('name', ['nowhere', 'file.png'])
def test_a_path_that_is_not_a_folder(tmp_path, name):
    (tmp_path / 'file.png').touch()
    with pytest.raises(errors.DataError, match=f'{name} is not a folder; expected one with'):
        folders.find(tmp_path / name)
