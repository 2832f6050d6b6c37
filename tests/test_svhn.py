import os
import sys

import numpy as np
import pytest

from datasets import svhn
from program import errors


@pytest.fixture
def write(tmp_path):
    """Writes arrays to a MATLAB file; returns its path."""
    io = pytest.importorskip('scipy.io')

    def write_(**arrays):
        io.savemat(tmp_path / 'train_32x32.mat', arrays)
        return str(tmp_path / 'train_32x32.mat')
    return write_


PIXELS = np.random.RandomState(1).randint(0, 256, [32, 32, 3, 5]).astype(np.uint8)


def test_records(write):
    """Label 10 is the digit 0; the fourth dimension counts the images."""
    records = svhn.read(write(X=PIXELS, y=np.array([[1], [10], [9], [2], [10]], np.uint8)))
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
def test_other_arrays_are_refused(write, arrays):
    path = write(**arrays)
    with pytest.raises(errors.DataError, match=f"{path} is not as SVHN's are"):
        svhn.read(path)


@pytest.mark.parametrize('data', [b'', b'text', b'MATLAB 5.0 MAT-file' + bytes(200)])
def test_other_files_are_refused(tmp_path, data):
    pytest.importorskip('scipy.io')
    (tmp_path / 'train_32x32.mat').write_bytes(data)
    with pytest.raises(errors.DataError, match="is not as SVHN's are"):
        svhn.read(str(tmp_path / 'train_32x32.mat'))


def test_a_pipe_is_refused(tmp_path):
    pytest.importorskip('scipy.io')
    os.mkfifo(tmp_path / 'train_32x32.mat')  # Which nobody writes to.
    with pytest.raises(OSError, match='not a regular file'):
        svhn.read(str(tmp_path / 'train_32x32.mat'))


def test_scipy_is_asked_for(tmp_path, monkeypatch):
    """A package of that name that cannot be imported lies in front of it, if it is there."""
    for name in [name for name in sys.modules if name.split('.')[0] == 'scipy']:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / 'scipy').mkdir()
    (tmp_path / 'scipy' / '__init__.py').write_text('raise ImportError')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.DataError, match='SciPy reads x.mat, .* pip install scipy'):
        svhn.read('x.mat')


def test_which_folders_are_svhns(tmp_path):
    assert not svhn.found(tmp_path)
    (tmp_path / 'test_32x32.mat').touch()
    with pytest.raises(errors.DataError, match='lacks train_32x32.mat'):
        svhn.found(tmp_path)
    (tmp_path / 'train_32x32.mat').touch()
    assert svhn.found(tmp_path)
