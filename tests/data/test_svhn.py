import os
import struct

import numpy as np
import pytest

from cifar10_lib.datasets import svhn
from cifar10_lib.program import errors

scipy_io = pytest.importorskip('scipy.io')

PIXELS = np.random.RandomState(1).randint(0, 256, [32, 32, 3, 5]).astype(np.uint8)
LABELS = np.array([[1], [10], [9], [2], [10]])


def write(folder, is_compressed=True, **arrays):
    """Writes the same arrays to both of SVHN's files."""
    for name in svhn.FILES:
        scipy_io.savemat(folder / name, arrays, do_compression=is_compressed)


@pytest.mark.parametrize('is_compressed', [False, True])
@pytest.mark.parametrize('dtype', [np.uint8, np.float64])
def test_records(tmp_path, is_compressed, dtype):
    """Label 10 is the digit 0; the fourth dimension counts the images."""
    write(tmp_path, is_compressed, note='text', X=PIXELS, y=LABELS.astype(dtype), z=np.ones(3))
    classes, (records,), (tested,) = svhn.read(tmp_path, [])
    assert classes == tuple('0123456789')
    assert records.dtype == np.uint8 and records.shape == (5, 3073)
    assert records[:, 0].tolist() == [1, 0, 9, 2, 0]
    pixels_chw = records[:, 1:].reshape(5, 3, 32, 32)
    np.testing.assert_array_equal(pixels_chw, PIXELS.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(tested, records)


@pytest.mark.parametrize('arrays, words', [
    ({'X': PIXELS}, r"is not a valid SVHN file \(KeyError\('y'\)\): download it again"),
    ({'X': PIXELS, 'y': LABELS[1:]}, r'uint8 \(5, 32, 32, 3\) and 4 labels'),
    ({'X': PIXELS[..., :0], 'y': LABELS[:0]}, 'and 0 labels'),
    ({'X': PIXELS[:30], 'y': LABELS}, r'\(5, 30, 32, 3\)'),
    ({'X': PIXELS * 0.5, 'y': LABELS}, 'images of float64'),
    ({'X': PIXELS, 'y': LABELS + 1}, 'has label 11; expected 0 to 9')])
def test_other_arrays_are_rejected(tmp_path, arrays, words):
    write(tmp_path, **arrays)
    with pytest.raises(errors.DataError, match=f'{tmp_path}/train_32x32.mat .*{words}'):
        svhn.read(tmp_path, [])


@pytest.mark.parametrize('change', [
    lambda data: b'', lambda data: b'text', lambda data: b'MATLAB 5.0 MAT-file' + bytes(200),
    lambda data: data[:5000], lambda data: data[:2000] + bytes(1000) + data[3000:]])
def test_damaged_files_are_rejected(tmp_path, change):
    write(tmp_path, X=PIXELS, y=LABELS)
    path = tmp_path / 'test_32x32.mat'
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(errors.DataError, match=f'{path} is not a valid SVHN file'):
        svhn.read(tmp_path, [])


def test_an_array_that_would_exhaust_memory(tmp_path):
    """The images claim to take three gigabytes."""
    write(tmp_path, is_compressed=False, X=PIXELS, y=LABELS)
    path = tmp_path / 'train_32x32.mat'
    tag = struct.pack('<II', 2, PIXELS.size)  # The type, uint8, and the number of bytes.
    data = path.read_bytes()
    assert data.count(tag) == 1
    path.write_bytes(data.replace(tag, struct.pack('<II', 2, 3 << 30)))
    with pytest.raises(errors.DataError, match=rf'{path} is not a valid SVHN file \(MemoryError'):
        svhn.read(tmp_path, [])


def test_a_pipe_is_rejected(tmp_path):
    for name in svhn.FILES:
        os.mkfifo(tmp_path / name)  # Without a writer.
    with pytest.raises(OSError, match='not a regular file'):
        svhn.read(tmp_path, [])


def test_both_files_are_required(tmp_path):
    (tmp_path / 'test_32x32.mat').touch()
    assert not svhn.is_at(tmp_path)
    (tmp_path / 'train_32x32.mat').touch()
    assert svhn.is_at(tmp_path)
