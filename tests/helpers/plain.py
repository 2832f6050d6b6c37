"""The tutorial's network in TensorFlow's own operations; checkpoints as TF1 code wrote them."""
import os

from cifar10_lib import checkpoints

import numpy as np
import record_files
import tensorflow.compat.v1 as tf

SHAPES = {
    'conv1/weights': [5, 5, 3, 64], 'conv1/biases': [64],
    'conv2/weights': [5, 5, 64, 64], 'conv2/biases': [64],
    'local3/weights': [2304, 384], 'local3/biases': [384],
    'local4/weights': [384, 192], 'local4/biases': [192],
    'softmax_linear/weights': [192, 10], 'softmax_linear/biases': [10],
}
AVERAGE = '/ExponentialMovingAverage'


def logits(images, variables):
    """Logits, float32 [batch, 10], of images, float32 [batch, 24, 24, 3].

    `variables` maps the names in `SHAPES` to tensors.
    """
    def conv(net, name):
        net = tf.nn.conv2d(net, variables[name + '/weights'], [1, 1, 1, 1], 'SAME')
        return tf.nn.relu(tf.nn.bias_add(net, variables[name + '/biases']))

    def pool(net):
        return tf.nn.max_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')

    def norm(net):
        return tf.nn.lrn(net, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

    def dense(net, name):
        return tf.matmul(net, variables[name + '/weights']) + variables[name + '/biases']

    net = norm(pool(conv(images, 'conv1')))  # [batch, 12, 12, 64]
    net = pool(norm(conv(net, 'conv2')))  # [batch, 6, 6, 64]
    net = tf.nn.relu(dense(tf.reshape(net, [-1, 2304]), 'local3'))  # [batch, 384]
    net = tf.nn.relu(dense(net, 'local4'))  # [batch, 192]
    return dense(net, 'softmax_linear')  # [batch, 10]


def centres(records):
    """The network's input, float32 [count, 24, 24, 3], by hand, for uint8 records [count, 3073]."""
    images = record_files.unpacked(records)[0][:, 4:28, 4:28].astype(np.float32)
    images -= images.mean(axis=(1, 2, 3), keepdims=True)
    return images / images.std(axis=(1, 2, 3), keepdims=True)


def loss(logits_, labels, variables):
    """Mean cross entropy plus 0.004 |w|^2 / 2 of local3 and local4: float32 []."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits_)
    decay = [0.004 * tf.nn.l2_loss(variables[f'{name}/weights']) for name in ('local3', 'local4')]
    return tf.add_n([tf.reduce_mean(cross_entropy), *decay])


def weights(seed, scale=1.0):
    """Random values of all variables: dictionary from name to float32 array."""
    random = np.random.RandomState(seed)
    return {name: (scale * random.normal(0, 1 / np.sqrt(np.prod(shape[:-1])), shape)).astype(
        np.float32) for name, shape in SHAPES.items()}


def save_checkpoint(folder):
    """Saves variables, averages with other values, and step 7: the path of the checkpoint."""
    values = {'global_step': np.int64(7)}
    for seed, suffix in ((1, ''), (2, AVERAGE)):
        random = np.random.RandomState(seed)
        values.update((name + suffix, random.normal(0, 0.04, shape).astype(np.float32))
                      for name, shape in SHAPES.items())
    return save(os.path.join(folder, 'model.ckpt-7'), values)


def read(checkpoint, suffix=AVERAGE):
    """The averages in a checkpoint, or with the suffix '' the variables: {name in `SHAPES`: value}.
    """
    values = checkpoints.read(checkpoint)
    return {name: values[name + suffix] for name in SHAPES}


def save(path, values):
    """Saves a checkpoint of values by name, as TF1 code does: its path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in values.items():
            tf.Variable(value, name=name, use_resource=False)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(path))
