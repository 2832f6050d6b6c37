"""Locally connected layers: convolutions with separate weights at each position.

The tutorial's network replaces them with fully connected layers. They are the top of cuda-convnet's
`layers-conv-local-11pct`: two layers of 3 x 3 with 64 and 32 maps, initial weights with a standard
deviation of 0.04, and a weight decay of 0.004. The bias of 0.1 is that of the tutorial's `local3`
and `local4`.
"""
import tensorflow.compat.v1 as tf

from cifar10_lib.nets import variables

LAYERS = (('local3', 64), ('local4', 32))  # Name and number of maps, bottom to top.

_SIZE = 3
_STDDEV = 0.04
_BIAS = 0.1
_WEIGHT_DECAY = 0.004


def layer(net, name, filters, summarise):
    """3x3 locally connected layer with ReLU; float [batch, height, width, filters], `net`'s type.

    Adds its weight decay, 0.004 |weights|^2 / 2, to the collection `losses`.

    Args:
        net: float [batch, height, width, channels]; `batch` may be unknown.
        name: variable scope, owner of `weights` [height, width, 3, 3, channels, filters] and
            `biases` [height, width, filters], both float32.
        filters: number of output channels.
        summarise: function of the activations that adds summaries.
    """
    height, width, channels = net.shape.as_list()[1:]
    with tf.variable_scope(name) as scope:
        weights = variables.with_weight_decay(
            'weights', [height, width, _SIZE, _SIZE, channels, filters], _STDDEV, _WEIGHT_DECAY)
        biases = variables.on_cpu(
            'biases', [height, width, filters], tf.constant_initializer(_BIAS))
        net = tf.nn.relu(locally_connected(net, weights) + biases, name=scope.name)
        summarise(net)
    return net


def locally_connected(net, weights):
    """Multiplies the neighbourhood of each position by the matrix of that position; float [batch,
    height, width, filters].

    Pads with zeros, like 'SAME'. One batched matrix product, with a batch of positions and a column
    per image, reads each weight once. The neighbourhoods are cut out by `tf.slice`, which has the
    fastest gradient: that of `net[...]` takes eight times as long, and that of
    `tf.image.extract_patches` is a product with a sparse matrix.

    Args:
        net: float [batch, height, width, channels]; `batch` may be unknown.
        weights: float [height, width, rows, columns, channels, filters]; rows and columns, the size
            of a neighbourhood, are odd.
    """
    height, width, rows, columns, channels, filters = weights.shape.as_list()
    above, left = rows // 2, columns // 2
    net = tf.transpose(net, [1, 2, 3, 0])  # [height, width, channels, batch]
    net = tf.pad(net, [[above, above], [left, left], [0, 0], [0, 0]])
    neighbourhoods = tf.stack([tf.slice(net, [row, column, 0, 0], [height, width, -1, -1])
                               for row in range(rows) for column in range(columns)], axis=2)
    positions, inputs = height * width, rows * columns * channels
    net = tf.matmul(tf.reshape(weights, [positions, inputs, filters]),
                    tf.reshape(neighbourhoods, [positions, inputs, -1]), transpose_a=True)
    net = tf.reshape(net, [height, width, filters, -1])
    return tf.transpose(net, [3, 0, 1, 2])
