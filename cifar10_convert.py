"""Makes a data set from your own images, from arrays of NumPy, or from generated images.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_convert.py FILE.npz DATA_DIR
    python classification.py --dataset=DATA_DIR --train_dir=...

FOLDER contains a folder of images per class, such as FOLDER/cat/1.jpg, in any format that Pillow
reads by itself, so not EPS. Folders train/cat and test/cat (or val/cat) and so on define the split;
otherwise about a sixth of the images becomes the test set, always the same ones. The EXIF
orientation is applied, the short side becomes 32 pixels, the centre is kept, and transparent pixels
become white. Grey images with more than 8 bits are skipped; docs/usage.md shows how to scale them.

FILE.npz contains x_train and x_test, uint8 [count, 32, 32, 3], y_train and y_test, the labels from
0, and optionally classes, their names. docs/usage.md shows how to write it from SVHN's files and
from what torchvision, Keras, Kaggle and Hugging Face provide.

Creates DATA_DIR with train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes
and the names of the classes. Lists at the end which files were skipped, and why, and the number of
images per class.

    python cifar10_convert.py synthetic DATA_DIR
    python cifar10_train.py --data_dir=DATA_DIR --train_dir=... --max_steps=300

generates images of ten forms, in the folder and the files that the tutorial expects.
"""
import collections
import os
import pathlib

from cifar10_lib import console, files, named_sets, own_images, synthetic

import numpy as np

_SHOWN = 20  # Skipped files per reason, and classes.


def main(words):
    """Converts a source to a data set, all or nothing: `words` are SOURCE and DATA_DIR."""
    source, data_dir = words
    if source == 'synthetic':
        folder = synthetic.write(data_dir)
        print(f'{folder} holds generated images: use cifar10_train.py --data_dir="{data_dir}"')
        return
    convert(source, data_dir)


def convert(source, data_dir):
    """Converts a folder of images or an .npz file to the data set `data_dir`.

    Raises:
        console.UserError: `source` is not valid, or `data_dir` is not empty or inside `source`.
        OSError: reading or writing failed.
    """
    name = os.path.basename(os.path.abspath(data_dir))
    named_sets.check_row({'name': name}, 'the new data set, named like its folder')
    made, given = os.path.realpath(data_dir), os.path.realpath(source)
    if made != given and pathlib.Path(made).is_relative_to(given):
        raise console.UserError(f'{data_dir} is inside {source}, where each folder is a class: '
                                'choose another DATA_DIR')
    skipped = collections.defaultdict(list)
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            if source.lower().endswith('.npz'):
                own = own_images.read_arrays(source)
            else:
                own = own_images.read_folder(source, skipped)
            own_images.write(partial, name, own)
    finally:
        _show_skipped(skipped)
    for line in (*_counts(own), *own_images.doubts(own)):
        print(line)
    print(f'{data_dir} holds {len(own.train.labels)} training and {len(own.test.labels)} test '
          f'images of {len(own.classes)} classes: use classification.py --dataset="{data_dir}" '
          '--train_dir=NEW_FOLDER')


def _show_skipped(skipped):
    """Prints {reason: paths}; of many paths, the first ones."""
    for reason, paths in skipped.items():
        if paths:
            print(f'Skipped {len(paths)}, {reason}:')
        for path in paths[:_SHOWN]:
            print(f'  {path}')
        if len(paths) > _SHOWN:
            print(f'  ... and {len(paths) - _SHOWN} more')


def _counts(own):
    """Returns the lines with the numbers of images; of many classes, the smallest and largest."""
    in_train = np.bincount(own.train.labels, minlength=len(own.classes))
    in_test = np.bincount(own.test.labels, minlength=len(own.classes))
    rows = [(of_train, f'{name}: {of_train} training and {of_test} test images')
            for name, of_train, of_test in zip(own.classes, in_train, in_test)]
    if len(rows) <= _SHOWN:
        return [line for _, line in rows]
    return [f'The smallest class is {min(rows)[1]}', f'The largest class is {max(rows)[1]}']


if __name__ == '__main__':
    console.run(main, 'SOURCE DATA_DIR')
