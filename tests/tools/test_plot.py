"""Pictures: what can be seen in them."""
import os
import sys

from cifar10_lib import errors
from classification_lib import own_images

import copies
import numpy as np
import plain
import pytest
import random_runs
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import cifar10_eval
import cifar10_plot

FLAGS = flags.FLAGS

# Matplotlib's colours for curves, in the alphabetical order of their names.
BLUE, ORANGE, GREEN = [31, 119, 180], [255, 127, 14], [44, 160, 44]


def plot(folder, picture, runs=None, **options):
    """Draws a picture; returns its pixels, int [height, width, 3]. `runs` is the flag's value."""
    path = folder / f'{picture}.png'
    if runs:
        options['runs'] = list(map(str, runs))
    with flagsaver.flagsaver(picture=picture, output=str(path), **options):
        cifar10_plot.plot()
    assert [name for name in os.listdir(folder) if name.endswith('.part')] == []
    return np.asarray(Image.open(path).convert('RGB')).astype(int)


def is_colour(image, colour):
    return (abs(image - colour) <= 2).all(axis=2)


def has(image, colour):
    return is_colour(image, colour).any()


def title_is_complete(image):
    """Whether the title, the text in the first rows, ends before the borders."""
    title = (image[:22] < 128).all(axis=2)
    return title.any() and not title[:, :3].any() and not title[:, -3:].any()


def own_set(folder, classes):
    """Writes a data set of twelve images per class; class k has colour (20 k, 200, 0). Returns its
    path."""
    labels = np.tile(np.arange(len(classes)), 12)
    colours = np.array([[20 * label, 200, 0] for label in labels], np.uint8)
    images = own_images.Split(np.tile(colours[:, np.newaxis, np.newaxis], [1, 32, 32, 1]), labels)
    folder.mkdir()
    own_images.write(folder, 'plain', own_images.OwnImages(classes, images, images))
    return str(folder)


def save_run(folder, values):
    """Saves a run of the tutorial: values by name, and zeros for the other variables."""
    zeros = {name + ending: np.zeros(shape, np.float32)
             for name, shape in plain.SHAPES.items() for ending in ('', plain.AVERAGE)}
    os.makedirs(folder)
    plain.save(folder / 'model.ckpt-7', {**zeros, **values, 'global_step': 7.0})
    return folder


# ---- Images


def test_distorted_shows_images_and_distortions(half_bright, tmp_path):
    """To the left are the images, with values up to 209; the others reach white."""
    image = plot(tmp_path, 'distorted')
    left, others = image[40:, :78], image[40:, 82:]
    assert abs(left[np.ptp(left, axis=2) > 20].max() - 209) <= 1
    assert others[np.ptp(others, axis=2) > 20].max() >= 254


@pytest.mark.parametrize('count', [2, 12])
def test_samples_of_own_images(tmp_path, count):
    """About a hundred, as many of each class; there are twelve of each."""
    classes = [f'class_{k} of $x$' for k in range(count)]
    image = plot(tmp_path, 'samples', dataset=own_set(tmp_path / 'set', classes))
    shown = [is_colour(image, [20 * k, 200, 0]).sum() / 60 ** 2 for k in range(count)]
    assert all(7 < each < 18 for each in shown)
    assert title_is_complete(image)


def test_samples_and_distorted_images_of_a_run(half_bright, tmp_path):
    """Those of the run; without --runs those in --data_dir, which have no such colour."""
    data_set = own_set(tmp_path / 'set', ['a', 'b'])
    random_runs.save(tmp_path / 'run', 'tutorial', ['a', 'b'], data_set)
    for picture in ('samples', 'distorted'):
        assert has(plot(tmp_path, picture, [tmp_path / 'run']), [20, 200, 0])
    assert not has(plot(tmp_path, 'samples'), [20, 200, 0])


def test_images_under_other_names(half_bright, tmp_path):
    """The names of the record files are those of `record_files`, which a user may edit."""
    expected = plot(tmp_path, 'samples')
    for path in half_bright.iterdir():
        path.rename(half_bright / path.name.replace('_batch', ''))
    folder = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': {
        "'test_batch.bin'": "'test.bin'", "'data_batch_%d.bin'": "'data_%d.bin'"}})
    with copies.imported(folder) as import_, flagsaver.flagsaver(
            picture='samples', output=str(tmp_path / 'renamed.png')):
        import_('cifar10_plot').plot()
    found = Image.open(tmp_path / 'renamed.png').convert('RGB')
    np.testing.assert_array_equal(np.asarray(found), expected)


# ---- Networks


def test_filters_are_the_averaged_weights(tmp_path):
    """The averages of all filters are red above and 0 below; the raw weights are green."""
    raw, averages = np.zeros([2, 5, 5, 3, 64], np.float32)
    raw[:, :, 1], averages[:2, :, 0] = 1, 0.1
    folder = save_run(tmp_path / 'run', {
        'conv1/weights': raw, 'conv1/weights' + plain.AVERAGE: averages})
    image = plot(tmp_path, 'filters', [folder])
    red, grey = is_colour(image, [255, 127, 127]).sum(), is_colour(image, [127, 127, 127]).sum()
    assert 64 * 1000 < red < grey < 2 * red  # Two of five rows, and three.
    assert not has(image, [127, 255, 127])


@pytest.mark.parametrize('net, count', [('resnet23', 64), ('airbench94', 24)])
def test_filters_of_other_networks(tmp_path, net, count):
    """Of the best checkpoint: the run has no other."""
    random_runs.save(tmp_path / 'run' / 'best', net, ['a', 'b'])
    with pytest.raises(errors.UserError, match='No checkpoint in '):
        plot(tmp_path, 'filters', [tmp_path / 'run'])
    image = plot(tmp_path, 'filters', [tmp_path / 'run'], best=True)
    assert image.shape[1] == 640 and title_is_complete(image)
    # Rows of eight filters: the gaps between them are white from left to right.
    is_gap = (image[30:] == 255).all(axis=(1, 2))
    assert (np.diff(is_gap.astype(int)) == -1).sum() >= count // 8 - 1


@pytest.mark.parametrize('count', [2, 10])
def test_predictions(tmp_path, count):
    """All are taken for the same class: those in black rightly, the others, in red, wrongly."""
    classes = [f'class_{k}' for k in range(count)]
    data_set = own_set(tmp_path / 'set', classes)  # Standardised, its images are all equal.
    random_runs.save(tmp_path / 'run', 'tutorial', classes, data_set)
    image = plot(tmp_path, 'predictions', [tmp_path / 'run'])
    assert [has(image, [20 * k, 200, 0]) for k in range(count)] == [True] * count
    row = image[25:95]  # The first of three.
    red = (row[:, :, 0] - row[:, :, 2] > 80) & (row[:, :, 1] < 190)
    wrong = [red[:, 80 * k + 4:80 * k + 76].any() for k in range(10)]
    assert wrong == [k % count != wrong.index(False) for k in range(10)]


def test_confusion_of_a_network_that_predicts_one_class(tmp_path, half_bright):
    """Of two classes, all taken for class 3: two dark cells, one above the other."""
    biases = 5 * np.eye(10, dtype=np.float32)[3]
    folder = save_run(tmp_path / 'run', {'softmax_linear/biases' + plain.AVERAGE: biases})
    image = plot(tmp_path, 'confusion', [folder])
    dark = np.argwhere(is_colour(image, [8, 48, 107]))  # The darkest blue of Matplotlib's Blues.
    assert len(dark) > 2 * 40 * 40
    (top, left), (bottom, right) = dark.min(axis=0), dark.max(axis=0)
    assert bottom - top == pytest.approx(2 * (right - left), abs=6)


# ---- Curves


def test_curves_of_two_runs(tmp_path):
    """Losses to the left, and errors to the right, each in a colour of its own. The lines of the
    first run have no gaps, those of the second are dashed."""
    for name, loss in (('a', 2.0), ('b', 1.0)):
        (tmp_path / name).mkdir()
        rows = [f'{100 * k},{loss},{0.5 / k},' + f'{0.6 / k}' * (k % 2) for k in range(1, 6)]
        (tmp_path / name / 'metrics.csv').write_text(
            '\n'.join(['step,training_loss,training_error,validation_error', *rows, '']))
    image = plot(tmp_path, 'curves', [tmp_path / 'a', tmp_path / 'b'])
    left, right = image[:330, :500], image[:330, 500:]
    assert [has(left, colour) for colour in (BLUE, ORANGE, GREEN)] == [False, True, False]
    assert [has(right, colour) for colour in (BLUE, ORANGE, GREEN)] == [True, False, True]
    lines = [row for row in is_colour(left, ORANGE) if row.sum() > 100]
    inner = [row[np.flatnonzero(row)[0]:np.flatnonzero(row)[-1]] for row in lines]
    assert inner[0].all() and not inner[-1].all()


def test_curves_of_a_run_of_the_tutorial_and_its_evaluation(trained, tmp_path):
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
    with tf.summary.FileWriter(FLAGS.train_dir) as writer:  # A later part of the run.
        for step, loss in ((101, 3.0), (201, 2.0)):
            writer.add_summary(tf.Summary(value=[
                tf.Summary.Value(tag='total_loss_1', simple_value=loss)]), step)
    image = plot(tmp_path, 'curves', [FLAGS.train_dir, FLAGS.eval_dir])[:330]
    assert has(image[:, :500], ORANGE)  # training_loss
    assert has(image[:, 500:], BLUE)  # evaluation_error, a single point.
    assert plot(tmp_path, 'curves', [FLAGS.train_dir]).shape[1] == 500  # The loss alone.


# ---- Both


@pytest.mark.parametrize('options, words', [
    ({'picture': None}, '--picture is missing; expected samples'),
    ({'picture': 'filters', 'runs': ['a', 'b']},
     '--runs=a,b has 2 folders; expected one for --picture=filters'),
    ({'picture': 'curves', 'runs': ['nowhere']}, 'nowhere has no metrics.csv, and no event files')])
def test_mistakes(options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with flagsaver.flagsaver(**options), pytest.raises(errors.UserError, match=words):
        cifar10_plot.plot()
    assert os.listdir(tmp_path) == []


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)  # As if it were not installed.
    with flagsaver.flagsaver(picture='samples'), pytest.raises(
            errors.UserError, match=r'requires Matplotlib \(pip install matplotlib\)'):
        cifar10_plot.plot()
