"""Float32 variables, shared by all towers; names are within the variable scope.

They are in host memory, as in the tutorial, unless `--variables` moves them. They are resource
variables, whose reads and writes are ordered: the moving averages rely on that.
"""
import tensorflow.compat.v1 as tf
from absl import flags

flags.DEFINE_enum('variables', 'cpu', ['cpu', 'gpu'], 'Memory for the variables and their update: '
                  "the host's, or that of the first GPU, which saves copying them in each step.")

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def device():
    """The device that holds the variables and updates them."""
    return f'/{FLAGS.variables}:0'


def on_cpu(name, shape, initializer, trainable=True):
    """Gets or creates a variable; on the first GPU with `--variables=gpu`."""
    with tf.device(device()):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                               trainable=trainable, use_resource=True)


def read(variable, dtype=tf.float32):
    """Reads a variable as `dtype`, on the device that holds it."""
    with tf.device(device()):
        return tf.cast(variable.read_value(), dtype)


def add_weight_decay(variable, factor):
    """Adds the loss factor * |variable|^2 / 2 to the collection `losses`."""
    tf.add_to_collection(
        'losses', tf.multiply(tf.nn.l2_loss(variable), factor, name='weight_loss'))
