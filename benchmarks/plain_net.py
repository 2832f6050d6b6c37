"""The tutorial's network in TensorFlow's own operations, to compare with."""
import tensorflow.compat.v1 as tf

SHAPES = {
    'conv1/weights': [5, 5, 3, 64], 'conv1/biases': [64],
    'conv2/weights': [5, 5, 64, 64], 'conv2/biases': [64],
    'local3/weights': [2304, 384], 'local3/biases': [384],
    'local4/weights': [384, 192], 'local4/biases': [192],
    'softmax_linear/weights': [192, 10], 'softmax_linear/biases': [10],
}
DECAYED = ('local3/weights', 'local4/weights')
WEIGHT_DECAY = 0.004


def logits(images, variables, observe=lambda net, name: None):
    """Logits, float32 [batch, 10], of images, float32 [batch, 24, 24, 3].

    `variables` maps the names in `SHAPES` to tensors; `observe` gets each layer's output and name.
    """
    def conv(net, name):
        net = tf.nn.conv2d(net, variables[name + '/weights'], [1, 1, 1, 1], 'SAME')
        return relu(tf.nn.bias_add(net, variables[name + '/biases']), name)

    def dense(net, name):
        return tf.matmul(net, variables[name + '/weights']) + variables[name + '/biases']

    def relu(net, name):
        net = tf.nn.relu(net)
        observe(net, name)
        return net

    net = _lrn(_pool(conv(images, 'conv1')))  # [batch, 12, 12, 64]
    net = _pool(_lrn(conv(net, 'conv2')))  # [batch, 6, 6, 64]
    net = tf.reshape(net, [-1, 2304])
    net = relu(dense(net, 'local3'), 'local3')  # [batch, 384]
    net = relu(dense(net, 'local4'), 'local4')  # [batch, 192]
    net = dense(net, 'softmax_linear')  # [batch, 10]
    observe(net, 'softmax_linear')
    return net


def _pool(net):
    return tf.nn.max_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')


def _lrn(net):
    return tf.nn.lrn(net, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def loss(logits_, labels, variables):
    """Mean cross entropy plus 0.004 |w|^2 / 2 of local3 and local4: float32 []."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits_)
    decay = [WEIGHT_DECAY * tf.nn.l2_loss(variables[name]) for name in DECAYED]
    return tf.add_n([tf.reduce_mean(cross_entropy), *decay])
