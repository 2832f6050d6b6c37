"""The everyday words of TensorFlow 1 programs: a line is fitted, saved and restored."""
import tempfile

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

with tf.Graph().as_default(), tf.Session() as session:
    x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    is_training = tf.placeholder(tf.bool, [])
    w = tf.Variable(0.0, name='w')
    with tf.variable_scope('line', reuse=tf.AUTO_REUSE):
        b = tf.get_variable('b', [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * x + b - y))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)

    inside, outside = tf.Variable(0, trainable=False), tf.Variable(0, trainable=False)
    update = outside.assign_add(1)  # Created before the branches.
    count = tf.cond(is_training, lambda: [inside.assign_add(1), tf.identity(update)],
                    lambda: [tf.identity(inside), tf.identity(outside)])
    power = tf.while_loop(lambda i, p: i < 10, lambda i, p: (i + 1, 2 * p), [0, 1])[1]

    tf.summary.scalar('loss', loss)
    summaries = tf.summary.merge_all()
    average, add = tf.metrics.mean(loss)
    saver, folder = tf.train.Saver(max_to_keep=5), tempfile.mkdtemp()
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    writer = tf.summary.FileWriter(folder, session.graph)
    for step in range(100):
        _, text, _ = session.run([train_op, summaries, add], feed_dict={x: [0, 1], y: [1, 3]})
        writer.add_summary(text, step)
    path = saver.save(session, folder + '/model.ckpt', global_step=100)

    session.run(w.assign(7.0))
    saver.restore(session, path)
    print(*(f'{value:.2f}' for value in session.run([w, b, average])), session.run(power))
    session.run(count, {is_training: False})
    print(*session.run([inside, outside]))
