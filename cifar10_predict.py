"""Classifies images with a trained network.

    python cifar10_predict.py cat.jpg dog.png --checkpoint_dir=/tmp/cifar10_train
    python cifar10_predict.py holidays/ --json
    python cifar10_predict.py 'holidays/*.jpg' --saved_model=/tmp/cifar10_model/1

Accepts JPEG, PNG, GIF, BMP, WebP, AVIF and TIFF files, folders and patterns. Uses the
first frame of an animation and applies the EXIF orientation. Transparent pixels become white, the
short side becomes 32 pixels, the centre is kept, and the preprocessing of the evaluation follows.
Unreadable images, and those with more than 8 bits per channel, are reported and skipped; the exit
code is then 1.

The network is the latest checkpoint in --checkpoint_dir with its moving averages, the best one with
--best, or a SavedModel from cifar10_export.py. A SavedModel is a program: load only trusted ones.
Without any of them, and without a run in /tmp/cifar10_train, it is that of models/airbench94.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import contextlib
import dataclasses
import glob
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

from cifar10_lib import settings
from cifar10_lib.datasets import images, table
from cifar10_lib.evaluation import model, trained
from cifar10_lib.program import command_line, console, devices, errors, startup
from cifar10_lib.runs import checkpoints

settings.define_checkpoint_flags()
command_line.define_path(
    'saved_model', None, 'Folder of a SavedModel to use instead of a checkpoint; --net, --dataset '
    'and --checkpoint_dir are then ignored.')
flags.DEFINE_integer('top_k', 3, 'Maximum number of classes to print per image, the most probable '
                     'first.', lower_bound=1, upper_bound=10**9)
flags.DEFINE_boolean('json', False, 'Print one JSON object per line and image instead of a table.')

FLAGS = tf.app.flags.FLAGS

_WEIGHTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'models', 'airbench94')


def predict(words):
    """Prints the most probable classes of images; reports unreadable ones on standard error.

    `words` is a list of files, folders and patterns. Returns the exit code: 1 if an image cannot be
    read, else 0. Raises `app.UsageError` if a word stands for no image, or the network is missing
    or does not fit, and `OSError` if the SavedModel cannot be read.
    """
    console.fail_if_stdout_closes()
    devices.choose(FLAGS.device)
    paths = [path for word in words for path in _paths(word)]
    width = max(map(len, [*paths, 'image']))
    exit_code = 0
    opened = _checkpoint
    if FLAGS.saved_model:
        opened = _saved_model
    with opened() as (classify, names, size):
        if not FLAGS.json:
            console.line(f'{"image":{width}}  probability  class')
        for start in range(0, len(paths), FLAGS.batch_size):
            read, pixels = [], []
            for path in paths[start:start + FLAGS.batch_size]:
                try:
                    pixels.append(images.read(path, size=size))
                    read.append(path)
                except errors.DataError as error:
                    errors.say(str(error))
                    exit_code = 1
            if read:
                for path, probabilities in zip(read, classify(np.stack(pixels))):
                    _show(path, probabilities, names, width)
    return exit_code


def _show(path, probabilities, names, width):
    """Prints the most probable classes of an image, float [classes]."""
    labels = np.argsort(-probabilities, kind='stable')[:FLAGS.top_k].tolist()
    if FLAGS.json:
        console.line(json.dumps({'image': path, 'predictions': [
            {'class': names[label], 'label': label,
             'probability': round(float(probabilities[label]), 6)} for label in labels]}))
    else:
        shown = path
        for label in labels:
            console.line(f'{shown:{width}}  {probabilities[label]:11.4f}  {names[label]}')
            shown = ''  # Below the first class.


def _paths(word):
    """Returns the files that an argument stands for."""
    word = os.path.expanduser(word)  # A quoted pattern.
    if os.path.isdir(word):
        found = images.find(word)
    elif os.path.lexists(word) or not glob.has_magic(word):
        return [word]
    else:
        found = sorted(path for path in glob.glob(word) if not os.path.isdir(path))
    if not found:
        raise app.UsageError(f'No image in {word}; expected {", ".join(images.ENDINGS)}')
    return found


@contextlib.contextmanager
def _checkpoint():
    """Yields a function from images to probabilities, uint8 [count, height, width, 3] -> float32
    [count, classes], the names of the classes, and (width, height)."""
    given = _trained()
    checkpoint = trained.checkpoint(given)
    if given.checkpoint_dir != _WEIGHTS:
        trained.say_owner(checkpoint)
    found = trained.read(os.path.dirname(checkpoint), reads_images=False)
    names = found.classes
    batch_size = None
    if found.recipe.batch_size is None:
        batch_size = FLAGS.batch_size  # An edited `cifar10.inference` may fix it.
    network = model.Model(found.recipe, len(names), batch_size)
    with network.session(checkpoint, given.use_moving_averages) as session:
        yield (lambda pixels: network.probabilities(session, pixels), names,
               (table.WIDTH, table.HEIGHT))


def _trained():
    """The `settings.Checkpoint` of the flags; without a run, that of the weights in `models`."""
    given = settings.checkpoint()
    if settings.given('checkpoint_dir') or given.best or not os.path.isdir(_WEIGHTS):
        return given
    with contextlib.suppress(PermissionError):  # Another user's.
        if checkpoints.candidates(given.checkpoint_dir):
            return given
    errors.say(f'no run in {given.checkpoint_dir}: using the weights in {_WEIGHTS}')
    return dataclasses.replace(given, checkpoint_dir=_WEIGHTS)


@contextlib.contextmanager
def _saved_model():
    """Yields what `_checkpoint` yields, for --saved_model."""
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        images_, probabilities = _load(session)
        height, width, _ = images_.shape.as_list()[1:]
        names = [str(label) for label in range(probabilities.shape.as_list()[-1])]
        path = os.path.join(FLAGS.saved_model, 'assets.extra', 'labels.txt')
        with contextlib.suppress(FileNotFoundError):
            with open(path, encoding='utf-8', errors='replace') as stream:
                read = stream.read().splitlines()
            names = read + names[len(read):]
        yield (lambda pixels: session.run(probabilities, {images_: pixels}), names,
               (width, height))


def _load(session):
    """Loads --saved_model; returns the tensors of its images and probabilities."""
    try:
        loaded = tf.saved_model.load(session, ['serve'], FLAGS.saved_model)
    except (OSError, RuntimeError, ValueError, tf.errors.OutOfRangeError) as error:
        # The file is missing or damaged.
        raise OSError(f'{errors.one_line(error).rstrip(".")}: export a SavedModel with '
                      'cifar10_export.py') from error
    signature = loaded.signature_def['serving_default']
    if 'images' not in signature.inputs or 'probabilities' not in signature.outputs:
        raise app.UsageError(f'{FLAGS.saved_model} has no signature of images and probabilities: '
                             'export one with cifar10_export.py')
    return [session.graph.get_tensor_by_name(each.name)
            for each in (signature.inputs['images'], signature.outputs['probabilities'])]


if __name__ == '__main__':
    startup.run(predict, positional='IMAGE...',
                unused=(*settings.TRAINING_FLAGS, 'data_dir', 'data_url'))
