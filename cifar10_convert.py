"""Makes a data set from your own images, from arrays of NumPy, or from generated images.

    python cifar10_convert.py FOLDER DATA_DIR
    python cifar10_convert.py FILE.npz DATA_DIR
    python classification.py --dataset=DATA_DIR --train_dir=...

FOLDER contains a folder of images per class, such as FOLDER/cat/1.jpg. Folders train/cat and
test/cat (or val/cat) and so on define the split; otherwise about a sixth of the images becomes the
test set, always the same ones. FILE.npz contains x_train and x_test, uint8 [count, 32, 32, 3],
y_train and y_test, the labels from 0, and optionally classes, their names. docs/usage.md has the
formats, and shows how to get images from other programs.

Creates DATA_DIR with train.bin and test.bin in CIFAR-10's layout, and dataset.json with their sizes
and the names of the classes. Lists which files were skipped, and why.

    python cifar10_convert.py synthetic DATA_DIR
    python cifar10_train.py --data_dir=DATA_DIR --train_dir=... --max_steps=300

generates images of ten forms, in the folder and the files that the tutorial expects.
"""
import os
import pathlib

from cifar10_lib import errors, files, script
from classification_lib import data_sets, synthetic


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

    Raises `errors.UserError` if `source` is not valid, or `data_dir` not empty or inside it.
    """
    from classification_lib import own_images  # It requires Pillow; generated images do not.

    name = os.path.basename(os.path.abspath(data_dir))
    data_sets.check_row({'name': name}, 'the new data set, named like its folder')
    made, given = os.path.realpath(data_dir), os.path.realpath(source)
    if made != given and pathlib.Path(made).is_relative_to(given):
        raise errors.UserError(f'{data_dir} is inside {source}, where each folder is a class: '
                                'choose another DATA_DIR')
    if os.path.exists(os.path.join(data_dir, data_sets.FILE)):
        raise errors.UserError(
            f'{data_dir} already holds a data set: if you have added images, convert them into a '
            'new DATA_DIR, and train a new run with classification.py --initial_checkpoint=OLD_RUN')
    skipped: list[str] = []
    try:
        with files.new_folder(data_dir, 'DATA_DIR') as partial:
            if source.lower().endswith('.npz'):
                own = own_images.read_arrays(source)
            else:
                own = own_images.read_folder(source, skipped)
            own_images.write(partial, name, own)
    finally:
        if skipped:
            print(f'Skipped {len(skipped)}:', *skipped, sep='\n  ')
    for label, class_name in enumerate(own.classes):
        print(f'{class_name}: {(own.train.labels == label).sum()} training and '
              f'{(own.test.labels == label).sum()} test images')
    for line in own_images.doubts(own):
        print(line)
    print(f'{data_dir} holds {len(own.train.labels)} training and {len(own.test.labels)} test '
          f'images of {len(own.classes)} classes: use classification.py --dataset="{data_dir}" '
          '--train_dir=NEW_FOLDER')


if __name__ == '__main__':
    script.run(main, 'SOURCE DATA_DIR')
