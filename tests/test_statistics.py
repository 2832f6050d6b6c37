import dataclasses
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
from cifar10_lib.evaluation import model, statistics
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'
STATISTIC = 'conv1/bn/moving_mean'


@pytest.fixture
def normed(half_bright, monkeypatch):
    """The network `normed` on the half-bright images, which its training sees in random colours."""
    monkeypatch.setitem(recipes.TABLE, 'normed', dataclasses.replace(
        tiny.NORMED, augment=lambda pixels: tiny.augment(pixels) * tf.random_uniform([3])))
    with flagsaver.flagsaver(net='normed', validate_every=0, batch_size=4):
        yield half_bright


def train(steps, **flags_):
    """The values in the checkpoint after a number of steps in all."""
    with tf.Graph().as_default(), flagsaver.flagsaver(max_steps=steps, **flags_):
        cifar10_train.train()
    return read(steps)


def read(step):
    return checkpoints.read(os.path.join(FLAGS.train_dir, f'model.ckpt-{step}'))


def after_batches(statistic, weights, images):
    """The moving mean of conv1 after 20 batches of 4 of the undistorted `images` in their order."""
    with tf.Graph().as_default(), tf.Session() as session:
        products = session.run(tf.nn.conv2d(images.astype(np.float32), weights, 1, 'SAME'))
    for start in range(0, 80, 4):
        statistic = 0.9 * statistic + 0.1 * products[start:start + 4].mean(axis=(0, 1, 2))
    return statistic


def test_statistics_by_hand(normed):
    """Those of the averaged weights; at first from zeros, then from those of the start before."""
    images = np.concatenate([[image for _, image in record_files.half_bright(16, seed)]
                             for seed in range(1, 6)])[:, ::2, ::2]
    expected = np.zeros(8)
    for steps in (3, 5):
        values = train(steps)
        average = values['conv1/weights' + AVERAGE]
        assert not np.allclose(average, values['conv1/weights'], rtol=1e-3)
        expected = after_batches(expected, average, images)
        np.testing.assert_allclose(values[STATISTIC + AVERAGE], expected, rtol=1e-4, atol=1e-4)
    assert sum('moving_' in name for name in values) == 2 * 2 * 4  # Of four batch norms.


def test_validations_and_later_checkpoints_have_them(normed):
    """The last checkpoint is that of the validation, and so is the one in best/."""
    last = train(20, validate_every=1, save_checkpoint_steps=5)
    best = checkpoints.read(checkpoints.latest(os.path.join(FLAGS.train_dir, 'best')))
    np.testing.assert_array_equal(best[STATISTIC + AVERAGE],
                                  read(int(best['global_step']))[STATISTIC + AVERAGE])
    found = [read(step)[STATISTIC + AVERAGE] for step in (5, 10, 15)] + [last[STATISTIC + AVERAGE]]
    assert len({each.tobytes() for each in found}) == 4
    assert not read(0)[STATISTIC + AVERAGE].any()


def test_a_run_without_them_is_evaluated_and_resumed_with_the_raw_ones(normed):
    """As one of an earlier version; the averages of its weights must be there."""
    values = {name: value for name, value in train(3).items() if 'moving_' not in name
              or not name.endswith(AVERAGE)}
    path = checkpoints.latest(FLAGS.train_dir)
    with tf.Graph().as_default(), tf.Session() as session:
        stored = [tf.Variable(value, name=name) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        tf.train.Saver(stored).save(session, path)
    found = model.Model.of_pixels().read(path, True, '')
    assert {STATISTIC + AVERAGE, 'conv1/weights' + AVERAGE} < found.keys()
    for name, value in found.items():
        raw = values.get(name, values[name.removesuffix(AVERAGE)])
        np.testing.assert_array_equal(value, raw)
    assert STATISTIC + AVERAGE in train(4)


@pytest.fixture
def session(normed):
    """A session with the variables of a training graph."""
    recipes.chosen().inference(tf.zeros([4, 16, 16, 3]), training=True)
    tf.train.ExponentialMovingAverage(0.5).apply(tf.trainable_variables())
    statistics.add_averages()
    current = statistics.Statistics(tf.global_variables())
    stored, = (each for each in tf.global_variables() if each.op.name == STATISTIC + AVERAGE)
    with tf.Session() as session_:
        session_.run(tf.global_variables_initializer())
        session_.of = lambda step, caught=(): (
            current.update(session_, step, caught), session_.run(stored))[1]
        yield session_


def test_once_for_each_step_and_not_after_a_signal(session):
    assert not session.of(1, caught=[15]).any()
    first = session.of(1)
    assert first.any()
    np.testing.assert_array_equal(session.of(1), first)
    assert (session.of(2) != first).all()


def test_the_time_is_limited(session, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(statistics, '_SECONDS', -1.0)
        assert not session.of(1).any()
    assert session.of(2).any()


def test_a_network_that_is_not_that_of_the_flag_is_left_alone(normed):
    statistic = tf.get_variable('other/moving_mean', initializer=[1.0], trainable=False)
    statistics.add_averages()
    current = statistics.Statistics(tf.global_variables())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        current.update(session, 1)
        assert session.run(statistic) == [1.0]
