"""A placeholder gets its value from the caller of `session.run`."""
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None, 2], name='x')  # None: any number of rows.
    total = tf.reduce_sum(x, axis=1)

    print(session.run(total, {x: [[1, 2]]}))
    print(session.run(total, {x: [[1, 2], [3, 4]]}))
    try:
        session.run(total)
    except tf.errors.InvalidArgumentError as error:
        print(*[line for line in error.message.split('\n') if line.startswith('You must')])
