"""Summaries for TensorBoard under exact tags.

`tf.summary` puts the tower's name scope in front of a tag and makes it unique. These functions use
the tag unchanged, so the curves of all trainers have the same names.
"""
import os
import re

import tensorflow.compat.v1 as tf


def scalar(tag, value):
    """Adds a scalar."""
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ScalarSummary(tags=tag, values=value))


def histogram(tag, values):
    """Adds a histogram.

    Infinities and NaN count as zero: they would make the op fail before the loss is reported.
    """
    values = tf.cast(values, tf.float32)
    values = tf.where_v2(tf.is_finite(values), values, 0.0)
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.HistogramSummary(
        tag=tag, values=values))


def images(batch):
    """Adds the first three images of a batch, float [batch, height, width, 3].

    The tags of a graph that reads several sets are `images`, `images_1` and so on: two summaries
    with the same tag cannot be merged.
    """
    with tf.name_scope('images') as scope:
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ImageSummary(
            tag=os.path.basename(scope.rstrip('/')), tensor=batch, max_images=3))


def activations(x, tower):
    """Adds a histogram of a layer's output `x`, float, and the fraction of it that is zero.

    The tags start with the name of the layer: 'conv1' for the operation 'tower_0/conv1/conv1', if
    `tower` is 'tower'.
    """
    name = re.sub(r'(^|/)([^/]+)/\2$', r'\1\2', re.sub(f'^{tower}_[0-9]+/', '', x.op.name))
    with tf.name_scope('summaries'):
        histogram(name + '/activations', x)
        zeros = tf.cast(tf.equal(x, 0), tf.float32)  # `tf.nn.zero_fraction` takes 35 operations.
        scalar(name + '/sparsity', tf.reduce_mean(zeros))


def losses(values_by_name):
    """Adds the raw value of each loss and its moving average.

    A raw loss varies from batch to batch; its average (decay 0.9, as in the tutorial) shows the
    trend. The averages start at a session's first values. Their variable is in no collection, so
    that it needs no initializer and is not in checkpoints.

    Takes a dictionary from name to float32 []; returns an operation that updates the averages.
    """
    with tf.device('/cpu:0'), tf.name_scope('loss_averages'):
        values = tf.stack(list(values_by_name.values()))
        averages = tf.get_variable(
            'loss_averages/averages', [len(values_by_name)], initializer=tf.zeros_initializer(),
            trainable=False, use_resource=True, collections=[])
        moved = tf.cond(
            averages.is_initialized(),
            lambda: averages.read_value() + (1 - 0.9) * (values - averages.read_value()),
            lambda: values)
        after = averages.assign(moved, read_value=False)
        for index, name in enumerate(values_by_name):
            scalar(name + ' (raw)', values[index])
            scalar(name, moved[index])
    return after


def losses_by_name(total_loss, tower, scope=None):
    """The losses, or those in a tower's name scope, and their total, float32 [], for `losses`.

    Returns a dictionary from name without the tower, such as 'local3/weight_loss', to float32 [].
    """
    found = tf.get_collection('losses', scope)
    return {re.sub(f'^{tower}_[0-9]+/', '', each.op.name): each for each in [*found, total_loss]}


def of_first_tower(nodes, tower):
    """The operations or tensors of a list without those of towers 1, 2 and so on."""
    later = re.compile(f'{tower}_[1-9]')
    return [node for node in nodes if not later.match(node.name)]
