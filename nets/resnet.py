"""ResNet-23: NNabla's network for CIFAR-10 and CIFAR-100, and how it is trained.

A residual network after He et al., "Deep Residual Learning for Image Recognition" (2015): one
convolution, seven units of three convolutions each, one affine layer. The details are those of
https://github.com/sony/nnabla-examples, image-classification/cifar10-100: `models.py` for the
network, `classification.py` and its arguments for the training.
"""
import collections
import functools

import tensorflow.compat.v1 as tf

from datasets import table
from nets import variables

# How the network is trained, with Adam at its default settings. The example's constants.
BATCH_SIZE = 64
EPOCHS = 300
WARMUP_EPOCHS = 5
LEARNING_RATE = 1e-3

# The ranges of the augmentation, the example's.
_MAX_ANGLE = 0.25  # Radians.
_FLIP_PROBABILITY = 0.5

# NNabla's defaults, which the example keeps.
_MOMENTUM = 0.9
_EPSILON = 1e-5


def inference(images, num_classes, training, dtype=tf.float32):
    """Builds ResNet-23.

    It has C = 384 channels and ELU for 100 classes, 64 and ReLU for any other number; 3,415,012
    parameters for 100 classes, 97,482 for 10.

    In training each batch norm adds two operations to the collection `tf.GraphKeys.UPDATE_OPS`,
    which bring its moving statistics up to date: run them with each step. Of several towers each
    normalises its own batch; run the operations of one of them only. Summaries are left to the
    caller.

    Args:
        images: float [batch, 32, 32, 3], pixels from 0 to 255: the first batch norm scales them.
        num_classes: number of classes.
        training: bool, whether to normalise by the batch's statistics, or else by the moving ones.
        dtype: type to compute in. Variables, their averages and the statistics are float32 always.

    Returns:
        float32 [batch, num_classes], logits, not normalised.

    Raises:
        ValueError: the images have another size.
    """
    if images.shape.as_list()[1:] != [table.HEIGHT, table.WIDTH, table.DEPTH]:
        raise ValueError(f'images have shape {images.shape}, wanted: '
                         f'[batch, {table.HEIGHT}, {table.WIDTH}, {table.DEPTH}]')
    channels, activation = (384, tf.nn.elu) if num_classes == 100 else (64, tf.nn.relu)
    return _network(tf.cast(images, dtype), num_classes, channels, activation, training)


def _network(net, num_classes, channels, activation, training):
    """The layers of `inference`, for images of any size; C is `channels`, which is even."""
    conv = functools.partial(_conv, training=training)
    unit = functools.partial(_unit, conv=conv, activation=activation)
    net = activation(conv(net, 'conv1', 3, channels))  # [batch, 32, 32, C]
    net = unit(net, 'conv2')  # [batch, 32, 32, C]
    net = unit(net, 'conv3', pool=True)  # [batch, 16, 16, C]
    net = unit(net, 'conv4')  # [batch, 16, 16, C]
    net = unit(net, 'conv5', pool=True)  # [batch, 8, 8, C]
    net = unit(net, 'conv6')  # [batch, 8, 8, C]
    net = unit(net, 'conv7', pool=True)  # [batch, 4, 4, C]
    net = unit(net, 'conv8')  # [batch, 4, 4, C]
    net = tf.reduce_mean(net, axis=[1, 2])  # [batch, C]
    return _affine(net, 'affine', num_classes)  # [batch, num_classes]


def _unit(net, name, conv, activation, pool=False):
    """Three convolutions through half as many channels, added to what they started from.

    The example pools behind the activation. No activation here changes which of two numbers is
    larger, so that the order makes no difference, and in this one it has a quarter of the work.

    Args:
        net: float [batch, height, width, channels].
        name: variable scope.
        conv: `_conv` that knows whether the network is in training.
        activation: a function that never falls.
        pool: whether to halve height and width at the end.

    Returns:
        float [batch, height, width, channels], or with `pool` of half the height and width.
    """
    channels = net.shape.as_list()[-1]
    with tf.variable_scope(name):
        residual = activation(conv(net, 'conv1', 1, channels // 2))
        residual = activation(conv(residual, 'conv2', 3, channels // 2))
        net += conv(residual, 'conv3', 1, channels)
        if pool:
            net = tf.nn.max_pool(net, ksize=2, strides=2, padding='VALID')
        return activation(net)


def _conv(net, name, size, filters, training):
    """Convolution without a bias, then batch norm; height and width are kept.

    Args:
        net: float [batch, height, width, channels].
        name: variable scope, owner of `weights` and `bn`.
        size: height and width of the kernel.
        filters: number of output channels.
        training: see `_batch_norm`.

    Returns:
        float [batch, height, width, filters].
    """
    with tf.variable_scope(name):
        weights = _weights([size, size, net.shape.as_list()[-1], filters])
        net = tf.nn.conv2d(net, tf.cast(weights, net.dtype), strides=1, padding='SAME')
        return _batch_norm(net, 'bn', training)


def _batch_norm(net, name, training):
    """Batch normalisation, see Ioffe and Szegedy, https://arxiv.org/abs/1502.03167.

    In training a channel is normalised by mean and (biased) variance of the batch. The moving
    statistics keep 0.9 of what they were and take in 0.1 of the batch's, the variance in its
    unbiased form: the paper's algorithm 2, and what NNabla's `batch_normalization.cpp` does.

    Args:
        net: float [batch, height, width, channels].
        name: variable scope, owner of `gamma`, `beta`, `moving_mean` and `moving_variance`.
        training: bool, whether to take the batch's statistics, or else the moving ones.

    Returns:
        What `net` is in shape and type.
    """
    shape = net.shape.as_list()[-1:]
    with tf.variable_scope(name):
        gamma = variables.read(variables.on_cpu('gamma', shape, tf.ones_initializer()))
        beta = variables.read(variables.on_cpu('beta', shape, tf.zeros_initializer()))
        moving = [
            variables.on_cpu('moving_mean', shape, tf.zeros_initializer(), trainable=False),
            variables.on_cpu('moving_variance', shape, tf.ones_initializer(), trainable=False)]
        net, *moved = tf.nn.fused_batch_norm(
            net, gamma, beta, *map(variables.read, moving), epsilon=_EPSILON, is_training=training,
            exponential_avg_factor=1.0 - _MOMENTUM if training else 1.0)
        if training:
            for variable, value in zip(moving, moved):
                with tf.device('/cpu:0'):
                    tf.add_to_collection(
                        tf.GraphKeys.UPDATE_OPS, variable.assign(value, read_value=False))
    return net


def _affine(net, name, units):
    """Fully connected layer with a bias: float [batch, inputs] -> float32 [batch, units]."""
    with tf.variable_scope(name):
        weights = _weights([net.shape.as_list()[-1], units])
        biases = variables.read(variables.on_cpu('biases', [units], tf.zeros_initializer()))
        net = tf.matmul(net, tf.cast(weights, net.dtype))
        return tf.nn.bias_add(tf.cast(net, tf.float32), biases)


def _weights(shape):
    """`weights` of the current variable scope, uniform after Glorot and Bengio (2010)."""
    return variables.read(variables.on_cpu('weights', shape, tf.glorot_uniform_initializer()))


# The random numbers of a batch's augmentation:
#   angles: float32 [batch], by how many radians to turn an image counterclockwise
#   flips: bool [batch], whether to mirror left and right first
Augmentation = collections.namedtuple('Augmentation', 'angles flips')


def augment(planes):
    """Turns and mirrors training images at random.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.

    Returns:
        float32 [batch, 32, 32, 3], pixels from 0 to 255.
    """
    return rotate_and_flip(planes, draw_augmentation(tf.shape(planes)[0]))


def draw_augmentation(batch_size):
    """Draws the example's `Augmentation` for `batch_size` images, uniform in its ranges."""
    return Augmentation(angles=tf.random_uniform([batch_size], -_MAX_ANGLE, _MAX_ANGLE),
                        flips=tf.random_uniform([batch_size]) < _FLIP_PROBABILITY)


def rotate_and_flip(planes, augmentation):
    """Mirrors images, then turns them about their centre, in one resampling.

    A pixel is interpolated between the four nearest to where it comes from; what comes from outside
    the image is the nearest pixel of its border.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.
        augmentation: `Augmentation` for the batch.

    Returns:
        float32 [batch, 32, 32, 3], pixels from 0 to 255.
    """
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=prepare(planes), transforms=_transforms(augmentation),
        output_shape=[table.HEIGHT, table.WIDTH], fill_value=0.0,
        interpolation='BILINEAR', fill_mode='NEAREST')


def _transforms(augmentation):
    """Where each pixel comes from, as `ImageProjectiveTransformV3` takes it: float32 [batch, 8].

    Column x and row y come from column a x + b y + c and row d x + e y + f; an element is
    (a, b, c, d, e, f, 0, 0). About the centre a turn takes (x, y) from (cos x - sin y,
    sin x + cos y), and mirroring changes the sign of the column.
    """
    x, y = (table.WIDTH - 1) / 2, (table.HEIGHT - 1) / 2  # The centre.
    cos, sin = tf.cos(augmentation.angles), tf.sin(augmentation.angles)
    sign = tf.where(augmentation.flips, -tf.ones_like(cos), tf.ones_like(cos))
    a, b, d, e = sign * cos, -sign * sin, sin, cos
    zero = tf.zeros_like(cos)
    return tf.stack([a, b, x - a * x - b * y, d, e, y - d * x - e * y, zero, zero], axis=1)


def prepare(planes):
    """Images for evaluation, as they are.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.

    Returns:
        float32 [batch, 32, 32, 3], pixels from 0 to 255.
    """
    images = tf.reshape(planes, [-1, table.DEPTH, table.HEIGHT, table.WIDTH])
    return tf.cast(tf.transpose(images, [0, 2, 3, 1]), tf.float32)


def learning_rate(global_step, steps_per_epoch, multiple, warmup_epochs=WARMUP_EPOCHS,
                  base=LEARNING_RATE):
    """Adam's learning rate: constant, after a warm-up where the batch is larger than the example's.

    It rises linearly from `base` to `multiple` times that within `warmup_epochs`, see Goyal et al.,
    "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Args:
        global_step: int [], the number of steps before this one.
        steps_per_epoch: number of steps in which every image is seen once.
        multiple: how many times BATCH_SIZE the images of a step are, over all towers and workers.
        warmup_epochs: length of the warm-up; with 0 there is none.
        base: the rate for BATCH_SIZE images per step.

    Returns:
        float32 [].
    """
    warmup_steps = steps_per_epoch * warmup_epochs
    if warmup_steps == 0:
        return tf.constant(base * multiple)
    progress = tf.minimum(tf.cast(global_step, tf.float32) / warmup_steps, 1.0)
    return base * (1.0 + (multiple - 1.0) * progress)
