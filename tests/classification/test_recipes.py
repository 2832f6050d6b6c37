import subprocess
import sys

from cifar10_lib import console, recipes, run

import numpy as np
import pytest
import spawn
import tensorflow.compat.v1 as tf

import cifar10


def rates(name, plan, steps, rate=None):
    """The learning rates of a row at some steps."""
    row = recipes.TABLE[name]
    if rate is None:
        rate = row.learning_rate
    step = tf.placeholder(tf.int64, [])
    lr = row.schedule(step, rate, plan)
    assert (lr.dtype, lr.shape.as_list()) == (tf.float32, [])
    with tf.Session() as session:
        return [session.run(lr, {step: at}) for at in steps]


@pytest.mark.parametrize('net, expected', [
    ('resnet23', ('resnet23', None)), ('airbench94', ('airbench94', None)),
    ('tutorial', ('tutorial', None)), ('cifar10_resnet23', ('resnet23', 'cifar10')),
    ('cifar100_resnet23', ('resnet23', 'cifar100'))])
def test_names(net, expected):
    row, data_set = recipes.named(net)
    assert (row.name, data_set) == expected


@pytest.mark.parametrize('net', ['resnet', 'svhn_resnet23', 'cifar10_', 'cifar10', 'tutorial_fast'])
def test_other_names_are_refused(net):
    with pytest.raises(console.UserError, match=f'--net={net} is not a network; expected one of '
                       'resnet23, airbench94, tutorial'):
        recipes.named(net)


@pytest.mark.parametrize('workers, steps, expected', [
    (1, [0, 3000, 10**6], [1e-3, 1e-3, 1e-3]),
    # 50,000 images in batches of 125: 100 steps per epoch, 500 steps of warm-up, from 1 to 4.
    (4, [0, 125, 250, 500, 10**6], [1e-3, 1.75e-3, 2.5e-3, 4e-3, 4e-3])])
def test_the_linear_scaling_rule(workers, steps, expected):
    plan = run.Plan(0, 10**6, 125, workers, 50000, warmup_epoch=5)
    np.testing.assert_allclose(rates('resnet23', plan, steps), expected, rtol=1e-6)


def test_no_warm_up():
    plan = run.Plan(0, 10**6, 125, 4, 50000, warmup_epoch=0)
    np.testing.assert_allclose(rates('resnet23', plan, [0, 1], rate=0.5), [2, 2])


def test_the_tutorials_rate_falls_after_350_epochs():
    """50,000 images in batches of 125, by two workers: 200 steps per epoch."""
    plan = run.Plan(0, 10**6, 125, 2, 50000)
    np.testing.assert_allclose(
        rates('tutorial', plan, [0, 69999, 70000, 140000]), [0.1, 0.1, 0.01, 0.001], rtol=1e-5)
    np.testing.assert_allclose(
        rates('tutorial', plan, [0, 70000], rate=0.04), [0.04, 0.004], rtol=1e-5)


def test_the_rate_of_airbench94_ends_with_the_run():
    """A fifth of 1.5 at first, all of it after 23 % of the steps, 7 % at the end."""
    plan = run.Plan(0, 200, 16, 1, 50000)
    np.testing.assert_allclose(
        rates('airbench94', plan, [0, 23, 46, 123, 200]), [0.3, 0.9, 1.5, 0.8025, 0.105], rtol=1e-5)


def test_the_smoothed_loss():
    """With 0.2 of a label spread over 4 classes, the target is (0.85, 0.05, 0.05, 0.05)."""
    tf.add_to_collection('losses', tf.constant(10.0))
    logits = tf.constant([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    loss = recipes.smoothed_loss(logits, tf.constant([0, 3]), 0.2)
    log_sum = np.log(np.exp(2.0) + 3)
    first = 0.85 * (log_sum - 2) + 0.15 * log_sum
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(loss), 10 + (first + np.log(4)) / 2, rtol=1e-6)


@pytest.mark.parametrize('net, size', [('resnet23', 32), ('airbench94', 32), ('tutorial', 24)])
def test_images_of_a_row(net, size):
    row = recipes.TABLE[net]
    pixels = tf.zeros([5, 32, 32, 3], tf.uint8)
    for images in (row.distort(pixels), row.prepare(pixels)):
        assert images.dtype == tf.float32 and images.shape.as_list() == [5, size, size, 3]


def test_the_tutorials_row_is_the_tutorial():
    """The same network with the same names, and the same loss."""
    row = recipes.TABLE['tutorial']
    logits = row.inference(tf.zeros([3, 24, 24, 3]), 7, True, tf.float32)
    assert logits.shape.as_list() == [3, 7]
    assert sorted(each.op.name for each in tf.trainable_variables()) == sorted(
        f'{layer}/{name}' for layer in ('conv1', 'conv2', 'local3', 'local4', 'softmax_linear')
        for name in ('weights', 'biases'))
    assert row.loss is cifar10.loss


def test_defaults_of_the_rows():
    """NNabla's, the paper's, and the tutorial's 100,000 steps."""
    assert {row.name: (row.batch_size, row.epochs, row.learning_rate, row.averages)
            for row in recipes.TABLE.values()} == {
        'resnet23': (64, 300, 1e-3, True), 'airbench94': (1024, 14, 1.5, False),
        'tutorial': (128, 256, 0.1, True)}


def test_the_import_prints_nothing():
    done = subprocess.run([sys.executable, '-c', 'from cifar10_lib import recipes'],
                          cwd=spawn.ROOT, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b'', b'')
