"""Images in one folder per class, such as `cat/1.jpg` and `dog/1.jpg`.

Folders `train/cat`, `test/cat` and so on define the split. Otherwise a sixth of each class, drawn
with a fixed seed, is for testing, as in CIFAR-10. Deeper folders are not searched. Links are
followed, because they are the user's own.
"""
import os
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from cifar10_lib.datasets import custom, images, table
from cifar10_lib.program import console, errors

_OTHER_FORMS = ': docs/usage.md shows how to write one from other formats'
_TEST_ONE_IN = 6  # Without a split.

# A folder is a part of the split if its name, in any case, contains one of these words, as `train`
# and `seg_test` do. If several are for testing, the first word's folder is used.
_TRAINING = ('train', 'training')
_TESTING = ('test', 'testing', 'val', 'valid', 'validation', 'dev')

Paths = list[tuple[int, str]]  # Label and path of each image.
Skipped = list[tuple[str, str]]  # Path of each file or folder that is not used, and why.


def read(folder: str, skipped: Skipped) -> custom.Images:
    """Reads the classes and images in a folder.

    For `skipped` and errors, see `find`. Images that cannot be read are skipped, too.
    """
    classes, train_paths, test_paths = find(folder, skipped)
    train = None
    if train_paths is not None:
        train = _decoded(train_paths, skipped)
    return classes, train, _decoded(test_paths, skipped)


def _decoded(labelled_paths: Paths, skipped: Skipped) -> custom.Labelled:
    """Reads images, showing progress: uint8 [count, 32, 32, 3], and their labels, int [count]."""
    total = len(labelled_paths)
    pixels = np.empty([total, table.HEIGHT, table.WIDTH, table.DEPTH], np.uint8)
    labels: list[int] = []
    for done, (label, path) in enumerate(labelled_paths, 1):
        try:
            pixels[len(labels)] = images.read(path)
            labels.append(label)
        except errors.DataError as error:
            skipped.append((path, str(error).removeprefix(f'{path} ')))
        console.progress(f'{done} of {total} images')
    return pixels[:len(labels)], np.array(labels, int)


def find(folder: str, skipped: Skipped,
         look_inside: bool = True) -> tuple[Sequence[str], Paths | None, Paths]:
    """Finds the classes and images in a folder; the same files give the same result.

    Appends to `skipped` what is not used. Returns the sorted names of the classes, of which a label
    is an index; and the training and the test images. The first is None for a folder `test` alone.

    Raises:
        errors.DataError: the folder is missing or holds only folders of folders (with
            `look_inside`, the line names the one that would do), the number of classes is not 2 to
            256, a name is not UTF-8, or a class is only in the test folder.
    """
    if not os.path.isdir(folder):
        raise errors.DataError(f'{folder} is not a folder; expected one with a folder of images '
                               f'for each class, or an .npz file{_OTHER_FORMS}')
    train_folder, test_folder = _split_folders(folder)
    labelled = train_folder or test_folder
    train, test = _by_class(labelled, skipped, look_inside), None
    classes = tuple(train)
    if not 2 <= len(classes) <= custom.MAX_CLASSES:
        raise errors.DataError(
            f'{labelled} has {len(classes)} folders{_files_beside(labelled)}; expected 2 to '
            f'{custom.MAX_CLASSES} classes, each a folder with its images, or an .npz '
            f'file{_OTHER_FORMS}')
    if labelled != folder:
        skipped += [(entry.path, 'is not part of the split') for entry in _visible(folder)
                    if entry.path not in (train_folder, test_folder)]
    if train_folder is None:
        return classes, None, _labelled(train, classes)
    if test_folder is None:
        train, test = _drawn(train)
    else:
        test = _by_class(test_folder, skipped, look_inside)
    unknown = sorted(set(test).difference(classes))
    if unknown:
        raise errors.DataError(
            f'{test_folder} has {", ".join(unknown)}, missing from {train_folder}: add them '
            'there, or remove them')
    return classes, _labelled(train, classes), _labelled(test, classes)


def holds_classes(folder: str) -> bool:
    """Whether `find` finds classes in a folder, which may be missing, and an image of each."""
    try:
        classes, train, test = find(folder, [], look_inside=False)
    except (errors.DataError, OSError):
        return False
    return len({label for label, _ in (train or test)}) == len(classes)


def _split_folders(folder):
    """Returns (training folder, test folder): (None, test) for a folder `test` alone; (folder,
    None) without a split, since `train` may be a class, as in CIFAR-100."""
    entries = sorted(_folders(folder), key=lambda entry: (len(entry.name), entry.name))
    words = {_word(entry.name) for entry in entries}
    train, test = _part(entries, _TRAINING), _part(entries, _TESTING)
    if train and test:
        return train, test
    if test and words.issubset(_TESTING):
        return None, test
    if train and words.issubset(_TRAINING):
        return train, None
    unsorted = sorted(entry.name for entry in entries if not _folders(entry.path))
    if unsorted and _are_parts(entries, words):
        remedy = ''
        if train:
            remedy = f', or convert only {train}'
        raise errors.DataError(f'{folder} has {", ".join(unsorted)}, without a folder for each '
                               f'class in it: sort the images by class{remedy}')
    return folder, None


def _word(name):
    """Returns the word that makes a folder a part of the split; None without or with several."""
    words = set(re.findall(r'[^\W\d_]+', name.lower())).intersection(_TRAINING + _TESTING)
    return words.pop() if len(words) == 1 else None


def _part(entries, words):
    """Returns the path of the first folder with one of these words that holds folders, or None."""
    for word in words:
        for entry in entries:
            if _word(entry.name) == word and _folders(entry.path):
                return entry.path
    return None


def _are_parts(entries, words):
    """Whether folders are parts of a split, not classes such as "freight train" and "tram"."""
    if None in words:
        return False
    if words.intersection(_TRAINING) and words.intersection(_TESTING):
        return True
    return all(entry.name.lower() == _word(entry.name) for entry in entries)


def _by_class(folder, skipped, look_inside):
    """Returns {class: paths of its images}, sorted; adds all other paths to `skipped`."""
    by_class: dict[str, list[str]] = {}
    others = []
    for entry in sorted(_visible(folder), key=lambda entry: entry.name):
        if not os.path.isdir(entry):
            others.append((entry.path, 'is not in the folder of a class'))
            continue
        paths = images.find(entry.path)
        by_class.setdefault(_class(entry), []).extend(paths)
        others += [(path, 'is not a file named like an image') for path in sorted(
            {inner.path for inner in _visible(entry.path)}.difference(paths))]
    if not any(by_class.values()) and any(os.path.isdir(path) for path, _ in others):
        raise errors.DataError(_folders_of_folders(folder, look_inside))
    skipped += others
    return dict(sorted(by_class.items()))


def _class(entry):
    """The name of a class: macOS stores é as two characters, other systems as one."""
    try:
        entry.name.encode()
    except UnicodeEncodeError as error:
        raise errors.DataError(f'the name of {entry.path} is not UTF-8: rename the folder') from (
            error)
    return unicodedata.normalize('NFC', entry.name)


def _folders_of_folders(folder, look_inside):
    """The line about a folder without images in its folders."""
    line = (f'{folder} holds only folders of folders; expected images in CLASS/, or in '
            'train/CLASS/ and test/CLASS/, where names may contain one of '
            f'{", ".join((*_TRAINING, *_TESTING))} as a word')
    if look_inside:
        right = [entry.path for entry in _folders(folder) if holds_classes(entry.path)]
        if len(right) == 1:
            line += f': pass {right[0]}, or move its folders up'
    return line


def _files_beside(folder):
    """What to say about the files in a folder that should hold folders."""
    names = sorted(entry.name for entry in _visible(folder) if os.path.isfile(entry))
    if not names:
        return ''
    return f' and {len(names)} files, such as {names[0]}'


def _drawn(by_class):
    """Draws a test set: one of six images, one of two to five, none of a single one.

    Returns the images for training and for testing, both {class: paths}.
    """
    random, train, test = np.random.RandomState(custom.SEED), {}, {}
    for name, paths in by_class.items():
        count = len(paths) // _TEST_ONE_IN
        if count == 0 and len(paths) > 1:
            count = 1
        mixed = [paths[index] for index in random.permutation(len(paths))]
        test[name], train[name] = mixed[:count], mixed[count:]
    return train, test


def _labelled(by_class, classes):
    """Returns [(label, path)] of {class: paths}."""
    return [(classes.index(name), path) for name, paths in by_class.items() for path in paths]


def _folders(folder):
    return [entry for entry in _visible(folder) if os.path.isdir(entry)]


def _visible(folder):
    return [entry for entry in os.scandir(folder)
            if not entry.name.startswith(('.', '__MACOSX'))]  # macOS adds that to a .zip.
