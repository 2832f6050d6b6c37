"""The floor: the convolutions and matrix products of a training step, and nothing else.

A step takes at least as long as these, forward and backward, one after another on the same shapes
with the kernels that TensorFlow has for them.
"""
import tensorflow.compat.v1 as tf

_PRODUCTS = ('Conv2D', 'Conv2DBackpropFilter', 'Conv2DBackpropInput', 'MatMul', 'BatchMatMulV2')


def operation(network, shape):
    """An operation that runs all products of a network, each after the one before it.

    `network` is a function from images, float32 of this shape, to logits. The operation's value,
    float32 [], means nothing.
    """
    with tf.Graph().as_default() as graph:
        logits = network(tf.zeros(shape))
        fetches = [logits, *tf.gradients(logits, tf.trainable_variables())]
    needed = {node.name for node in tf.graph_util.extract_sub_graph(
        graph.as_graph_def(), [each.op.name for each in fetches]).node}
    noise, results = {}, [tf.zeros([])]
    for op in graph.get_operations():
        if op.type in _PRODUCTS and op.name in needed:
            with tf.control_dependencies([results[-1]]):
                # One element is used, or TensorFlow would drop the product as unused.
                results.append(tf.cast(tf.reshape(_on_noise(op, noise), [-1])[0], tf.float32))
    return tf.add_n(results)


def _on_noise(op, noise):
    """The same product in the current graph; `noise` holds the stand-ins of its inputs so far."""
    inputs = []
    for each in op.inputs:
        if each.dtype == tf.int32:  # The shape of a gradient, which is the output.
            inputs.append(tf.constant(op.outputs[0].shape.as_list()))
            continue
        if each.name not in noise:  # A variable: TensorFlow would fold a constant.
            noise[each.name] = tf.Variable(
                tf.random_normal(each.shape, 0, 0.1, each.dtype), use_resource=True).read_value()
        inputs.append(noise[each.name])
    attributes = {name: value for name, value in op.node_def.attr.items() if name[0] != '_'}
    return tf.get_default_graph().create_op(
        op.type, inputs, [op.outputs[0].dtype], attrs=attributes).outputs[0]
