"""The data sets of a user: folders of record files, each with a `dataset.json` as its row.

cifar10_convert.py makes them, and docs/usage.md shows how to write one from other forms:

    {"name": "pets", "classes": ["cat", "dog"],
     "train_files": {"train.bin": 1000}, "test_files": {"test.bin": 200}}

A label is an index into the classes. Users may edit the file, to rename classes or add record
files. The numbers of records are only informative; the program counts the records in the files.
"""
import json
import os
from collections.abc import Mapping
from typing import Any

from cifar10_lib import console, data_sets

FILE = 'dataset.json'
MAX_CLASSES = 256  # A label is one byte.


def find(name_or_folder: str) -> data_sets.DataSet:
    """Returns the row of a data set: of a name in the table, or of a user's folder.

    The `folder` of a user's set is absolute, so that `--data_dir` has no effect. Raises
    `console.UserError` if it is neither, or its `dataset.json` is invalid.
    """
    if name_or_folder in data_sets.TABLE:
        return data_sets.TABLE[name_or_folder]
    path = os.path.join(name_or_folder, FILE)
    try:
        with open(path, encoding='utf-8') as stream:
            fields = json.load(stream)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise console.UserError(
            f'"{name_or_folder}" is not a data set; expected {", ".join(data_sets.TABLE)}, or a '
            f'folder with a {FILE}, made by cifar10_convert.py') from error
    except (ValueError, RecursionError) as error:  # Not UTF-8, not JSON, or nested too deeply.
        raise console.UserError(f'{path} is not JSON: {error}') from error
    if not isinstance(fields, dict):
        raise console.UserError(f'{path} holds {json.dumps(fields):.80}; expected a JSON object')
    row: dict[str, Any] = {
        field: fields.get(field) for field in ('name', 'classes', 'train_files', 'test_files')}
    check_row(row, path)
    row['classes'] = tuple(row['classes'])
    return data_sets.DataSet(folder=os.path.abspath(name_or_folder), **row)


def check_row(fields: Mapping[str, Any], source: str) -> None:
    """Raises `console.UserError`, which begins with `source`, if one of these fields of a
    `dataset.json` is wrong."""
    names_of_files = 'names of files in this folder, each with its number of records'
    rules = {
        'name': (_is_new_name, f'a name other than {", ".join(data_sets.TABLE)}'),
        'classes': (_are_classes,
                    f'a list of 2 to {MAX_CLASSES} different names of printable characters'),
        'train_files': (_are_files, names_of_files),
        'test_files': (_are_files, names_of_files)}
    for field, value in fields.items():
        is_valid, expected = rules[field]
        if not is_valid(value):
            raise console.UserError(
                f'{source}: "{field}" is {json.dumps(value):.80}; expected {expected}')


def _is_name(value):
    return isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()


def _is_new_name(value):
    return _is_name(value) and value not in data_sets.TABLE


def _are_classes(value):
    return (isinstance(value, list) and 2 <= len(value) <= MAX_CLASSES
            and all(map(_is_name, value)) and len(set(value)) == len(value))


def _are_files(value):
    return isinstance(value, dict) and len(value) > 0 and all(
        _is_name(name) and name == os.path.basename(name) and type(count) is int and count > 0
        for name, count in value.items())
