"""Draws training images, filters, confusion matrices and learning curves as PNG files.

    python cifar10_plot.py --picture=samples --output=samples.png

--picture is one of

    samples     training images of each class
    distorted   training images, and random distortions of them
    filters     the kernels of the first layer, conv1/weights, in a run's latest checkpoint
    predictions test images, and the classes that a run's latest checkpoint predicts for them
    confusion   the confusion matrix of a run's latest checkpoint on the test images
    sparsity    the fraction of zeros in the output of each layer by step, of a training run
    curves      loss and error by step: of training runs with their validations, and of folders that
                cifar10_eval.py writes to
    validation  the validation errors of training runs, raw weights and moving averages, by epoch,
                or with --by=minutes by the time that their training steps took

--runs selects the runs. All pictures except `confusion` require Matplotlib (pip install
matplotlib).
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import itertools
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
import cifar10_input
from cifar10_lib import recipes, settings
from cifar10_lib.datasets import table
from cifar10_lib.evaluation import accuracy, confusion, model, pictures, trained
from cifar10_lib.program import command_line, console, devices, files, startup
from cifar10_lib.runs import checkpoints, events, metrics, names, run_folder

command_line.define_path(
    'output', None, 'PNG file to write; by default PICTURE.png in the current folder.')
flags.DEFINE_list('runs', command_line.default_folder('/tmp/cifar10_train'),
                  'Folders of runs, separated by commas; only --picture=curves and '
                  '--picture=validation accept several. For --picture=samples and '
                  '--picture=distorted, a run whose images to draw, instead of those of --dataset.')

FLAGS = tf.app.flags.FLAGS

_COLUMNS, _DISTORTED_IMAGES, _PREDICTED_PER_CLASS = 10, 8, 3


def samples(stream, runs):
    """Draws the first training images of each class."""
    source, _ = _training(runs)
    labels, images = _records(source)
    classes = source.data_set.classes
    title = f'{source.data_set.title} training images'
    if len(classes) <= _COLUMNS:
        rows = [[(image, None) for image in images[labels == k][:_COLUMNS]]
                for k in range(len(classes))]
        pictures.grid(stream, rows, title, classes)
    else:  # One image per class, with its name.
        cells = [(image, name) for k, name in enumerate(classes)
                 for image in images[labels == k][:1]]
        pictures.grid(stream, _rows(cells), title)


def distorted(stream, runs):
    """Draws training images, and random distortions of them as in training."""
    source, recipe = _training(runs)
    distort = recipe.distort or cifar10_input.distort_images
    labels, images = _records(source)
    images = images[:_DISTORTED_IMAGES]
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        repeated = tf.constant(np.repeat(images, _COLUMNS - 1, axis=0))
        made = session.run(distort(repeated))
    low, high = np.percentile(made, [1, 99])
    made = np.clip((made - low) / max(high - low, 1e-9), 0, 1).reshape(
        len(images), _COLUMNS - 1, *made.shape[1:])
    rows = [[(image, None) for image in (original, *distortions)]
            for original, distortions in zip(images, made)]
    pictures.grid(
        stream, rows, f'Left: original images. Right: distorted for training --net={recipe.name}',
        [source.data_set.classes[label] for label in labels[:len(rows)]])


def filters(stream, runs):
    """Draws the first layer's kernels, as moving averages if the checkpoint has them."""
    checkpoint = _latest(runs)
    found = checkpoints.read(checkpoint, ['conv1/weights' + names.AVERAGE, 'conv1/weights'])
    weights = next(iter(found.values()), np.empty([0]))
    if weights.ndim != 4 or weights.shape[2] != 3:
        raise app.UsageError(f'{checkpoint} has no conv1/weights of three colours to draw: choose '
                             'another run with --runs')
    height, width, _, count = weights.shape
    largest = max(float(np.percentile(np.abs(weights), 99.5)), 1e-30)  # A divisor.
    kernels = np.clip(0.5 + weights.transpose([3, 0, 1, 2]) / (2 * largest), 0, 1)
    pictures.grid(stream, _rows([(kernel, None) for kernel in kernels], columns=int(count ** 0.5)),
                  f'conv1: {count} filters of {height} x {width} pixels after '
                  f'{checkpoints.step(checkpoint)} steps (grey is 0)')


def predictions(stream, runs):
    """Draws the first test images, a column per class, with their predicted classes."""
    checkpoint = _latest(runs)
    found = trained.read(os.path.dirname(checkpoint))
    labels, images = _labelled(found)
    classes = found.classes
    per_class = 1
    if len(classes) <= _COLUMNS:
        per_class = _PREDICTED_PER_CLASS
    columns = [np.flatnonzero(labels == k)[:per_class] for k in range(len(classes))]
    places = [i for row in itertools.zip_longest(*columns) for i in row]  # None: an empty place.
    chosen = [i for i in places if i is not None]
    cells: dict[int | None, pictures.Cell | None] = {None: None}
    for i, row in zip(chosen, _probabilities(checkpoint, found, images[chosen])):
        best = np.argmax(row)
        name = f'{classes[best]} {row[best]:.0%}'
        if best != labels[i]:
            name += f'\nnot {classes[labels[i]]}'
        cells[i] = (images[i], name, best == labels[i])
    pictures.grid(stream, _rows([cells[i] for i in places], min(len(classes), _COLUMNS)),
                  f'Test images and their predicted classes after {checkpoints.step(checkpoint)} '
                  'steps; wrong ones in orange, with the true class')


def confused(stream, runs):
    """Draws the confusion matrix of the test set."""
    checkpoint = _latest(runs)
    found = trained.read(os.path.dirname(checkpoint))
    labels, images = _labelled(found)
    count, _ = accuracy.images_to_count(found.source())
    predicted = _probabilities(checkpoint, found, images[:count]).argmax(axis=1)
    counts = accuracy.Counts(len(found.classes))
    counts.add(labels[:count], predicted[:, np.newaxis])
    confusion.picture(counts.confusion, found.classes).save(stream, 'PNG')


def sparsity(stream, runs):
    """Draws the sparsity of each layer with a ReLU."""
    run, = runs
    found, lines = events.read_curves(run), []
    for number, layer in enumerate(('conv1', 'conv2', 'local3', 'local4')):
        points = found.get(f'{layer}/{layer}/sparsity')
        if points:
            lines.append((layer, number, '-', points))
    if not lines:
        raise app.UsageError(
            f'{run} has no event file with conv1/conv1/sparsity: choose another run')
    pictures.curves(stream, [7, 4], [
        (lines, 'Sparsity of the output of each layer', 'fraction of zeros', 'step')])


def curves(stream, runs):
    """Draws losses and errors of all runs: a colour per run, or per error if there is one run."""
    losses: list[pictures.Curve] = []
    errors: list[pictures.Curve] = []
    for number, (name, run) in enumerate(_named_runs(runs)):
        for shown, found in zip((losses, errors), _curves_of(run)):
            for what, colour, style, points in found:
                if len(runs) > 1:
                    colour = number
                if points:
                    shown.append((f'{name}, {what}', colour, style, points))
    pictures.curves(stream, [10, 4.2], [
        (losses, 'loss: cross entropy + weight decay', 'loss (nats), mean of recent steps',
         'step'),
        (errors, 'error: 1 - precision @ 1', 'error (fraction of images)', 'step')])


def _curves_of(run):
    """The curves of a folder: of losses, and of errors, lists of (name, colour, style, points)."""
    rows = metrics.read(os.path.join(run, names.METRICS))
    if not rows:
        return [], _evaluations(run)
    # Drop means over few steps, such as those just before or after a checkpoint.
    steps = np.diff([0] + [row['step'] for row in rows])
    means = [row for row, count in zip(rows, steps) if 2 * count >= np.median(steps)]
    losses = [('training', 0, '-', _points(means, 'step', 'training_loss'))]
    errors = [
        ('training', 0, '-', _points(means, 'step', 'training_error')),
        ('validation, raw', 1, 'o--', _points(rows, 'step', 'validation_error')),
        ('validation, averaged', 2, 's-', _points(rows, 'step', 'validation_error_averaged'))]
    return losses, errors


def _evaluations(folder):
    """The errors of the evaluations whose event files are in a folder: as in `_curves_of`, a curve
    for each kind, such as 'Precision @ 1 (raw weights)'."""
    found: list[pictures.Curve] = []
    if not os.path.exists(os.path.join(folder, names.RUN)):  # Trainers write this tag, too.
        for tag, curve in events.read_curves(folder).items():
            if tag.startswith('Precision @ 1'):
                kind = tag.replace('Precision @ 1', 'evaluation')
                errors = {step: 1 - precision for step, precision in curve.items()}
                found.append((kind, len(found), 's-', errors))
    if not found:
        raise app.UsageError(f'{folder} has no metrics.csv of a training run and no event file of '
                             'an evaluation: choose other folders with --runs')
    return found


def validation(stream, runs):
    """Draws the validation errors of all runs by epoch or time."""
    x_label = 'epochs: passes over the images'
    if FLAGS.by == 'minutes':
        x_label = 'minutes of training steps'
    raw: list[pictures.Curve] = []
    averaged: list[pictures.Curve] = []
    for number, (name, run) in enumerate(_named_runs(runs)):
        rows = metrics.read(os.path.join(run, names.METRICS))
        if FLAGS.by == 'minutes':
            _add_minutes(rows, _images_per_epoch(run))
        for lines, column in ((raw, 'validation_error'), (averaged, 'validation_error_averaged')):
            lines.append((name, number, '.-', _points(rows, FLAGS.by, column)))
        if not raw[-1][-1]:
            raise app.UsageError(f'{run} has no metrics.csv with validations: train with '
                                 '--validate_every=1, or choose other folders with --runs')
    pictures.curves(stream, [8, 4], [
        (shown, f'validation error, {weights} weights', 'fraction of images', x_label)
        for shown, weights in ((raw, 'raw'), (averaged, 'averaged'))],
        same_scale=True, logarithmic=FLAGS.by == 'minutes')


def _images_per_epoch(folder):
    """Number of training images of a run; without its run.json, that of CIFAR-10."""
    run = run_folder.read_run(folder, 'choose other folders with --runs')
    if run is None:
        return cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    return run['settings']['training_images']


def _add_minutes(rows, images_per_epoch):
    """Adds to rows of a metrics.csv how many minutes all training steps so far took."""
    seconds = epoch = 0.0
    for row in rows:
        if row['images_per_second']:
            seconds += (row['epoch'] - epoch) * images_per_epoch / row['images_per_second']
            epoch = row['epoch']
        row['minutes'] = seconds / 60


def _points(rows, x, y):
    """A curve of two columns of a metrics.csv, {x: y}, where both were measured."""
    return {row[x]: row[y] for row in rows if None not in (row[x], row[y])}


def _records(source):
    """Reads a set, which is downloaded first if necessary: labels, uint8 [records], and images,
    uint8 [records, 32, 32, 3]."""
    cifar10.maybe_download_and_extract(source)
    data_set = source.data_set
    records = np.concatenate([np.fromfile(path, np.uint8) for path in source.files()])
    records = records.reshape(-1, data_set.record_bytes)
    depth_major = records[:, -table.IMAGE_BYTES:].reshape(
        -1, table.DEPTH, table.HEIGHT, table.WIDTH)
    return records[:, data_set.label_index], depth_major.transpose([0, 2, 3, 1])


def _labelled(found):
    """Reads the test set of a `trained.Trained`: the network's numbers of the classes, int
    [records], and images, uint8 [records, 32, 32, 3]."""
    labels, images = _records(found.source())
    return np.array(found.class_numbers)[labels], images


def _rows(cells, columns=_COLUMNS):
    return [cells[i:i + columns] for i in range(0, len(cells), columns)]


def _named_runs(runs):
    """Returns a list of (name in the legend, folder)."""
    try:
        common = os.path.commonpath([os.path.dirname(os.path.abspath(run)) for run in runs])
    except ValueError:  # On several drives.
        return [(run, run) for run in runs]
    return [(os.path.relpath(run, common), run) for run in runs]


def _latest(runs):
    """The path of the checkpoint that the only run names, or of the latest in that folder."""
    run, = runs
    found = checkpoints.named(run) or checkpoints.latest(run)
    if found is None:
        raise app.UsageError(f'No checkpoint in {run}: choose a run with --runs')
    return found


def _probabilities(checkpoint, found, images):
    """Classifies images with a checkpoint and its `trained.Trained`; with averages if it has them.

    uint8 [count, 32, 32, 3] -> float32 [count, classes].
    """
    averaged = any(name.endswith(names.AVERAGE) for name in checkpoints.read(checkpoint))
    # An `inference` that fixes the batch size requires the one of training.
    network = model.Model(
        found.recipe, len(found.classes), settings.batch_size(found.recipe))
    with network.session(checkpoint, averaged) as session:
        return network.probabilities(session, images)


def _training(runs):
    """The `Source` of the training images, and the `Recipe`: of the run, if --runs is given."""
    if settings.given('runs'):
        run, = runs
        checkpoint = checkpoints.named(run)
        if checkpoint:
            run = os.path.dirname(checkpoint)
        found = trained.read(run)
        return found.source('train_eval'), found.recipe
    return cifar10.default_source(), recipes.chosen()


_PICTURES = {'samples': samples, 'distorted': distorted, 'filters': filters,
             'predictions': predictions, 'confusion': confused, 'sparsity': sparsity,
             'curves': curves, 'validation': validation}
_OF_SEVERAL_RUNS = ('curves', 'validation')
flags.DEFINE_enum('picture', None, list(_PICTURES), 'Picture to draw.')
flags.DEFINE_enum('by', 'epoch', ['epoch', 'minutes'], 'Horizontal axis of --picture=validation.')


def plot():
    """Writes the picture, all or nothing; raises `app.UsageError` if a flag or a run is invalid."""
    devices.choose(FLAGS.device)
    picture, path = FLAGS.picture, FLAGS.output
    if picture is None:
        raise app.UsageError(f'--picture is missing; expected {"|".join(_PICTURES)}')
    runs = [os.path.expanduser(run) for run in FLAGS.runs if run]
    if not runs or (len(runs) > 1 and picture not in _OF_SEVERAL_RUNS):
        raise app.UsageError(f'--runs has {len(runs)} folders ({", ".join(runs)}); '
                             f'--picture={picture} expects one')
    if picture != 'confusion':
        pictures.require_matplotlib()
    if path is None:
        path = f'{picture}.png'
    if not path.lower().endswith('.png'):
        raise app.UsageError(f'--output is {path}; expected a name that ends with .png')
    with files.new_file(path) as stream:
        _PICTURES[picture](stream, runs)
    console.line(f'Wrote {path}.')


if __name__ == '__main__':
    startup.run(plot, unused=settings.TRAINING_FLAGS)
