"""Makes a data set from your own images, or from SVHN.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_train.py --dataset=DATA_DIR --train_dir=...

FOLDER contains a folder of images per class, such as FOLDER/cat/1.jpg: JPEG, PNG, GIF, BMP, WebP or
TIFF of any size. Folders train/cat and test/cat (or val/cat) and so on define the split; otherwise
a fixed sixth of each class becomes the test set. The EXIF orientation is applied, the short side
becomes 32 pixels, and the centre is kept. FOLDER may also contain SVHN's train_32x32.mat and
test_32x32.mat.

Creates DATA_DIR with train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes
and the names of the classes. Files that are not images are skipped, and listed at the end.
"""
import os
import shlex
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import numpy as np
from absl import app

from cifar10_lib.datasets import custom
from cifar10_lib.datasets import folders
from cifar10_lib.datasets import images
from cifar10_lib.datasets import svhn
from cifar10_lib.program import console
from cifar10_lib.program import files
from cifar10_lib.program import ownership


def convert(folder, data_dir):
    """Converts the images or MATLAB files in a folder to the data set `data_dir`, all or nothing.

    Raises:
        app.UsageError: `data_dir` is not empty, or is inside a folder of images.
        errors.DataError: `folder` does not contain a valid data set.
        OSError: reading or writing failed.
    """
    skipped = []
    is_svhn = svhn.found(folder)
    if not is_svhn and _is_inside(data_dir, folder):
        raise app.UsageError(f'{data_dir} is inside {folder}, where each folder is a class: choose '
                             'another DATA_DIR')
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            classes, train, test = _of_svhn(folder) if is_svhn else _of_images(folder, skipped)
            name = os.path.basename(os.path.abspath(data_dir))
            counts = custom.write(partial, name, classes, train, test)
    finally:  # Not inside `new_folder`: a lost console must not remove the data set.
        if skipped:
            console.line(f'Skipped {len(skipped)} files or folders:')
            for reason in skipped:
                console.line(reason)
    console.line(f'{data_dir} holds {counts[0]} training and {counts[1]} test images of '
                 f'{len(classes)} classes: train with --dataset={shlex.quote(data_dir)}')


def _is_inside(path, folder):
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path != folder and os.path.commonpath([path, folder]) == folder


def _of_svhn(folder):
    """Returns the classes, and the blocks of training and test records; see `custom.write`."""
    train, test = ([svhn.read(os.path.join(folder, name))]
                   for name in (svhn.TRAIN_FILE, svhn.TEST_FILE))
    return svhn.CLASSES, train, test


def _of_images(folder, skipped):
    """The same for class folders, showing progress; appends a line to `skipped` for each file that
    is skipped."""
    found = folders.find(folder)
    skipped += [f'{path} is not named like an image' for path in found.skipped]
    total, done = len(found.train) + len(found.test), 0

    def records(labelled_paths):
        nonlocal done
        for label, path in labelled_paths:
            try:
                yield images.record(label, images.read(path))[np.newaxis]
            except images.ImageError as error:
                skipped.append(str(error))
            done += 1
            console.progress(f'{done} of {total} images', keep=done == total)

    return found.classes, records(found.train), records(found.test)


if __name__ == '__main__':
    startup.run(lambda words: convert(*words), [ownership], positional='FOLDER DATA_DIR')
