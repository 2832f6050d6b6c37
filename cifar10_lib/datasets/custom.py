"""The user's own data sets: folders of record files, each with a JSON file as its table row.

    {"name": "pets", "classes": ["cat", "dog"],
     "train_files": {"train.bin": 1000}, "test_files": {"test.bin": 200}}

A label is an index into the classes. Users may edit the file, to rename classes or add record
files. The numbers of records are only informative; the program counts the records in the files.
"""
import json
import os

import numpy as np

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, json_files

FILE = 'dataset.json'
MAX_CLASSES = 256  # A label is one byte.


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
            f'"{folder}" is not a data set; expected {", ".join(table.TABLE)}, or a folder with a '
            f'{FILE}, made by cifar10_convert.py') from error
    except OSError as error:
        raise errors.DataError(f'{path} cannot be read ({error.strerror})') from error
    json_files.check_fields(found, _FIELDS, path)
    return table.DataSet(
        name=found['name'], title=found['name'], folder=os.path.abspath(folder),
        train_files=found['train_files'], test_files=found['test_files'],
        classes=tuple(found['classes']))


def _is_new_name(value):
    return json_files.is_name(value) and value not in table.TABLE


def _are_classes(value):
    return (isinstance(value, list) and 2 <= len(value) <= MAX_CLASSES
            and all(map(json_files.is_name, value)) and len(set(value)) == len(value))


def _are_files(value):
    return isinstance(value, dict) and value != {} and all(
        json_files.is_name(name) and name == os.path.basename(name)
        and type(count) is int and count > 0
        for name, count in value.items())


_FIELDS = {  # See `json_files.check_fields`.
    'name': (_is_new_name, f'a name other than {", ".join(table.TABLE)}'),
    'classes': (_are_classes, f'a list of 2 to {MAX_CLASSES} different names'),
    **dict.fromkeys(['train_files', 'test_files'], (
        _are_files, 'names of files in this folder, each with its number of records'))}


def records(images, labels, num_classes, source):
    """Joins images and their labels to records; or raises `errors.DataError`, naming the `source`.

    uint8 [count, 32, 32, 3], int [count] or [count, 1], below `num_classes` -> uint8 [count, 1 + 3
    * 32 * 32]: the label, then the red, green and blue planes.
    """
    labels = np.ravel(labels)
    expected = (labels.size, table.HEIGHT, table.WIDTH, table.DEPTH)
    if images.dtype != np.uint8 or images.shape != expected or not labels.size:
        raise errors.DataError(f'{source} has images of {images.dtype} {images.shape} and '
                               f'{labels.size} labels; expected uint8 of 32 x 32 x 3')
    wrong = labels[~np.isin(labels, np.arange(num_classes))]
    if wrong.size:
        raise errors.DataError(
            f'{source} has label {wrong[0]!s:.40}; expected 0 to {num_classes - 1}')
    pixels_chw = images.transpose(0, 3, 1, 2).reshape(labels.size, -1)
    return np.concatenate([labels[:, np.newaxis].astype(np.uint8), pixels_chw], axis=1)


def write(folder, name, classes, train, test):
    """Writes record files and their JSON file into an empty folder.

    Args:
        folder, name: path of the folder, and name of the data set.
        classes: list of 2 to `MAX_CLASSES` names.
        train, test: iterables of blocks of records, uint8 [records, 1 + 3 * 32 * 32].

    Returns the numbers of training and of test records. Raises `errors.DataError` if the name is
    taken, the classes are invalid, a class has no training image, or the test set is empty.
    """
    row = {'name': name, 'classes': list(classes)}
    json_files.check_fields(row, {field: _FIELDS[field] for field in row},
                             'the new data set, named like its folder')
    trained, tested = (_write_records(os.path.join(folder, file), blocks)
                       for file, blocks in (('train.bin', train), ('test.bin', test)))
    missing = [label for label, count in zip(classes, trained) if count == 0]
    if missing:
        raise errors.DataError(f'no training image of {", ".join(missing)} can be read')
    if not tested.any():
        raise errors.DataError('no test image can be read; expected at least one: add images, '
                               'since a class with a single one has none for testing')
    counts = int(trained.sum()), int(tested.sum())
    row |= {'train_files': {'train.bin': counts[0]}, 'test_files': {'test.bin': counts[1]}}
    with open(os.path.join(folder, FILE), 'w', encoding='utf-8') as stream:
        json.dump(row, stream, indent=2, ensure_ascii=False)
        stream.write('\n')
    return counts


def _write_records(path, blocks):
    """Writes a record file; returns the number of records of each label, int [256]."""
    counts = np.zeros(MAX_CLASSES, int)
    with open(path, 'wb') as stream:
        for block in blocks:
            stream.write(np.ascontiguousarray(block))  # `tofile` does not report a full disk.
            counts += np.bincount(block[:, 0], minlength=MAX_CLASSES)
    return counts
