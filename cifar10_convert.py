"""Makes a data set from your own images, or from arrays of NumPy.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_convert.py FILE.npz DATA_DIR
    python cifar10_train.py --dataset=DATA_DIR --train_dir=...

FOLDER contains a folder of images per class, such as FOLDER/cat/1.jpg: JPEG, PNG, GIF, BMP, WebP,
TIFF or AVIF. Folders train/cat and test/cat (or val/cat) and so on define the split;
otherwise a fixed sixth of each class becomes the test set. The EXIF orientation is applied, the
short side becomes 32 pixels, the centre is kept, and transparent pixels become white. Files with
more than 8 bits per channel are skipped; docs/usage.md shows how to scale them.

FILE.npz contains x_train and x_test, uint8 [count, 32, 32, 3], y_train and y_test, the labels from
0, and optionally classes, their names. docs/usage.md shows how to write it from SVHN's files and
from what torchvision, Keras, Kaggle and Hugging Face provide.

Without a folder train, or without x_train and y_train, DATA_DIR is a set to evaluate other runs on.

Creates DATA_DIR with train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes
and the names of the classes. Lists at the end which files were skipped, and why, and the number of
images per class.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import os
import pathlib
import re

from absl import app

from cifar10_lib.datasets import custom, folders
from cifar10_lib.program import console, files, startup

_SHOWN = 20  # Skipped files per reason.
_SHOWN_CLASSES = 10


def convert(source, data_dir):
    """Converts a folder of images or an .npz file to the data set `data_dir`, all or nothing.

    Raises:
        app.UsageError: `data_dir` is not empty, or is inside a folder of images.
        errors.DataError: `source` is not a valid data set.
        OSError: reading or writing failed.
    """
    name = os.path.basename(os.path.abspath(data_dir))
    made, given = os.path.realpath(data_dir), os.path.realpath(source)
    if made != given and pathlib.Path(made).is_relative_to(given):
        raise app.UsageError(f'{data_dir} is inside {source}, where each folder is a class: choose '
                             'another DATA_DIR')
    skipped: folders.Skipped = []
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            if source.lower().endswith('.npz'):
                classes, train, test = custom.read_arrays(source)
            else:
                classes, train, test = folders.read(source, skipped)
            counts = custom.write(partial, name, classes, train, test)
    finally:  # Outside `new_folder`: a lost console must not remove the data set.
        _show(skipped)
    _show_counts(classes, *counts)
    script = 'cifar10_eval.py'
    if train:
        script = 'cifar10_train.py --train_dir=NEW_FOLDER --epochs=100'
    console.line(f'{data_dir} holds {counts[0].sum()} training and {counts[1].sum()} test images '
                 f'of {len(classes)} classes: use {script} --dataset="{data_dir}"')


def _show_counts(classes, train, test):
    """Prints the numbers of images per class, int [classes]; of many, the smallest and largest."""
    rows = [(in_train, in_test, f'{name}: {in_train} training and {in_test} test images')
            for name, in_train, in_test in zip(classes, train, test)]
    if len(rows) <= _SHOWN_CLASSES:
        for _, _, line in rows:
            console.line(line)
    else:
        console.line(f'The smallest class is {min(rows)[-1]}')
        console.line(f'The largest class is {max(rows)[-1]}')


def _show(skipped):
    """Prints what was skipped, a list of (path, why), by reason."""
    by_reason: dict[str, list[str]] = {}
    for path, why in skipped:  # Damaged images differ in the number of bytes that are left.
        by_reason.setdefault(re.sub(r'\d+', '', why), []).append(f'{path} {why}')
    for lines in by_reason.values():
        console.line(f'Skipped {len(lines)}:')
        for line in sorted(lines)[:_SHOWN]:
            console.line(line)
        if len(lines) > _SHOWN:
            console.line(f'... and {len(lines) - _SHOWN} more')


if __name__ == '__main__':
    startup.run(lambda words: convert(*words), positional='SOURCE DATA_DIR')
