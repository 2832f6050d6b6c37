"""Images in one folder per class, such as `cat/1.jpg` and `dog/1.jpg`, or in Kaggle's layout.

Folders `train/cat`, `test/cat` and so on define the split. Otherwise a sixth of each class, drawn
with a fixed seed, is for testing, as in CIFAR-10. Deeper folders are not searched. Links are
followed, because they are the user's own. Kaggle's layout is `train/1.png` and so on, with the
labels in `trainLabels.csv`; its test images have no labels.
"""
import collections
import csv
import itertools
import os

import numpy as np

from cifar10_lib.datasets import custom, images
from cifar10_lib.program import console, errors

SEED = 20151111
TEST_SHARE = 6  # One image in six is for testing.
LABELS_FILE = 'trainLabels.csv'

# Names of folders that define a split, in any case; the first one found contains the test images.
_TRAINING, _TESTING = ('train', 'training'), ('test', 'testing', 'val', 'valid', 'validation')

# Sorted names, of which a label is an index; lists of (label, path) in random order; and a list of
# (path of a file or folder that is not used, why).
Found = collections.namedtuple('Found', 'classes train test skipped')


def read(folder, skipped):
    """Returns the classes, and the blocks of training and test records; see `custom.write`.

    Reading the blocks shows progress. For each file or folder that is not used, appends (path, why)
    to `skipped`. See `find` for errors.
    """
    found = find(folder)
    skipped += found.skipped
    total, done = len(found.train) + len(found.test), 0

    def records(labelled_paths):
        nonlocal done
        for label, path in labelled_paths:
            try:
                pixels = images.read(path)[np.newaxis]
                yield custom.records(pixels, [label], len(found.classes), path)
            except images.ImageError as error:
                skipped.append((path, str(error).removeprefix(f'{path} ')))
            done += 1
            console.progress(f'{done} of {total} images', keep=done == total)

    return found.classes, records(found.train), records(found.test)


def find(folder):
    """Finds the classes and images in a folder; the same files give the same `Found`.

    Raises:
        errors.DataError: the folder is missing, the number of classes is not 2 to 256, a class has
            no images or is only in the test folder, or the labels are not Kaggle's.
        OSError: the folder cannot be read.
    """
    if not os.path.isdir(folder):
        raise errors.DataError(f'{folder} is not a folder; expected one with a folder of images '
                               'for each class')
    test_folder, skipped = None, []
    if os.path.exists(os.path.join(folder, LABELS_FILE)):
        train_folder, found = folder, _by_label(folder, skipped)
    else:
        train_folder, test_folder = _split_folders(folder)
        found = _by_folder(train_folder, skipped)
    classes = _checked(train_folder, found)
    train = [found[name] for name in classes]
    if test_folder:
        found = _by_folder(test_folder, skipped)
        unknown = sorted(set(found).difference(classes))
        if unknown:
            raise errors.DataError(
                f'{test_folder} has {", ".join(unknown)}, missing from {train_folder}: add them '
                'there, or remove them')
        test = [found.get(name, []) for name in classes]
        skipped += [(entry.path, 'is not part of the split') for entry in _visible(folder)
                    if entry.path not in (train_folder, test_folder)]
    else:
        train, test = _split(train)
    random = np.random.RandomState(SEED)
    return Found(classes, _labelled(train, random), _labelled(test, random), sorted(skipped))


def _split_folders(folder):
    """Returns the folders with the training and the test images; without a split, the folder and
    None: `train` may be a class, as in CIFAR-100."""
    named = {entry.name.lower(): entry.path for entry in _visible(folder) if entry.is_dir()}
    train, test = (next((named[name] for name in names if name in named), None)
                   for names in (_TRAINING, _TESTING))
    if train and test and any(entry.is_dir() for entry in _visible(train)):
        return train, test
    if named and not set(named).difference(_TRAINING, _TESTING):
        raise errors.DataError(f'{folder} has {", ".join(sorted(named))}, without a folder for '
                               f'each class in them or a {LABELS_FILE}: sort the images by class')
    return folder, None


def _by_folder(folder, skipped):
    """Returns {class: sorted paths of its images}; adds all other paths to `skipped`."""
    by_class = {}
    for entry in _visible(folder):
        if entry.is_dir():
            by_class[entry.name] = images.find(entry.path)
            of_class = set(by_class[entry.name])
            skipped += [(inner.path, 'is not a file named like an image')
                        for inner in _visible(entry.path) if inner.path not in of_class]
        else:
            skipped.append((entry.path, 'is not in the folder of a class'))
    return by_class


def _by_label(folder, skipped):
    """The same for Kaggle's layout, whose test images have no labels."""
    train, by_class = os.path.join(folder, 'train'), {}
    with open(os.path.join(folder, LABELS_FILE), encoding='utf-8', errors='replace') as stream:
        text = stream.read()
    try:
        rows = list(csv.reader(text.splitlines()))[1:]
    except csv.Error as error:
        raise errors.DataError(f'{folder}/{LABELS_FILE} is damaged ({error})') from error
    for row in rows:
        if len(row) != 2:
            raise errors.DataError(f'{folder}/{LABELS_FILE} has the line {",".join(row):.40}; '
                                   'expected ID,LABEL')
        by_class.setdefault(row[1], []).append(
            os.path.join(train, os.path.basename(row[0]) + '.png'))
    used = {os.path.join(folder, LABELS_FILE), train, *itertools.chain(*by_class.values())}
    skipped += [(entry.path, f'has no label in {LABELS_FILE}')
                for entry in (*_visible(folder), *_visible(train)) if entry.path not in used]
    return by_class


def _visible(folder):
    return [entry for entry in os.scandir(folder) if not entry.name.startswith('.')]


def _checked(folder, by_class):
    """Returns the sorted names of the classes, or raises `errors.DataError`."""
    if not 2 <= len(by_class) <= custom.MAX_CLASSES:
        raise errors.DataError(
            f'{folder} has {len(by_class)} classes; expected 2 to {custom.MAX_CLASSES}, each a '
            'folder with its images')
    for name, paths in by_class.items():
        if not paths:
            raise errors.DataError(f'{os.path.join(folder, name)} has no image '
                                   f'({", ".join(images.ENDINGS)}): add some, or move it away')
    return tuple(sorted(by_class))


def _split(paths_by_label):
    """Draws the test images: (training paths, test paths), each a list over labels of lists; of a
    class of two to five images one, of a class of one image none."""
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
