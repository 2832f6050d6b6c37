"""`tf.contrib.layers.batch_norm(..., updates_collections=None)` for today's TensorFlow.

The same variables and values: no caller has to run UPDATE_OPS.
"""
import tensorflow.compat.v1 as tf


def batch_norm(inputs, is_training, decay=0.999, epsilon=0.001, scale=False, scope=None):
    """Normalises each channel; in training, a run of the result also updates the moving averages.

    Args:
        inputs: float32 [batch, height, width, channels].
        is_training: bool. For a placeholder, build both and choose with `tf.cond`.
        decay, epsilon, scale, scope: as in tf.contrib, with its defaults.

    Returns:
        float32 [batch, height, width, channels].
    """
    channels = inputs.shape.as_list()[-1:]
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(scope, 'BatchNorm'):
        beta = tf.get_variable('beta', channels, initializer=zeros)
        gamma = tf.get_variable('gamma', channels, initializer=ones) if scale else tf.ones(channels)
        moving = [
            tf.get_variable('moving_mean', channels, initializer=zeros, trainable=False),
            tf.get_variable('moving_variance', channels, initializer=ones, trainable=False)]
    if not is_training:
        return tf.nn.fused_batch_norm(
            inputs, gamma, beta, *moving, epsilon=epsilon, is_training=False)[0]
    outputs, *statistics = tf.nn.fused_batch_norm(inputs, gamma, beta, epsilon=epsilon)
    updates = [variable.assign_sub((1 - decay) * (variable - value))
               for variable, value in zip(moving, statistics)]
    with tf.control_dependencies(updates):
        return tf.identity(outputs)
