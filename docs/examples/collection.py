"""A collection is a list in the graph that any function can add to."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def layer(x, name):
    with tf.variable_scope(name):
        weight = tf.get_variable('weight', initializer=2.0)
    tf.add_to_collection('losses', 0.5 * weight ** 2)  # The caller need not know about it.
    return weight * x


with tf.Graph().as_default(), tf.Session() as session:
    net = layer(layer(3.0, 'first'), 'second')
    tf.add_to_collection('losses', (net - 10.0) ** 2)
    total = tf.add_n(tf.get_collection('losses'))

    session.run(tf.global_variables_initializer())
    print(*session.run(tf.get_collection('losses')))
    print(session.run(total))
