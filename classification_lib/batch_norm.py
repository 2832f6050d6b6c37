"""Batch normalisation: Ioffe and Szegedy, https://arxiv.org/abs/1502.03167."""
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Synchrony(NamedTuple):
    """How to normalise over the batches of several workers."""

    workers: int  # Their number.
    new_mean: Callable  # () -> a function, float32 [n] -> its mean over workers, for one use.


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
        net, *statistics = _over_workers(net, gamma, beta, epsilon, synchrony)
    for variable, old, new in zip(moving, before, statistics):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, variable.assign_sub(
            (1 - momentum) * (old - new), read_value=False))
    return net


def _over_workers(net, gamma, beta, epsilon, synchrony):
    """As `tf.nn.fused_batch_norm`, over the batches of all workers: the normalised net, the mean
    and the unbiased variance."""
    mean_of_moments, mean_of_sums = synchrony.new_mean(), synchrony.new_mean()
    count = tf.cast(tf.reduce_prod(tf.shape(net)[:-1]), tf.float32)  # Of this worker's values.
    _, mean, variance = tf.nn.fused_batch_norm(
        net, tf.ones_like(gamma), tf.zeros_like(beta), epsilon=epsilon)
    square = variance * (count - 1) / count + tf.square(mean)
    mean, square = tf.split(mean_of_moments(tf.concat([mean, square], 0)), 2)
    variance = tf.maximum(square - tf.square(mean), 0.0)  # Below 0 only by rounding.

    @tf.custom_gradient
    def normalise(net, gamma, beta):
        def gradient(upstream):
            # With mean and variance as constants, and then what depends on them: the formulas of
            # the paper's section 3. A worker's loss depends on the values of all workers, and their
            # gradients are averaged afterwards: so these are means over workers, too.
            constant = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=upstream, x=net, scale=gamma, reserve_space_1=mean,
                reserve_space_2=variance, reserve_space_3=[], epsilon=epsilon, is_training=False)
            sums = tf.concat([constant.scale_backprop, constant.offset_backprop], 0)
            of_gamma, of_beta = tf.split(mean_of_sums(sums / count), 2)
            factor = -gamma * tf.rsqrt(variance + epsilon)
            rest, *_ = tf.nn.fused_batch_norm(net, factor * of_gamma, factor * of_beta, mean,
                                              variance, epsilon, is_training=False)
            return (constant.x_backprop + rest, constant.scale_backprop,
                    constant.offset_backprop)

        normalised, *_ = tf.nn.fused_batch_norm(
            net, gamma, beta, mean, variance, epsilon, is_training=False)
        return normalised, gradient

    total = count * synchrony.workers
    return normalise(net, gamma, beta), mean, variance * total / (total - 1)
