"""Networks and their recipes for tests: all that a user writes to add one."""
import dataclasses
import functools

import tensorflow.compat.v1 as tf

from cifar10_lib import recipes
from cifar10_lib.nets import resnet

SIZE = 16  # Of its images.


def inference(images, num_classes, training, dtype=tf.float32):
    """Batch norm of the images without a scale, and one layer, in float32: logits."""
    del dtype
    moving_mean = tf.get_variable(
        'bn/moving_mean', [3], initializer=tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.MOVING_AVERAGE_VARIABLES, moving_mean)
    weights = tf.get_variable(
        'linear/weights', [SIZE * SIZE * 3, num_classes], initializer=tf.zeros_initializer())
    mean = tf.reduce_mean(images, axis=[0, 1, 2]) if training else moving_mean
    if training:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(
            moving_mean, 0.9 * moving_mean + 0.1 * mean))
    return tf.matmul(tf.reshape((images - mean) / 100, [-1, SIZE * SIZE * 3]), weights)


def prepare(images):
    """Every second pixel: uint8 [batch, 32, 32, 3] -> float32 [batch, 16, 16, 3], 0 to 255."""
    return tf.cast(images[:, ::2, ::2], tf.float32)


def augment(images):
    """`prepare`, and images brighter or darker at random."""
    images = prepare(images)
    return images + tf.random_uniform([tf.shape(images)[0], 1, 1, 1], -20, 20)


RECIPE = recipes.Recipe(
    name='tiny', inference=inference, distort=augment, prepare=prepare,
    schedule=lambda step, rate, epochs: tf.constant(0.01),
    optimizer=lambda lr, max_steps: tf.train.AdamOptimizer(lr),
    batch_size=16, epochs=6, validate_every=1)


def normed_inference(images, num_classes, training, dtype=tf.float32):
    """The start of ResNet-23 with eight channels and four batch norms: logits, in float32.

    With ELU: the kink of ReLU would turn rounding errors into large differences of the gradients.
    """
    del dtype
    conv = functools.partial(resnet._conv, training=training)
    net = tf.nn.elu(conv(images, 'conv1', 3, 8))
    net = resnet._unit(net, 'conv2', conv, tf.nn.elu, pool=True)
    with tf.variable_scope('affine'):
        weights = resnet._value('weights', [8, num_classes], dtype=net.dtype)
        biases = tf.get_variable('biases', [num_classes], initializer=tf.zeros_initializer())
        return tf.matmul(tf.reduce_mean(net, axis=[1, 2]), weights) + biases


# Its steps are multiples of the gradients.
NORMED = dataclasses.replace(
    RECIPE, name='normed', inference=normed_inference,
    schedule=lambda step, rate, epochs: tf.constant(0.1),
    optimizer=lambda lr, max_steps: tf.train.GradientDescentOptimizer(lr))
