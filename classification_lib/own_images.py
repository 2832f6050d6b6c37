"""Makes record files of a user's own images: of a folder per class, or of an `.npz` file.

In a folder, either each folder is a class (`cat/1.jpg`, `dog/1.jpg`), or `train/cat/1.jpg` and
`test/cat/1.jpg` define the split. Without test folders, a hash of an image's pixels decides whether
it is a test image, so that adding, renaming or copying images never moves one to the other set.
Deeper folders are not searched. Links are followed, because they are the user's own.
"""
import collections
import hashlib
import json
import os
import unicodedata
from typing import Any, NamedTuple

from cifar10_lib import errors
from classification_lib import data_sets, images

import numpy as np
import tqdm

_SEED = 20151111
_TEST_ONE_IN = 6  # As in CIFAR-10, if there are no test folders.
_TRAINING = ('train', 'training')
_TESTING = ('test', 'val', 'valid', 'validation')  # The first one that holds folders is used.
_FORM = 'CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE'

Images = dict[str, list[np.ndarray]]  # {class: its images, uint8 [32, 32, 3]}


class Split(NamedTuple):
    """Images, uint8 [count, 32, 32, 3], and their labels, int [count]."""

    images: np.ndarray
    labels: np.ndarray


class OwnImages(NamedTuple):
    """The names of the classes, of which a label is an index, and the images."""

    classes: list[str]
    train: Split
    test: Split


def read_folder(folder: str, skipped: list[str]) -> OwnImages:
    """Reads the images in the folders of the classes, and adds what is not used to `skipped`.

    A folder without a readable image is not a class. Raises `errors.UserError` if there are not 2
    to 256 classes, or one is only in the test folder.
    """
    if not os.path.isdir(folder):
        raise errors.UserError(f'{folder} is not a folder; expected one with {_FORM}')
    train_folder, test_folder = _part(folder, _TRAINING), _part(folder, _TESTING)
    if train_folder is None or test_folder is None:
        names = [entry.name for entry in _sorted(folder) if _is_shown_folder(entry)]
        if names and {name.lower() for name in names}.issubset(_TRAINING + _TESTING):
            raise errors.UserError(f'{folder} has only {", ".join(names)}; expected {_FORM}')
        by_class = _read(folder, skipped)
        classes = _names(by_class, folder)
        return OwnImages(classes, *_split_by_hash(_labelled(by_class, classes)))
    for entry in _sorted(folder):
        if entry.path not in (train_folder, test_folder):
            skipped.append(f'{entry.path} (beside the training and the test folder)')
    train, test = _read(train_folder, skipped), _read(test_folder, skipped)
    classes = _names(train, train_folder)
    unknown = sorted(set(test).difference(train))
    if unknown:
        raise errors.UserError(f'{test_folder} has {", ".join(unknown)}, missing from '
                                f'{train_folder}: add them there, or remove them')
    return OwnImages(classes, _labelled(train, classes), _labelled(test, classes))


def _part(folder: str, names: tuple[str, ...]) -> str | None:
    """Returns the path of the first folder with one of these names that holds folders, or None."""
    for name in names:
        for entry in _sorted(folder):
            if entry.name.lower() == name and _is_shown_folder(entry) and any(
                    map(_is_shown_folder, _sorted(entry.path))):
                return entry.path
    return None


def _sorted(folder: str) -> list[os.DirEntry]:
    return sorted(os.scandir(folder), key=lambda entry: entry.name)


def _is_shown_folder(entry: os.DirEntry) -> bool:
    # `entry.is_dir()` raises an exception for a link to itself.
    return os.path.isdir(entry.path) and not entry.name.startswith('.')


def _read(folder: str, skipped: list[str]) -> Images:
    """Reads the images of each folder in a folder, showing progress on a terminal."""
    paths = []
    for entry in _sorted(folder):
        if not _is_shown_folder(entry):
            skipped.append(f'{entry.path} (not a folder, or hidden)')
            continue
        found = images.paths_in(entry.path)
        others = {inner.path for inner in os.scandir(entry.path)}.difference(found)
        for path in sorted(others):
            reason = 'not named like an image'
            if os.path.isdir(path):
                reason = 'a folder inside a class'
            elif f'{path}.png' in found:  # Of a HEIC file; see `images.paths_in`.
                reason = 'its PNG is used'
            skipped.append(f'{path} ({reason})')
        if not found:
            skipped.append(f'{entry.path} (no images)')
        # macOS stores é as two characters, other systems as one.
        paths += [(unicodedata.normalize('NFC', entry.name), path) for path in found]
    by_class: Images = {}
    for name, path in tqdm.tqdm(paths, unit=' images', leave=False, disable=None):
        try:
            image = images.read(path)
            by_class.setdefault(name, []).append(image)
        except errors.UserError as error:
            skipped.append(str(error))
    return by_class


def _names(by_class: Images, folder: str) -> list[str]:
    """Returns the sorted names of the classes; raises `errors.UserError` if they are not valid."""
    if not 2 <= len(by_class) <= data_sets.MAX_CLASSES:
        raise errors.UserError(
            f'{folder} has {len(by_class)} folders with readable images; expected 2 to '
            f'{data_sets.MAX_CLASSES} classes: {_FORM}')
    classes = sorted(by_class)
    data_sets.check_row({'classes': classes}, folder)
    return classes


def _labelled(by_class: Images, classes: list[str]) -> Split:
    """The images of all classes, and their labels."""
    found = [(label, image) for label, name in enumerate(classes)
             for image in by_class.get(name, [])]
    shape = [-1, data_sets.HEIGHT, data_sets.WIDTH, data_sets.DEPTH]
    return Split(np.array([image for _, image in found], np.uint8).reshape(shape),
                 np.array([label for label, _ in found], int))


def _split_by_hash(all_images: Split) -> tuple[Split, Split]:
    """Splits images into those for training and, about one of six, those for testing."""
    is_test = np.array([int.from_bytes(digest, 'big') % _TEST_ONE_IN == 0
                        for digest in _digests(all_images)], bool)
    return (Split(all_images.images[~is_test], all_images.labels[~is_test]),
            Split(all_images.images[is_test], all_images.labels[is_test]))


def _digests(split: Split) -> list[bytes]:
    """A hash of each image's pixels."""
    return [hashlib.sha256(image.tobytes()).digest() for image in split.images]


def read_arrays(path: str) -> OwnImages:
    """Reads the images in an `.npz` file.

    It has `x_train` and `x_test`, uint8 [count, 32, 32, 3], `y_train` and `y_test`, int [count] or
    [count, 1], and optionally `classes`; without them, the labels are the names. Does not unpickle
    objects, because a pickle can run any program. Raises `errors.UserError` if the file is
    damaged, or an array is missing or has another form.
    """
    classes = None
    try:
        with np.load(path, allow_pickle=False) as archive:
            train = Split(archive['x_train'], archive['y_train'])
            test = Split(archive['x_test'], archive['y_test'])
            if 'classes' in archive:
                classes = archive['classes'].astype(str).tolist()
    except Exception as error:  # Damage raises many types.
        raise errors.UserError(
            f'{path} cannot be read ({errors.one_line(error)}); expected the arrays x_train, '
            'y_train, x_test, y_test: uint8 [count, 32, 32, 3], and labels from 0') from error
    if classes is None:
        classes = [str(label) for label in range(max(2, np.unique(train.labels).size))]
    data_sets.check_row({'classes': classes}, path)
    return OwnImages(classes, _checked('train', *train, len(classes)),
                     _checked('test', *test, len(classes)))


def _checked(split: str, pixels: np.ndarray, labels: np.ndarray, num_classes: int) -> Split:
    """Returns the arrays of an `.npz` file; raises `errors.UserError` if they are not images and
    labels."""
    if labels.dtype.kind not in 'biuf' or labels.shape[:1] != (labels.size,):
        raise errors.UserError(f'y_{split} is {labels.dtype} {labels.shape}; expected labels from '
                                '0, int [count] or [count, 1]')
    expected = (labels.size, data_sets.HEIGHT, data_sets.WIDTH, data_sets.DEPTH)
    if pixels.dtype != np.uint8 or pixels.shape != expected:
        raise errors.UserError(f'x_{split} is {pixels.dtype} {pixels.shape} with {labels.size} '
                                f'labels; expected uint8 {expected}')
    if not np.isin(labels, np.arange(num_classes)).all():
        raise errors.UserError(
            f'y_{split} holds {np.min(labels)!s:.40} to {np.max(labels)!s:.40}; expected whole '
            f'numbers from 0 to {num_classes - 1}')
    return Split(pixels, labels.ravel().astype(int))


def doubts(own: OwnImages) -> list[str]:
    """Returns a line for each kind of image that makes the figures of a test doubtful."""
    lines = []
    untested = [name for label, name in enumerate(own.classes) if label not in own.test.labels]
    if untested:
        lines.append(f'No test images of {", ".join(untested):.200}: add images.')
    in_train, in_test = _digests(own.train), _digests(own.test)
    known = set(in_train)
    both = sum(digest in known for digest in in_test)
    if both:
        lines.append(f'{both} test images are also training images, which makes the accuracy look '
                     'better than it is: remove them from one of the sets.')
    labels_of = collections.defaultdict(set)
    for digest, label in zip(in_train + in_test, [*own.train.labels, *own.test.labels]):
        labels_of[digest].add(label)
    ambiguous = sum(len(labels) > 1 for labels in labels_of.values())
    if ambiguous:
        lines.append(f'{ambiguous} images are in more than one class: keep each in one.')
    return lines


def write(folder: str, name: str, own: OwnImages) -> None:
    """Writes record files and their `dataset.json` into an empty folder.

    The records are in a random order, the same each time, because a shuffle queue mixes only nearby
    ones. Raises `errors.UserError` if a class has no training image, or the test set is empty.
    """
    untrained = [name for label, name in enumerate(own.classes) if label not in own.train.labels]
    if untrained:
        raise errors.UserError(f'no training images of {", ".join(untrained):.200}: add some')
    if not own.test.labels.size:
        raise errors.UserError(f'no test images: add images, or sort them into {_FORM}')
    row: dict[str, Any] = {'name': name, 'classes': own.classes}
    for split, (pixels, labels) in (('train', own.train), ('test', own.test)):
        pixels_chw = pixels.transpose(0, 3, 1, 2).reshape(labels.size, -1)
        records = np.concatenate([labels[:, np.newaxis].astype(np.uint8), pixels_chw], axis=1)
        with open(os.path.join(folder, f'{split}.bin'), 'wb') as stream:
            # `tofile` does not report a full disk.
            stream.write(np.random.RandomState(_SEED).permutation(records).data)
        row[f'{split}_files'] = {f'{split}.bin': labels.size}
    with open(os.path.join(folder, data_sets.FILE), 'w', encoding='utf-8') as stream:
        json.dump(row, stream, indent=2, ensure_ascii=False)
        stream.write('\n')
