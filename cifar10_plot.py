"""Draws images, filters, confusion matrices and learning curves as PNG files.

    python cifar10_plot.py --picture=samples --output=samples.png
    python cifar10_plot.py --picture=curves --runs=/tmp/cifar10_train,/tmp/cifar10_eval

--picture is one of

    samples      training images of each class
    distorted    training images, and random distortions of them
    filters      the kernels of a network's first layer
    predictions  test images, and the classes that a network predicts for them
    confusion    how many test images of each class a network takes for which class
    curves       loss and error by step, of one or several runs and folders of cifar10_eval.py

--runs selects the runs, of the tutorial or of classification.py. Requires Matplotlib (pip install
matplotlib).
"""
import importlib.util
import itertools
import logging
import os
import textwrap

from cifar10_lib import (
    console,
    evaluate,
    files,
    named_sets,
    recipes,
    records,
    run,
)

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from tensorboard.backend.event_processing import event_accumulator

flags.DEFINE_list('runs', '/tmp/cifar10_train', 'Folders of runs, or paths of checkpoints, '
                  'separated by commas; only --picture=curves accepts several. If it is not '
                  'given, --picture=samples and --picture=distorted are those of the tutorial.')
flags.DEFINE_string('dataset', None, 'Images to draw: cifar10, cifar100, or a folder from '
                    "cifar10_convert.py. By default those of the run, or cifar10.")
flags.DEFINE_string('output', None, 'PNG file to write; by default PICTURE.png.')

FLAGS = flags.FLAGS

_COLUMNS = 10  # Images side by side.


def samples(stream):
    """Draws about a hundred training images, at least one of each class."""
    _, source = _training()
    labels, pixels = source.read()
    cells = [(pixels[place], source.data_set.classes[labels[place]], 'black')
             for place in _first_of_each_class(labels, 100)]
    _draw_images(stream, _rows(cells), f'{source.data_set.name} training images')


def distorted(stream):
    """Draws eight training images, and nine random distortions of each."""
    recipe, source = _training()
    pixels = source.read()[1][:8]
    with tf.Graph().as_default(), tf.Session() as session:
        made = session.run(recipe.distort(tf.constant(np.repeat(pixels, _COLUMNS - 1, axis=0))))
    darkest, brightest = np.percentile(made, [1, 99])
    made = np.clip((made - darkest) / max(brightest - darkest, 1e-9), 0, 1)
    made = made.reshape(len(pixels), _COLUMNS - 1, *made.shape[1:])
    rows = [[(image, '', 'black') for image in (original, *distortions)]
            for original, distortions in zip(pixels, made)]
    _draw_images(stream, rows, 'Left: original images. Right: distorted for training, '
                 f'--net={recipe.name}')


def filters(stream):
    """Draws the kernels of the first layer."""
    found = _trained()
    network = evaluate.Classifier(found.recipe, len(found.classes))
    kernels = network.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)[0]
    if kernels.shape.rank != 4 or kernels.shape[2] != 3:
        raise console.UserError(f'The first layer in {found.checkpoint} has no filters of three '
                                'colours: choose another run with --runs')
    with network.restored(found.checkpoint) as session:
        weights = session.run(kernels)
    height, width, _, count = weights.shape
    largest = max(np.percentile(np.abs(weights), 99.5), 1e-30)  # A divisor.
    drawn = np.clip(0.5 + weights.transpose([3, 0, 1, 2]) / (2 * largest), 0, 1)
    _draw_images(stream, _rows([(kernel, '', 'black') for kernel in drawn], columns=8),
                 f'{kernels.op.name} in {os.path.basename(found.checkpoint)}: {count} filters of '
                 f'{height} x {width} pixels; grey is 0')


def predictions(stream):
    """Draws about thirty test images, at least one of each class, with the predicted classes."""
    found = _trained()
    source = _images('test', found.run)
    labels, pixels = source.read()
    places = _first_of_each_class(labels, 30)
    network = evaluate.Classifier(found.recipe, len(found.classes))
    with network.restored(found.checkpoint) as session:
        probabilities = session.run(network.probabilities, {network.pixels: pixels[places]})
    cells = []
    for place, row in zip(places, probabilities):
        predicted, true = found.classes[row.argmax()], source.data_set.classes[labels[place]]
        text, colour = f'{predicted} {row.max():.0%}', 'black'
        if predicted != true:
            text, colour = f'{text}\nnot {true}', 'tab:red'
        cells.append((pixels[place], text, colour))
    _draw_images(stream, _rows(cells), 'Test images as classified by '
                 f'{os.path.basename(found.checkpoint)}; wrong classes are red')


def confusion(stream):
    """Draws how many test images of each class are taken for which class."""
    found = _trained()
    counts = evaluate.confusion(found, _images('test', found.run), FLAGS.batch_size)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = max(6, 2 + 0.15 * len(counts))
    figure = _figure(side, side)
    axes = figure.subplots()
    axes.imshow(shares ** 0.5, cmap='Blues', vmin=0, vmax=1)  # The root makes small shares visible.
    axes.set_xticks(range(len(counts)), found.classes, rotation=90)
    axes.set_yticks(range(len(counts)), found.classes)
    axes.set(title=f'{counts.sum()} test images, {os.path.basename(found.checkpoint)}',
             xlabel='predicted class', ylabel='class')
    if len(counts) <= 20:  # Otherwise, the numbers would not fit.
        for row, column in np.argwhere(counts):
            colour = 'white' if shares[row, column] > 0.3 else 'black'
            axes.text(column, row, counts[row, column], ha='center', va='center', color=colour)
    figure.savefig(stream, format='png')


def curves(stream):
    """Draws losses and errors by step: a colour for each kind of curve, a style for each run."""
    runs = {folder: _read_curves(folder) for folder in FLAGS.runs}
    names = sorted({name for found in runs.values() for name in found})
    panels = [panel for panel in ('loss', 'error') if any(panel in name for name in names)]
    figure = _figure(5 * len(panels), 4.2)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0]):
        for (folder, found), style in zip(runs.items(), itertools.cycle(('-', '--', ':', '-.'))):
            for name in [name for name in found if panel in name]:
                axes.plot(list(found[name]), list(found[name].values()), linestyle=style,
                          color=f'C{names.index(name)}', marker='.', markersize=2,
                          label=f'{name} of {folder}')
        axes.set(title=panel, xlabel='step')
        axes.grid(alpha=0.3)
    figure.legend(loc='outside lower center', ncols=2, fontsize=8)
    figure.savefig(stream, format='png')


def _read_curves(folder):
    """Reads losses and errors, such as {'training_loss': {step: figure}}.

    Runs of classification.py have a metrics.csv; those of the tutorial, and evaluations, have event
    files. Raises `console.UserError` if there is nothing to draw.
    """
    found = {}
    for row in run.read_metrics(folder):
        for name, figure in row.items():
            if ('loss' in name or 'error' in name) and figure is not None:
                found.setdefault(name, {})[row['step']] = figure
    if not found and os.path.isdir(folder):
        logging.getLogger('tensorboard').setLevel(logging.ERROR)  # It warns about resumed runs.
        events = event_accumulator.EventAccumulator(folder, {event_accumulator.SCALARS: 0}).Reload()
        tags = events.Tags()[event_accumulator.SCALARS]
        if 'total_loss_1' in tags:  # In runs on one device an average, which begins with 0.
            found['training_loss'] = {
                event.step: event.value for event in events.Scalars('total_loss_1')[1:]}
        if 'Precision @ 1' in tags:
            found['evaluation_error'] = {
                event.step: 1 - event.value for event in events.Scalars('Precision @ 1')}
    if not found:
        raise console.UserError(f'{folder} has no metrics.csv, and no event files of training or '
                                'evaluation: choose another folder with --runs')
    return found


def _trained():
    return evaluate.find(FLAGS.runs[0], data_dir=FLAGS.data_dir)


def _training():
    """The recipe and the training images of a run or, if --runs is not given, of the tutorial."""
    if FLAGS['runs'].present:
        found = _trained()
        return found.recipe, _images('all', found.run)
    return recipes.TABLE['tutorial'], _images('all', {})


def _images(subset, content):
    """The `records.Images` of --dataset or of a run; `content` is that of its run.json."""
    own = content.get('settings', {}).get('dataset', 'cifar10')
    data_set, folder = records.fetch(named_sets.find(FLAGS.dataset or own), FLAGS.data_dir)
    return records.Images(data_set, folder, subset)


def _first_of_each_class(labels, count):
    """Places of `count` images or a few less, but at least one of each class.

    The first of each class, then the second of each class, and so on: ten classes are columns.
    """
    classes = np.unique(labels)
    first = [np.flatnonzero(labels == label)[:max(1, count // len(classes))]
             for label in classes]
    return [place for row in itertools.zip_longest(*first) for place in row if place is not None]


def _rows(cells, columns=_COLUMNS):
    return [cells[start:start + columns] for start in range(0, len(cells), columns)]


def _draw_images(stream, rows, title):
    """Writes a PNG with rows of images to a binary stream.

    `rows` are lists of (image, text above it, colour of the text); an image is [height, width, 3],
    uint8 or float from 0 to 1.
    """
    def wrapped(text):
        return '\n'.join(textwrap.fill(line, 13) for line in text.splitlines())

    lines = max(len(wrapped(text).splitlines()) for row in rows for _, text, _ in row)
    columns = max(8, *(len(row) for row in rows))  # Fewer would be narrower than the title.
    figure = _figure(0.8 * columns, (0.8 + 0.13 * lines) * len(rows) + 0.5)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for each in axes.flat:
        each.set(xticks=[], yticks=[], frame_on=False)
    for row, row_axes in zip(rows, axes):
        for (image, text, colour), each in zip(row, row_axes):
            each.imshow(image, interpolation='nearest')
            each.set_title(wrapped(text), fontsize=7, pad=2, color=colour)
    figure.savefig(stream, format='png')


def _figure(width, height):
    """A figure, whatever the user's settings of Matplotlib; sizes are in inches of 100 pixels."""
    import matplotlib.figure
    matplotlib.rcdefaults()
    matplotlib.rcParams['text.parse_math'] = False  # A name with '$' is not a formula.
    return matplotlib.figure.Figure([width, height], dpi=100, layout='constrained')


_PICTURES = {'samples': samples, 'distorted': distorted, 'filters': filters,
             'predictions': predictions, 'confusion': confusion, 'curves': curves}
flags.DEFINE_enum('picture', None, list(_PICTURES), 'Picture to draw.')


def plot():
    """Writes the picture, all or nothing.

    Raises `console.UserError` if a flag or a run is invalid, or Matplotlib is not installed.
    """
    if FLAGS.picture is None:
        raise console.UserError(f'--picture is missing; expected {"|".join(_PICTURES)}')
    if len(FLAGS.runs) != 1 and (FLAGS.picture != 'curves' or not FLAGS.runs):
        raise console.UserError(f'--runs={",".join(FLAGS.runs)} has {len(FLAGS.runs)} folders; '
                                f'expected one for --picture={FLAGS.picture}')
    if importlib.util.find_spec('matplotlib') is None:
        raise console.UserError('requires Matplotlib (pip install matplotlib)')
    path = FLAGS.output or f'{FLAGS.picture}.png'
    with files.new_file(path) as stream:
        _PICTURES[FLAGS.picture](stream)
    print(f'Wrote {path}.', flush=True)


if __name__ == '__main__':
    console.run(plot)
