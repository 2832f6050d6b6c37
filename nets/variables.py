"""Variables in the host's memory, where all towers share them."""
import tensorflow.compat.v1 as tf


def on_cpu(name, shape, initializer, trainable=True):
    """A float32 variable of the current variable scope."""
    with tf.device('/cpu:0'):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                               trainable=trainable, use_resource=True)


def read(variable):
    """The value of a variable of `on_cpu`, read where it is."""
    with tf.device('/cpu:0'):
        return variable.read_value()
