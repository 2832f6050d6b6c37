"""The solution of exercise 2: locally connected layers on top of the tutorial's convolutions.

    python docs/examples/local.py --max_steps=1000 --train_dir=/tmp/exercise2

Trains as cifar10_train.py does, then evaluates as cifar10_eval.py does, with their flags. The
layers are the top of cuda-convnet's `layers-conv-local-11pct`: two layers of 3 x 3 with 64 and 32
maps, initial weights with a standard deviation of 0.04, and a weight decay of 0.004. The bias of
0.1 is that of the tutorial's local3 and local4.
"""
import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import tensorflow.compat.v1 as tf

import cifar10
import cifar10_eval
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.nets import lrn
from cifar10_lib.program import startup

FLAGS = cifar10.FLAGS


def locally_connected(net, weights):
    """Multiplies the neighbourhood of each position by the matrix of that position.

    Args:
        net: float32 [batch, height, width, channels]; zeros surround it, like 'SAME'.
        weights: float32 [height, width, rows, columns, channels, filters].

    Returns:
        float32 [batch, height, width, filters].
    """
    height, width, rows, columns, channels, filters = weights.shape.as_list()
    patches = tf.image.extract_patches(  # [batch, height, width, rows * columns * channels]
        net, [1, rows, columns, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'SAME')
    weights = tf.reshape(weights, [height, width, rows * columns * channels, filters])
    return tf.einsum('bhwp,hwpf->bhwf', patches, weights)


def convolution(net, name, bias):
    """A layer like the tutorial's conv1 and conv2."""
    channels = net.shape.as_list()[3]
    with tf.variable_scope(name):
        kernel = cifar10._variable_with_weight_decay('weights', [5, 5, channels, 64], 5e-2, None)
        biases = cifar10._variable_on_cpu('biases', [64], tf.constant_initializer(bias))
        conv = tf.nn.conv2d(net, tf.cast(kernel, net.dtype), 1, 'SAME')
        return tf.nn.relu(conv + tf.cast(biases, net.dtype))


def inference(images, num_classes=10, training=False, dtype=tf.float32):
    """Images, float32 [batch, 24, 24, 3] -> logits, float32 [batch, num_classes].

    `training` makes no difference; `dtype` is the type in which layers compute.
    """
    images = tf.cast(images, dtype)
    pool1 = tf.nn.max_pool(convolution(images, 'conv1', 0.0), 3, 2, 'SAME')  # [batch, 12, 12, 64]
    norm1 = lrn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm1')
    conv2 = convolution(norm1, 'conv2', 0.1)
    norm2 = lrn.lrn(conv2, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm2')
    net = tf.nn.max_pool(norm2, 3, 2, 'SAME', name='pool2')  # [batch, 6, 6, 64]

    for name, filters in (('local3', 64), ('local4', 32)):
        height, width, channels = net.shape.as_list()[1:]
        with tf.variable_scope(name):
            weights = cifar10._variable_with_weight_decay(
                'weights', [height, width, 3, 3, channels, filters], 0.04, 0.004)
            biases = cifar10._variable_on_cpu(
                'biases', [height, width, filters], tf.constant_initializer(0.1))
            local = locally_connected(net, tf.cast(weights, dtype))
            net = tf.nn.relu(local + tf.cast(biases, dtype))  # [batch, 6, 6, filters]

    with tf.variable_scope('softmax_linear'):
        units = net.shape[1:].num_elements()
        weights = cifar10._variable_with_weight_decay(
            'weights', [units, num_classes], 1 / units, None)
        biases = cifar10._variable_on_cpu('biases', [num_classes], tf.constant_initializer(0.0))
        net = tf.matmul(tf.reshape(net, [-1, units]), tf.cast(weights, dtype))
        return tf.cast(net + tf.cast(biases, dtype), tf.float32)


def main():
    recipes.TABLE['local'] = dataclasses.replace(
        recipes.TABLE['tutorial'], name='local', inference=inference)
    FLAGS.set_default('net', 'local')
    cifar10_train.main()
    FLAGS.set_default('run_once', True)
    FLAGS.set_default('checkpoint_dir', FLAGS.train_dir)
    FLAGS.set_default('eval_dir', FLAGS.train_dir + '_eval')
    cifar10_eval.main()


if __name__ == '__main__':
    startup.run(main, unused=['net', 'run_once', 'checkpoint_dir'])
