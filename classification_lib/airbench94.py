"""airbench94: 94 % of CIFAR-10's test images after fourteen epochs.

Keller Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024),
https://arxiv.org/abs/2404.00498. The network and all numbers are from the paper and its code,
https://github.com/KellerJordan/cifar10-airbench, unless a comment says otherwise. Two parts are
left out because they changed little here: mirroring alternately by epoch, and freezing the bias of
the whitening layer after three epochs. ReLU takes the place of GELU, with which a step takes 1.4
times as long on a CPU; the time goes into more epochs.

The learning rate and the weight decay are those for batches of 1,024 images and for labels that are
smoothed by 0.2.
"""
import math

from classification_lib import batch_norm

import numpy as np
import tensorflow.compat.v1 as tf

_SIZE = 32  # Height and width of an image.
_WHITENING_IMAGES = 5000

# Mean and standard deviation of each channel's pixels in CIFAR-10's training images.
_MEAN = (125.307, 122.950, 113.865)
_DEVIATION = (62.993, 62.089, 66.705)

# For the loss averaged over a batch. The code divides the decay by the rate: 0.0153 / 11.5.
_WEIGHT_DECAY = 0.00133

# The biases of batch norms learn this many times as fast as the other variables.
_BIAS_FACTOR = 64.0

_MOMENTUM = 0.6  # See `batch_norm.batch_norm`.

# The code has 1e-12, which TensorFlow 1's `tf.nn.fused_batch_norm` raised to this, for cuDNN.
_EPSILON = 1.001e-5

_LOOKAHEAD_STEPS = 5


def distort(images):
    """Mirrors half of the training images, and moves each by up to two pixels in each direction.

    The gap at the border is filled with the reflection of the image.

    uint8 [batch, 32, 32, 3] -> float32 [batch, 32, 32, 3], 0 to 255.
    """
    batch = tf.shape(images)[0]
    offsets = tf.random_uniform([2, batch, 1], -2, 3, tf.int32)
    # The row and the column to read at each place. Reflected, -1 is 1, and 32 is 30.
    last = _SIZE - 1
    rows, columns = tf.unstack(  # int32 [batch, 32] each.
        last - tf.abs(last - tf.abs(tf.range(_SIZE) + offsets)))
    columns = tf.where_v2(tf.random_uniform([batch, 1]) < 0.5, last - columns, columns)
    images = tf.gather(images, rows, axis=1, batch_dims=1)
    images = tf.gather(images, columns, axis=2, batch_dims=1)
    return tf.cast(images, tf.float32)


def initial_values(images):
    """Computes the weights of the whitening layer from training images, uint8 [count, 32, 32, 3].

    Each output of the layer is a principal component of patches of 2x2 pixels, scaled to a variance
    of about one, or its negative. Of many images, it takes about 5,000, as the paper does.

    Returns {name of the variable: float32 [2, 2, 3, 24]}.
    """
    images = images[::math.ceil(len(images) / _WHITENING_IMAGES)]
    # In float64: in float32, images that are mostly blank have eigenvalues below -5e-4.
    products = np.zeros([12, 12])
    for image in images:
        image = (image - np.array(_MEAN)) / np.array(_DEVIATION)
        patches = np.concatenate(  # [patches, 12], in the order of the layer's weights.
            [image[row:row + _SIZE - 1, column:column + _SIZE - 1]
             for row in (0, 1) for column in (0, 1)], axis=2).reshape(-1, 12)
        products += patches.T @ patches / len(patches)
    eigenvalues, eigenvectors = np.linalg.eigh(products / len(images))
    components = eigenvectors / np.sqrt(np.maximum(eigenvalues, 0.0) + 5e-4)  # One per column.
    weights = np.concatenate([components, -components], axis=1)
    return {'whitening/weights': weights.reshape(2, 2, 3, 24).astype(np.float32)}


def inference(images, num_classes, training, dtype=tf.float32, synchrony=None):
    """Builds the network; for ten classes, 1,971,352 parameters learn, and 288 weights are fixed.

    In training, each batch norm adds two operations to the collection `tf.GraphKeys.UPDATE_OPS`,
    which update its moving statistics: run them with each step. The terms of the weight decay are
    added to the collection `losses`.

    Without `training`, the logits are a mean over six copies of each image: itself and its mirror
    image, each in its place (0.25), and moved by one pixel to the lower right or to the upper left
    (0.125 each).

    The fixed weights, those of the whitening layer, are zero; a new run assigns `initial_values`.

    Args:
        images: float [batch, 32, 32, 3], pixels from 0 to 255.
        num_classes: number of classes.
        training: bool; normalises by the statistics of the batch if true, else by the moving ones.
        dtype: type of the computation; variables and statistics are float32.
        synchrony: see `batch_norm.batch_norm`.

    Returns:
        float32 [batch, num_classes], unnormalised logits.
    """
    images = (tf.cast(images, tf.float32) - _MEAN) / _DEVIATION
    if training:
        return _network(images, num_classes, training, dtype, synchrony)
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], mode='REFLECT')
    logits = tf.zeros([])
    for moved, share in ((images, 0.25), (padded[:, :_SIZE, :_SIZE], 0.125),
                         (padded[:, 2:, 2:], 0.125)):
        for copy in (moved, tf.reverse(moved, axis=[2])):
            # One copy after another: all at once would take six times the memory.
            with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE,
                                   auxiliary_name_scope=False), tf.control_dependencies([logits]):
                logits += share * _network(copy, num_classes, training, dtype, synchrony)
    return logits


def _network(images, num_classes, training, dtype, synchrony):
    """The layers: float32 [batch, 32, 32, 3], normalised -> float32 [batch, num_classes]."""
    net = tf.cast(images, dtype)
    with tf.variable_scope('whitening'):
        weights = tf.get_variable('weights', [2, 2, 3, 24], tf.float32, tf.zeros_initializer(),
                                  trainable=False, use_resource=True)
        biases = _learned('biases', [24], tf.zeros_initializer(), training)
        net = tf.nn.conv2d(net, tf.cast(weights, dtype), strides=1, padding='VALID')
        net = tf.nn.relu(tf.nn.bias_add(net, tf.cast(biases, dtype)))  # [batch, 31, 31, 24]
    net = _group(net, 'group1', 64, training, synchrony)  # [batch, 15, 15, 64]
    net = _group(net, 'group2', 256, training, synchrony)  # [batch, 7, 7, 256]
    net = _group(net, 'group3', 256, training, synchrony)  # [batch, 3, 3, 256]
    net = tf.nn.max_pool2d(net, ksize=3, strides=3, padding='VALID')  # [batch, 1, 1, 256]
    with tf.variable_scope('linear'):
        weights = _learned('weights', [256, num_classes], _uniform, training)
        logits = tf.matmul(tf.reshape(net, [-1, 256]), tf.cast(weights, dtype))
        return tf.cast(logits, tf.float32) / 9.0  # [batch, num_classes]


def _group(net, name, channels, training, synchrony):
    """Two convolutions, each with batch norm and ReLU; pools after the first one.

    float [batch, height, width, inputs] -> float [batch, height // 2, width // 2, channels].
    """
    inputs = net.shape.as_list()[-1]
    with tf.variable_scope(name):
        with tf.variable_scope('conv1'):
            weights = _learned('weights', [3, 3, inputs, channels], _partly_identity, training)
            net = tf.nn.conv2d(net, tf.cast(weights, net.dtype), strides=1, padding='SAME')
            net = tf.nn.max_pool2d(net, ksize=2, strides=2, padding='VALID')
            net = tf.nn.relu(_batch_norm(net, training, synchrony))
        with tf.variable_scope('conv2'):
            weights = _learned('weights', [3, 3, channels, channels], _partly_identity, training)
            net = tf.nn.conv2d(net, tf.cast(weights, net.dtype), strides=1, padding='SAME')
            return tf.nn.relu(_batch_norm(net, training, synchrony))


def _batch_norm(net, training, synchrony):
    """Batch normalisation without a scale, of float [batch, height, width, channels]."""
    channels = net.shape.as_list()[-1:]
    with tf.variable_scope('bn'):
        # The optimizer multiplies this term, too: biases decay as slowly as weights.
        beta = _learned(
            'beta', channels, tf.zeros_initializer(), training, _WEIGHT_DECAY / _BIAS_FACTOR)
        return batch_norm.batch_norm(
            net, tf.ones(channels), beta, training, _MOMENTUM, _EPSILON, synchrony)


def _learned(name, shape, initializer, training, weight_decay=_WEIGHT_DECAY):
    """The value of a variable that learns, float32; adds its weight decay if `training`."""
    value = tf.get_variable(
        name, shape, tf.float32, initializer, use_resource=True).read_value()
    if training:
        tf.add_to_collection('losses', tf.multiply(
            tf.nn.l2_loss(value), weight_decay, name='weight_decay'))
    return value


def _uniform(shape, dtype=tf.float32):
    """PyTorch's initial weights: uniform within 1 / sqrt(number of inputs of an output)."""
    bound = np.prod(shape[:-1]) ** -0.5
    return tf.random_uniform(shape, -bound, bound, dtype)


def _partly_identity(shape, dtype=tf.float32):
    """Initial weights [3, 3, inputs, outputs]: the first outputs are the inputs."""
    inputs, outputs = shape[2:]
    identity = tf.pad(tf.eye(inputs, dtype=dtype)[tf.newaxis, tf.newaxis],
                      [[1, 1], [1, 1], [0, 0], [0, 0]])
    rest = _uniform([3, 3, inputs, outputs - inputs], dtype)
    return tf.concat([identity, rest], axis=3)


def learning_rate(global_step, max_steps, peak):
    """The rate rises from 0.2 of its peak, and falls to 0.07 of it at `max_steps`: float32 [].

    Both are linear; the peak is after 23 % of the steps. `global_step`, int [], is the number of
    earlier steps. The code's peak is 11.5, before it divides by 1 + 1 / (1 - momentum): 1.5.
    """
    done = tf.cast(global_step, tf.float32) / max_steps
    rising = 0.2 + 0.8 * done / 0.23
    falling = 1.0 - 0.93 * (done - 0.23) / 0.77
    return peak * tf.minimum(rising, falling)


class Optimizer(tf.train.MomentumOptimizer):
    """Nesterov momentum, with Lookahead: Zhang et al. (2019), https://arxiv.org/abs/1907.08610.

    After every fifth step, and after the last one, a slow copy moves towards the weights, and the
    weights return to it:

        slow = decay * slow + (1 - decay) * weights, decay = 0.95^5 * (step / max_steps)^3

    The first time, the copy is the weights. Nothing but the slots of the variables and the global
    step is kept between steps.
    """

    def __init__(self, learning_rate, max_steps):
        """Takes the rate, float32 [], and the number of steps at which training ends."""
        super().__init__(learning_rate, momentum=0.85, use_nesterov=True)
        self._max_steps = max_steps

    def apply_gradients(self, grads_and_vars, global_step, name=None):
        """Applies the gradients, then Lookahead; requires the global step."""
        grads_and_vars = list(grads_and_vars)
        update = super().apply_gradients(grads_and_vars, global_step, name)
        with tf.name_scope('lookahead'), tf.control_dependencies([update]):
            step = tf.identity(global_step.read_value())  # The number of steps, with this one.
            is_due = tf.logical_or(tf.equal(step % _LOOKAHEAD_STEPS, 0),
                                   tf.equal(step, self._max_steps))
            updated = [variable for grad, variable in grads_and_vars if grad is not None]
            return tf.group(tf.cond(is_due, lambda: self._look_ahead(updated, step), tf.no_op))

    def _look_ahead(self, variables, step):
        """Moves the slow copies, and the variables to them, after this many steps, int []."""
        done = tf.cast(step, tf.float32) / self._max_steps
        decay = tf.where_v2(step > _LOOKAHEAD_STEPS, 0.95 ** 5 * done ** 3, 0.0)
        moves = []
        for variable in variables:
            slow = self.get_slot(variable, 'slow')
            moved = decay * slow.read_value() + (1.0 - decay) * variable.read_value()
            moves += [each.assign(moved, read_value=False) for each in (slow, variable)]
        return tf.group(moves)

    # How TensorFlow's optimizers are extended.

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        for variable in var_list:
            self._zeros_slot(variable, 'slow', 'Lookahead')

    def _resource_apply_dense(self, grad, var):
        if var.op.name.endswith('/bn/beta'):
            grad *= _BIAS_FACTOR
        return super()._resource_apply_dense(grad, var)
