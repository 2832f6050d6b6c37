"""Finds images in one folder per class, such as `cat/1.jpg` and `dog/1.jpg`, and splits them.

Folders `train/cat`, `test/cat` and so on define the split; `val` is used if there is no `test`.
Otherwise a sixth of each class, drawn with a fixed seed, is for testing, as in CIFAR-10. Deeper
folders are not searched. Links are followed, because they are the user's own.
"""
import collections
import os

import numpy as np

from cifar10_lib.datasets import custom
from cifar10_lib.datasets import images
from cifar10_lib.program import errors
from cifar10_lib.program import small_files

SEED = 20151111
TEST_SHARE = 6  # One image in six is for testing.

# The result of `find`:
#   classes: tuple of names, sorted; a label is an index into it
#   train, test: lists of (label, path), in random order
#   skipped: sorted paths of files not named like an image and folders that are not classes
Found = collections.namedtuple('Found', 'classes train test skipped')


def find(folder):
    """Finds the classes and images in a folder; the same files give the same `Found`.

    Raises:
        errors.DataError: the folder is missing, the number of classes is not 2 to 256, a class has
            no images, or a class is only in `test`.
        OSError: the folder cannot be read.
    """
    if not os.path.isdir(folder):
        raise errors.DataError(f'{folder} is not a folder; expected one with a folder of images '
                               'for each class')
    skipped = []
    test_folder = _test_folder(folder)
    train_folder = os.path.join(folder, 'train') if test_folder else folder
    by_class = _images_by_class(train_folder, skipped)
    classes = _checked(train_folder, by_class)
    train = [by_class[name] for name in classes]
    if test_folder:
        by_class = _images_by_class(test_folder, skipped)
        unknown = sorted(set(by_class).difference(classes))
        if unknown:
            raise errors.DataError(
                f'{test_folder} has {", ".join(unknown)}, missing from {train_folder}: add them '
                'there, or remove them')
        test = [by_class.get(name, []) for name in classes]
        skipped += [entry.path for entry in _visible(folder)
                    if entry.path not in (train_folder, test_folder)]
    else:
        train, test = _split(train)
    random = np.random.RandomState(SEED)
    return Found(classes, _labelled(train, random), _labelled(test, random), sorted(skipped))


def _test_folder(folder):
    """Returns the path of the folder with the test images, or None if the images are not split.

    `train` and `test` define a split if the only other folder is `val` and `train` contains
    folders; otherwise they are classes.
    """
    names = {entry.name for entry in _visible(folder) if entry.is_dir()}
    is_split = ({'train'} < names <= {'train', 'test', 'val'}
                and any(entry.is_dir() for entry in _visible(os.path.join(folder, 'train'))))
    return os.path.join(folder, 'test' if 'test' in names else 'val') if is_split else None


def _images_by_class(folder, skipped):
    """Returns {class: sorted paths of its images}; appends all other paths to `skipped`."""
    by_class = {}
    for entry in _visible(folder):
        if not entry.is_dir():
            skipped.append(entry.path)
            continue
        by_class[entry.name] = images.find(entry.path)
        of_class = set(by_class[entry.name])
        skipped += [inner.path for inner in _visible(entry.path) if inner.path not in of_class]
    return by_class


def _visible(folder):
    return [entry for entry in os.scandir(folder) if not entry.name.startswith('.')]


def _checked(folder, by_class):
    """Returns the sorted names of the classes, or raises `errors.DataError`."""
    if not 2 <= len(by_class) <= custom.MAX_CLASSES:
        raise errors.DataError(
            f'{folder} has {len(by_class)} folders; expected 2 to {custom.MAX_CLASSES}, one for '
            'each class, with its images')
    for name, paths in by_class.items():
        if not small_files.is_name(name):
            raise errors.DataError(f'{folder} has a folder named {name!r}; expected a printable '
                                   'name: rename it')
        if not paths:
            raise errors.DataError(f'{os.path.join(folder, name)} has no image '
                                   f'({", ".join(images.ENDINGS)}): add some, or remove it')
    return tuple(sorted(by_class))


def _split(paths_by_label):
    """Draws the test images: (training paths, test paths), each a list over labels of lists.

    A class of two to five images has one test image, a class of one image none.
    """
    random = np.random.RandomState(SEED)
    train, test = [], []
    for paths in paths_by_label:
        count = max(len(paths) // TEST_SHARE, min(1, len(paths) - 1))
        order = random.permutation(len(paths))
        test.append([paths[index] for index in sorted(order[:count])])
        train.append([paths[index] for index in sorted(order[count:])])
    return train, test


def _labelled(paths_by_label, random):
    """Returns (label, path) pairs in random order, since training only mixes nearby records."""
    pairs = [(label, path) for label, paths in enumerate(paths_by_label) for path in paths]
    return [pairs[index] for index in random.permutation(len(pairs))]
