"""Tells what is in images, with a trained network.

    python cifar10_predict.py cat.jpg dog.png --checkpoint_dir=/tmp/cifar10_train
    python cifar10_predict.py holidays/ --json
    python cifar10_predict.py 'holidays/*.jpg' --saved_model=/tmp/cifar10_model/1

Takes JPEG, PNG, GIF, BMP, WebP and TIFF files of any size, folders of them, and patterns. Of an
animation the first frame counts. A photograph is turned upright if its EXIF data says how, the
short side becomes 32 pixels, the centre is kept, and what the evaluation does to images follows.
Unreadable images are reported and skipped, and the exit code is then 1.

The network is the latest checkpoint in --checkpoint_dir with its moving averages, the best one with
--best, or a SavedModel of cifar10_export.py. A SavedModel is a program: load those you trust.
"""
import contextlib
import glob
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from program import startup  # First: it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

import cifar10
from datasets import images
from evaluation import model
from program import console
from program import paths
from program import small_files
import recipes

paths.define('saved_model', None, 'Folder of a SavedModel to use instead of a checkpoint; '
             '--net, --dataset and --checkpoint_dir do not count then.')
flags.DEFINE_integer('top_k', 3, 'Show so many of the most probable classes; more than there '
                     'are means all.', lower_bound=1, upper_bound=10**9)
flags.DEFINE_boolean('json', False, 'Print a JSON object for each image, one a line, not a table.')

FLAGS = flags.FLAGS

_LINE = 80  # Characters: what a table's line has at most.
_IMAGE = 40  # Of them for the image's name.


def predict(words):
    """Prints the most probable classes of images, and on standard error which cannot be read.

    Args:
        words: list of names of files, folders and patterns.

    Returns:
        The exit code: 1 if an image could not be read, else 0.

    Raises:
        app.UsageError: a folder or a pattern has no image; there is no network, or it does not fit.
    """
    paths = [path for word in words for path in _paths(word)]
    unreadable = 0
    with _network() as (classify, names):
        show = _show_json if FLAGS.json else _table(paths, names)
        for start in range(0, len(paths), FLAGS.batch_size):
            batch = []
            for path in paths[start:start + FLAGS.batch_size]:
                try:
                    batch.append((path, images.read(path)))
                except images.ImageError as error:
                    unreadable += 1
                    console.note(f'cifar10_predict.py: {error}')
            if batch:
                read, pixels = zip(*batch)
                for path, probabilities in zip(read, classify(np.stack(pixels))):
                    show(path, _top(probabilities, names))
    return 1 if unreadable else 0


def _paths(word):
    """The files that a word of the command line means.

    Raises:
        app.UsageError: it is a folder without images, or a pattern that nothing fits.
    """
    if os.path.isdir(word):
        found = images.files(word)
    elif os.path.lexists(word) or not glob.has_magic(word):
        return [word]
    else:
        found = sorted(path for path in glob.glob(word) if not os.path.isdir(path))
    if not found:
        raise app.UsageError(f'No image in {word}: wanted files named {", ".join(images.ENDINGS)}')
    return found


def _top(probabilities, names):
    """List of (label, name, probability), the most probable first."""
    labels = np.argsort(-probabilities, kind='stable')[:FLAGS.top_k]
    return [(int(label), names[label], float(probabilities[label])) for label in labels]


@contextlib.contextmanager
def _network():
    """Yields (classify, names): uint8 [batch, 32, 32, 3] -> float32 [batch, classes], and what
    the classes are called."""
    if FLAGS.saved_model:
        with tf.Graph().as_default(), tf.Session(config=startup.session_config()) as session:
            images_, probabilities = _load(session)
            names = _labels(FLAGS.saved_model, probabilities.shape.as_list()[-1])
            yield lambda batch: session.run(probabilities, {images_: batch}), names
        return
    checkpoint = model.checkpoint()
    model.check_run()
    classifier = model.Model.of_pixels()
    with classifier.session(checkpoint) as session:
        probabilities = classifier.outputs['probabilities']
        yield (lambda batch: session.run(probabilities, {classifier.pixels: batch}),
               cifar10.data_set().classes)


def _load(session):
    """Loads --saved_model; returns the tensors of its images and probabilities.

    Raises:
        OSError: there is none.
        app.UsageError: it is not as cifar10_export.py makes it.
    """
    try:
        loaded = tf.saved_model.load(session, ['serve'], FLAGS.saved_model)
    except RuntimeError as error:  # It serves no one.
        raise app.UsageError(f'{FLAGS.saved_model} is no SavedModel for serving') from error
    signature = loaded.signature_def['serving_default']
    names = signature.inputs['images'].name, signature.outputs['probabilities'].name
    if '' in names:  # What a message lacks is an empty one.
        raise app.UsageError(f'{FLAGS.saved_model} is no SavedModel of cifar10_export.py: it takes '
                             'no images, or gives no probabilities')
    return [session.graph.get_tensor_by_name(name) for name in names]


def _labels(folder, count):
    """The names of a SavedModel's classes; their numbers where it does not tell."""
    path = os.path.join(folder, 'assets.extra', 'labels.txt')
    try:
        names = small_files.read_text(path).splitlines()
    except FileNotFoundError:
        return [str(label) for label in range(count)]
    if len(names) != count:
        raise app.UsageError(f'{path} has {len(names)} lines; wanted: {count}, one for each class')
    return names


def _show_json(path, top):
    console.line(json.dumps({'image': path, 'predictions': [
        {'class': name, 'label': label, 'probability': round(probability, 6)}
        for label, name, probability in top]}))


def _table(paths, names):
    """Prints the heading of a table; returns a function that prints an image's lines of it."""
    image_width = min(max(len(path) for path in [*paths, 'image']), _IMAGE)
    name_width = _LINE - image_width - len('  probability  ')

    def show(image, probability, name):
        if len(image) > image_width:
            image = '...' + image[3 - image_width:]
        if len(name) > name_width:
            name = name[:name_width - 3] + '...'
        console.line(f'{image:{image_width}}  {probability:>11}  {name}')

    def show_top(path, top):
        for row, (_, name, probability) in enumerate(top):
            show('' if row else path, f'{probability:.4f}', name)

    show('image', 'probability', 'class')
    return show_top


def main(words):
    startup.visible_gpus()
    console.require()
    return predict(words)


if __name__ == '__main__':
    startup.run(main, [startup, cifar10, recipes, model], words='IMAGE...')
