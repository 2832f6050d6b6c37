"""Draws training images, filters, confusion matrices and learning curves as PNG files.

    python cifar10_plot.py --picture=samples --output=samples.png

--picture is one of

    samples     training images of each class
    distorted   training images, and random distortions of them
    filters     the kernels of the first layer, conv1/weights, in a run's latest checkpoint
    predictions test images, and the classes that a run's latest checkpoint predicts for them
    confusion   the confusion matrix of a run's latest checkpoint on the test images
    curves      loss and error by step: of training runs with their validations, and of folders that
                cifar10_eval.py writes to
    validation  the validation errors of training runs by epoch: raw weights and moving averages
    sparsity    the fraction of zeros in the output of each layer by step, of a training run

--runs selects the runs. All pictures except `confusion` require Matplotlib (pip install
matplotlib).
"""
import itertools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.datasets import table
from cifar10_lib.evaluation import accuracy, confusion, model, pictures
from cifar10_lib.program import command_line, console, devices, files
from cifar10_lib.runs import checkpoints, events, metrics, names

command_line.define_path(
    'output', None, 'PNG file to write; by default PICTURE.png in the current folder.')
flags.DEFINE_list('runs', '/tmp/cifar10_train', 'Folders of runs, separated by commas; only '
                  '--picture=curves and --picture=validation accept several.')

FLAGS = flags.FLAGS

_COLUMNS, _DISTORTED_IMAGES, _PREDICTED_PER_CLASS = 10, 8, 3


def samples(stream):
    """Draws the first training images of each class."""
    labels, images, _ = _records()
    data_set = cifar10.source().data_set
    title = f'{data_set.title} training images'
    if len(data_set.classes) <= _COLUMNS:
        rows = [[(image, None) for image in images[labels == k][:_COLUMNS]]
                for k in range(len(data_set.classes))]
        pictures.grid(stream, rows, title, data_set.classes)
    else:  # One image per class, with its name.
        pictures.grid(stream, _rows([(image, name) for k, name in enumerate(data_set.classes)
                                     for image in images[labels == k][:1]]), title)


def distorted(stream):
    """Draws training images, and random distortions of them as in training."""
    labels, images, pixels_chw = _records()
    pixels_chw = pixels_chw[:_DISTORTED_IMAGES]
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        repeated = tf.constant(np.repeat(pixels_chw, _COLUMNS - 1, axis=0))
        made = session.run(recipes.chosen().augment(repeated))
    low, high = np.percentile(made, [1, 99])
    made = np.clip((made - low) / max(high - low, 1e-9), 0, 1).reshape(
        len(pixels_chw), _COLUMNS - 1, *made.shape[1:])
    rows = [[(image, None) for image in (original, *distortions)]
            for original, distortions in zip(images, made)]
    pictures.grid(
        stream, rows, f'Left: original images. Right: distorted for training --net={FLAGS.net}',
        [cifar10.source().data_set.classes[label] for label in labels[:len(rows)]])


def filters(stream):
    """Draws the first layer's kernels, as moving averages if the checkpoint has them."""
    checkpoint = _latest()
    found = checkpoints.read(checkpoint, ['conv1/weights' + names.AVERAGE, 'conv1/weights'])
    weights = next(iter(found.values()), np.empty([0]))
    if weights.ndim != 4 or weights.shape[2] != 3:
        raise app.UsageError(f'{checkpoint} has no conv1/weights of three colours to draw: choose '
                             'another run with --runs')
    height, width, _, count = weights.shape
    largest = max(np.percentile(abs(weights), 99.5), 1e-30)  # Not 0.
    kernels = np.clip(0.5 + weights.transpose([3, 0, 1, 2]) / (2 * largest), 0, 1)
    pictures.grid(stream, _rows([(kernel, None) for kernel in kernels], columns=int(count ** 0.5)),
                  f'conv1: {count} filters of {height} x {width} pixels after '
                  f'{checkpoints.step(checkpoint)} steps (grey is 0)')


def predictions(stream):
    """Draws the first test images, a column per class, with their predicted classes."""
    checkpoint, averaged = _evaluated()
    labels, images, _ = _records(eval_data=True)
    classes = cifar10.source().data_set.classes
    per_class = _PREDICTED_PER_CLASS if len(classes) <= _COLUMNS else 1
    columns = [np.flatnonzero(labels == k)[:per_class] for k in range(len(classes))]
    places = [i for row in itertools.zip_longest(*columns) for i in row]  # None: an empty place.
    chosen = [i for i in places if i is not None]
    FLAGS.batch_size = len(chosen)  # For an `inference` that fixes the size.
    network = model.Model(batch_size=FLAGS.batch_size)
    with network.session(network.read(checkpoint, averaged), averaged) as session:
        probabilities = session.run(
            network.outputs['probabilities'], {network.pixels: images[chosen]})
    cells = {None: None}
    for i, row in zip(chosen, probabilities):
        best = np.argmax(row)
        right = best == labels[i]
        name = f'{classes[best]} {row[best]:.0%}' + ('' if right else f'\nnot {classes[labels[i]]}')
        cells[i] = (images[i], name, right)
    pictures.grid(stream, _rows([cells[i] for i in places], min(len(classes), _COLUMNS)),
                  f'Test images and their predicted classes after {checkpoints.step(checkpoint)} '
                  'steps; wrong ones in orange, with the true class')


def confused(stream):
    """Draws the confusion matrix of the test set."""
    checkpoint, averaged = _evaluated()
    result = accuracy.Accuracy(use_moving_averages=averaged).run(checkpoint)
    confusion.picture(result.confusion, cifar10.source().data_set.classes).save(stream, 'PNG')


def curves(stream):
    """Draws losses and errors of all runs: a colour per run, or per error if there is one run."""
    losses, errors, is_only = [], [], len(FLAGS.runs) == 1
    for number, (name, run) in enumerate(_named_runs()):
        rows = metrics.read(os.path.join(run, names.METRICS))
        trains = os.path.exists(os.path.join(run, names.RUN))  # Trainers write this tag, too.
        evaluated = {} if rows or trains else events.read_scalars(run, 'Precision @ 1')
        if not rows and not evaluated:
            raise app.UsageError(f'{run} has no metrics.csv of a training run and no event file of '
                                 'an evaluation: choose other folders with --runs')
        # Drop means over few steps, such as those just before or after a checkpoint.
        steps = np.diff([0] + [row['step'] for row in rows])
        means = [row for row, count in zip(rows, steps) if 2 * count >= np.median(steps)]
        for lines, what, column, kind, marker, shown in (
                (losses, 'training', 'training_loss', 0, None, means),
                (errors, 'training', 'training_error', 0, None, means),
                (errors, 'validation, raw', 'validation_error', 1, 'o', rows),
                (errors, 'validation, averaged', 'validation_error_averaged', 2, 's', rows)):
            points = _points(shown, 'step', column)
            if points:
                lines.append((f'{name}, {what}', kind if is_only else number, marker, points))
        if evaluated:
            errors.append((f'{name}, evaluation', number, 's',
                           {step: 1 - value for step, value in evaluated.items()}))
    pictures.curves(stream, [10, 4.2], [
        (losses, 'loss: cross entropy + weight decay', 'loss (nats), mean of recent steps',
         'step'),
        (errors, 'error: 1 - precision @ 1', 'error (fraction of images)', 'step')])


def validation(stream):
    """Draws the validation errors of all runs by epoch."""
    raw, averaged = [], []
    for number, (name, run) in enumerate(_named_runs()):
        rows = metrics.read(os.path.join(run, names.METRICS))
        for lines, column in ((raw, 'validation_error'), (averaged, 'validation_error_averaged')):
            lines.append((name, number, '.', _points(rows, 'epoch', column)))
        if not raw[-1][-1]:
            raise app.UsageError(f'{run} has no metrics.csv with validations: train with '
                                 '--validate_every=1, or choose other folders with --runs')
    pictures.curves(stream, [8, 4], [
        (shown, f'validation error, {weights} weights', 'fraction of images',
         'epochs: passes over the images')
        for shown, weights in ((raw, 'raw'), (averaged, 'averaged'))], same_scale=True)


def sparsity(stream):
    """Draws the sparsity of each layer with a ReLU."""
    run, = FLAGS.runs
    tags = [f'{layer}/sparsity' for layer in ('conv1', 'conv2', 'local3', 'local4')]
    lines = [(tag, number, None, points) for number, tag in enumerate(tags)
             if (points := events.read_scalars(run, tag))]
    if not lines:
        raise app.UsageError(f'{run} has no event file with {tags[0]}: choose another run')
    pictures.curves(stream, [7, 4], [
        (lines, 'Sparsity of the output of each layer', 'fraction of zeros', 'step')])


def _points(rows, x, y):
    """A curve of two columns of a metrics.csv, {x: y}, where both were measured."""
    return {row[x]: row[y] for row in rows if None not in (row[x], row[y])}


def _records(eval_data=False):
    """Reads a set: labels, int [records]; images, uint8 [records, 32, 32, 3]; and their pixels as
    in the files, uint8 [records, 3 * 32 * 32]."""
    cifar10.maybe_download_and_extract()
    source = cifar10.source(eval_data)
    data_set = source.data_set
    records = np.concatenate([np.fromfile(path, np.uint8) for path in source.files()]).reshape(
        -1, data_set.record_bytes)
    pixels_chw = records[:, -table.IMAGE_BYTES:]
    images = pixels_chw.reshape(-1, table.DEPTH, table.HEIGHT, table.WIDTH).transpose([0, 2, 3, 1])
    return records[:, data_set.label_index], images, pixels_chw


def _rows(cells, columns=_COLUMNS):
    return [cells[i:i + columns] for i in range(0, len(cells), columns)]


def _named_runs():
    """Returns a list of (name in the legend, folder) of `--runs`."""
    common = os.path.commonpath([os.path.dirname(os.path.abspath(run)) for run in FLAGS.runs])
    return [(os.path.relpath(run, common), run) for run in FLAGS.runs]


def _latest():
    """The path of the checkpoint that `--runs` names, or of the latest in that folder."""
    found = checkpoints.named(FLAGS.runs[0]) or checkpoints.latest(FLAGS.runs[0])
    if found is None:
        raise app.UsageError(f'No checkpoint in {FLAGS.runs[0]}: choose a run with --runs')
    return found


def _evaluated():
    """Returns the latest checkpoint, and whether it has moving averages; prepares the data set."""
    checkpoint = _latest()
    model.use_run(checkpoint)
    cifar10.maybe_download_and_extract()
    return checkpoint, any(name.endswith(names.AVERAGE) for name in checkpoints.read(checkpoint))


_PICTURES = {'samples': samples, 'distorted': distorted, 'filters': filters,
             'predictions': predictions, 'confusion': confused, 'curves': curves,
             'validation': validation, 'sparsity': sparsity}
flags.DEFINE_enum('picture', None, list(_PICTURES), 'Picture to draw.')


def plot():
    """Writes the picture, all or nothing; raises `app.UsageError` if a flag or a run is invalid."""
    if FLAGS.picture is None:
        raise app.UsageError(f'--picture is missing; expected {"|".join(_PICTURES)}')
    FLAGS.runs = [os.path.expanduser(run) for run in FLAGS.runs if run]
    if len(FLAGS.runs) != 1 and (not FLAGS.runs or FLAGS.picture not in ('curves', 'validation')):
        raise app.UsageError(f'--runs has {len(FLAGS.runs)} folders ({", ".join(FLAGS.runs)}); '
                             f'--picture={FLAGS.picture} expects one')
    if FLAGS.picture != 'confusion':
        pictures.require_matplotlib()
    path = FLAGS.output or f'{FLAGS.picture}.png'
    if not path.lower().endswith('.png'):
        raise app.UsageError(f'--output is {path}; expected a name that ends with .png')
    with files.new_file(path) as stream:
        _PICTURES[FLAGS.picture](stream)
    console.line(f'Wrote {path}.')


if __name__ == '__main__':
    startup.run(plot, unused=settings.TRAINING_FLAGS)
