"""Makes a data set from your own images, or from another form of CIFAR-10, CIFAR-100 or SVHN.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_train.py --dataset=DATA_DIR --train_dir=...

FOLDER contains a folder of images per class, such as FOLDER/cat/1.jpg: JPEG, PNG, GIF, BMP, WebP,
TIFF or AVIF of any size. Folders train/cat and test/cat (or val/cat) and so on define the split;
otherwise a fixed sixth of each class becomes the test set. The EXIF orientation is applied, the
short side becomes 32 pixels, and the centre is kept.

FOLDER may also contain Kaggle's train/ and trainLabels.csv, SVHN's train_32x32.mat and
test_32x32.mat (requires SciPy), the pickles of torchvision and Keras (cifar-10-batches-py,
cifar-100-python), or Parquet files from Hugging Face (requires pyarrow); or be an .npz file with
x_train, y_train, x_test and y_test. These keep the published pixels, byte for byte.

Creates DATA_DIR with train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes
and the names of the classes. Lists at the end which files were skipped, and why.
"""
import os
import shlex
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

from absl import app

from cifar10_lib.datasets import custom, forms
from cifar10_lib.program import console, files

_SHOWN = 20  # Skipped files per reason.
_MAX_NAME = 225  # Bytes; the file system's limit is 255, and a temporary name is longer.


def convert(folder, data_dir):
    """Converts the data in a folder or file to the data set `data_dir`, all or nothing.

    Raises:
        app.UsageError: `data_dir` is not empty, has too long a name, or is inside a folder of
            images.
        errors.DataError: `folder` does not contain a valid data set.
        OSError: reading or writing failed.
    """
    name = os.path.basename(os.path.abspath(data_dir))
    if len(os.fsencode(name)) > _MAX_NAME:
        raise app.UsageError(f'{name} has {len(os.fsencode(name))} bytes; expected a name of at '
                             f'most {_MAX_NAME}: choose another DATA_DIR')
    skipped = []
    form = forms.find(folder) or forms.CLASS_FOLDERS
    if form is forms.CLASS_FOLDERS and _is_inside(data_dir, folder):
        raise app.UsageError(f'{data_dir} is inside {folder}, where each folder is a class: choose '
                             'another DATA_DIR')
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            classes, train, test = form.read(folder, skipped)
            counts = custom.write(partial, name, classes, train, test)
    finally:  # Not inside `new_folder`: a lost console must not remove the data set.
        _show(skipped)
    console.line(f'{data_dir} holds {counts[0]} training and {counts[1]} test images of '
                 f'{len(classes)} classes, from {form.title}: train with '
                 f'--dataset={shlex.quote(data_dir)} --epochs=100')


def _is_inside(path, folder):
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path != folder and os.path.commonpath([path, folder]) == folder


def _show(skipped):
    """Prints what was skipped, a list of (path, why), by reason."""
    for why in dict.fromkeys(why for _, why in skipped):
        paths = sorted(path for path, why_ in skipped if why_ == why)
        console.line(f'Skipped {len(paths)}:')
        for path in paths[:_SHOWN]:
            console.line(f'{path} {why}')
        if len(paths) > _SHOWN:
            console.line(f'... and {len(paths) - _SHOWN} more')


if __name__ == '__main__':
    startup.run(lambda words: convert(*words), positional='FOLDER DATA_DIR')
