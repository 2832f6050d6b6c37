from cifar10_lib import errors
from classification_lib import data_sets, own_images

import numpy as np
import pytest
from PIL import Image

FORM = 'CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE'
_values = np.random.RandomState(1)


def write(path, value=None):
    """A file of one grey, or of noise that no other file has."""
    pixels = _values.randint(0, 256, [32, 32, 3]).astype(np.uint8)
    if value is not None:
        pixels[:] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format='PNG')


def fill(folder, **counts):
    """Writes `counts` images of each class."""
    for name, count in counts.items():
        for index in range(count):
            write(folder / name / f'{index}.png')


def read(folder):
    """The images in a folder, and lines about what was skipped, without the folder's path."""
    skipped = []
    own = own_images.read_folder(str(folder), skipped)
    return own, sorted(line.removeprefix(f'{folder}/') for line in skipped)


def pictures(split):
    """{pixels as bytes: label}"""
    return {image.tobytes(): label for image, label in zip(*split)}


# The split without test folders.

def test_about_a_sixth_is_for_testing(tmp_path):
    """Recorded once, the same on any computer: of the 256 grey values, those whose images are. 43
    are expected, with a standard deviation of 6."""
    for value in range(256):
        write(tmp_path / ('cat', 'dog')[value % 2] / f'{value}.png', value)
    own, _ = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert sorted(own.test.images[:, 0, 0, 0].tolist())[:5] == [9, 10, 19, 27, 43]
    assert (len(own.train.labels), len(own.test.labels)) == (224, 32)


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
    ('train', 'test', 'val/dog'), ('Train', 'VAL', 'old/dog'),
    ('training', 'valid', 'unlabeled'), ('train', 'validation', 'test')])
def test_a_given_split_is_used(tmp_path, train, test, other):
    """A `test` without a folder for each class, as in competitions, is skipped."""
    fill(tmp_path, **{f'{train}/dog': 3, f'{train}/cat': 2, f'{test}/dog': 1, other: 1})
    own, skipped = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert own.train.labels.tolist() == [0, 0, 1, 1, 1] and own.test.labels.tolist() == [1]
    assert skipped == [f'{other.removesuffix("/dog")} (beside the training and the test folder)']


def test_a_class_may_be_named_like_a_part(tmp_path):
    """CIFAR-100 has a class `train`."""
    fill(tmp_path, bus=9, train=9)
    assert read(tmp_path)[0].classes == ['bus', 'train']


@pytest.mark.parametrize('counts, line', [
    ({'cat': 9}, f' has 1 folders with readable images; expected 2 to 256 classes: {FORM}'),
    ({'train/cat': 2, 'train/dog': 2}, f' has only train; expected {FORM}'),
    ({f'{label}': 1 for label in range(257)}, ' has 257 folders with readable images; '),
    ({'train/cat': 2, 'train/dog': 2, 'test/cow': 1}, '/test has cow, missing from '),
    # Otherwise the network would learn to tell training images from test images.
    ({'Train': 3, 'Val': 3}, ' has only Train, Val; expected ')])
def test_folders_that_are_not_classes(tmp_path, counts, line):
    fill(tmp_path, **counts)
    with pytest.raises(errors.UserError, match=f'^{tmp_path}{line}.*$'):
        read(tmp_path)


def test_what_is_skipped_is_named_with_the_reason(tmp_path):
    """A folder without an image that can be read is not a class."""
    fill(tmp_path, **{'cat': 6, 'dog': 6, '.git': 1})
    for name in ('cat/list.csv', 'cat/._0.png', 'cat/more/x', '__MACOSX/._0.png',
                 'cow/broken.png', 'notes.txt', 'photo.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'dog' / 'broken.png').write_text('text')
    (tmp_path / 'dog' / '9.HEIC').touch()
    write(tmp_path / 'dog' / '9.HEIC.png')
    own, skipped = read(tmp_path)
    assert own.classes == ['cat', 'dog']
    assert len(own.train.labels) + len(own.test.labels) == 13
    broken = 'cannot be read (damaged, or in a format that Pillow does not read; for HEIC, the ' \
        'format of iPhones, see docs/usage.md)'
    assert skipped == sorted([
        *(f'{name} (not a folder, or hidden)' for name in ('.git', 'notes.txt', 'photo.png')),
        *(f'{name} (not named like an image)' for name in (
            '__MACOSX/._0.png', 'cat/._0.png', 'cat/list.csv')),
        'cat/more (a folder inside a class)', 'dog/9.HEIC (its PNG is used)',
        '__MACOSX (no images)',
        f'cow/broken.png {broken}', f'dog/broken.png {broken}'])


def test_links_are_followed(tmp_path):
    fill(tmp_path / 'kept', cat=6, dog=6)
    (tmp_path / 'images' / 'dog').mkdir(parents=True)
    (tmp_path / 'images' / 'cat').symlink_to(tmp_path / 'kept' / 'cat')
    (tmp_path / 'images' / 'dog' / '1.png').symlink_to(tmp_path / 'kept' / 'dog' / '1.png')
    own, skipped = read(tmp_path / 'images')
    assert len(own.train.labels) + len(own.test.labels) == 7 and skipped == []


def test_names_in_another_unicode_form_are_the_same_class(tmp_path):
    """macOS writes é as e and an accent, most other systems as one character."""
    one, two = 'caf\u00e9', 'cafe\u0301'
    fill(tmp_path / 'train', **{one: 3, two: 1}, bar=2)
    fill(tmp_path / 'test', **{two: 2}, bar=1)
    own, _ = read(tmp_path)
    assert own.classes == ['bar', one]
    assert own.train.labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert own.test.labels.tolist() == [0, 1, 1]


# What makes a test doubtful.

def test_what_makes_a_test_doubtful(tmp_path):
    """Two test images are also training images; one image is in two classes; no test apes."""
    fill(tmp_path / 'train', cat=3, dog=3, ape=2)
    fill(tmp_path / 'test', cat=3)
    for value, names in ((10, ('train/cat/a', 'test/cat/b')), (20, ('train/dog/a', 'test/cat/c')),
                         (30, ('train/cat/c', 'train/cat/d'))):
        for name in names:
            write(tmp_path / f'{name}.png', value)
    own, _ = read(tmp_path)
    assert sorted(own_images.doubts(own)) == [
        '1 images are in more than one class: keep each in one.',
        '2 test images are also training images, which makes the accuracy look better than it is: '
        'remove them from one of the sets.',
        'No test images of ape, dog: add images.']


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
    row = data_sets.find(tmp_path / 'made')
    data_sets.check(row, row.folder)
    assert row.classes == tuple(names)
    for split, count in (('train', 30), ('test', 6)):
        records = np.fromfile(tmp_path / 'made' / f'{split}.bin', np.uint8).reshape(count, 3073)
        pixels = arrays()[f'x_{split}'].transpose(0, 3, 1, 2).reshape(count, 3072)
        expected = [bytes([k % 3]) + pixels[k].tobytes() for k in range(count)]
        found = [record.tobytes() for record in records]
        assert sorted(found) == sorted(expected) and found != expected


@pytest.mark.parametrize('change, words', [
    ({'x_train': arrays()['x_train'][:, :28]},
     'x_train is uint8 (30, 28, 32, 3) with 30 labels; expected uint8 (30, 32, 32, 3)'),
    ({'x_test': arrays()['x_test'] / 255}, 'x_test is float64 (6, 32, 32, 3)'),
    ({'y_train': np.eye(3, dtype=int)[np.arange(30) % 3]},
     'y_train is int64 (30, 3); expected labels from 0, int [count] or [count, 1]'),
    ({'y_train': np.array(['cat'] * 30)}, 'y_train is <U3 (30,); expected labels from 0, int '),
    ({'y_train': np.array([None] * 30)}, 'cannot be read ('),  # Would have to be unpickled.
    ({'y_train': np.arange(30) % 3 + 1, 'y_test': np.arange(6) % 3 + 1},
     'y_train holds 1 to 3; expected whole numbers from 0 to 2'),
    ({'classes': np.array(['a', 'a', 'b'])}, 'expected a list of 2 to 256 different names')])
def test_other_arrays_are_refused(tmp_path, change, words):
    np.savez_compressed(tmp_path / 'a.npz', **arrays(**change))
    with pytest.raises(errors.UserError) as error:
        own_images.read_arrays(tmp_path / 'a.npz')
    assert words in str(error.value) and '\n' not in str(error.value)


@pytest.mark.parametrize('data', [None, b'text'])
def test_files_without_these_arrays_are_refused(tmp_path, data):
    if data:
        (tmp_path / 'a.npz').write_bytes(data)
    with pytest.raises(errors.UserError, match=(
            r'/a.npz cannot be read \(.*\); expected the arrays x_train, y_train, x_test, y_test')):
        own_images.read_arrays(tmp_path / 'a.npz')
