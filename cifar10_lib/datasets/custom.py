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

import numpy as np

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files, json_files

FILE = 'dataset.json'
SEED = 20151111
MAX_CLASSES = 256  # A label is one byte.
_PUBLISHED = ', '.join(table.TABLE)
_ARRAYS = ('x_train', 'y_train', 'x_test', 'y_test')


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
                f'a list of 2 to {MAX_CLASSES} different names'),
    'train_files': (_are_files, _FILES),  # Empty for a test set alone.
    'test_files': (lambda value: value != {} and _are_files(value), _FILES)}


def read(folder):
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


def read_arrays(path):
    """Returns the classes, and training and test images with their labels; see `write`.

    The file has `x_train` and `x_test`, uint8 [count, 32, 32, 3], `y_train` and `y_test`, int
    [count] or [count, 1], and optionally `classes`; without them, the labels are the names. A test
    set alone lacks the first two. Does not unpickle objects, because a pickle can run any program.
    Raises `errors.DataError` if the file is damaged or lacks an array.
    """
    try:
        with files.regular_file(path) as stream, np.load(stream, allow_pickle=False) as archive:
            is_whole = 'x_train' in archive or 'y_train' in archive
            *train, x_test, y_test = (archive[name] for name in _ARRAYS[0 if is_whole else 2:])
            labels = train[1] if is_whole else y_test
            count = min(int(np.max(labels, initial=0)) + 1, MAX_CLASSES)
            classes = archive.get('classes', np.arange(count)).astype(str).tolist()
    except Exception as error:  # Damage, and text instead of numbers, raise many types.
        raise errors.DataError(
            f'{path} cannot be read ({errors.one_line(error)}); expected the arrays '
            f'{", ".join(_ARRAYS)}: uint8 [count, 32, 32, 3], and labels from 0') from error
    return classes, train or None, (x_test, y_test)


def write(folder, name, classes, train, test):
    """Writes record files, in a random order, and their JSON file into an empty folder.

    The shuffle queue mixes only nearby records. A repeated conversion gives the same order.

    Args:
        folder, name: path of the folder, and name of the data set.
        classes: list of 2 to `MAX_CLASSES` names.
        train, test: (images, labels): uint8 [count, 32, 32, 3]; int [count] or [count, 1], indices
            into the classes. `train` is None for a test set alone.

    Returns the numbers of training and of test images. Raises `errors.DataError` if an argument is
    invalid, the name is taken, a class has no training image, or the test set is empty.
    """
    row = {'name': name, 'classes': list(classes), 'train_files': {}}
    json_files.check_fields(row, {field: _FIELDS[field] for field in row},
                            'the new data set, named like its folder')
    for split, (images, labels) in (('train', train), ('test', test))[train is None:]:
        labels = np.ravel(labels)
        expected = (labels.size, table.HEIGHT, table.WIDTH, table.DEPTH)
        if images.dtype != np.uint8 or images.shape != expected:
            raise errors.DataError(f'the {split} images are {images.dtype} {images.shape} with '
                                   f'{labels.size} labels; expected uint8 {expected}')
        wrong = labels[~np.isin(labels, np.arange(len(classes)))]
        if wrong.size:
            raise errors.DataError(f'the {split} labels have {wrong[0]!s:.40}; expected 0 to '
                                   f'{len(classes) - 1}')
        if split == 'train' and (missing := set(range(len(classes))).difference(labels)):
            names = ', '.join(classes[label] for label in sorted(missing))
            raise errors.DataError(f'no training images of {names:.100}: add some')
        if not labels.size:
            raise errors.DataError('no test images: add some; a class with a single image '
                                   'uses it for training')
        pixels_chw = images.transpose(0, 3, 1, 2).reshape(labels.size, -1)
        records = np.concatenate([labels[:, np.newaxis].astype(np.uint8), pixels_chw], axis=1)
        records = np.random.RandomState(SEED).permutation(records)
        with open(os.path.join(folder, f'{split}.bin'), 'wb') as stream:
            stream.write(records)  # `tofile` does not report a full disk.
        row[f'{split}_files'] = {f'{split}.bin': labels.size}
    with open(os.path.join(folder, FILE), 'w', encoding='utf-8') as stream:
        json.dump(row, stream, indent=2, ensure_ascii=False)
        stream.write('\n')
    return sum(row['train_files'].values()), row['test_files']['test.bin']
