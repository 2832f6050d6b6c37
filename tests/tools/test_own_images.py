import collections
import io
import json
import os
import zipfile

from cifar10_lib import console, data_sets, own_images, own_sets

import numpy as np
import pytest
from PIL import Image

FORM = 'CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE'
_values = np.random.RandomState(1)


def write(path, value=None):
    """A file of one grey pixel, or of noise that no other file has; returns its record's pixels."""
    pixels = _values.randint(0, 256, [32, 32, 3]).astype(np.uint8)
    if value is not None:
        pixels[:] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format='PNG')
    return pixels.tobytes()


def fill(folder, **counts):
    """Writes `counts` images of each class."""
    for name, count in counts.items():
        for index in range(count):
            write(folder / name / f'{index}.png')


def read(folder):
    """The images in a folder, and what was skipped, without the reasons that do not occur."""
    skipped = collections.defaultdict(list)
    own = own_images.read_folder(str(folder), skipped)
    return own, {reason: paths for reason, paths in skipped.items() if paths}


def refused(folder):
    with pytest.raises(console.UserError) as error:
        read(folder)
    assert '\n' not in str(error.value)
    return str(error.value)


def pictures(split):
    """{pixels as bytes: label}"""
    return {image.tobytes(): label for image, label in zip(*split)}


# The split without test folders.

def test_about_a_sixth_is_for_testing(tmp_path):
    """Of 600 images, 100 are expected, with a standard deviation of sqrt(600 * 5 / 36) = 9.1."""
    fill(tmp_path, cat=300, dog=300)
    own, _ = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert 60 < len(own.test.labels) < 140
    assert len(own.train.labels) + len(own.test.labels) == 600
    assert not pictures(own.train).keys() & pictures(own.test).keys()
    assert np.bincount(own.test.labels).min() > 20


def test_the_same_images_on_any_computer(tmp_path):
    """Recorded once: of the grey values 0 to 59, those whose images are for testing."""
    for value in range(60):
        write(tmp_path / 'ab'[value % 2] / f'{value}.png', value)
    own, _ = read(tmp_path)
    assert sorted(own.test.images[:, 0, 0, 0].tolist()) == [9, 10, 19, 27, 43]


def test_adding_renaming_and_copying_images_never_moves_one(tmp_path):
    fill(tmp_path / 'a', cat=40, dog=40)
    before, _ = read(tmp_path / 'a')
    (tmp_path / 'a' / 'cat' / '0.png').rename(tmp_path / 'a' / 'cat' / 'zz.png')
    copied = (tmp_path / 'a' / 'dog' / '3.png').read_bytes()
    (tmp_path / 'a' / 'dog' / 'copy.png').write_bytes(copied)
    fill(tmp_path / 'a', cow=20)
    for index in range(100, 120):
        write(tmp_path / 'a' / 'cat' / f'{index}.png')
    after, _ = read(tmp_path / 'a')
    assert after.classes == ['cat', 'cow', 'dog']
    assert pictures(before.train).keys() <= pictures(after.train).keys()
    assert pictures(before.test).keys() <= pictures(after.test).keys()
    assert not pictures(after.train).keys() & pictures(after.test).keys()
    assert own_images.doubts(after) == []


# Folders.

@pytest.mark.parametrize('train, test, other', [
    ('train', 'test', 'val'), ('train', 'val', None), ('train', 'valid', None),
    ('train', 'validation', 'unlabeled'), ('Train', 'TEST', None), ('training', 'test', 'old')])
def test_a_given_split_is_used(tmp_path, train, test, other):
    fill(tmp_path / train, dog=3, cat=2)
    fill(tmp_path / test, dog=1)
    beside = [other] if other else []
    for name in beside:
        fill(tmp_path / name, dog=1)
    own, skipped = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert own.train.labels.tolist() == [0, 0, 1, 1, 1] and own.test.labels.tolist() == [1]
    assert sum(skipped.values(), []) == [f'{tmp_path}/{name}' for name in beside]


def test_a_flat_test_folder_beside_a_sorted_one_is_skipped(tmp_path):
    """As in competitions."""
    fill(tmp_path / 'train', dog=3, cat=2)
    fill(tmp_path / 'validation', dog=1, cat=1)
    fill(tmp_path, test=4)
    own, skipped = read(tmp_path)
    assert (len(own.train.labels), len(own.test.labels)) == (5, 2)
    assert skipped == {'beside the training and the test folder': [f'{tmp_path}/test']}


def test_a_class_may_be_named_like_a_part(tmp_path):
    """CIFAR-100 has a class `train`."""
    fill(tmp_path, bus=9, train=9)
    assert read(tmp_path)[0].classes == ['bus', 'train']


@pytest.mark.parametrize('names', [('test', 'train'), ('Train', 'Val')])
def test_parts_without_classes_are_refused(tmp_path, names):
    """Otherwise the network would learn to tell training images from test images."""
    fill(tmp_path, **dict.fromkeys(names, 3))
    assert refused(tmp_path) == (f'{tmp_path} has {", ".join(names)}, without a folder for each '
                                 f'class in it; expected {FORM}')


@pytest.mark.parametrize('counts, found', [
    ({}, '0 folders with images'), ({'cat': 9}, '1 folders with images'),
    ({'v1/cat': 2, 'v1/dog': 2, 'v2/cat': 2}, '0 folders with images'),
    ({'train/cat': 2, 'train/dog': 2}, '0 folders with images')])
def test_folders_that_are_not_classes(tmp_path, counts, found):
    fill(tmp_path, **counts)
    assert refused(tmp_path) == f'{tmp_path} has {found}; expected 2 to 256 classes: {FORM}'


def test_more_classes_than_a_label_byte_has_values(tmp_path):
    for label in range(257):
        (tmp_path / f'{label}').mkdir()
        (tmp_path / f'{label}' / '1.png').touch()
    assert 'has 257 folders with images; expected 2 to 256 classes' in refused(tmp_path)


def test_a_class_without_training_images_is_named(tmp_path):
    fill(tmp_path / 'train', cat=2, dog=2)
    fill(tmp_path / 'test', cow=1)
    assert refused(tmp_path) == (f'{tmp_path}/test has cow, missing from {tmp_path}/train: add '
                                 'them there, or remove them')


def test_what_is_skipped_is_named_with_the_reason(tmp_path):
    fill(tmp_path, cat=6, dog=6)
    for name in ('.git', '@eaDir', 'lost+found', '__MACOSX'):
        fill(tmp_path, **{name: 1})
    for name in ('cat/list.csv', 'cat/._0.png', 'cat/more/x', 'empty/x', 'notes.txt', 'photo.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'dog' / 'broken.png').write_text('text')
    Image.fromarray(np.full([9, 9], 4095, np.uint16)).save(tmp_path / 'dog' / 'deep.png')
    own, skipped = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert len(own.train.labels) + len(own.test.labels) == 12
    assert skipped == {
        'hidden, or added by the system': [
            f'{tmp_path}/{name}' for name in ('.git', '@eaDir', '__MACOSX', 'lost+found')],
        'not a file that is named like an image': [
            f'{tmp_path}/{name}' for name in ('cat/._0.png', 'cat/list.csv', 'cat/more',
                                              'empty/x')],
        'a folder without images': [f'{tmp_path}/empty'],
        'not in the folder of a class': [
            f'{tmp_path}/{name}' for name in ('notes.txt', 'photo.png')],
        'not readable': [
            f'{tmp_path}/dog/broken.png cannot be read (damaged, or in a format that Pillow does '
            'not read)',
            f'{tmp_path}/dog/deep.png cannot be read (more than 8 bits per channel, or signed '
            'values: scale them to 0 to 255, as in docs/usage.md)']}


def test_links_are_followed(tmp_path):
    fill(tmp_path / 'kept', cat=6, dog=6)
    (tmp_path / 'images' / 'dog').mkdir(parents=True)
    (tmp_path / 'images' / 'cat').symlink_to(tmp_path / 'kept' / 'cat')
    for name, target in (('1.png', 'kept/dog/1.png'), ('2.png', 'nowhere'), ('loop', 'images')):
        (tmp_path / 'images' / 'dog' / name).symlink_to(tmp_path / target)
    own, skipped = read(tmp_path / 'images')
    assert len(own.train.labels) + len(own.test.labels) == 7
    assert skipped == {'not a file that is named like an image': [
        f'{tmp_path}/images/dog/2.png', f'{tmp_path}/images/dog/loop']}


def test_names_in_another_unicode_form_are_the_same_class(tmp_path):
    """macOS writes é as e and an accent, most other systems as one character."""
    one, two = 'caf\u00e9', 'cafe\u0301'
    fill(tmp_path / 'train', **{one: 3, two: 1}, bar=2)
    fill(tmp_path / 'test', **{two: 2}, bar=1)
    own, _ = read(tmp_path)
    assert own.classes == ['bar', one]
    assert own.train.labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert own.test.labels.tolist() == [0, 1, 1]


def test_folders_with_special_characters(tmp_path):
    folder = tmp_path / 'my [images] \\ *'
    fill(folder, **{'cat [1]': 3, 'dog?': 3})
    own, skipped = read(folder)
    assert (own.classes, skipped) == (['cat [1]', 'dog?'], {})
    assert len(own.train.labels) + len(own.test.labels) == 6


def test_a_name_that_is_not_utf_8(tmp_path):
    fill(tmp_path, cat=2, dog=2)
    os.rename(tmp_path / 'dog', os.fsencode(tmp_path) + b'/caf\xe9')
    assert '"classes" is ["caf\\udce9", "cat"]; expected a list of 2 to 256 different names' in (
        refused(tmp_path))


@pytest.mark.parametrize('name', ['nowhere', 'file.png'])
def test_a_path_that_is_not_a_folder(tmp_path, name):
    (tmp_path / 'file.png').touch()
    assert refused(tmp_path / name) == (
        f'{tmp_path}/{name} is not a folder; expected one with {FORM}')


# What makes a test doubtful.

def test_images_that_occur_twice_are_counted(tmp_path):
    """Two test images are also training images; one image is in two classes."""
    fill(tmp_path / 'train', cat=3, dog=3)
    fill(tmp_path / 'test', cat=3, dog=3)
    for value, names in ((10, ('train/cat/a', 'test/cat/b')), (20, ('train/dog/a', 'test/cat/c')),
                         (30, ('train/cat/c', 'train/cat/d'))):
        for name in names:
            write(tmp_path / f'{name}.png', value)
    own, _ = read(tmp_path)
    assert own_images.doubts(own) == [
        '2 test images are also training images, which makes the accuracy look better than it is: '
        'remove them from one of the sets.',
        '1 images are in more than one class: keep each in one.']


def test_a_class_without_test_images(tmp_path):
    fill(tmp_path / 'train', ape=2, cat=2, dog=2)
    fill(tmp_path / 'test', cat=1)
    own, _ = read(tmp_path)
    assert own_images.doubts(own) == ['No test images of ape, dog: add images.']


# Arrays.

NAMES = np.array(['airplane', 'automobile', 'bird'])


def arrays(**changes):
    """30 training and 6 test images of noise with the labels 0, 1 and 2 in turn."""
    random = np.random.RandomState(1)
    return {'x_train': random.randint(0, 256, [30, 32, 32, 3]).astype(np.uint8),
            'y_train': np.arange(30)[:, np.newaxis] % 3,
            'x_test': random.randint(0, 256, [6, 32, 32, 3]).astype(np.uint8),
            'y_test': np.arange(6).astype(np.uint8) % 3, **changes}


@pytest.mark.parametrize('given, names', [
    ({}, ['0', '1', '2']), ({'classes': NAMES}, NAMES.tolist())])
def test_each_image_of_an_array_keeps_its_label_and_its_pixels(tmp_path, given, names):
    """The label, then plane by plane, each row by row; the records are in a random order."""
    np.savez_compressed(tmp_path / 'a.npz', **arrays(**given))
    (tmp_path / 'made').mkdir()
    own_images.write(tmp_path / 'made', 'made', own_images.read_arrays(tmp_path / 'a.npz'))
    row = own_sets.find(tmp_path / 'made')
    data_sets.check(row, row.folder)
    assert row.classes == tuple(names)
    for split, count in (('train', 30), ('test', 6)):
        records = np.fromfile(tmp_path / 'made' / f'{split}.bin', np.uint8).reshape(count, 3073)
        pixels = arrays()[f'x_{split}'].transpose(0, 3, 1, 2).reshape(count, 3072)
        expected = [bytes([k % 3]) + pixels[k].tobytes() for k in range(count)]
        found = [record.tobytes() for record in records]
        assert sorted(found) == sorted(expected) and found != expected


@pytest.mark.parametrize('dtype, classes', [(np.uint8, 256), (np.int8, 128), (np.float64, 3)])
def test_as_many_classes_as_the_labels_have_values(tmp_path, dtype, classes):
    np.savez(tmp_path / 'a.npz', x_train=np.zeros([classes, 32, 32, 3], np.uint8),
             y_train=np.arange(classes).astype(dtype), x_test=np.zeros([1, 32, 32, 3], np.uint8),
             y_test=np.zeros(1, dtype))
    own = own_images.read_arrays(tmp_path / 'a.npz')
    assert len(own.classes) == classes
    assert own.train.labels.tolist() == list(range(classes))


LABELS = '; expected labels from 0, int [count] or [count, 1]'


@pytest.mark.parametrize('change, words', [
    ({'x_train': arrays()['x_train'][:, :28]},
     'x_train is uint8 (30, 28, 32, 3) with 30 labels; expected uint8 (30, 32, 32, 3)'),
    ({'x_test': arrays()['x_test'] / 255}, 'x_test is float64 (6, 32, 32, 3)'),
    ({'y_train': np.arange(29) % 3}, 'x_train is uint8 (30, 32, 32, 3) with 29 labels'),
    ({'y_train': np.eye(3, dtype=int)[np.arange(30) % 3]}, 'y_train is int64 (30, 3)' + LABELS),
    ({'y_test': np.int64(1)}, 'y_test is int64 ()' + LABELS),
    ({'y_train': np.array(['cat'] * 30)}, 'y_train is <U3 (30,)' + LABELS),
    ({'y_train': np.array([None] * 30)}, 'cannot be read ('),  # Would have to be unpickled.
    ({'y_train': np.arange(30) % 3 + 1, 'y_test': np.arange(6) % 3 + 1},
     'y_train holds 1 to 3; expected whole numbers from 0 to 2'),
    ({'y_train': np.full(30, np.nan)}, 'y_train holds nan to nan; expected whole numbers from 0'),
    ({'y_train': np.arange(30) + 10**9},
     'y_train holds 1000000000 to 1000000029; expected whole numbers from 0 to 29'),
    ({'y_test': np.full(6, 3)}, 'y_test holds 3 to 3; expected whole numbers from 0 to 2'),
    ({'classes': np.array(['a', 'a', 'b'])}, 'expected a list of 2 to 256 different names')])
def test_other_arrays_are_refused(tmp_path, change, words):
    np.savez_compressed(tmp_path / 'a.npz', **arrays(**change))
    with pytest.raises(console.UserError) as error:
        own_images.read_arrays(tmp_path / 'a.npz')
    assert words in str(error.value) and '\n' not in str(error.value)


def damaged(path):
    data = bytearray(path.read_bytes())
    data[5000:6000] = bytes(1000)
    path.write_bytes(data)


def without_labels(path):
    np.savez(path, x_train=arrays()['x_train'], x_test=arrays()['x_test'])


def claims_three_gigabytes(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {'descr': '|u1', 'fortran_order': False, 'shape': (3 << 30,)})
    with zipfile.ZipFile(path, 'a') as archive:
        archive.writestr('y_train.npy', header.getvalue())


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize('change', [
    damaged, without_labels, claims_three_gigabytes, os.remove,
    lambda path: path.write_bytes(path.read_bytes()[:-100]),  # The list of its files.
    lambda path: path.write_bytes(b'text'), lambda path: path.write_bytes(b'')])
def test_other_files_are_refused(tmp_path, change):
    path = tmp_path / 'a.npz'
    np.savez_compressed(path, **arrays())
    change(path)
    with pytest.raises(console.UserError) as error:
        own_images.read_arrays(path)
    line = str(error.value)
    assert line.startswith(f'{path} cannot be read (') and '\n' not in line and len(line) < 600
    assert line.endswith('; expected the arrays x_train, y_train, x_test, y_test: '
                         'uint8 [count, 32, 32, 3], and labels from 0')


# The written files.

def split(*labels):
    """Images whose bytes all equal their label, and the labels."""
    return own_images.Split(
        np.full([len(labels), 32, 32, 3], np.reshape(labels, [-1, 1, 1, 1]), np.uint8),
        np.array(labels, int))


def test_the_files(tmp_path):
    own_images.write(tmp_path, 'pets', own_images.OwnImages(
        ['cat', 'dög'], split(0, 1, 1), split(1, 0)))
    assert json.loads((tmp_path / 'dataset.json').read_text(encoding='utf-8')) == {
        'name': 'pets', 'classes': ['cat', 'dög'], 'train_files': {'train.bin': 3},
        'test_files': {'test.bin': 2}}
    for name, count, ones in (('train.bin', 3, 2), ('test.bin', 2, 1)):
        records = np.fromfile(tmp_path / name, np.uint8).reshape(count, 3073)
        assert (records == records[:, :1]).all() and records[:, 0].sum() == ones


@pytest.mark.parametrize('train, test, line', [
    (split(0, 0), split(0, 1), 'no training images of dog: add some'),
    (split(), split(0), 'no training images of cat, dog: add some'),
    (split(0, 1), split(), f'no test images: add images, or sort them into {FORM}')])
def test_sets_that_are_not_complete_are_refused(tmp_path, train, test, line):
    with pytest.raises(console.UserError, match=f'^{line}$'):
        own_images.write(tmp_path, 'pets', own_images.OwnImages(['cat', 'dog'], train, test))
    assert os.listdir(tmp_path) == []
