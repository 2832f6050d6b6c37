"""Classifies images with a trained network.

    python cifar10_predict.py cat.jpg dog.png --checkpoint_dir=/tmp/cifar10_train
    python cifar10_predict.py holidays/ --json
    python cifar10_predict.py 'holidays/*.jpg' --saved_model=/tmp/cifar10_model/1

Accepts JPEG, PNG, GIF, BMP, WebP, AVIF and TIFF files of any size, folders and patterns. Uses the
first frame of an animation and applies the EXIF orientation. The short side becomes 32 pixels, the
centre is kept, and the preprocessing of the evaluation follows. Unreadable images are reported and
skipped; the exit code is then 1.

The network is the latest checkpoint in --checkpoint_dir with its moving averages, the best one with
--best, or a SavedModel from cifar10_export.py. A SavedModel is a program: load only trusted ones.
"""
import contextlib
import glob
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.datasets import images
from cifar10_lib.evaluation import checkpoint_flags, confusion, model
from cifar10_lib.program import console, devices, errors, path_flags

path_flags.define('saved_model', None, 'Folder of a SavedModel to use instead of a checkpoint; '
                  '--net, --dataset and --checkpoint_dir are then ignored.')
flags.DEFINE_integer('top_k', 3, 'Maximum number of classes to print per image, the most probable '
                     'first.', lower_bound=1, upper_bound=10**9)
flags.DEFINE_boolean('json', False, 'Print one JSON object per line and image instead of a table.')

FLAGS = flags.FLAGS

_MAX_IMAGE = 40  # Columns of an image's name in the table.


def predict(words):
    """Prints the most probable classes of images; reports unreadable ones on standard error.

    Args:
        words: list of files, folders and patterns.

    Returns:
        Exit code: 1 if an image cannot be read, else 0.

    Raises:
        app.UsageError: a word stands for no image, or the network is missing or does not fit.
        OSError: the SavedModel cannot be read.
    """
    paths = [path for word in words for path in _paths(word)]
    # Also for an `inference` that fixes the batch size: see `model.Model`.
    FLAGS.batch_size = min(FLAGS.batch_size, len(paths))
    predicted = 0
    with _network() as (classify, names):
        show = _show_json if FLAGS.json else _table(paths)
        for start in range(0, len(paths), FLAGS.batch_size):
            batch = list(_read(paths[start:start + FLAGS.batch_size]))
            if batch:
                read, pixels = zip(*batch)
                for path, probabilities in zip(read, classify(np.stack(pixels))):
                    show(path, _top(probabilities, names))
            predicted += len(batch)
    return 1 if predicted < len(paths) else 0


def _read(paths):
    """Yields (path, uint8 [32, 32, 3]) for each readable image; reports the others."""
    for path in paths:
        try:
            yield path, images.read(path)
        except images.ImageError as error:
            console.note(f'cifar10_predict.py: {error}')


def _paths(word):
    """Returns the files that an argument stands for."""
    if os.path.isdir(word):
        found = images.find(word)
    elif os.path.lexists(word) or not glob.has_magic(word):
        return [word]
    else:
        found = sorted(path for path in glob.glob(word) if not os.path.isdir(path))
    if not found:
        raise app.UsageError(f'No image in {word}; expected files named '
                             f'{", ".join(images.ENDINGS)}')
    return found


def _top(probabilities, names):
    """Returns (label, name, probability) of the top classes, the most probable first."""
    labels = np.argsort(-probabilities, kind='stable')[:FLAGS.top_k]
    return [(int(label), names[label], float(probabilities[label])) for label in labels]


@contextlib.contextmanager
def _network():
    """Yields a function from images to probabilities, uint8 [batch, 32, 32, 3] -> float32 [batch,
    classes], and the names of the classes."""
    if FLAGS.saved_model:
        with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
            images_, probabilities = _load(session)
            names = _labels(FLAGS.saved_model, probabilities.shape.as_list()[-1])
            yield lambda batch: session.run(probabilities, {images_: batch}), names
        return
    checkpoint = checkpoint_flags.checkpoint()
    checkpoint_flags.use_run()
    classifier = model.Model.of_pixels(FLAGS.batch_size)
    with classifier.session(checkpoint, FLAGS.use_moving_averages) as session:
        probabilities = classifier.outputs['probabilities']
        yield (lambda batch: session.run(probabilities, {classifier.pixels: batch}),
               cifar10.source().data_set.classes)


def _load(session):
    """Loads --saved_model; returns the tensors of its images and probabilities."""
    try:
        loaded = tf.saved_model.load(session, ['serve'], FLAGS.saved_model)
    except (OSError, RuntimeError) as error:  # RuntimeError: no graph with the tag 'serve'.
        raise OSError(f'{errors.one_line(error).rstrip(".")}: export a SavedModel with '
                      'cifar10_export.py') from error
    signature = loaded.signature_def['serving_default']
    names = signature.inputs['images'].name, signature.outputs['probabilities'].name
    if '' not in names:  # Reading a missing entry creates an empty one.
        images_, probabilities = map(session.graph.get_tensor_by_name, names)
        if images_.dtype == tf.uint8 and images_.shape.is_compatible_with([None, 32, 32, 3]):
            return images_, probabilities
    raise app.UsageError(f'{FLAGS.saved_model} has no signature of images, uint8 [batch, 32, 32, '
                         '3], and probabilities: export one with cifar10_export.py')


def _labels(folder, count):
    """Returns the names of a SavedModel's classes, or their numbers if it has no names."""
    path = os.path.join(folder, 'assets.extra', 'labels.txt')
    try:
        with open(path, encoding='utf-8', errors='replace') as stream:
            names = stream.read().splitlines()
    except FileNotFoundError:
        return [str(label) for label in range(count)]
    if len(names) != count:
        raise app.UsageError(f'{path} has {len(names)} lines; expected {count}, one per class: '
                             'restore the file, or remove it to print numbers')
    return names


def _show_json(path, top):
    console.line(json.dumps({'image': path, 'predictions': [
        {'class': name, 'label': label, 'probability': round(probability, 6)}
        for label, name, probability in top]}))


def _table(paths):
    """Prints the heading of a table; returns a function that prints the lines of an image."""
    width = min(max(map(confusion.columns, [*paths, 'image'])), _MAX_IMAGE)

    def show(image, probability, name):
        console.line(f'{confusion.padded(image, width)}  {probability:>11}  {name}')

    def show_top(path, top):
        for row, (_, name, probability) in enumerate(top):
            show('' if row else _end(path, width), f'{probability:.4f}', name)

    show('image', 'probability', 'class')
    return show_top


def _end(path, width):
    """Replaces the start of a path that is wider than `width` columns by three dots."""
    if confusion.columns(path) <= width:
        return path
    while confusion.columns(path) > width - 3:
        path = path[1:]
    return '...' + path


def main(words):
    console.fail_if_stdout_closes()
    return predict(words)


if __name__ == '__main__':
    startup.run(main, positional='IMAGE...',
                unused=(*settings.TRAINING_FLAGS, 'data_dir', 'data_url'))
