"""CIFAR-10 and CIFAR-100 as arrays: the pickles of torchvision and Keras, and NumPy's `.npz`.

The pickles are `cifar-10-batches-py` and `cifar-100-python`, as published at
https://www.cs.toronto.edu/~kriz/cifar.html. An `.npz` file has `x_train` and `x_test`, uint8
[count, 32, 32, 3], `y_train` and `y_test`, int [count] or [count, 1], and perhaps `classes`, the
names.
"""
import os
import pickle

import numpy as np

from cifar10_lib.datasets import custom, table
from cifar10_lib.program import errors, files

_NPZ_NAMES = ('x_train', 'y_train', 'x_test', 'y_test')

# Folder of the pickles: (row, key of the labels, files for training, files for testing).
_PICKLES = {
    'cifar-10-batches-py': (table.CIFAR10, 'labels', [f'data_batch_{k}' for k in range(1, 6)],
                            ['test_batch']),
    'cifar-100-python': (table.CIFAR100, 'fine_labels', ['train'], ['test'])}


class _Array:
    """Stands for an array, or its type, in a pickle; the last item of `state` is its bytes."""

    def __init__(self, *_):
        self.state = None

    def __setstate__(self, state):
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Admits only what these files contain; a pickle could otherwise run any program."""

    def find_class(self, module, name):
        if name in ('_reconstruct', 'ndarray', 'dtype') and module.startswith('numpy'):
            return _Array
        if (module, name) == ('_codecs', 'encode'):  # Python 3's way to write bytes.
            return lambda text, encoding: text.encode('latin1')
        raise pickle.UnpicklingError(f'{module}.{name} is not allowed')


def find_pickles(path):
    """Returns the row of `_PICKLES` and the folder of its files, in `path` or below; or None."""
    for name, row in _PICKLES.items():
        for folder in (path, os.path.join(path, name)):
            if all(os.path.isfile(os.path.join(folder, file)) for file in (*row[2], *row[3])):
                return row, folder
    return None


def read_pickles(path, _):
    """Returns the classes, and the blocks of training and test records; see `forms.Form`."""
    (row, key, *splits), folder = find_pickles(path)
    return row.classes, *(
        [_unpickled(os.path.join(folder, file), key, row.num_classes) for file in split]
        for split in splits)


def _unpickled(path, key, num_classes):
    with files.regular_file(path) as stream:
        try:
            found = _Unpickler(stream, encoding='latin1').load()
            data, labels = found['data'].state[-1], found[key]
            data = data.encode('latin1') if isinstance(data, str) else data
            images = np.frombuffer(data, np.uint8).reshape(
                -1, table.DEPTH, table.HEIGHT, table.WIDTH)
        except Exception as error:  # Damaged pickles raise many types.
            raise errors.DataError(f'{path} is not a pickle of CIFAR ({errors.one_line(error)}): '
                                   'download it again') from error
    return custom.records(images.transpose(0, 2, 3, 1), labels, num_classes, path)


def read_npz(path, _):
    """Returns the classes, and the blocks of training and test records; see `forms.Form`."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
        x_train, y_train, x_test, y_test = (found[name] for name in _NPZ_NAMES)
        count = min(np.max(y_train, initial=0) + 1, 1 << 10)  # `custom.write` checks it.
        classes = found.get('classes', np.arange(count)).astype(str).tolist()
    except Exception as error:  # Damage, and text instead of numbers, raise many types.
        raise errors.DataError(f'{path} cannot be read ({errors.one_line(error)}); expected '
                               f'{", ".join(_NPZ_NAMES)} of whole numbers') from error
    return classes, *(
        [custom.records(images, labels, len(classes), path)]
        for images, labels in ((x_train, y_train), (x_test, y_test)))
