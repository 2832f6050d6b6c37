"""Data sets in NumPy's `.npz` form, to which a few lines bring every other form (docs/usage.md).

Such a file has `x_train` and `x_test`, uint8 [count, 32, 32, 3], `y_train` and `y_test`, int
[count] or [count, 1], and optionally `classes`, the names. A test set alone lacks the first two.
"""
import numpy as np

from cifar10_lib.datasets import custom
from cifar10_lib.program import errors, files

_NAMES = ('x_train', 'y_train', 'x_test', 'y_test')


def read(path):
    """Returns the classes, and training and test images with their labels; see `custom.write`.

    Without `classes`, the labels are the names. Does not unpickle objects, because a pickle can run
    any program. Raises `errors.DataError` if the file is damaged or lacks an array.
    """
    try:
        with files.regular_file(path) as stream, np.load(stream, allow_pickle=False) as archive:
            is_whole = 'x_train' in archive or 'y_train' in archive
            *train, x_test, y_test = (archive[name] for name in _NAMES[0 if is_whole else 2:])
            labels = train[1] if is_whole else y_test
            count = min(int(np.max(labels, initial=0)) + 1, custom.MAX_CLASSES)
            classes = archive.get('classes', np.arange(count)).astype(str).tolist()
    except Exception as error:  # Damage, and text instead of numbers, raise many types.
        raise errors.DataError(
            f'{path} cannot be read ({errors.one_line(error)}); expected the arrays '
            f'{", ".join(_NAMES)}: uint8 [count, 32, 32, 3], and labels from 0') from error
    return classes, train or None, (x_test, y_test)
