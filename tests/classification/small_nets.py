"""Small networks for tests of classification.py: all that a user writes to add one."""
import itertools
import os

from classification_lib import batch_norm, recipes

import tensorflow.compat.v1 as tf

import cifar10

SIZE = 16  # Of its images.


def inference(images, num_classes, training, dtype=tf.float32, synchrony=None):
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
    learning_rate=lambda: 0.01, batch_size=16, epochs=6)


def inference_of_steps(images, num_classes, training, dtype=tf.float32, synchrony=None):
    """Classifies one fifteenth more of the half bright images correctly after each step: logits."""
    del training, dtype
    steps = tf.get_variable('steps', initializer=0.0)
    half = SIZE // 2
    is_below = tf.reduce_mean(images[:, :half], [1, 2, 3]) < tf.reduce_mean(
        images[:, half:], [1, 2, 3])
    part = tf.floormod(tf.reduce_sum(images[:, 0, :5, 0], 1), 15.0)
    prediction = tf.where(part + 0.5 < steps, tf.cast(is_below, tf.int32), 9 * tf.ones_like(
        is_below, tf.int32))
    return tf.one_hot(prediction, num_classes) + steps


def calling(function, batch):
    """`prepare`, which calls a function with the k-th batch of all validations."""
    batches = itertools.count(1)

    def call(images):
        if next(batches) == batch:
            function()
        return images

    def prepare_and_call(images):
        images = prepare(images)
        passed = tf.numpy_function(call, [images], tf.float32)
        passed.set_shape(images.shape)
        return passed

    return prepare_and_call


def signalling(number, batch):
    """`prepare`, which sends this process a signal with the k-th batch of all validations."""
    return calling(lambda: os.kill(os.getpid(), number), batch)


# Its variable `steps` is the number of steps. So the validation error falls with each of them, and
# a step that is made again has the same one.
STEPS = RECIPE._replace(
    name='steps', inference=inference_of_steps, distort=prepare, averages=False,
    loss=lambda logits, labels: -tf.reduce_mean(logits), learning_rate=lambda: 1.0,
    optimizer=lambda lr, max_steps: tf.train.GradientDescentOptimizer(lr))
