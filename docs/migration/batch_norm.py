"""`tf.contrib.layers.batch_norm` for today's TensorFlow, with the same variables and values."""
import tensorflow.compat.v1 as tf


def batch_norm(inputs, decay=0.999, center=True, scale=False, epsilon=0.001, activation_fn=None,
               updates_collections=tf.GraphKeys.UPDATE_OPS, is_training=True, reuse=None,
               scope=None):
    """Normalises each channel: in training by the batch, otherwise by the moving averages.

    Args:
        inputs: float32 [batch, channels] or [batch, height, width, channels].
        updates_collections: collection of the updates of the moving averages, for the training
            step to run. None: each run of the result in training updates them.
        is_training: bool, or a tensor, bool [].
        decay, center, scale, epsilon, activation_fn, reuse, scope: as in tf.contrib.

    Returns:
        float32, the shape of `inputs`.
    """
    epsilon = max(epsilon, 1.001e-5)  # TensorFlow 1's minimum, which its successor does not have.
    channels = inputs.shape.as_list()[-1:]
    beta, gamma = tf.zeros(channels), tf.ones(channels)
    zeros, ones = tf.zeros_initializer(), tf.ones_initializer()
    with tf.variable_scope(scope, 'BatchNorm', [inputs], reuse=reuse):
        if center:
            beta = tf.get_variable('beta', channels, initializer=zeros)
        if scale:
            gamma = tf.get_variable('gamma', channels, initializer=ones)
        moving = [
            tf.get_variable('moving_mean', channels, initializer=zeros, trainable=False),
            tf.get_variable('moving_variance', channels, initializer=ones, trainable=False)]
    net = tf.reshape(inputs, [-1, 1, 1, *channels]) if inputs.shape.ndims == 2 else inputs

    def by_batch():
        return tf.nn.fused_batch_norm(net, gamma, beta, epsilon=epsilon)

    def by_averages():  # Returns the averages as statistics, so that an update changes nothing.
        outputs = tf.nn.fused_batch_norm(
            net, gamma, beta, *moving, epsilon=epsilon, is_training=False)[0]
        return outputs, *map(tf.identity, moving)

    if isinstance(is_training, bool):
        outputs, *statistics = by_batch() if is_training else by_averages()
    else:
        outputs, *statistics = tf.cond(is_training, by_batch, by_averages)
    updates = [] if is_training is False else [
        variable.assign_sub((1 - decay) * (variable - value))
        for variable, value in zip(moving, statistics)]
    if updates_collections is not None:
        for update in updates:
            tf.add_to_collections(updates_collections, update)
        updates = []
    if inputs.shape.ndims == 2:
        outputs = tf.reshape(outputs, [-1, *channels])
    with tf.control_dependencies(updates):
        outputs = tf.identity(outputs)
    return activation_fn(outputs) if activation_fn else outputs
