"""The floor: the convolutions and matrix products of a training step, and nothing else.

A step cannot take less than these, forward and backward, one after another on the same shapes with
the kernels that TensorFlow has for them. The first convolution has no gradient for its input:
nothing asks for it.
"""
import tensorflow.compat.v1 as tf



def _tutorial():
    convolutions = [([24, 24, 3], [5, 5, 3, 64], False), ([12, 12, 64], [5, 5, 64, 64], True)]
    return convolutions, [(2304, 384), (384, 192), (192, 10)]


def _resnet23(channels=64):
    convolutions = [([32, 32, 3], [3, 3, 3, channels], False)]
    half = channels // 2
    for side in (32, 32, 16, 16, 8, 8, 4):
        convolutions += [([side, side, channels], [1, 1, channels, half], True),
                         ([side, side, half], [3, 3, half, half], True),
                         ([side, side, half], [1, 1, half, channels], True)]
    return convolutions, [(channels, 10)]


# For ten classes. A convolution is the shape of its input without the batch, the shape of its
# weights, and whether the input needs a gradient; a product is its inputs and outputs.
_LAYERS = {'tutorial': _tutorial, 'resnet23': _resnet23}


def operation(batch_size, backward=True, net='tutorial'):
    """An operation that runs them all, each when the one before it has ended.

    Args:
        batch_size: number of images.
        net: name of the net.
        backward: whether to run those of the gradients, too.

    Returns:
        float32 [], of no meaning: fetching it runs them.
    """
    results = [tf.zeros([])]

    def run(product, *arguments, **options):
        with tf.control_dependencies([results[-1]]):
            # One element is used, so that TensorFlow does not drop the product as unused.
            results.append(tf.reshape(product(*arguments, **options), [-1])[0])

    convolutions, products = _LAYERS[net]()
    for shape, weights_shape, needs_gradient in convolutions:
        net, weights = _noise([batch_size, *shape]), _noise(weights_shape)
        out = _noise([batch_size, *shape[:2], weights_shape[-1]])
        same = {'strides': [1, 1, 1, 1], 'padding': 'SAME'}
        run(tf.nn.conv2d, net, weights, **same)
        if backward:
            run(tf.nn.conv2d_backprop_filter, net, weights_shape, out, **same)
        if backward and needs_gradient:
            run(tf.nn.conv2d_backprop_input, [batch_size, *shape], weights, out, **same)
    for inputs, units in products:
        net, weights, out = (_noise(shape) for shape in (
            [batch_size, inputs], [inputs, units], [batch_size, units]))
        run(tf.matmul, net, weights)
        if backward:
            run(tf.matmul, net, out, transpose_a=True)
            run(tf.matmul, out, weights, transpose_b=True)
    return tf.add_n(results)


def _noise(shape):
    """A variable of small random numbers: TensorFlow would fold a constant."""
    return tf.Variable(tf.random_normal(shape, stddev=0.1), use_resource=True).read_value()
