"""Trains the network on one device.

    python cifar10_train.py

The tutorial reports an accuracy of about 0.86 after 100,000 steps (256 epochs). If --train_dir
holds a checkpoint, training resumes from it; --restart starts over. Evaluate the run with
cifar10_eval.py, and watch it with tensorboard --logdir.
"""
import time
from datetime import datetime

from cifar10_lib import script, session

import tensorflow.compat.v1 as tf

import cifar10

FLAGS = tf.app.flags.FLAGS

tf.app.flags.DEFINE_string('train_dir', '/tmp/cifar10_train',
                           'Folder for checkpoints and event files.')
tf.app.flags.DEFINE_integer('max_steps', 100000, 'Total number of steps, including those before a '
                            'resume.', lower_bound=1)
tf.app.flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
tf.app.flags.DEFINE_integer('log_frequency', 10, 'Number of steps between printed lines.',
                            lower_bound=1)
tf.app.flags.DEFINE_boolean('restart', False,
                            "Remove an earlier run's files from --train_dir and start over.")


class _LoggerHook(tf.train.SessionRunHook):
    """Prints the loss and the speed.

    The speed is the mean over all steps since the last line. A session's first step includes the
    set-up, so no later line counts it.
    """

    def __init__(self, loss):
        self._loss = loss

    def after_create_session(self, session, coord):
        self._first_step = self._step = session.run(tf.train.get_global_step())
        self._start_step, self._start_time = self._step, time.perf_counter()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)  # Asks for loss value.

    def after_run(self, run_context, run_values):
        step, current_time = self._step, time.perf_counter()
        self._step += 1
        if step % FLAGS.log_frequency == 0:
            loss_value = run_values.results
            sec_per_batch = (current_time - self._start_time) / (self._step - self._start_step)
            examples_per_sec = FLAGS.batch_size / sec_per_batch
            print('%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
                datetime.now(), step, loss_value, examples_per_sec, sec_per_batch), flush=True)
        if step % FLAGS.log_frequency == 0 or step == self._first_step:
            self._start_step, self._start_time = self._step, current_time


def train():
    """Trains CIFAR-10 until --max_steps."""
    with tf.Graph().as_default():
        global_step = tf.train.get_or_create_global_step()

        # Input on the CPU leaves the GPU to the network.
        with tf.device('/cpu:0'):
            images, labels = cifar10.distorted_inputs()

        # Build a graph that computes the logits.
        logits = cifar10.inference(images)

        # Calculate the loss.
        loss = cifar10.loss(logits, labels)

        # Build a graph that trains the network with one batch and updates the variables.
        train_op = cifar10.train(loss, global_step)

        if FLAGS.restart:
            session.remove_run(FLAGS.train_dir)
        # Like tf.train.MonitoredTrainingSession, but Ctrl-C saves, and NaN is never saved.
        with session.training_session(
                checkpoint_dir=FLAGS.train_dir,
                hooks=[tf.train.StopAtStepHook(last_step=FLAGS.max_steps),
                       tf.train.NanTensorHook(loss),
                       _LoggerHook(loss)],
                config=tf.ConfigProto(log_device_placement=FLAGS.log_device_placement)) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def main(argv=None):  # Also for `tf.app.run(main)`.
    script.show_devices(cifar10.compute_type())
    cifar10.maybe_download_and_extract()
    train()


if __name__ == '__main__':
    script.run(main)
