"""Variables have names; `reuse` makes a second layer share those of the first."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def layer(x):
    return x * tf.get_variable('weights', [], initializer=tf.ones_initializer())


with tf.Graph().as_default():
    for scope in ('conv1', 'conv2'):
        with tf.variable_scope(scope):
            layer(1.0)
    with tf.variable_scope('conv1', reuse=True):
        layer(2.0)  # A second use of conv1/weights, not a third variable.
    print([variable.op.name for variable in tf.global_variables()])

    try:
        with tf.variable_scope('conv1'):
            layer(3.0)
    except ValueError as error:
        print(str(error).partition('.')[0])
