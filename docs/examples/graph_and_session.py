"""A graph describes a computation; a session runs the parts of it that you ask for."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default() as graph:
    a = tf.constant(3.0, name='a')
    b = tf.multiply(a, 2.0, name='b')
    c = tf.sqrt(b + 10.0, name='c')  # Adds an operation; computes nothing yet.

    print(b)
    print([operation.type for operation in graph.get_operations()])

    with tf.Session() as session:
        print(session.run(b))
        print(*session.run([a, b, c]))  # One run; b is computed once, for itself and for c.
