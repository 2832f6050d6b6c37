"""Makes a data set of your own images, or of SVHN.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_train.py --dataset=DATA_DIR --train_dir=...

FOLDER holds a folder for each class with its images, JPEG, PNG, GIF, BMP, WebP or TIFF of any size:
FOLDER/cat/1.jpg. Where it holds train/cat and test/cat (or val/cat) and so on, that is the split;
else a sixth of each class is for testing, always the same. Photographs are turned upright if their
EXIF data says how, the short side becomes 32 pixels, and the centre is kept. FOLDER may also hold
SVHN's train_32x32.mat and test_32x32.mat.

DATA_DIR is made: train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes and
the classes' names. Files that are not images are skipped, and listed at the end.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from program import startup  # First: it imports TensorFlow quietly.

import numpy as np
from absl import app

from datasets import custom
from datasets import folders
from datasets import images
from datasets import svhn
from program import console
from program import files
from program import ownership


def convert(folder, data_dir):
    """Makes a data set of the images in a folder, whole or not at all.

    Args:
        folder: path of the folder with images or MATLAB files.
        data_dir: path of the folder to make.

    Raises:
        app.UsageError: `data_dir` is not empty, or lies among the images.
        errors.DataError: `folder` holds no data set.
        OSError: one of them cannot be read, or written.
    """
    faults = []
    write = _write_svhn if svhn.found(folder) else _write_images
    if write is _write_images and _lies_in(data_dir, folder):
        raise app.UsageError(f'{data_dir} lies in {folder}, where each folder is a class: name '
                             'another DATA_DIR')
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            classes, counts = write(
                folder, partial, os.path.basename(os.path.abspath(data_dir)), faults)
    finally:  # When the folder stands: a console that is gone must not cost it.
        if faults:
            console.line(f'Passed over, {len(faults)}:')
            for fault in faults:
                console.line(fault)
    console.line(f'{data_dir} holds {counts[0]} training and {counts[1]} test images of '
                 f'{len(classes)} classes: train with --dataset={data_dir}')


def _lies_in(path, folder):
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path != folder and os.path.commonpath([path, folder]) == folder


def _write_svhn(folder, partial, name, faults):
    """Writes SVHN's images; returns what `_write_images` returns."""
    del faults  # There are none, or the whole file is one.
    train, test = (svhn.read(os.path.join(folder, file))
                   for file in (svhn.TRAIN_FILE, svhn.TEST_FILE))
    return svhn.CLASSES, custom.write(partial, name, svhn.CLASSES, [train], [test])


def _write_images(folder, partial, name, faults):
    """Writes the images of class folders, and shows how far that is.

    Args:
        folder: where they are.
        partial: empty folder for the data set.
        name: of the data set.
        faults: list to which a line is appended for each file that is passed over.

    Returns:
        (names of the classes, (number of training images, number of test images)).
    """
    found = folders.find(folder)
    faults += [f'{path} is not a file named like an image' for path in found.passed_over]
    total, done = len(found.train) + len(found.test), 0

    def records(labelled_paths):
        nonlocal done
        for label, path in labelled_paths:
            try:
                yield images.record(label, images.read(path))[np.newaxis]
            except images.ImageError as error:
                faults.append(str(error))
            done += 1
            console.progress(f'{done} of {total} images', keep=done == total)

    return found.classes, custom.write(
        partial, name, found.classes, records(found.train), records(found.test))


def main(words):
    convert(*words)


if __name__ == '__main__':
    startup.run(main, [ownership], words='FOLDER DATA_DIR')
