"""Float32 variables, shared by all towers, and the type in which layers compute with them.

Variables are in host memory, as in the tutorial, unless `--variables` moves them. They are resource
variables, whose reads and writes are ordered: the moving averages rely on that.
"""
import tensorflow.compat.v1 as tf
from absl import flags

flags.DEFINE_enum('variables', 'cpu', ['cpu', 'gpu'], 'Memory for the variables and their update: '
                  "the host's, or that of the first GPU, which saves copying them in each step.")

flags.DEFINE_boolean('use_fp16', False, 'Compute in float16 with float32 variables; for GPUs.')
flags.DEFINE_boolean('use_bf16', False, 'Compute in bfloat16 with float32 variables; for GPUs, and '
                     'CPUs with AMX or AVX512_BF16.')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.
for _name in ('variables', 'use_bf16'):
    FLAGS[_name].allow_override = True  # A program's own flag of this name replaces ours.

flags.register_multi_flags_validator(
    ['use_fp16', 'use_bf16'], lambda values: not all(values.values()), 'both set the type in which '
    'layers compute; expected at most one of them: remove the other')

# Multiplies the loss before differentiation; the gradients are divided by it in float32. Otherwise
# small ones underflow: float16 has no numbers below 6e-8. Micikevicius et al., "Mixed Precision
# Training" (2018), section 3.2.
_LOSS_SCALE = 128.0


def compute_type():
    """The type in which layers compute; variables, losses and updates are float32 with any."""
    return tf.float16 if FLAGS.use_fp16 else tf.bfloat16 if FLAGS.use_bf16 else tf.float32


def device():
    """The device that holds the variables and updates them."""
    return f'/{FLAGS.variables}:0'


def get(name, shape, initializer, dtype=None, trainable=True):
    """Gets or creates a float32 variable of the current variable scope, on `device()`.

    Returns the variable or, if `dtype` is another type, its value in that type; by default,
    `dtype` is `compute_type()`.
    """
    dtype = compute_type() if dtype is None else dtype
    with tf.device(device()):
        variable = tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                                   trainable=trainable, use_resource=True)
        return variable if dtype == tf.float32 else tf.cast(variable.read_value(), dtype)


def with_weight_decay(name, shape, stddev, wd):
    """Gets or creates weights, initially from a truncated normal distribution.

    Args:
        name, shape: name within the variable scope, and list of int.
        stddev: standard deviation of the distribution before truncation.
        wd: the loss wd * |weights|^2 / 2 is added to the collection `losses`; None for none.

    Returns:
        The variable or, with `wd`, `--use_fp16` or `--use_bf16`, its value as `compute_type()`.
    """
    initializer = tf.truncated_normal_initializer(stddev=stddev)
    if wd is None:
        return get(name, shape, initializer)
    with tf.device(device()):  # Read once: a GPU would copy it each time.
        weights = get(name, shape, initializer, tf.float32).read_value()
    tf.add_to_collection('losses', tf.multiply(tf.nn.l2_loss(weights), wd, name='weight_loss'))
    return tf.cast(weights, compute_type())


def compute_gradients(total_loss):
    """Gradients of a loss, float32 [], for all trainable variables, in float32.

    As `tf.train.Optimizer.compute_gradients`, a list of (gradient, variable), but with a scaled
    loss for `--use_fp16`. The gradient is None if the loss does not depend on the variable.
    """
    trained = tf.trainable_variables()
    scale = _LOSS_SCALE if FLAGS.use_fp16 else 1.0
    with tf.name_scope('gradients'):
        gradients = tf.gradients(total_loss * scale, trained)
        if FLAGS.use_fp16:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
    return list(zip(gradients, trained))
