from cifar10_lib import lrn

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

TUTORIAL = {'depth_radius': 4, 'bias': 1.0, 'alpha': 0.001 / 9.0, 'beta': 0.75}


@pytest.mark.parametrize('options', [
    TUTORIAL, {'depth_radius': 2, 'bias': 0.5, 'alpha': 0.3, 'beta': 0.4}])
@pytest.mark.parametrize('channels', [1, 7, 64])
def test_equals_tensorflows(options, channels):
    random = np.random.RandomState(channels)
    net = tf.constant(10 * random.normal(size=[3, 5, 4, channels]).astype(np.float32))
    upstream = tf.constant(random.normal(size=[3, 5, 4, channels]).astype(np.float32))
    ours, theirs = lrn.lrn(net, **options), tf.nn.lrn(net, **options)
    with tf.Session() as session:
        (y, dx), (y_expected, dx_expected) = session.run(
            [[out, tf.gradients(out, net, upstream)[0]] for out in (ours, theirs)])
    np.testing.assert_allclose(y, y_expected, atol=1e-5 * abs(y_expected).max())
    np.testing.assert_allclose(dx, dx_expected, atol=1e-5 * abs(dx_expected).max())


def test_float16_does_not_overflow():
    net = tf.fill([1, 9], tf.constant(1000.0, tf.float16))
    result = lrn.lrn(net, **TUTORIAL)
    assert result.dtype == tf.float16
    with tf.Session() as session:
        middle = session.run(result)[0, 4]
    np.testing.assert_allclose(middle, 1000 / (1 + 9e6 * 0.001 / 9) ** 0.75, rtol=1e-3)
