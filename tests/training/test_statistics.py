"""Networks with batch norm: the statistics of their averaged weights."""
import dataclasses
import math
import os

import numpy as np
import plain
import pytest
import record_files
import sessions
import tensorflow.compat.v1 as tf
import tiny
from absl import flags
from absl.testing import flagsaver

import cifar10_distributed_train
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.evaluation import model, statistics
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'


@pytest.fixture
def normed(half_bright, monkeypatch):
    """The network `normed` on the half-bright images, which its training sees in random colours.

    In batches of 64, of which 20 are enough for the statistics.
    """
    monkeypatch.setitem(recipes.TABLE, 'normed', dataclasses.replace(
        tiny.NORMED, distort=lambda images: tiny.augment(images) * tf.random_uniform([3])))
    with flagsaver.flagsaver(net='normed', validate_every=0, batch_size=64):
        yield half_bright


def train(steps, trainer=cifar10_train, **flags_):
    """The values in the checkpoint after a number of steps in all."""
    with tf.Graph().as_default(), flagsaver.flagsaver(max_steps=steps, **flags_):
        trainer.main()
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


UNSET = np.array([8 * [0], 8 * [1]])


@pytest.mark.parametrize('trainer', [
    cifar10_train, cifar10_multi_gpu_train, cifar10_distributed_train])
def test_statistics_by_hand(normed, trainer):
    """Those of the averaged weights; they start from the averages of the moving statistics.

    Averages keep (1 + step) / (10 + step) of their old value in a step. The second time, the old
    value is that of the first computation.
    """
    first, second = (train(steps, trainer, num_gpus=2) for steps in (1, 2))
    assert not np.allclose(second['conv1/weights' + AVERAGE], second['conv1/weights'], rtol=1e-3)
    for values, start in (
            (first, 2 / 11 * UNSET + 9 / 11 * moving(first)),
            (second, 3 / 12 * moving(first, AVERAGE) + 9 / 12 * moving(second))):
        np.testing.assert_allclose(
            moving(values, AVERAGE), after_batches(values, start), rtol=1e-4, atol=1e-3)
        assert not np.allclose(moving(values, AVERAGE), moving(values), rtol=0.01)
    assert sum('moving_' in name for name in first) == 2 * 2 * 4  # Of four batch norms.


def test_held_out_images_are_left_out(normed):
    """Record n is at place 51 n % 80; those at the first eight places, 0, 11, 22 and so on."""
    values = train(1, validate_on='held_out')
    training = [number for number in range(80) if number % 11]
    start = 2 / 11 * UNSET + 9 / 11 * moving(values)
    expected = after_batches(values, start, training)
    np.testing.assert_allclose(moving(values, AVERAGE), expected, rtol=1e-4, atol=1e-3)
    assert not np.allclose(after_batches(values, start), expected, rtol=1e-4, atol=1e-3)


def test_a_resumed_run_keeps_its_statistics(normed):
    """Those of earlier versions have the same names; their losses have no averages."""
    values = train(2)
    given = {name: value + 1 if name.startswith('conv1/bn/moving_') else value
             for name, value in values.items() if not name.endswith('/avg')}
    plain.save(os.path.join(FLAGS.train_dir, 'model.ckpt-2'), given)
    with flagsaver.flagsaver(max_steps=2):
        sessions.train()  # No step: the checkpoint is written again, and nothing is computed.
    again = read(2)
    for name, value in given.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    third = train(3)
    start = 4 / 13 * moving(given, AVERAGE) + 9 / 13 * moving(third)
    np.testing.assert_allclose(
        moving(third, AVERAGE), after_batches(third, start), rtol=1e-4, atol=1e-3)


def test_validations_and_checkpoints_compute_them(normed):
    """An epoch has 20 steps."""
    train(50, validate_every=1, save_checkpoint_steps=10, batch_size=4)
    values = [read(step) for step in (10, 20, 30, 40, 50)]
    for before, after in zip(values, values[1:]):
        assert (moving(before, AVERAGE) != moving(after, AVERAGE)).any()
    best = checkpoints.read(checkpoints.latest(os.path.join(FLAGS.train_dir, 'best')))
    of_run = read(int(best['global_step']))
    for name, value in of_run.items():
        np.testing.assert_array_equal(best[name], value, err_msg=name)


@pytest.mark.parametrize('use_moving_averages', [True, False])
def test_averaged_weights_are_used_with_their_own_statistics(
        half_bright, monkeypatch, use_moving_averages):
    """The network `tiny` centres the channels of an image before its only layer."""
    monkeypatch.setitem(recipes.TABLE, 'tiny', tiny.RECIPE)
    values = train(7, net='tiny', validate_every=0)
    image = np.random.RandomState(1).randint(0, 256, [1, 32, 32, 3]).astype(np.uint8)
    with flagsaver.flagsaver(net='tiny'):
        network = model.Model(recipes.chosen(), 10)
    path = os.path.join(FLAGS.train_dir, 'model.ckpt-7')
    with network.session(path, use_moving_averages) as session:
        logits = session.run(network.outputs['logits'], {network.pixels: image})
    suffix = AVERAGE if use_moving_averages else ''
    pixels = (image[0, ::2, ::2] - values['bn/moving_mean' + suffix]) / 100
    np.testing.assert_allclose(
        logits[0], pixels.ravel() @ values['linear/weights' + suffix], rtol=1e-4, atol=1e-5)
    for name in ('bn/moving_mean', 'linear/weights'):
        assert not np.allclose(values[name + AVERAGE], values[name], rtol=0.01)


@pytest.fixture
def made(normed):
    """A function that makes a `Statistics`, and one that updates it and returns conv1's statistics,
    [2, 8]: at first 0 and 1."""
    start = sessions.start()
    start.recipe.logits(tf.zeros([64, 16, 16, 3]), 10, training=True)
    tf.train.ExponentialMovingAverage(0.5).apply(
        [*tf.trainable_variables(), *tf.moving_average_variables()])
    variables, caught = tf.global_variables(), []
    with tf.Session() as session:
        def make(seconds=math.inf):
            session.run(tf.global_variables_initializer())
            return statistics.Statistics(
                start.source, start.recipe, variables, 0, caught, seconds)

        def update(current, step, signals=()):
            caught[:] = signals
            current.update(session, step)
            return moving(session.run({each.op.name: each for each in variables}), AVERAGE)

        yield make, update


def test_once_at_a_step_and_not_after_a_signal(made):
    make, update = made
    for seconds in (0, 1e-9):  # The time is up at once.
        np.testing.assert_array_equal(update(make(seconds), 1), UNSET)
    current = make()
    np.testing.assert_array_equal(update(current, 0), UNSET)  # That of the checkpoint.
    np.testing.assert_array_equal(update(current, 1, [15]), UNSET)
    first = update(current, 2)
    assert (first != UNSET).all()
    np.testing.assert_array_equal(update(current, 2), first)
    np.testing.assert_array_equal(update(current, 3, [15]), first)
    assert (update(current, 3) != first).all()


def test_records_that_were_emptied_do_not_end_the_run(made, normed):
    """The statistics' images were read at the start."""
    make, update = made
    current = make()
    for path in normed.glob('data_batch_*.bin'):
        path.write_bytes(b'')
    assert (update(current, 1) != UNSET).all()


def test_a_computation_that_fails_does_not_end_the_run(made, capsys):
    """As on a GPU without enough memory for another graph."""
    make, update = made
    current = make()
    with current._graph.as_default():
        current._update = tf.debugging.Assert(False, ['no memory'])
    np.testing.assert_array_equal(update(current, 1), UNSET)
    line, = capsys.readouterr().out.splitlines()
    assert line.startswith('The statistics of the averaged weights were not computed: ')
    assert 'no memory' in line


def test_statistics_that_are_not_finite_are_not_stored(made):
    make, update = made
    current, session = make(), tf.get_default_session()
    weights, = (each for each in tf.global_variables()
                if each.op.name == 'conv1/weights' + AVERAGE)
    weights.load(np.full(weights.shape, 1e30), session)
    np.testing.assert_array_equal(update(current, 1), UNSET)
