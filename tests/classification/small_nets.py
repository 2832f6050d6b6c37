"""A small network for tests of classification.py: all that a user writes to add one."""
from classification_lib import batch_norm, recipes

import tensorflow.compat.v1 as tf

import cifar10

SIZE = 16  # Of its images.


def inference(images, num_classes, training, dtype=tf.float32):
    """A batch norm of the images, and one layer, in float32: logits."""
    del dtype
    gamma = tf.get_variable('bn/gamma', [3], initializer=tf.ones_initializer())
    beta = tf.get_variable('bn/beta', [3], initializer=tf.zeros_initializer())
    with tf.variable_scope('bn'):
        net = batch_norm.batch_norm(images, gamma, beta, training, momentum=0.9, epsilon=1e-5)
    weights = tf.get_variable(
        'linear/weights', [SIZE * SIZE * 3, num_classes], initializer=tf.zeros_initializer())
    return tf.matmul(tf.reshape(net, [-1, SIZE * SIZE * 3]), weights)


def prepare(images):
    """Every second pixel: uint8 [batch, 32, 32, 3] -> float32 [batch, 16, 16, 3], 0 to 255."""
    return tf.cast(images[:, ::2, ::2], tf.float32)


def distort(images):
    """`prepare`, and images brighter or darker at random."""
    images = prepare(images)
    return images + tf.random_uniform([tf.shape(images)[0], 1, 1, 1], -20, 20)


RECIPE = recipes.Recipe(
    name='small', inference=inference, distort=distort, prepare=prepare, loss=cifar10.loss,
    schedule=recipes.linear_scaling, optimizer=lambda lr, max_steps: tf.train.AdamOptimizer(lr),
    learning_rate=0.01, batch_size=16, epochs=6)
