import os

import numpy as np
import pytest
import record_files
import tensorflow.compat.v1 as tf
import tiny
from absl import flags
from absl.testing import flagsaver

import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.evaluation import statistics
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'


@pytest.fixture
def normed(half_bright, monkeypatch):
    """The network `normed` on the half-bright images, which its training sees in random colours."""
    monkeypatch.setitem(recipes.TABLE, 'normed', tiny.NORMED._replace(
        augment=lambda pixels: tiny.augment(pixels) * tf.random_uniform([3])))
    with flagsaver.flagsaver(net='normed', validate_every=0, batch_size=4):
        yield half_bright


def train(steps, **flags_):
    """The values in the checkpoint after a number of steps in all."""
    with tf.Graph().as_default(), flagsaver.flagsaver(max_steps=steps, **flags_):
        cifar10_train.train()
    return read(steps)


def read(step):
    return checkpoints.read(os.path.join(FLAGS.train_dir, f'model.ckpt-{step}'))


def after_batches(values, start, numbers=range(80)):
    """Moving mean and variance of conv1, [2, 8], for its averaged weights among `values`.

    After 20 batches of undistorted images, starting from `start`. Of the training images with these
    `numbers`, batch k has every 20th of 1,280, beginning with the k-th: each image several times.
    """
    images = np.concatenate([[image for _, image in record_files.half_bright(16, seed)]
                             for seed in range(1, 6)])[:, ::2, ::2].astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        products = session.run(tf.nn.conv2d(images, values['conv1/weights' + AVERAGE], 1, 'SAME'))
    chosen = np.array(numbers)[np.arange(1280) * len(numbers) // 1280]
    for k in range(20):
        batch = products[chosen[k::20]].astype(np.float64)
        start = 0.9 * np.array(start) + 0.1 * np.array(
            [batch.mean(axis=(0, 1, 2)), batch.reshape(-1, 8).var(axis=0, ddof=1)])
    return start


def moving(values, suffix=''):
    """Moving mean and variance of conv1, [2, 8]."""
    return np.array([values[f'conv1/bn/moving_{name}{suffix}'] for name in ('mean', 'variance')])


def test_statistics_by_hand(normed):
    """Those of the averaged weights; first from the raw ones, then from those of the last time."""
    first, second = train(3), train(5)
    assert not np.allclose(second['conv1/weights' + AVERAGE], second['conv1/weights'], rtol=1e-3)
    for values, start in ((first, moving(first)), (second, moving(first, AVERAGE))):
        np.testing.assert_allclose(
            moving(values, AVERAGE), after_batches(values, start), rtol=1e-4, atol=1e-3)
        assert not np.allclose(moving(values, AVERAGE), moving(values), rtol=0.01)
    assert sum('moving_' in name for name in first) == 2 * 2 * 4  # Of four batch norms.


def test_held_out_images_are_left_out(normed):
    """Record n is at place 51 n % 80; those at the first eight places, 0, 11, 22 and so on."""
    values = train(1, validate_on='held_out')
    training = [number for number in range(80) if number % 11]
    expected = after_batches(values, moving(values), training)
    np.testing.assert_allclose(moving(values, AVERAGE), expected, rtol=1e-4, atol=1e-3)
    assert not np.allclose(after_batches(values, moving(values)), expected, rtol=1e-4, atol=1e-3)


def test_validations_and_checkpoints_compute_them(normed):
    """An epoch has 20 steps."""
    train(50, validate_every=1, save_checkpoint_steps=10)
    values = [read(step) for step in (10, 20, 30, 40, 50)]
    np.testing.assert_allclose(moving(values[0], AVERAGE), after_batches(
        values[0], moving(values[0])), rtol=1e-4, atol=1e-3)
    for before, after in zip(values, values[1:]):
        assert (moving(before, AVERAGE) != moving(after, AVERAGE)).any()
    best = checkpoints.read(checkpoints.latest(os.path.join(FLAGS.train_dir, 'best')))
    np.testing.assert_array_equal(
        moving(best, AVERAGE), moving(read(int(best['global_step'])), AVERAGE))


@pytest.fixture
def update(normed):
    """A function that updates the statistics of a session, and returns conv1's, [2, 8]: at first
    0 and 1."""
    recipes.chosen(training=True).inference(tf.zeros([4, 16, 16, 3]))
    tf.train.ExponentialMovingAverage(0.5).apply(tf.trainable_variables())
    averages = statistics.add_averages()
    caught = []
    current = statistics.Statistics(averages, tf.global_variables(), 0, caught)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def run(step, signals=(), *seconds):
            caught[:] = signals
            current.update(session, step, *seconds)
            return moving(session.run(averages))
        yield run


UNSET = [8 * [0], 8 * [1]]


def test_once_at_a_step_and_not_after_a_signal(update):
    np.testing.assert_array_equal(update(1, [15]), UNSET)
    np.testing.assert_array_equal(update(1, [], 0), UNSET)
    np.testing.assert_array_equal(update(1, [], 1e-9), UNSET)  # The time is up at once.
    first = update(2)
    assert (first != UNSET).all()
    np.testing.assert_array_equal(update(2), first)
    np.testing.assert_array_equal(update(3, [15]), first)
    assert (update(3) != first).all()


def empty(normed):
    for path in normed.glob('data_batch_*.bin'):
        path.write_bytes(b'')


@pytest.mark.parametrize('change, words', [
    (lambda normed: os.remove(normed / 'data_batch_3.bin'), 'data_batch_3.bin'),
    (empty, 'out of bounds')])
def test_records_that_were_removed_do_not_end_the_run(update, normed, capsys, change, words):
    """Training reports them itself, and saves the last step."""
    change(normed)
    np.testing.assert_array_equal(update(1), UNSET)
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith('The statistics of the averaged weights were not computed: ')
    assert words in line


def test_the_records_are_read_once(update, normed, capsys):
    first = update(1)
    empty(normed)
    assert (update(2) != first).all() and capsys.readouterr().out == ''


def test_statistics_that_are_not_finite_are_not_stored(update, capsys):
    session = tf.get_default_session()
    weights, = (each for each in tf.global_variables() if each.op.name == 'conv1/weights' + AVERAGE)
    weights.load(np.full(weights.shape, 1e30), session)
    np.testing.assert_array_equal(update(1), UNSET)
    assert 'were not computed: they are not finite.' in capsys.readouterr().out


@pytest.mark.parametrize('inference', [
    lambda images, training: tf.get_variable('w', [1]),  # Another network.
    lambda images, training: tf.get_variable(  # The same one, without updates.
        'other/moving_mean', initializer=[1.0], trainable=False),
    lambda images, training: tf.reshape(images, [4, 16, 16, 3])])  # Requires batches of four.
def test_a_network_of_which_nothing_is_known_keeps_the_raw_ones(normed, monkeypatch, inference):
    statistic = tf.get_variable('other/moving_mean', initializer=[1.0], trainable=False)
    tf.train.ExponentialMovingAverage(0.5).apply([tf.get_variable('weights', [1])])
    monkeypatch.setitem(recipes.TABLE, 'normed', tiny.NORMED._replace(inference=inference))
    averages = statistics.add_averages()
    current = statistics.Statistics(averages, tf.global_variables(), 0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in (2, 3):
            statistic.load([value], session)
            current.update(session, value)
            assert session.run(averages) == {'other/moving_mean': [value]}


def test_averages_that_a_program_makes_itself_are_left_alone():
    statistic = tf.get_variable('moving_mean', initializer=[1.0], trainable=False)
    assert statistics.add_averages() == {}  # The weights have none.
    weights = tf.get_variable('weights', [1])
    tf.train.ExponentialMovingAverage(0.5).apply([weights, statistic])
    with tf.variable_scope('any'):
        assert statistics.add_averages() == {}
        tf.get_variable('moving_variance', initializer=[1.0], trainable=False)
        created, = statistics.add_averages().values()
    assert created.op.name == 'any/moving_variance' + AVERAGE
