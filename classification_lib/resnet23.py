"""ResNet-23: NNabla's network for CIFAR-10 and CIFAR-100, with its training recipe.

A residual network after He et al., "Deep Residual Learning for Image Recognition" (2015): one
convolution, seven units of three convolutions each, one affine layer. All details are from
https://github.com/sony/nnabla-examples, image-classification/cifar10-100: the network from
`models.py`, the training from `classification.py` and its default arguments.
"""
import functools

from classification_lib import batch_norm, data_sets

import tensorflow.compat.v1 as tf

# NNabla's defaults, which the example keeps.
_MOMENTUM = 0.9
_EPSILON = 1e-5


def inference(images, num_classes, training, dtype=tf.float32, synchrony=None):
    """Builds ResNet-23.

    For 100 classes it has C = 384 channels, ELU and 3,415,012 parameters; otherwise 64 channels and
    ReLU, with 97,482 parameters for 10 classes.

    In training, each batch norm adds two operations to the collection `tf.GraphKeys.UPDATE_OPS`,
    which update its moving statistics: run them with each step.

    Args:
        images: float [batch, 32, 32, 3], pixels from 0 to 255; the first batch norm scales them.
        num_classes: number of classes.
        training: bool; normalises by the statistics of the batch if true, else by the moving ones.
        dtype: type of the computation; variables and statistics are float32.
        synchrony: see `batch_norm.batch_norm`.

    Returns:
        float32 [batch, num_classes], unnormalised logits.
    """
    channels, activation = 64, tf.nn.relu
    if num_classes == 100:
        channels, activation = 384, tf.nn.elu
    conv = functools.partial(_conv, training=training, synchrony=synchrony)
    unit = functools.partial(_unit, conv=conv, activation=activation)
    net = tf.cast(images, dtype)
    net = activation(conv(net, 'conv1', 3, channels))  # [batch, 32, 32, C]
    net = unit(net, 'conv2')  # [batch, 32, 32, C]
    net = unit(net, 'conv3', pool=True)  # [batch, 16, 16, C]
    net = unit(net, 'conv4')  # [batch, 16, 16, C]
    net = unit(net, 'conv5', pool=True)  # [batch, 8, 8, C]
    net = unit(net, 'conv6')  # [batch, 8, 8, C]
    net = unit(net, 'conv7', pool=True)  # [batch, 4, 4, C]
    net = unit(net, 'conv8')  # [batch, 4, 4, C]
    net = tf.reduce_mean(net, axis=[1, 2])  # [batch, C]
    with tf.variable_scope('affine'):
        weights = _value('weights', [channels, num_classes], dtype=net.dtype)
        biases = _value('biases', [num_classes], tf.zeros_initializer())
        net = tf.cast(tf.matmul(net, weights), tf.float32)
        return tf.nn.bias_add(net, biases)  # [batch, num_classes]


def _unit(net, name, conv, activation, pool=False):
    """Three convolutions with half as many channels in between, added to their input.

    The example pools after the activation, which is monotonic, so this order gives the same result,
    and leaves it a quarter of the work. float [batch, height, width, channels] -> the same, or half
    of the height and width with `pool`; `conv` is `_conv` with a fixed `training`.
    """
    channels = net.shape.as_list()[-1]
    with tf.variable_scope(name):
        residual = activation(conv(net, 'conv1', 1, channels // 2))
        residual = activation(conv(residual, 'conv2', 3, channels // 2))
        net += conv(residual, 'conv3', 1, channels)
        if pool:
            net = tf.nn.max_pool(net, ksize=2, strides=2, padding='VALID')
        return activation(net)


def _conv(net, name, size, filters, training, synchrony):
    """Convolution without a bias, then batch norm: float [batch, height, width, filters]."""
    with tf.variable_scope(name):
        _, height, width, channels = net.shape.as_list()
        weights = _value('weights', [size, size, channels, filters], dtype=net.dtype)
        if training and size == 1 and not tf.config.get_visible_devices('GPU'):
            # As a matrix product, whose gradients take a CPU less time. Not on GPUs: TensorFlow
            # computes their float32 convolutions in the layout NCHW, and would transpose the input
            # and the output of each product.
            net = tf.matmul(tf.reshape(net, [-1, channels]),
                            tf.reshape(weights, [channels, filters]))
            net = tf.reshape(net, [-1, height, width, filters])
        else:
            net = tf.nn.conv2d(net, weights, strides=1, padding='SAME')
        with tf.variable_scope('bn'):
            gamma = _value('gamma', [filters], tf.ones_initializer())
            beta = _value('beta', [filters], tf.zeros_initializer())
            return batch_norm.batch_norm(
                net, gamma, beta, training, _MOMENTUM, _EPSILON, synchrony)


def _value(name, shape, initializer=None, dtype=tf.float32):
    """Returns the value of a variable as `dtype`; its initial value is by default that of
    `tf.get_variable`, uniform as in Glorot and Bengio (2010)."""
    variable = tf.get_variable(name, shape, tf.float32, initializer, use_resource=True)
    return tf.cast(variable.read_value(), dtype)


def distort(images):
    """Mirrors half of the training images, and rotates each by up to 0.25, the example's range.

    uint8 [batch, 32, 32, 3] -> float32 [batch, 32, 32, 3], 0 to 255.
    """
    batch = [tf.shape(images)[0]]
    return rotate(images, tf.random_uniform(batch, -0.25, 0.25), tf.random_uniform(batch) < 0.5)


def rotate(images, angles, flips):
    """Mirrors images, bool [batch], then rotates them about their centre, in one resampling.

    Each pixel is a bilinear interpolation; outside the image, its border is repeated. Angles are
    counterclockwise, in radians, float32 [batch]. The images are those of `distort`.
    """
    # A transform (a, b, c, d, e, f, 0, 0) reads column x, row y of the output at column a x + b y +
    # c, row d x + e y + f of the input. Relative to the centre, a rotation reads (x, y) at (cos x -
    # sin y, sin x + cos y), and mirroring negates the column.
    x, y = (data_sets.WIDTH - 1) / 2, (data_sets.HEIGHT - 1) / 2  # The centre.
    cos, sin = tf.cos(angles), tf.sin(angles)
    sign = tf.where(flips, -tf.ones_like(cos), tf.ones_like(cos))
    a, b, d, e = sign * cos, -sign * sin, sin, cos
    zero = tf.zeros_like(cos)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(images, tf.float32), transforms=tf.stack(
            [a, b, x - a * x - b * y, d, e, y - d * x - e * y, zero, zero], axis=1),
        output_shape=[data_sets.HEIGHT, data_sets.WIDTH], fill_value=0.0,
        interpolation='BILINEAR', fill_mode='NEAREST')
