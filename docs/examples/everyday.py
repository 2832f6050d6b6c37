"""The everyday words of TensorFlow 1 programs: a line is fitted and saved, then restored."""
import tempfile

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def line(x):
    w = tf.Variable(0.0, name='w')  # Always a new one; if the name exists, it becomes w_1.
    with tf.variable_scope('line', reuse=tf.AUTO_REUSE):
        b = tf.get_variable('b', [], initializer=tf.zeros_initializer())
    return w * x + b


folder = tempfile.mkdtemp()
with tf.Graph().as_default(), tf.Session() as session:
    x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    loss = tf.reduce_mean(tf.square(line(x) - y))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    tf.summary.scalar('loss', loss)
    summaries = tf.summary.merge_all()
    mean, add = tf.metrics.mean(loss)  # In local variables, which are not saved.
    saver = tf.train.Saver(max_to_keep=5)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    writer = tf.summary.FileWriter(folder, session.graph)
    for step in range(100):
        _, summary, _ = session.run([train_op, summaries, add], feed_dict={x: [0, 1], y: [1, 3]})
        writer.add_summary(summary, step)
    print(f'mean loss = {session.run(mean):.2f}')
    saver.save(session, folder + '/model.ckpt', global_step=100)

# This half could be another process: it shares only the folder with the first.
with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None])
    prediction = line(x)
    path = tf.train.latest_checkpoint(folder)  # None if there is no checkpoint.
    tf.train.Saver().restore(session, path)  # Instead of the initialisers.
    print(path[len(folder):], *(f'{y:.2f}' for y in session.run(prediction, {x: [2, 3]})))

with tf.Graph().as_default(), tf.Session() as session:
    is_training = tf.placeholder(tf.bool, [])
    inside, outside = tf.Variable(0), tf.Variable(0)
    update = outside.assign_add(1)  # Created before the branches, so it runs in both of them.
    count = tf.cond(is_training, lambda: inside.assign_add(1) + update, lambda: 0)
    _, power = tf.while_loop(lambda i, p: i < 10, lambda i, p: (i + 1, 2 * p), [0, 1])
    session.run(tf.global_variables_initializer())
    session.run(count, {is_training: False})
    print(*session.run([inside, outside, power]))
