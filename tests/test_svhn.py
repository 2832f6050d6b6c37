import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from cifar10_lib.datasets import svhn
from cifar10_lib.program import errors


@pytest.fixture
def write(tmp_path):
    """Writes arrays to a MATLAB file; returns its path."""
    io = pytest.importorskip('scipy.io')

    def write_(is_compressed=False, **arrays):
        io.savemat(tmp_path / 'train_32x32.mat', arrays, do_compression=is_compressed)
        return str(tmp_path / 'train_32x32.mat')
    return write_


PIXELS = np.random.RandomState(1).randint(0, 256, [32, 32, 3, 5]).astype(np.uint8)


@pytest.mark.parametrize('is_compressed', [False, True])
@pytest.mark.parametrize('dtype', [np.uint8, np.float64])
def test_records(write, is_compressed, dtype):
    """Label 10 is the digit 0; the fourth dimension counts the images."""
    records = svhn.read(write(is_compressed, note='An array of text before them.', X=PIXELS,
                              y=np.array([[1], [10], [9], [2], [10]], dtype), z=np.ones(3)))
    assert records.dtype == np.uint8 and records.shape == (5, 3073)
    assert records[:, 0].tolist() == [1, 0, 9, 2, 0]
    planes = records[:, 1:].reshape(5, 3, 32, 32)
    assert planes[3, 2, 7, 30] == PIXELS[7, 30, 2, 3]
    np.testing.assert_array_equal(planes, PIXELS.transpose(3, 2, 0, 1))


@pytest.mark.parametrize('arrays', [
    {'X': PIXELS}, {'y': np.ones([5, 1])},
    {'X': PIXELS, 'y': np.ones([4, 1])}, {'X': PIXELS[..., :0], 'y': np.ones([0, 1])},
    {'X': PIXELS[:30], 'y': np.ones([5, 1])}, {'X': PIXELS * 0.5, 'y': np.ones([5, 1])},
    {'X': PIXELS, 'y': np.array([[0], [1], [2], [3], [4]])},
    {'X': PIXELS, 'y': np.array([[11], [1], [2], [3], [4]])}])
def test_other_arrays_are_rejected(write, arrays):
    path = write(**arrays)
    with pytest.raises(errors.DataError, match=f"{path} is not a valid SVHN file"):
        svhn.read(path)


@pytest.mark.parametrize('data', [b'', b'text', b'MATLAB 5.0 MAT-file' + bytes(200)])
def test_other_files_are_rejected(tmp_path, data):
    (tmp_path / 'train_32x32.mat').write_bytes(data)
    with pytest.raises(errors.DataError, match="is not a valid SVHN file"):
        svhn.read(str(tmp_path / 'train_32x32.mat'))


def _replaced(data, old, new):
    assert data.count(old) == 1
    return data.replace(old, new)


# Type and size of the values, and the dimensions, in the uncompressed file.
_TAG = struct.pack('<II', 2, PIXELS.size)
_SHAPE = struct.pack('<4i', 32, 32, 3, 5)


@pytest.mark.parametrize('damage', [
    lambda data: _replaced(data, _TAG, struct.pack('<II', 577, PIXELS.size)),  # SciPy crashes.
    lambda data: _replaced(data, _TAG, struct.pack('<II', 14, PIXELS.size)),
    lambda data: _replaced(data, _TAG, struct.pack('<II', 2, 2 ** 32 - 1)),
    lambda data: _replaced(data, _SHAPE, struct.pack('<4i', 32, 32, 3, 2 ** 31 - 1)),
    lambda data: _replaced(data, _SHAPE, struct.pack('<4i', -32, -32, 3, 5)),
    lambda data: data[:128] + struct.pack('<II', 14, 2 ** 32 - 1) + data[136:],
    lambda data: data[:128] + struct.pack('<II', 15, len(data)) + data[136:],
    lambda data: data[:5000]])
def test_damaged_files_are_rejected(write, damage):
    path = write(X=PIXELS, y=np.ones([5, 1], np.uint8))
    with open(path, 'r+b') as stream:
        data = stream.read()
        stream.seek(0)
        stream.truncate()
        stream.write(damage(data))
    with pytest.raises(errors.DataError, match=f"{path} is not a valid SVHN file"):
        svhn.read(path)


@pytest.mark.parametrize('size, peak', [
    (5 * 3072, 1 << 20), (1 << 26, 1 << 28), (1 << 29, 1 << 20)])
def test_arrays_larger_than_declared_are_not_unpacked(tmp_path, size, peak):
    """64 MB of zeros instead of the five images of the header."""
    head = struct.pack('<16I', 14, 1 << 26, 6, 8, 9, 0, 5, 16, 32, 32, 3, 5, 1 << 16 | 1, ord('X'),
                       2, size)
    packed = zlib.compress(head + bytes(1 << 26))
    (tmp_path / 'a.mat').write_bytes(
        b'MATLAB 5.0 MAT-file'.ljust(124) + b'\0\1IM' + struct.pack('<II', 15, len(packed))
        + packed)
    tracemalloc.start()
    try:
        with pytest.raises(errors.DataError, match='a.mat is not a valid SVHN file'):
            svhn.read(str(tmp_path / 'a.mat'))
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


def test_a_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / 'train_32x32.mat')  # Without a writer.
    with pytest.raises(OSError, match='not a regular file'):
        svhn.read(str(tmp_path / 'train_32x32.mat'))


def test_found_requires_both_files(tmp_path):
    assert not svhn.found(tmp_path)
    (tmp_path / 'test_32x32.mat').touch()
    with pytest.raises(errors.DataError, match='lacks train_32x32.mat'):
        svhn.found(tmp_path)
    (tmp_path / 'train_32x32.mat').touch()
    assert svhn.found(tmp_path)
