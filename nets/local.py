"""Locally connected layers: convolutions that have weights of their own at every position.

They are what the tutorial's network has fully connected layers in place of: the top of
cuda-convnet's `layers-conv-local-11pct`, two layers of 3 x 3 with 64 and 32 maps, weights drawn
with a standard deviation of 0.04 and decaying by 0.004. The bias of 0.1 is the tutorial's, as in
its `local3` and `local4`.
"""
import tensorflow.compat.v1 as tf

from nets import variables

LAYERS = (('local3', 64), ('local4', 32))  # Name and number of maps, from the lower to the upper.

_SIZE = 3
_STDDEV = 0.04
_BIAS = 0.1
_WEIGHT_DECAY = 0.004


def layer(net, name, filters, summarise):
    """3x3 locally connected layer with ReLU; height and width are kept.

    Adds its weight decay, 0.004 |weights|^2 / 2, to the collection `losses`.

    Args:
        net: float [batch, height, width, channels]; all but `batch` known.
        name: variable scope, owner of `weights` [height, width, 3, 3, channels, filters] and of
            `biases` [height, width, filters], float32 in the host's memory.
        filters: number of output channels.
        summarise: function of the activations and `name`, for summaries.

    Returns:
        float [batch, height, width, filters], of `net`'s type.
    """
    height, width, channels = net.shape.as_list()[1:]
    with tf.variable_scope(name) as scope:
        weights = variables.read(variables.on_cpu(
            'weights', [height, width, _SIZE, _SIZE, channels, filters],
            tf.truncated_normal_initializer(stddev=_STDDEV)))
        biases = variables.read(variables.on_cpu(
            'biases', [height, width, filters], tf.constant_initializer(_BIAS)))
        tf.add_to_collection('losses', tf.multiply(
            tf.nn.l2_loss(weights), _WEIGHT_DECAY, name='weight_loss'))
        net = locally_connected(net, tf.cast(weights, net.dtype))
        net = tf.nn.relu(net + tf.cast(biases, net.dtype), name=scope.name)
        summarise(net, name)
    return net


def locally_connected(net, weights):
    """Multiplies the neighbourhood of each position with the matrix of that position.

    Beyond the border are zeros, as with the padding 'SAME'. The positions are the batch of one
    batched matrix product, whose columns are the images: each weight is read once. How the
    neighbourhoods are cut out decides the time of the gradient: `tf.image.extract_patches` has one
    through a sparse matrix, and that of `net[...]` takes eight times as long as `tf.slice`'s.

    Args:
        net: float [batch, height, width, channels]; all but `batch` known.
        weights: float [height, width, rows, columns, channels, filters]; rows and columns, the size
            of a neighbourhood, are odd.

    Returns:
        float [batch, height, width, filters].
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
