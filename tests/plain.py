"""The network in TensorFlow's own operations, one after another: what the tests compare with."""
import os

import numpy as np
import tensorflow.compat.v1 as tf

SHAPES = {
    'conv1/weights': [5, 5, 3, 64], 'conv1/biases': [64],
    'conv2/weights': [5, 5, 64, 64], 'conv2/biases': [64],
    'local3/weights': [2304, 384], 'local3/biases': [384],
    'local4/weights': [384, 192], 'local4/biases': [192],
    'softmax_linear/weights': [192, 10], 'softmax_linear/biases': [10],
}


def weights(seed, scale=1.0):
    """Random values for every variable: dictionary from name to float32 array."""
    random = np.random.RandomState(seed)
    return {name: (scale * random.normal(0, 1 / np.sqrt(np.prod(shape[:-1])), shape)).astype(
        np.float32) for name, shape in SHAPES.items()}


def logits(images, variables):
    """float32 [batch, 24, 24, 3] -> float32 [batch, 10]."""
    def lrn(net):
        return tf.nn.lrn(net, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

    def pool(net):
        return tf.nn.max_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')

    def conv(net, name):
        net = tf.nn.conv2d(net, variables[name + '/weights'], [1, 1, 1, 1], 'SAME')
        return tf.nn.relu(net + variables[name + '/biases'])

    def dense(net, name):
        return tf.matmul(net, variables[name + '/weights']) + variables[name + '/biases']

    net = lrn(pool(conv(images, 'conv1')))
    net = pool(lrn(conv(net, 'conv2')))
    net = tf.nn.relu(dense(tf.reshape(net, [-1, 2304]), 'local3'))
    net = tf.nn.relu(dense(net, 'local4'))
    return dense(net, 'softmax_linear')


def loss(logits_, labels, variables):
    """Mean cross entropy plus 0.004 |w|^2 / 2 of local3 and local4."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits_)
    decay = [0.004 * tf.reduce_sum(tf.square(variables[name + '/weights'])) / 2
             for name in ('local3', 'local4')]
    return tf.reduce_mean(cross_entropy) + decay[0] + decay[1]


def save_checkpoint(folder):
    """A checkpoint as TF1 code wrote it: variables, averages that differ, other things besides.

    Returns:
        (raw, averaged): dictionaries from name of a variable to its value.
    """
    raw, averaged = weights(seed=1, scale=2.0), weights(seed=2, scale=2.0)
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in raw.items():
            tf.Variable(value, name=name, use_resource=False)
            tf.Variable(averaged[name], name=name + '/ExponentialMovingAverage', use_resource=False)
        tf.Variable(123.0, name='global_step', use_resource=False)
        tf.Variable(0.5, name='local3/weight_loss/avg', use_resource=False)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(folder, 'model.ckpt'), global_step=123)
    return raw, averaged
