"""Stage 2: `tf.data` in the graph instead of queues and their threads.

    python docs/migration/stage_2_dataset.py --steps=1000  # Trains.
    python docs/migration/stage_2_dataset.py --checkpoint=/tmp/stage_2/model.ckpt-1000  # Evaluates.
"""
import os
import time

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.enable_resource_variables()

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string('records', '/tmp/cifar10_data/cifar-10-batches-bin', 'Record files.')
tf.app.flags.DEFINE_string('train_dir', '/tmp/stage_2', 'Folder of the checkpoints.')
tf.app.flags.DEFINE_string('checkpoint', '', 'Checkpoint to evaluate instead of training.')
tf.app.flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.')
tf.app.flags.DEFINE_integer('steps', 1000, 'Number of steps.')

NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32


def num_records(paths):
    return sum(os.path.getsize(path) for path in paths) // RECORD_BYTES


def prepare(record, training):
    """A record, string [] -> image, float32 [24, 24, 3], and label, int32 []."""
    values = tf.decode_raw(record, tf.uint8)
    image = tf.transpose(tf.reshape(values[1:RECORD_BYTES], [3, 32, 32]), [1, 2, 0])
    image = tf.cast(image, tf.float32)
    if training:
        image = tf.image.random_flip_left_right(tf.random_crop(image, [24, 24, 3]))
        image = tf.image.random_contrast(tf.image.random_brightness(image, 63), 0.2, 1.8)
    else:
        image = tf.image.central_crop(image, 24 / 32)
    return tf.image.per_image_standardization(image), tf.cast(values[0], tf.int32)


def batches(paths, batch_size, training):
    """Images, float32 [batch, 24, 24, 3], and labels, int32 [batch]; endless in training."""
    records = tf.data.FixedLengthRecordDataset(paths, RECORD_BYTES)
    if training:
        records = records.shuffle(max(1, int(0.4 * num_records(paths)))).repeat()
    images = records.map(lambda record: prepare(record, training), tf.data.AUTOTUNE)
    return tf.data.make_one_shot_iterator(images.batch(batch_size).prefetch(2)).get_next()


def variables(shape, stddev, bias, wd=None):
    """Weights and biases in the current scope; the weight decay goes to 'losses'."""
    weights = tf.get_variable(
        'weights', shape, initializer=tf.truncated_normal_initializer(stddev=stddev))
    biases = tf.get_variable('biases', shape[-1:], initializer=tf.constant_initializer(bias))
    if wd is not None:
        tf.add_to_collection('losses', tf.multiply(tf.nn.l2_loss(weights), wd, name='weight_loss'))
    return weights, biases


def inference(images):
    """Images, float32 [batch, 24, 24, 3] -> logits, float32 [batch, NUM_CLASSES]."""
    with tf.variable_scope('conv1') as scope:
        kernel, biases = variables([5, 5, 3, 64], stddev=5e-2, bias=0.0)
        conv = tf.nn.conv2d(images, kernel, [1, 1, 1, 1], padding='SAME')
        conv1 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)
    pool1 = tf.nn.max_pool(conv1, [1, 3, 3, 1], [1, 2, 2, 1], padding='SAME', name='pool1')
    norm1 = tf.nn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm1')
    with tf.variable_scope('conv2') as scope:
        kernel, biases = variables([5, 5, 64, 64], stddev=5e-2, bias=0.1)
        conv = tf.nn.conv2d(norm1, kernel, [1, 1, 1, 1], padding='SAME')
        conv2 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)
    norm2 = tf.nn.lrn(conv2, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm2')
    pool2 = tf.nn.max_pool(norm2, [1, 3, 3, 1], [1, 2, 2, 1], padding='SAME', name='pool2')
    with tf.variable_scope('local3') as scope:
        flat = tf.reshape(pool2, [-1, 6 * 6 * 64])
        weights, biases = variables([flat.shape.as_list()[1], 384], stddev=0.04, bias=0.1, wd=0.004)
        local3 = tf.nn.relu(tf.matmul(flat, weights) + biases, name=scope.name)
    with tf.variable_scope('local4') as scope:
        weights, biases = variables([384, 192], stddev=0.04, bias=0.1, wd=0.004)
        local4 = tf.nn.relu(tf.matmul(local3, weights) + biases, name=scope.name)
    with tf.variable_scope('softmax_linear') as scope:
        weights, biases = variables([192, NUM_CLASSES], stddev=1 / 192.0, bias=0.0)
        return tf.add(tf.matmul(local4, weights), biases, name=scope.name)


def loss(logits, labels):
    """Mean cross entropy plus the weight decay of `inference`."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses'), name='total_loss')


def train(total_loss, global_step, decay_steps):
    """Runs one step; returns its number, int64 []."""
    rate = tf.train.exponential_decay(0.1, global_step, decay_steps, 0.1, staircase=True)
    tf.summary.scalar('learning_rate', rate)
    tf.summary.scalar('total_loss', total_loss)
    descent = tf.train.GradientDescentOptimizer(rate).minimize(total_loss, global_step)
    with tf.control_dependencies([descent]):  # The averages read the updated values.
        averages = tf.train.ExponentialMovingAverage(0.9999, global_step.read_value())
        averaged = averages.apply(tf.trainable_variables())
    with tf.control_dependencies([averaged]):  # Without this, the number is that before or after.
        return global_step.read_value()


def evaluate(paths, checkpoint):
    """Prints the precision with averaged weights."""
    images, labels = batches(paths, FLAGS.batch_size, training=False)
    top_k = tf.nn.in_top_k(inference(images), labels, 1)
    saver = tf.train.Saver(tf.train.ExponentialMovingAverage(0.9999).variables_to_restore())
    steps = -(-num_records(paths) // FLAGS.batch_size)  # The last batch may be smaller.
    with tf.Session() as session:
        saver.restore(session, checkpoint)
        right = sum(session.run(top_k).sum() for _ in range(steps))
    print('precision @ 1 = %.3f' % (right / num_records(paths)))


def run(paths):
    """Trains up to --steps, from the latest checkpoint in --train_dir if there is one."""
    global_step = tf.train.get_or_create_global_step()
    images, labels = batches(paths, FLAGS.batch_size, training=True)
    total_loss = loss(inference(images), labels)
    train_op = train(total_loss, global_step, num_records(paths) * 350 // FLAGS.batch_size)
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(checkpoint_dir=FLAGS.train_dir, hooks=hooks) as session:
        start = time.time()
        while not session.should_stop():
            step, value = session.run([train_op, total_loss])
            if step % 100 == 0:
                rate, start = 100 * FLAGS.batch_size / (time.time() - start), time.time()
                print('step %d, loss = %.2f (%.1f examples/sec)' % (step, value, rate))


def main(_):
    if FLAGS.checkpoint:
        evaluate([os.path.join(FLAGS.records, 'test_batch.bin')], FLAGS.checkpoint)
    else:
        run(tf.gfile.Glob(os.path.join(FLAGS.records, 'data_batch_*.bin')))


if __name__ == '__main__':
    tf.app.run()
