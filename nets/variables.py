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


def weights(shape, initializer, dtype=tf.float32, decay=None):
    """Gets or creates `weights` and reads them as `dtype`.

    With `decay`, adds the loss decay * |weights|^2 / 2 to the collection `losses`.
    """
    values = read(on_cpu('weights', shape, initializer))
    if decay is not None:
        weight_loss = tf.multiply(tf.nn.l2_loss(values), decay, name='weight_loss')
        tf.add_to_collection('losses', weight_loss)
    return tf.cast(values, dtype)


def biases(shape, start, dtype=tf.float32):
    """Gets or creates `biases`, initially all `start`, and reads them as `dtype`."""
    return read(on_cpu('biases', shape, tf.constant_initializer(start)), dtype)
