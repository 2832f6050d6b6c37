"""Batch normalisation: Ioffe and Szegedy, https://arxiv.org/abs/1502.03167."""
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Synchrony(NamedTuple):
    """How to normalise over the batches of several workers."""

    workers: int  # Their number.
    mean: Callable  # float32 [n] -> its mean over workers, with the gradient of that.


def batch_norm(net, gamma, beta, training, momentum, epsilon, synchrony=None):
    """Normalises each channel, multiplies it by `gamma` and adds `beta`.

    Training uses the mean and the (biased) variance of the batch, and adds two operations to the
    collection `tf.GraphKeys.UPDATE_OPS`. They make the moving statistics `momentum` times their old
    value plus 1 - `momentum` times that of the batch, with the unbiased variance, as in the paper's
    algorithm 2. Inference uses the moving statistics.

    Args:
        net: float [batch, height, width, channels].
        gamma, beta: float32 [channels].
        training: bool.
        momentum: float, 0 to 1.
        epsilon: float, added to the variance.
        synchrony: a `Synchrony`, to take the batches of all workers for one; None for that of this
            process.

    Returns a tensor of the shape and type of `net`.
    """
    # In this collection, the statistics have moving averages like the weights.
    collections = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MOVING_AVERAGE_VARIABLES]
    moving = [tf.get_variable(name, net.shape.as_list()[-1:], tf.float32, initializer,
                              trainable=False, collections=collections, use_resource=True)
              for name, initializer in (('moving_mean', tf.zeros_initializer()),
                                        ('moving_variance', tf.ones_initializer()))]
    before = [variable.read_value() for variable in moving]
    if not training:
        return tf.nn.fused_batch_norm(
            net, gamma, beta, *before, epsilon=epsilon, is_training=False)[0]
    if synchrony is None:
        net, *statistics = tf.nn.fused_batch_norm(net, gamma, beta, epsilon=epsilon)
    else:
        values = tf.cast(net, tf.float32)
        moments = synchrony.mean(tf.concat([
            tf.reduce_mean(values, [0, 1, 2]), tf.reduce_mean(tf.square(values), [0, 1, 2])], 0))
        mean, square = tf.split(moments, 2)
        variance = tf.maximum(square - tf.square(mean), 0.0)  # Below 0 only by rounding.
        net = tf.cast(tf.nn.batch_normalization(values, mean, variance, beta, gamma, epsilon),
                      net.dtype)
        count = tf.cast(synchrony.workers * tf.size(values[..., 0]), tf.float32)
        statistics = [mean, variance * count / (count - 1)]
    for variable, old, new in zip(moving, before, statistics):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, variable.assign_sub(
            (1 - momentum) * (old - new), read_value=False))
    return net
