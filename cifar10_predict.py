"""Classifies images with a trained network.

    python cifar10_predict.py cat.jpg dog.png holidays/
    python cifar10_predict.py 'holidays/**/*.jpg' --checkpoint_dir=/tmp/my_run --best --json

IMAGE is a file of one of the formats of docs/usage.md, a folder of them or a pattern, in which **
stands for folders of all levels. Transparent pixels become white, the short side becomes 32 pixels,
the centre is kept, and the preprocessing of the evaluation follows. Unreadable images are reported
and skipped; the exit code is then 1.

The network is that of the latest checkpoint in --checkpoint_dir, a run of the tutorial or of
classification.py, or of the best one with --best. If the flag is not given and there is no run in
/tmp/cifar10_train, it is models/airbench94.
"""
import glob
import json
import os

from cifar10_lib import checkpoints, errors, script
from classification_lib import evaluate, images, trained

import numpy as np
from absl import flags

flags.DEFINE_string('checkpoint_dir', '/tmp/cifar10_train',
                    'Folder of a run, or path of a checkpoint.')
flags.DEFINE_boolean('best', False, 'Use the checkpoint in best/, the one with the lowest '
                     'validation error, instead of the latest one.')
flags.DEFINE_integer('top_k', 3, 'Maximum number of classes to print per image, the most probable '
                     'first.', lower_bound=1)
flags.DEFINE_boolean('json', False, 'Print one JSON object per line and image instead of a table.')

FLAGS = flags.FLAGS

_WEIGHTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'models', 'airbench94')


def predict(words):
    """Prints the most probable classes of images; reports unreadable ones on standard error.

    `words` are files, folders and patterns. Returns the exit code: 1 if an image cannot be read,
    else 0. Raises `errors.UserError` if a folder or a pattern has no images, or if there is no
    checkpoint or it does not fit its network.
    """
    paths, exit_code = [], 0
    for path in [path for word in words for path in _paths(word)]:
        if os.path.exists(path):
            paths.append(path)
        else:
            errors.note(f'{path} cannot be read (No such file or directory)')
            exit_code = 1
    if not paths:
        return exit_code
    width = max(len(text) for text in ['image', *paths])
    found = _trained()
    network = evaluate.Classifier(found.recipe, len(found.classes))
    with network.restored(found.checkpoint) as session:
        if not FLAGS.json:
            print(f'{"image":{width}}  probability  class', flush=True)
        for start in range(0, len(paths), FLAGS.batch_size):
            readable, pixels = [], []
            for path in paths[start:start + FLAGS.batch_size]:
                try:
                    pixels.append(images.read(path))
                    readable.append(path)
                except errors.UserError as error:
                    errors.note(str(error))
                    exit_code = 1
            if readable:
                _, probabilities = network.classify(session, pixels)
                for path, row in zip(readable, probabilities):
                    _show(path, row, found.classes, width)
    return exit_code


def _paths(word):
    """Returns the files that an argument stands for."""
    if os.path.isdir(word):
        found = images.paths_in(word)
    elif glob.has_magic(word) and not os.path.exists(word):
        found = sorted(path for path in glob.glob(word, recursive=True) if os.path.isfile(path))
    else:
        found = [word]
    if not found:
        raise errors.UserError(f'No image in {word}: give images, a folder that holds them, or a '
                               "pattern such as 'photos/**/*.jpg'")
    return found


def _trained():
    """The `trained.Network` of the flags, or that of the shipped weights."""
    folder = FLAGS.checkpoint_dir
    is_chosen = FLAGS['checkpoint_dir'].present or FLAGS.best
    if not is_chosen and not checkpoints.candidates(folder) and os.path.isdir(_WEIGHTS):
        errors.note(f'no run in {folder}: using the weights in {_WEIGHTS}')
        folder = _WEIGHTS
    return trained.find(folder, FLAGS.best, trained.given_data_dir())


def _show(path, probabilities, classes, width):
    """Prints the most probable classes of an image.

    `probabilities` is float32 [classes], `width` that of the table's first column.
    """
    labels = np.argsort(-probabilities, kind='stable')[:FLAGS.top_k].tolist()
    if FLAGS.json:
        predictions = [{'class': classes[label], 'label': label,
                        'probability': round(float(probabilities[label]), 6)} for label in labels]
        print(json.dumps({'image': path, 'predictions': predictions}), flush=True)
        return
    name = path
    for label in labels:
        print(f'{name:{width}}  {probabilities[label]:11.4f}  {classes[label]}', flush=True)
        name = ''  # Below the first class.


if __name__ == '__main__':
    script.run(predict, positional='IMAGE...')
