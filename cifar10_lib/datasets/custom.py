"""The user's own data sets: folders of record files, each with a JSON file as its table row.

cifar10_convert.py makes them from folders of images (folders.py) or an `.npz` file; docs/usage.md
shows how to write one from other forms. The JSON file:

    {"name": "pets", "classes": ["cat", "dog"],
     "train_files": {"train.bin": 1000}, "test_files": {"test.bin": 200}}

A label is an index into the classes. Users may edit the file, to rename classes or add record
files. The numbers of records are only informative; the program counts the records in the files.
"""
import json
import os
from collections.abc import Sequence

import numpy as np

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files, json_files

FILE = 'dataset.json'
SEED = 20151111
MAX_CLASSES = 256  # A label is one byte.
_PUBLISHED = ', '.join(table.TABLE)
_SPLITS = ('train', 'test')

Labelled = tuple[np.ndarray, np.ndarray]  # Images and their labels; see `write`.
# The names of the classes, the training images (None for a test set alone), and the test images.
Images = tuple[Sequence[str], Labelled | None, Labelled]


def _are_files(value):
    return isinstance(value, dict) and all(
        json_files.is_name(name) and name == os.path.basename(name)
        and type(count) is int and count > 0 for name, count in value.items())


_FILES = 'names of files in this folder, each with its number of records'
_FIELDS = {
    'name': (lambda value: json_files.is_name(value) and value not in table.TABLE,
             f'a name other than {_PUBLISHED}'),
    'classes': (lambda value: isinstance(value, list) and 2 <= len(value) <= MAX_CLASSES
                and all(map(json_files.is_name, value)) and len(set(value)) == len(value),
                f'a list of 2 to {MAX_CLASSES} different names of printable characters'),
    'train_files': (_are_files, _FILES),  # Empty for a test set alone.
    'test_files': (lambda value: value != {} and _are_files(value), _FILES)}


def read(folder: str) -> table.DataSet:
    """Returns the row of a folder that `write` filled and the user may have edited.

    The row's `folder` is an absolute path, so that --data_dir has no effect. Raises
    `errors.DataError` if the JSON file is missing or invalid.
    """
    path = os.path.join(folder, FILE)
    try:
        found = json_files.read(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.DataError(
            f'"{folder}" is not a data set; expected {_PUBLISHED}, or a folder with a {FILE}, made '
            'by cifar10_convert.py') from error
    except OSError as error:
        raise errors.DataError(f'{path} cannot be read ({errors.one_line(error)})') from error
    json_files.check_fields(found, _FIELDS, path)
    row = {field: found[field] for field in _FIELDS}
    row['classes'] = tuple(row['classes'])
    return table.DataSet(title=row['name'], folder=os.path.abspath(folder), **row)


def read_arrays(path: str) -> Images:
    """Reads the classes and images in an `.npz` file.

    The file has `x_train` and `x_test`, uint8 [count, 32, 32, 3], `y_train` and `y_test`, int
    [count] or [count, 1], and optionally `classes`; without them, the labels are the names. A test
    set alone lacks the first two. Does not unpickle objects, because a pickle can run any program.
    Raises `errors.DataError` if the file is damaged, or an array is missing or has another form.
    """
    try:
        with files.regular_file(path) as stream, np.load(stream, allow_pickle=False) as archive:
            splits: tuple[str, ...] = _SPLITS
            if 'x_train' not in archive and 'y_train' not in archive:
                splits = ('test',)
            arrays = {split: (archive[f'x_{split}'], archive[f'y_{split}']) for split in splits}
            classes = None
            if 'classes' in archive:
                classes = archive['classes'].astype(str).tolist()
    except Exception as error:  # Damage raises many types.
        raise errors.DataError(
            f'{path} cannot be read ({errors.one_line(error)}); expected the arrays x_train, '
            'y_train, x_test, y_test: uint8 [count, 32, 32, 3], and labels from 0') from error
    for split in splits:
        _check_form(split, *arrays[split])
    if classes is None:
        classes = [str(label) for label in range(_num_classes(arrays))]
    return classes, arrays.get('train'), arrays['test']


def _check_form(split, images, labels):
    """Raises `errors.DataError` if an array has another type or shape than `write` expects."""
    if labels.dtype.kind not in 'biuf' or labels.shape[:1] != (labels.size,):
        raise errors.DataError(
            f'y_{split} is {labels.dtype} {labels.shape}; expected labels from 0, int [count] or '
            '[count, 1]')
    expected = (labels.size, table.HEIGHT, table.WIDTH, table.DEPTH)
    if images.dtype != np.uint8 or images.shape != expected:
        raise errors.DataError(f'x_{split} is {images.dtype} {images.shape} with {labels.size} '
                               f'labels; expected uint8 {expected}')


def _num_classes(arrays):
    """The number of classes, if they have no names: of a training set, each has a label."""
    if 'train' in arrays:
        return max(2, np.unique(arrays['train'][1]).size)
    highest = np.max(arrays['test'][1], initial=1)
    return int(min(MAX_CLASSES - 1, highest)) + 1


def write(folder: str, name: str, classes: Sequence[str], train: Labelled | None,
          test: Labelled) -> list[np.ndarray]:
    """Writes record files, in a random order, and their JSON file into an empty folder.

    The shuffle queue mixes only nearby records. A repeated conversion gives the same order.

    Args:
        folder, name: path of the folder, and name of the data set.
        classes: 2 to `MAX_CLASSES` names.
        train, test: (images, labels): uint8 [count, 32, 32, 3]; int [count] or [count, 1], indices
            into the classes. `train` is None for a test set alone.

    Returns the numbers of training and of test images of each class, both int [classes]. Raises
    `errors.DataError` if a name is invalid or taken, a label is not an index, a class has no
    training image, or the test set is empty.
    """
    row = {'name': name, 'classes': list(classes), 'train_files': {}}
    json_files.check_fields(row, {field: _FIELDS[field] for field in row},
                            'the new data set, named like its folder')
    counts: list[np.ndarray] = []
    for split, arrays in zip(_SPLITS, (train, test)):
        if arrays is None:
            counts.append(np.zeros(len(classes), int))
            continue
        records = _records(split, *arrays, classes)
        with open(os.path.join(folder, f'{split}.bin'), 'wb') as stream:
            stream.write(records)  # `tofile` does not report a full disk.
        row[f'{split}_files'] = {f'{split}.bin': len(records)}
        counts.append(np.bincount(records[:, 0], minlength=len(classes)))
    with open(os.path.join(folder, FILE), 'w', encoding='utf-8') as stream:
        json.dump(row, stream, indent=2, ensure_ascii=False)
        stream.write('\n')
    return counts


def _records(split, images, labels, classes):
    """Returns the records of a split in a random order, uint8 [count, 3073]."""
    labels = np.ravel(labels)
    if not np.isin(labels, np.arange(len(classes))).all():
        raise errors.DataError(
            f'y_{split} holds {np.min(labels)!s:.40} to {np.max(labels)!s:.40}; expected whole '
            f'numbers from 0 to {len(classes) - 1}')
    missing = sorted(set(range(len(classes))).difference(labels))
    if split == 'train' and missing:
        names = ', '.join(classes[label] for label in missing)
        raise errors.DataError(f'no training images of {names:.100}: add some')
    if not labels.size:
        raise errors.DataError('no test images: add some; a class with a single image uses it '
                               'for training')
    pixels_chw = images.transpose(0, 3, 1, 2).reshape(labels.size, -1)
    records = np.concatenate([labels[:, np.newaxis].astype(np.uint8), pixels_chw], axis=1)
    return np.random.RandomState(SEED).permutation(records)
