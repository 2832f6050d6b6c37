import io
import os
import zipfile

import numpy as np
import pytest

import cifar10_convert
from cifar10_lib.datasets import custom
from cifar10_lib.program import errors

NAMES = np.array(['airplane', 'automobile', 'bird'])


def arrays(**changes):
    """30 training and 6 test images of noise with the labels 0, 1 and 2 in turn."""
    random = np.random.RandomState(1)
    return {'x_train': random.randint(0, 256, [30, 32, 32, 3]).astype(np.uint8),
            'y_train': np.arange(30)[:, np.newaxis] % 3,
            'x_test': random.randint(0, 256, [6, 32, 32, 3]).astype(np.uint8),
            'y_test': np.arange(6).astype(np.uint8) % 3, **changes}


def save(path, **changes):
    np.savez_compressed(path, **arrays(**changes))
    return path


@pytest.mark.parametrize('given, names', [
    ({}, ('0', '1', '2')), ({'classes': NAMES}, tuple(NAMES))])
def test_each_image_keeps_its_label_and_its_pixels(tmp_path, given, names):
    """The label, then plane by plane, each row by row; the records are in a random order."""
    cifar10_convert.convert(str(save(tmp_path / 'a.npz', **given)), str(tmp_path / 'made'))
    row = custom.read(tmp_path / 'made')
    row.check(tmp_path / 'made')
    assert row.classes == names
    for split, count in (('train', 30), ('test', 6)):
        records = np.fromfile(tmp_path / 'made' / f'{split}.bin', np.uint8).reshape(count, 3073)
        pixels = arrays()[f'x_{split}'].transpose(0, 3, 1, 2).reshape(count, 3072)
        expected = [bytes([k % 3]) + pixels[k].tobytes() for k in range(count)]
        found = [record.tobytes() for record in records]
        assert sorted(found) == sorted(expected) and found != expected


@pytest.mark.parametrize('dtype, classes', [(np.uint8, 256), (np.int8, 128)])
def test_as_many_classes_as_the_type_of_the_labels_has(tmp_path, dtype, classes):
    np.savez(tmp_path / 'a.npz', x_train=np.zeros([classes, 32, 32, 3], np.uint8),
             y_train=np.arange(classes).astype(dtype), x_test=np.zeros([1, 32, 32, 3], np.uint8),
             y_test=np.zeros(1, dtype))
    cifar10_convert.convert(str(tmp_path / 'a.npz'), str(tmp_path / 'made'))
    assert len(custom.read(tmp_path / 'made').classes) == classes


def refused(path, tmp_path):
    """Converts data that is refused in one line and leaves nothing; returns the line."""
    with pytest.raises(errors.DataError) as error:
        cifar10_convert.convert(str(path), str(tmp_path / 'made'))
    assert '\n' not in str(error.value) and len(str(error.value)) < 600
    assert not [name for name in os.listdir(tmp_path) if name.startswith('made')]
    return str(error.value)


FORM = '; expected labels from 0, int [count] or [count, 1]'


@pytest.mark.parametrize('change, words', [
    ({'x_train': arrays()['x_train'][:, :28]},
     'x_train is uint8 (30, 28, 32, 3) with 30 labels; expected uint8 (30, 32, 32, 3)'),
    ({'x_test': arrays()['x_test'] / 255}, 'x_test is float64 (6, 32, 32, 3)'),
    ({'x_test': np.zeros([0, 32, 32, 3], np.uint8), 'y_test': []}, 'no test images: add some'),
    ({'y_train': np.arange(29) % 3}, 'x_train is uint8 (30, 32, 32, 3) with 29 labels'),
    ({'y_train': np.eye(3, dtype=int)[np.arange(30) % 3]}, 'y_train is int64 (30, 3)' + FORM),
    ({'y_test': np.eye(3)[np.arange(6) % 3]}, 'y_test is float64 (6, 3)' + FORM),
    ({'y_test': np.int64(1)}, 'y_test is int64 ()' + FORM),
    ({'y_train': np.array(['cat'] * 30)}, 'y_train is <U3 (30,)' + FORM),
    ({'y_train': np.array([None] * 30)},  # Would have to be unpickled.
     'cannot be read ('),
    ({'y_train': np.arange(30) % 3 + 1, 'y_test': np.arange(6) % 3 + 1},
     'y_train holds 1 to 3; expected whole numbers from 0 to 2'),
    ({'y_train': np.full(30, np.nan)}, 'y_train holds nan to nan; expected whole numbers from 0'),
    ({'y_train': np.arange(30) + 10**9},
     'y_train holds 1000000000 to 1000000029; expected whole numbers from 0 to 29'),
    ({'y_train': np.zeros(30, int)}, 'no training images of 1: add some'),
    ({'y_train': np.arange(30) % 2, 'classes': NAMES}, 'no training images of bird: add some'),
    ({'y_test': np.full(6, 3)}, 'y_test holds 3 to 3; expected whole numbers from 0 to 2'),
    ({'classes': np.array(['a', 'a', 'b'])}, 'expected a list of 2 to 256 different names')])
def test_other_arrays_are_rejected(tmp_path, change, words):
    assert words in refused(save(tmp_path / 'a.npz', **change), tmp_path)


@pytest.mark.parametrize('labels, classes', [
    ([0, 2, 2], 3), ([0, 0, 0], 2), ([[0], [1], [2]], 3), ([0.0, 1.0, 9.0], 10)])
def test_a_test_set_may_lack_classes(tmp_path, labels, classes):
    np.savez(tmp_path / 'a.npz', x_test=arrays()['x_test'][:3], y_test=labels)
    cifar10_convert.convert(str(tmp_path / 'a.npz'), str(tmp_path / 'made'))
    assert custom.read(tmp_path / 'made').classes == tuple(map(str, range(classes)))


@pytest.mark.parametrize('labels, words', [
    ([0, 1, 256], 'y_test holds 0 to 256; expected whole numbers from 0 to 255'),
    ([0, 1, np.nan], 'y_test holds nan to nan; expected'), (['a', 'b', 'c'], 'y_test is <U1 (3,)')])
def test_other_labels_of_a_test_set_are_rejected(tmp_path, labels, words):
    np.savez(tmp_path / 'a.npz', x_test=arrays()['x_test'][:3], y_test=labels)
    assert words in refused(tmp_path / 'a.npz', tmp_path)


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
def test_other_files_are_rejected(tmp_path, change):
    path = save(tmp_path / 'a.npz')
    change(path)
    line = refused(path, tmp_path)
    assert line.startswith(f'{path} cannot be read (')
    assert line.endswith('; expected the arrays x_train, y_train, x_test, y_test: '
                         'uint8 [count, 32, 32, 3], and labels from 0')
