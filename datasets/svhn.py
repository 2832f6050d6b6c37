"""Street View House Numbers, http://ufldl.stanford.edu/housenumbers: the cropped digits.

`train_32x32.mat` and `test_32x32.mat` are MATLAB files with `X`, uint8 [32, 32, 3, count], and `y`,
[count, 1], where 10 stands for the digit 0.
"""
import os

import numpy as np

from datasets import table
from program import errors
from program import files
from program import memory

TRAIN_FILE, TEST_FILE = 'train_32x32.mat', 'test_32x32.mat'
CLASSES = tuple('0123456789')

# Memory for reading a file: so much more than its size, and for each of its bytes so many. SVHN's
# own files unpack to 1.3 times their size; others could unpack to a thousand times.
_MEMORY, _UNPACKED_SHARE = 1 << 28, 4


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
        OSError: the file cannot be opened, or is a pipe or a device.
    """
    try:
        import scipy.io  # Only here: nothing else needs it.
    except ImportError as error:
        raise errors.DataError(
            f'SciPy reads {path}, and is not installed: pip install scipy') from error
    with files.regular_file(path) as stream:
        size = _MEMORY + _UNPACKED_SHARE * os.fstat(stream.fileno()).st_size
        try:
            with memory.limit(size):
                content = scipy.io.loadmat(stream, variable_names=['X', 'y'])
                pixels, labels = content['X'], content['y'].ravel()
                _check(pixels, labels)
        except MemoryError as error:
            raise errors.DataError(f'{path} takes more than {size >> 20} MB of memory, which '
                                   'SVHN\'s files do not: download it again') from error
        except Exception as error:  # Of many kinds, in a file that is damaged or another.
            raise errors.DataError(f'{path} is not as SVHN\'s are ({error!r})') from error
    records = np.empty([len(labels), 1 + pixels[..., 0].size], np.uint8)
    records[:, 0] = labels % 10
    planes = records[:, 1:].reshape(-1, table.DEPTH, table.HEIGHT, table.WIDTH)  # A view.
    planes[...] = pixels.transpose(3, 2, 0, 1)
    return records


def _check(pixels, labels):
    """Raises `ValueError` where the arrays are not as SVHN's are."""
    wanted = (table.HEIGHT, table.WIDTH, table.DEPTH, len(labels))
    if pixels.dtype != np.uint8 or pixels.shape != wanted or len(labels) == 0:
        raise ValueError(f'X is {pixels.dtype} {pixels.shape}, wanted: uint8 {wanted}')
    if not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError('y holds other labels than 1 to 10')
