"""Street View House Numbers, http://ufldl.stanford.edu/housenumbers: the cropped digits.

`train_32x32.mat` and `test_32x32.mat` are MATLAB files with `X`, uint8 [32, 32, 3, count], and `y`,
[count, 1], where 10 stands for the digit 0.
"""
import os

from cifar10_lib.datasets import custom
from cifar10_lib.program import errors, files

FILES = ('train_32x32.mat', 'test_32x32.mat')
CLASSES = tuple('0123456789')


def is_at(folder):
    """Whether a folder contains SVHN's files."""
    return all(os.path.exists(os.path.join(folder, name)) for name in FILES)


def read(folder, _):
    """Returns the classes, and the blocks of training and test records; see `forms.Form`."""
    return CLASSES, *([_records(os.path.join(folder, name))] for name in FILES)


def _records(path):
    try:
        from scipy import io  # Optional.
    except ImportError as error:
        raise errors.DataError(f'{path} is a MATLAB file, which requires SciPy: '
                               'pip install scipy') from error
    with files.regular_file(path) as stream:
        try:
            found = io.loadmat(stream, variable_names=['X', 'y'])
            images, labels = found['X'].transpose(3, 0, 1, 2), found['y']
            labels[labels == 10] = 0
        except Exception as error:  # Damaged files raise many types.
            raise errors.DataError(f'{path} is not a valid SVHN file ({error!r:.100}): download it '
                                   'again') from error
    return custom.records(images, labels, len(CLASSES), path)
