"""Draws images, filters, confusion matrices and learning curves as PNG files.

    python cifar10_plot.py --picture=samples --output=samples.png
    python cifar10_plot.py --picture=curves --runs=/tmp/cifar10_train,/tmp/cifar10_eval

    samples      training images of each class
    distorted    training images, and random distortions of them
    filters      the kernels of a network's first layer
    predictions  test images, and the classes that a network predicts for them
    confusion    how many test images of each class a network takes for which class
    curves       loss and error by step, of one or several runs and folders of cifar10_eval.py

--runs selects runs of the tutorial or of classification.py. Requires Matplotlib.
"""
import itertools
import logging
import os
import textwrap

from cifar10_lib import checkpoints, errors, files, script
from classification_lib import evaluate, recipes, run, trained

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

flags.DEFINE_list('runs', '/tmp/cifar10_train', 'Folders of runs, or paths of checkpoints, '
                  'separated by commas; only --picture=curves accepts several. Without the flag, '
                  '--picture=samples and --picture=distorted are those of the tutorial.')
flags.DEFINE_boolean('best', False, 'Draw for the checkpoint in best/, the one with the lowest '
                     'validation error, instead of the latest one.')
flags.DEFINE_string('dataset', None, 'Images to draw: cifar10, cifar100, or a folder from '
                    'cifar10_convert.py. By default those of the run, or cifar10.')
flags.DEFINE_string('output', None, 'PNG file to write; by default PICTURE.png.')

FLAGS = flags.FLAGS


def samples(figure):
    """Draws about a hundred training images, at least one of each class."""
    source = trained.images(_run(), FLAGS.dataset, 'all')
    labels, pixels = source.read()
    places = _first_of_each_class(labels, 100)
    texts = [(source.data_set.classes[labels[place]], 'black') for place in places]
    _draw_images(figure, f'{source.data_set.name} training images', pixels[places], texts)


def distorted(figure):
    """Draws eight training images, and nine random distortions of each."""
    found = _run()
    pixels = trained.images(found, FLAGS.dataset, 'all').read()[1][:8]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)  # TF_DETERMINISTIC_OPS requires one.
        made = session.run(found.recipe.distort(tf.constant(np.repeat(pixels, 9, axis=0))))
    darkest, brightest = np.percentile(made, [1, 99])
    made = np.clip((made - darkest) / max(brightest - darkest, 1e-9), 0, 1)
    shown = []
    for row, original in enumerate(pixels):
        shown += [original, *made[9 * row:9 * row + 9]]
    _draw_images(figure, 'Left: original images. Right: distorted for training, '
                 f'--net={found.recipe.name}', shown)


def filters(figure):
    """Draws the kernels of the first layer."""
    found = _run()
    network = evaluate.Classifier(found.recipe, len(found.classes))
    kernels = network.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)[0]
    with network.restored(found.checkpoint) as session:
        weights = session.run(kernels)
    height, width, _, count = weights.shape
    largest = max(np.percentile(np.abs(weights), 99.5), 1e-30)  # A divisor.
    drawn = np.clip(0.5 + weights.transpose([3, 0, 1, 2]) / (2 * largest), 0, 1)
    _draw_images(figure, f'{kernels.op.name} in {os.path.basename(found.checkpoint.path)}: {count} '
                 f'filters of {height} x {width} pixels; grey is 0', drawn, columns=8)


def predictions(figure):
    """Draws about thirty test images, at least one of each class, with the predicted classes."""
    found = _run()
    source = trained.images(found, FLAGS.dataset, 'test')
    labels, pixels = source.read()
    places = _first_of_each_class(labels, 30)
    network = evaluate.Classifier(found.recipe, len(found.classes))
    with network.restored(found.checkpoint) as session:
        _, probabilities = network.classify(session, pixels[places])
    texts = []
    for label, row in zip(labels[places], probabilities):
        text, colour = f'{found.classes[row.argmax()]} {row.max():.0%}', 'black'
        if found.classes[row.argmax()] != source.data_set.classes[label]:
            text, colour = f'{text}\nnot {source.data_set.classes[label]}', 'tab:red'
        texts.append((text, colour))
    _draw_images(figure, f'Test images as classified by {os.path.basename(found.checkpoint.path)}; '
                 'wrong classes are red', pixels[places], texts)


def confusion(figure):
    """Draws how many test images of each class are taken for which class."""
    found = _run()
    images = trained.images(found, FLAGS.dataset, 'test')
    counts = evaluate.confusion(found, images, FLAGS.batch_size)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure.set_size_inches(2 * [max(6, 2 + 0.15 * len(counts))])
    axes = figure.subplots()
    axes.imshow(shares ** 0.5, cmap='Blues', vmin=0, vmax=1)  # The root makes small shares visible.
    axes.set_xticks(range(len(counts)), found.classes, rotation=90)
    axes.set_yticks(range(len(counts)), found.classes)
    axes.set(title=f'{counts.sum()} test images, {os.path.basename(found.checkpoint.path)}',
             xlabel='predicted class', ylabel='true class')
    if len(counts) <= 20:  # Otherwise, the numbers would not fit.
        for row, column in np.argwhere(counts):
            colour = 'white' if shares[row, column] > 0.3 else 'black'
            axes.text(column, row, counts[row, column], ha='center', va='center', color=colour)


def curves(figure):
    """Draws losses and errors by step: a colour for each kind of curve, a style for each run."""
    runs = {folder: _read_curves(folder) for folder in FLAGS.runs}
    names = sorted({name for found in runs.values() for name in found})
    panels = [panel for panel in ('loss', 'error') if any(panel in name for name in names)]
    figure.set_size_inches(5 * len(panels), 4.2)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0]):
        for (folder, found), style in zip(runs.items(), itertools.cycle(('-', '--', ':', '-.'))):
            for name in [name for name in found if panel in name]:
                # Older checkpoints may have been evaluated later.
                points = np.reshape(sorted(found[name]), [-1, 2])
                axes.plot(points[:, 0], points[:, 1], linestyle=style,
                          color=f'C{names.index(name)}', marker='.', markersize=2,
                          label=f'{name} of {folder}')
        axes.set(title=panel, xlabel='step')
        axes.grid(alpha=0.3)
    figure.legend(loc='outside lower center', ncols=2, fontsize=8)


def _run():
    """The network of --runs; training images can be drawn without one, as the tutorial's."""
    if FLAGS['runs'].using_default_value and FLAGS.picture in ('samples', 'distorted'):
        return trained.Network(checkpoints.Found('', {}), recipes.TABLE['tutorial'], (), {})
    return trained.find(FLAGS.runs[0], FLAGS.best, trained.given_data_dir())


def _first_of_each_class(labels, count):
    """Places of the first image of each class, then of the second, and so on.

    They are `count` or, with fewer images, all; but always at least one of each class.
    """
    classes = np.unique(labels)
    rank = np.zeros(len(labels), int)  # Of an image in its class.
    for label in classes:
        rank[labels == label] = range((labels == label).sum())
    return np.lexsort([labels, rank])[:max(count, len(classes))]


def _read_curves(folder):
    """Losses and errors of a run or an evaluation: {'training_loss': [(step, figure), ...]}.

    Of the tutorial's programs, they are in event files. Raises `errors.UserError` without any.
    """
    found = {}
    for row in run.read_metrics(folder):
        for name, figure in row.items():  # Of older versions, also validation_error_averaged.
            if figure is not None and ('loss' in name or 'error' in name):
                found.setdefault(name, []).append((row['step'], figure))
    if not found and os.path.isdir(folder):
        # Here, because the import is slow.
        from tensorboard.backend.event_processing import event_accumulator
        logging.getLogger('tensorboard').setLevel(logging.ERROR)  # It warns about resumed runs.
        events = event_accumulator.EventAccumulator(folder, {event_accumulator.SCALARS: 0}).Reload()
        tags = events.Tags()[event_accumulator.SCALARS]
        if 'total_loss_1' in tags:  # In runs on one device an average, which begins with 0.
            found['training_loss'] = [
                (event.step, event.value) for event in events.Scalars('total_loss_1')[1:]]
        if 'Precision @ 1' in tags:
            found['evaluation_error'] = [
                (event.step, 1 - event.value) for event in events.Scalars('Precision @ 1')]
    if not found:
        raise errors.UserError(f'{folder} has no {run.METRICS}, and no event files of training or '
                                'evaluation: choose another folder')
    return found


def _draw_images(figure, title, images, texts=(), columns=10):
    """Draws rows of images, uint8 or float from 0 to 1, each below a (text, colour) if given."""
    rows = -(-len(images) // columns)
    figure.set_size_inches(0.8 * columns, (1.2 if texts else 0.85) * rows + 0.5)
    figure.suptitle(title, fontsize=11)
    cells = figure.subplots(rows, columns, squeeze=False).flat
    for axes, image, text in itertools.zip_longest(cells, images, texts):
        axes.set_axis_off()
        if image is not None:
            axes.imshow(image, interpolation='nearest')
        if text is not None:
            lines = [textwrap.fill(line, 13) for line in text[0].splitlines()]
            axes.set_title('\n'.join(lines), fontsize=7, pad=2, color=text[1])


_PICTURES = {'samples': samples, 'distorted': distorted, 'filters': filters,
             'predictions': predictions, 'confusion': confusion, 'curves': curves}
flags.DEFINE_enum('picture', None, list(_PICTURES), 'Picture to draw.')


def plot():
    """Writes the picture, all or nothing; raises `errors.UserError`."""
    if FLAGS.picture is None:
        raise errors.UserError(f'--picture is missing; expected {"|".join(_PICTURES)}')
    if len(FLAGS.runs) != 1 and FLAGS.picture != 'curves':
        raise errors.UserError(f'--runs={",".join(FLAGS.runs)} has {len(FLAGS.runs)} folders; '
                                f'expected one for --picture={FLAGS.picture}')
    try:
        import matplotlib.figure
    except ImportError as error:
        raise errors.UserError('requires Matplotlib (pip install matplotlib)') from error
    matplotlib.rcParams['text.parse_math'] = False  # A name with '$' is not a formula.
    figure = matplotlib.figure.Figure(dpi=100, layout='constrained')
    path = FLAGS.output or f'{FLAGS.picture}.png'
    with files.new_file(path) as stream:
        _PICTURES[FLAGS.picture](figure)
        figure.savefig(stream, format='png')
    print(f'Wrote {path}.', flush=True)


if __name__ == '__main__':
    script.run(plot)
