"""Float32 variables in host memory, shared by all towers; names are within the variable scope.

They are resource variables, whose reads and writes are ordered: the moving averages rely on that.
"""
import tensorflow.compat.v1 as tf


def on_cpu(name, shape, initializer, trainable=True):
    """Gets or creates a variable."""
    with tf.device('/cpu:0'):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                               trainable=trainable, use_resource=True)


def read(variable, dtype=tf.float32):
    """Reads a variable as `dtype`, on the CPU."""
    with tf.device('/cpu:0'):
        return tf.cast(variable.read_value(), dtype)


def add_weight_decay(variable, factor):
    """Adds the loss factor * |variable|^2 / 2 to the collection `losses`."""
    tf.add_to_collection(
        'losses', tf.multiply(tf.nn.l2_loss(variable), factor, name='weight_loss'))
