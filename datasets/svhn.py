"""Street View House Numbers, http://ufldl.stanford.edu/housenumbers: the cropped digits.

`train_32x32.mat` and `test_32x32.mat` are MATLAB files with `X`, uint8 [32, 32, 3, count], and `y`,
[count, 1], where 10 stands for the digit 0.
"""
import os

import numpy as np

from datasets import table
from program import errors

TRAIN_FILE, TEST_FILE = 'train_32x32.mat', 'test_32x32.mat'
CLASSES = tuple('0123456789')


def found(folder):
    """Whether a folder holds SVHN's files.

    Raises:
        errors.DataError: it holds one of the two.
    """
    missing = [name for name in (TRAIN_FILE, TEST_FILE)
               if not os.path.exists(os.path.join(folder, name))]
    if len(missing) == 1:
        raise errors.DataError(f'{folder} lacks {missing[0]}: SVHN is two files, '
                              f'{TRAIN_FILE} and {TEST_FILE}')
    return not missing


def read(path):
    """Reads one of the files.

    SciPy builds arrays from a MATLAB file and runs nothing that is in it.

    Args:
        path: of the file.

    Returns:
        Records, uint8 [count, 1 + 3 * 32 * 32]: labels 0 to 9, and the planes of the images.

    Raises:
        errors.DataError: SciPy is not installed, or the file is another.
    """
    try:
        import scipy.io  # Only here: nothing else needs it.
    except ImportError as error:
        raise errors.DataError(
            f'SciPy reads {path}, and is not installed: pip install scipy') from error
    try:
        content = scipy.io.loadmat(path, variable_names=['X', 'y'])
        pixels, labels = content['X'], content['y'].ravel()
        _check(pixels, labels)
    except OSError:
        raise
    except Exception as error:  # Of many kinds, in a file that is damaged or another.
        raise errors.DataError(f'{path} is not as SVHN\'s are ({error!r})') from error
    planes = pixels.transpose(3, 2, 0, 1).reshape(len(labels), -1)
    return np.concatenate([(labels % 10).astype(np.uint8)[:, np.newaxis], planes], axis=1)


def _check(pixels, labels):
    """Raises `ValueError` where the arrays are not as SVHN's are."""
    wanted = (table.HEIGHT, table.WIDTH, table.DEPTH, len(labels))
    if pixels.dtype != np.uint8 or pixels.shape != wanted or len(labels) == 0:
        raise ValueError(f'X is {pixels.dtype} {pixels.shape}, wanted: uint8 {wanted}')
    if not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError('y holds other labels than 1 to 10')
