from cifar10_lib import errors
from classification_lib import recipes

import numpy as np
import pytest
import reference
import run_settings
import tensorflow.compat.v1 as tf

import cifar10


def rates(net, steps, **settings):
    """The learning rates of a row at some steps, by default with 50,000 images in batches of 125:
    400 steps of one worker per epoch."""
    step = tf.placeholder(tf.int64, [])
    settings = {'training_images': 50000, 'batch_size': 125, 'max_steps': 10**6, **settings}
    lr = recipes.TABLE[net].schedule(step, run_settings.of(**settings))
    assert (lr.dtype, lr.shape.as_list()) == (tf.float32, [])
    with tf.Session() as session:
        return [session.run(lr, {step: at}) for at in steps]


def test_names():
    assert recipes.find('airbench94') == (recipes.TABLE['airbench94'], None)
    assert recipes.find('cifar100_resnet23') == (recipes.TABLE['resnet23'], 'cifar100')
    for net in ('resnet', 'svhn_resnet23', 'cifar10_', 'cifar10'):
        with pytest.raises(errors.UserError, match=f'--net={net} is not a network; expected one '
                           'of resnet23, airbench94, tutorial'):
            recipes.find(net)


@pytest.mark.parametrize('net, images, workers, expected', [
    ('airbench94', 50000, 1, (1024, 1.5, 14)), ('airbench94', 50000, 16, (1024, 1.5, 14)),
    ('resnet23', 45000, 4, (64, 1e-3, 300)), ('tutorial', 50000, 1, (128, 0.1, 256)),
    # 14 epochs of 2,000 images are 100 steps of 280.
    ('airbench94', 2000, 1, (280, 1.5 * 280 / 1024, 14)),
    # With 150 images, 100 steps of 32 are 21.33 epochs.
    ('airbench94', 150, 1, (32, 0.046875, 64 / 3)), ('airbench94', 150, 4, (8, 0.046875, 64 / 3)),
    ('airbench94', 20, 1, (20, 1.5 * 20 / 1024, 100))])
def test_the_defaults_on_few_images(net, images, workers, expected):
    """At least 100 steps, of at least 32 images or of all. CIFAR-10 is trained as in the row."""
    found = recipes.TABLE[net].defaults(images, workers)
    np.testing.assert_allclose(
        [found[name] for name in ('batch_size', 'learning_rate', 'epochs')], expected, rtol=1e-12)


@pytest.mark.parametrize('net, settings, steps, expected', [
    ('resnet23', {'learning_rate': 1e-3}, [0, 3000, 10**6], [1e-3, 1e-3, 1e-3]),
    # Four workers make 100 steps per epoch: 500 steps of warm-up, from 1 to 4.
    ('resnet23', {'workers': 4, 'learning_rate': 1e-3}, [0, 125, 250, 500, 10**6],
     [1e-3, 1.75e-3, 2.5e-3, 4e-3, 4e-3]),
    ('resnet23', {'workers': 4, 'learning_rate': 1e-3, 'warmup_epoch': 0}, [0, 1], [4e-3, 4e-3]),
    # It falls after 350 epochs, of which two workers make 200 steps each.
    ('tutorial', {'workers': 2}, [0, 69999, 70000, 140000], [0.1, 0.1, 0.01, 0.001]),
    ('tutorial', {'workers': 2, 'learning_rate': 0.04}, [0, 70000], [0.04, 0.004]),
    # 600 images are 6 steps of 100 per epoch, so 2,100 in 350 epochs.
    ('tutorial', {'training_images': 600, 'batch_size': 100}, [0, 2099, 2100], [0.1, 0.1, 0.01]),
    # A fifth of 1.5 at first, all of it after 23 % of the steps, 7 % at the end.
    ('airbench94', {'max_steps': 200, 'learning_rate': 1.5}, [0, 23, 46, 123, 200],
     [0.3, 0.9, 1.5, 0.8025, 0.105])])
def test_the_learning_rate(net, settings, steps, expected):
    np.testing.assert_allclose(rates(net, steps, **settings), expected, rtol=1e-5)


@pytest.mark.parametrize('rate', [0.25, 0])
def test_the_tutorials_constants_are_read_when_they_are_used(monkeypatch, rate):
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', rate)
    monkeypatch.setattr(cifar10, 'NUM_EPOCHS_PER_DECAY', 2.0)
    row = recipes.TABLE['tutorial']
    assert row.learning_rate() == rate
    found = rates('tutorial', [0, 800], learning_rate=row.learning_rate())
    np.testing.assert_allclose(found, [rate, rate / 10], rtol=1e-5)


def test_the_smoothed_loss():
    """With 0.2 of a label spread over 4 classes, the target is (0.85, 0.05, 0.05, 0.05)."""
    tf.add_to_collection('losses', tf.constant(10.0))
    logits = tf.constant([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    loss = recipes.smoothed_loss(logits, tf.constant([0, 3]), 0.2)
    log_sum = np.log(np.exp(2.0) + 3)
    first = 0.85 * (log_sum - 2) + 0.15 * log_sum
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(loss), 10 + (first + np.log(4)) / 2, rtol=1e-6)


@pytest.mark.parametrize('net', ['resnet23', 'airbench94'])
@pytest.mark.parametrize('dtype, tolerance', [(tf.float16, 0.01), (tf.bfloat16, 0.05)])
def test_half_precision(net, dtype, tolerance):
    """Results are nearly the same; variables and logits stay float32."""
    with tf.variable_scope('net', reuse=tf.AUTO_REUSE):
        logits = [recipes.TABLE[net].inference(
            tf.constant(reference.pixels(5)), 10, training=True, dtype=each)
            for each in (tf.float32, dtype)]
    assert logits[1].dtype == tf.float32
    assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32}
    types = [op.outputs[0].dtype for op in tf.get_default_graph().get_operations()
             if op.type == 'Conv2D']
    assert types.count(dtype) == types.count(tf.float32) > 5
    with tf.Session() as session:
        reference.load_noise(session)
        expected, got = session.run(logits)
    np.testing.assert_allclose(got, expected, atol=tolerance * abs(expected).max())
