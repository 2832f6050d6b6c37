"""Images in a folder for each class, `cat/1.jpg`, `dog/1.jpg`: which they are, and for what.

Where they lie in `train/cat`, `test/cat` and so on, that is the split; `val` serves where there is
no `test`. Else a sixth of each class is for testing, as in CIFAR-10, drawn with a fixed seed.
Folders are searched no deeper than that. Links are followed: they are the user's own.
"""
import collections
import os

import numpy as np

from datasets import custom
from datasets import images
from program import errors
from program import small_files

SEED = 20151111
TEST_SHARE = 6  # One image of so many is for testing.

# What a folder holds:
#   classes: tuple of names, sorted; a label is an index into them
#   train, test: lists of (label, path), in random order
#   passed_over: sorted paths of what is neither an image by its name nor a folder of a class
Found = collections.namedtuple('Found', 'classes train test passed_over')


def find(folder):
    """Looks through a folder of images.

    Args:
        folder: path of the folder.

    Returns:
        `Found`. The same files give the same lists.

    Raises:
        errors.DataError: there are fewer than two classes or more than a label can tell, one
            without images, or one in `test` that is not in `train`.
        OSError: the folder cannot be read.
    """
    passed_over = []
    test_folder = _test_folder(folder)
    if test_folder is None:
        by_class = _images_by_class(folder, passed_over)
        classes = _checked(folder, by_class)
        train, test = _split([by_class[name] for name in classes])
    else:
        train_folder = os.path.join(folder, 'train')
        by_class = _images_by_class(train_folder, passed_over)
        classes = _checked(train_folder, by_class)
        by_test_class = _images_by_class(test_folder, passed_over)
        unknown = [name for name in by_test_class if name not in by_class]
        if unknown:
            raise errors.DataError(
                f'{test_folder} has {", ".join(unknown)}, which {train_folder} has not')
        train = [by_class[name] for name in classes]
        test = [by_test_class.get(name, []) for name in classes]
        passed_over += [entry.path for entry in _visible(folder)
                        if entry.path not in (train_folder, test_folder)]
    random = np.random.RandomState(SEED)
    return Found(classes, _labelled(train, random), _labelled(test, random), sorted(passed_over))


def _test_folder(folder):
    """Path of the folder with the test images, None where there is no split.

    `train` and `test` are folders of a split if there are no others and `train` holds folders;
    else they are classes.
    """
    names = {entry.name for entry in _visible(folder) if entry.is_dir()}
    if 'train' not in names or not names <= {'train', 'test', 'val'} or len(names) == 1:
        return None
    if not any(entry.is_dir() for entry in _visible(os.path.join(folder, 'train'))):
        return None
    return os.path.join(folder, 'test' if 'test' in names else 'val')


def _images_by_class(folder, passed_over):
    """Name of each folder in a folder -> sorted paths of its images; appends the other paths."""
    by_class = {}
    for entry in _visible(folder):
        if not entry.is_dir():
            passed_over.append(entry.path)
            continue
        by_class[entry.name] = images.files(entry.path)
        of_class = set(by_class[entry.name])
        passed_over += [inner.path for inner in _visible(entry.path) if inner.path not in of_class]
    return by_class


def _visible(folder):
    return [entry for entry in os.scandir(folder) if not entry.name.startswith('.')]


def _checked(folder, by_class):
    """The names of the classes, sorted, if they can be those of a data set."""
    if not 2 <= len(by_class) <= custom.MAX_CLASSES:
        raise errors.DataError(
            f'{folder} has {len(by_class)} folders; wanted: one for each class, 2 to '
            f'{custom.MAX_CLASSES}, with its images in it')
    for name, paths in by_class.items():
        if not small_files.is_name(name):
            raise errors.DataError(f'{folder} has a folder named {name!r}: a class needs a name '
                                  'that a console can show')
        if not paths:
            raise errors.DataError(f'{os.path.join(folder, name)} has no image '
                                  f'({", ".join(images.ENDINGS)}): fill it, or remove it')
    return tuple(sorted(by_class))


def _split(paths_by_label):
    """Draws the test images: (training paths, test paths), each a list over labels of lists.

    Of a class with fewer than six images, but more than one, a single one.
    """
    random = np.random.RandomState(SEED)
    train, test = [], []
    for paths in paths_by_label:
        count = max(len(paths) // TEST_SHARE, min(1, len(paths) - 1))
        drawn = set(random.permutation(len(paths))[:count].tolist())
        test.append([path for index, path in enumerate(paths) if index in drawn])
        train.append([path for index, path in enumerate(paths) if index not in drawn])
    return train, test


def _labelled(paths_by_label, random):
    """List of (label, path) in random order: training mixes only what is near in its files."""
    pairs = [(label, path) for label, paths in enumerate(paths_by_label) for path in paths]
    return [pairs[index] for index in random.permutation(len(pairs))]
