"""Stage 3: `tf.Module` and `tf.function` instead of graph and session; no `tf.compat.v1`.

    python docs/migration/stage_3_module.py --steps=1000  # Trains.
    python docs/migration/stage_3_module.py --checkpoint=/tmp/stage_3/model.ckpt-1000  # Evaluates.
"""
import os
import time

import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string('records', '/tmp/cifar10_data/cifar-10-batches-bin', 'Record files.')
flags.DEFINE_string('train_dir', '/tmp/stage_3', 'Folder of the checkpoints.')
flags.DEFINE_string('checkpoint', '', 'Checkpoint to evaluate instead of training.')
flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.')
flags.DEFINE_integer('steps', 1000, 'Number of steps.')

NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32


def num_records(paths):
    return sum(os.path.getsize(path) for path in paths) // RECORD_BYTES


def prepare(record, training):
    """A record, string [] -> image, float32 [24, 24, 3], and label, int32 []."""
    values = tf.io.decode_raw(record, tf.uint8)
    image = tf.transpose(tf.reshape(values[1:RECORD_BYTES], [3, 32, 32]), [1, 2, 0])
    image = tf.cast(image, tf.float32)
    if training:
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [24, 24, 3]))
        image = tf.image.random_contrast(tf.image.random_brightness(image, 63), 0.2, 1.8)
    else:
        image = tf.image.central_crop(image, 24 / 32)
    return tf.image.per_image_standardization(image), tf.cast(values[0], tf.int32)


def batches(paths, batch_size, training):
    """A data set of (images, labels), float32 [batch, 24, 24, 3] and int32 [batch]."""
    records = tf.data.FixedLengthRecordDataset(paths, RECORD_BYTES)
    if training:
        records = records.shuffle(max(1, int(0.4 * num_records(paths)))).repeat()
    images = records.map(lambda record: prepare(record, training), tf.data.AUTOTUNE)
    return images.batch(batch_size).prefetch(2)


class Network(tf.Module):
    """The tutorial's network and its averages; variables have the names of old checkpoints."""

    def __init__(self):
        super().__init__()
        self.conv1 = self._variables('conv1', [5, 5, 3, 64], stddev=5e-2, bias=0.0)
        self.conv2 = self._variables('conv2', [5, 5, 64, 64], stddev=5e-2, bias=0.1)
        self.local3 = self._variables('local3', [6 * 6 * 64, 384], stddev=0.04, bias=0.1)
        self.local4 = self._variables('local4', [384, 192], stddev=0.04, bias=0.1)
        self.softmax_linear = self._variables(
            'softmax_linear', [192, NUM_CLASSES], stddev=1 / 192, bias=0.0)
        self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='global_step')
        self._average = tf.train.ExponentialMovingAverage(0.9999, self.global_step)
        self._average.apply(self.trainable_variables)  # Outside of `tf.function`: it creates them.
        self.averages = [self._average.average(each) for each in self.trainable_variables]

    @staticmethod
    def _variables(scope, shape, stddev, bias):
        with tf.name_scope(scope):
            weights = tf.Variable(tf.random.truncated_normal(shape, stddev=stddev), name='weights')
            return weights, tf.Variable(tf.fill(shape[-1:], bias), name='biases')

    def __call__(self, images, averaged=False):
        """Images, float32 [batch, 24, 24, 3] -> logits, float32 [batch, NUM_CLASSES]."""
        def of(layer):
            return [self._average.average(each) for each in layer] if averaged else layer

        def conv(net, layer):
            weights, biases = of(layer)
            return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(net, weights, 1, 'SAME'), biases))

        def lrn(net):
            return tf.nn.local_response_normalization(net, 4, 1.0, 0.001 / 9.0, 0.75)

        norm1 = lrn(tf.nn.max_pool2d(conv(images, self.conv1), 3, 2, 'SAME'))
        pool2 = tf.nn.max_pool2d(lrn(conv(norm1, self.conv2)), 3, 2, 'SAME')
        net = tf.reshape(pool2, [-1, 6 * 6 * 64])
        for layer in (self.local3, self.local4):
            weights, biases = of(layer)
            net = tf.nn.relu(tf.matmul(net, weights) + biases)
        weights, biases = of(self.softmax_linear)
        return tf.matmul(net, weights) + biases

    @tf.function
    def step(self, images, labels, decay_steps):
        """One step; returns the loss before it, float32 []."""
        epoch = tf.cast(self.global_step // decay_steps, tf.float32)
        with tf.GradientTape() as tape:
            cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self(images))
            decay = sum(tf.nn.l2_loss(layer[0]) for layer in (self.local3, self.local4))
            loss = tf.reduce_mean(cross_entropy) + 0.004 * decay
        gradients = tape.gradient(loss, self.trainable_variables)
        for variable, gradient in zip(self.trainable_variables, gradients):
            variable.assign_sub(0.1 * 0.1 ** epoch * gradient)
        self.global_step.assign_add(1)
        self._average.apply(self.trainable_variables)  # `tf.function` keeps this order.
        return loss


def evaluate(paths, checkpoint):
    """Prints the precision with averaged weights."""
    network = Network()
    # By name for a checkpoint of stages 0 to 2, by attribute for one of this stage.
    tf.train.Checkpoint(network=network).restore(checkpoint).assert_existing_objects_matched()
    right = [tf.math.in_top_k(labels, network(images, averaged=True), 1)
             for images, labels in batches(paths, FLAGS.batch_size, training=False)]
    print('precision @ 1 = %.3f' % tf.concat(right, 0).numpy().mean())


def run(paths):
    """Trains up to --steps, from the latest checkpoint in --train_dir if there is one."""
    network = Network()
    checkpoint = tf.train.Checkpoint(network=network)
    manager = tf.train.CheckpointManager(
        checkpoint, FLAGS.train_dir, 5, checkpoint_name='model.ckpt')
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    remaining, start = max(0, FLAGS.steps - int(network.global_step)), time.time()
    for images, labels in batches(paths, FLAGS.batch_size, training=True).take(remaining):
        loss = network.step(images, labels, num_records(paths) * 350 // FLAGS.batch_size)
        step = int(network.global_step)
        if step % 100 == 0:
            rate, start = 100 * FLAGS.batch_size / (time.time() - start), time.time()
            print('step %d, loss = %.2f (%.1f examples/sec)' % (step, loss, rate))
    manager.save(network.global_step)


def main(_):
    if FLAGS.checkpoint:
        evaluate([os.path.join(FLAGS.records, 'test_batch.bin')], FLAGS.checkpoint)
    else:
        run(tf.io.gfile.glob(os.path.join(FLAGS.records, 'data_batch_*.bin')))


if __name__ == '__main__':
    app.run(main)
