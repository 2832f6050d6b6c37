"""Images in one folder per class, such as `cat/1.jpg` and `dog/1.jpg`.

Folders `train/cat`, `test/cat` and so on define the split. Otherwise a sixth of each class, drawn
with a fixed seed, is for testing, as in CIFAR-10. Deeper folders are not searched. Links are
followed, because they are the user's own.
"""
import os

import numpy as np

from cifar10_lib.datasets import custom, images, table
from cifar10_lib.program import console, errors

_OTHER_FORMS = ': docs/usage.md shows how to write one from other formats'
_TEST_ONE_IN = 6  # Without a split.

# Names of folders that define a split, in any case; the first one found contains the test images.
_TRAINING, _TESTING = ('train', 'training'), ('test', 'testing', 'val', 'valid', 'validation')


def read(folder, skipped):
    """Returns the classes, and training and test images with their labels; see `custom.write`.

    For `skipped` and errors, see `find`. Images that cannot be read are skipped, too.
    """
    classes, train, test = find(folder, skipped)
    # One scale for the whole set: classes may differ in brightness.
    highest = max((images.highest_value(path) for _, path in (*(train or ()), *test)), default=0)
    if highest:
        console.line(f'Images with more than 8 bits per channel: {highest:g} becomes white.')
    return classes, train if train is None else _decoded(train, skipped, highest), (
        _decoded(test, skipped, highest))


def _decoded(labelled_paths, skipped, highest):
    """Reads images, showing progress: uint8 [count, 32, 32, 3], and their labels, int [count]."""
    total = len(labelled_paths)
    pixels, labels = np.empty([total, table.HEIGHT, table.WIDTH, table.DEPTH], np.uint8), []
    for done, (label, path) in enumerate(labelled_paths, 1):
        try:
            pixels[len(labels)] = images.read(path, highest)
            labels.append(label)
        except errors.DataError as error:
            skipped.append((path, str(error).removeprefix(f'{path} ')))
        console.progress(f'{done} of {total} images')
    return pixels[:len(labels)], np.array(labels, int)


def find(folder, skipped):
    """Finds the classes and images in a folder; the same files give the same result.

    Appends (path, why) to `skipped` for each file or folder that is not used. Returns the sorted
    names of the classes, of which a label is an index; and the training and the test images, lists
    of (label, path). The first is None for a folder `test` alone.

    Raises:
        errors.DataError: the folder is missing, the number of classes is not 2 to 256, or a class
            is only in the test folder.
    """
    if not os.path.isdir(folder):
        raise errors.DataError(f'{folder} is not a folder; expected one with a folder of images '
                               f'for each class, or an .npz file{_OTHER_FORMS}')
    train_folder, test_folder = _split_folders(folder)
    train, test = (each and _by_class(each, skipped) for each in (train_folder, test_folder))
    classes, labelled = tuple(test if train is None else train), train_folder or test_folder
    if not 2 <= len(classes) <= custom.MAX_CLASSES:
        files = sorted(entry.name for entry in _visible(labelled) if os.path.isfile(entry))
        beside = f' and {len(files)} files, such as {files[0]}' if files else ''
        raise errors.DataError(
            f'{labelled} has {len(classes)} folders{beside}; expected 2 to {custom.MAX_CLASSES} '
            f'classes, each a folder with its images, or an .npz file{_OTHER_FORMS}')
    if test_folder:
        unknown = sorted(set(test).difference(classes))
        if unknown:
            raise errors.DataError(
                f'{test_folder} has {", ".join(unknown)}, missing from {train_folder}: add them '
                'there, or remove them')
    else:
        random, test = np.random.RandomState(custom.SEED), {}
        for name, paths in train.items():  # One of two to five images, none of a single one.
            count = max(len(paths) // _TEST_ONE_IN, min(1, len(paths) - 1))
            mixed = [paths[index] for index in random.permutation(len(paths))]
            test[name], train[name] = mixed[:count], mixed[count:]
    if folder not in (train_folder, test_folder):
        skipped += [(entry.path, 'is not part of the split') for entry in _visible(folder)
                    if entry.path not in (train_folder, test_folder)]
    return classes, *(
        by_class and [(classes.index(name), path) for name in by_class for path in by_class[name]]
        for by_class in (train, test))


def holds_classes(folder):
    """Whether `find` finds classes in a folder, which may be missing, and an image of each."""
    try:
        classes, train, test = find(folder, [])
    except (errors.DataError, OSError):
        return False
    return len({label for label, _ in (train or test)}) == len(classes)


def _split_folders(folder):
    """Returns (training folder, test folder): (None, test) for a folder `test` alone; (folder,
    None) without a split, since `train` may be a class, as in CIFAR-100."""
    named = {entry.name.lower(): entry.path for entry in _visible(folder) if os.path.isdir(entry)}
    labelled = {name for name, path in named.items()
                if any(os.path.isdir(entry) for entry in _visible(path))}
    train, test = (next((named[name] for name in names if name in labelled), None)
                   for names in (_TRAINING, _TESTING))
    if test and (train or not set(named).difference(_TESTING)):
        return train, test
    if train and not set(named).difference(_TRAINING):
        return train, None
    unsorted = set(named) - labelled
    if unsorted and not set(named).difference(_TRAINING, _TESTING):
        remedy = f', or convert only {train}' if train else ''
        raise errors.DataError(f'{folder} has {", ".join(sorted(unsorted))}, without '
                               f'a folder for each class in it: sort the images by class{remedy}')
    return folder, None


def _by_class(folder, skipped):
    """Returns {class: sorted paths of its images}, sorted; adds all other paths to `skipped`."""
    by_class = {}
    for entry in sorted(_visible(folder), key=lambda entry: entry.name):
        if os.path.isdir(entry):
            paths = by_class[entry.name] = images.find(entry.path)
            skipped += [(path, 'is not a file named like an image') for path in sorted(
                {inner.path for inner in _visible(entry.path)}.difference(paths))]
        else:
            skipped.append((entry.path, 'is not in the folder of a class'))
    return by_class


def _visible(folder):
    return [entry for entry in os.scandir(folder) if not entry.name.startswith('.')]
