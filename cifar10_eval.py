"""Evaluates a training run while it trains, or after.

    python cifar10_eval.py

Every five minutes, if there is a new checkpoint in --checkpoint_dir, prints its precision @ 1
(accuracy) on the test set, each image once, with the moving averages of the variables. Run it next
to the trainer, or with --run_once to evaluate only the latest checkpoint.
"""
import time
from datetime import datetime

from cifar10_lib import checkpoints, errors, script

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10

FLAGS = tf.app.flags.FLAGS

tf.app.flags.DEFINE_string('eval_dir', '/tmp/cifar10_eval', 'Folder for event files.')
tf.app.flags.DEFINE_enum('eval_data', 'test', ['test', 'train_eval'],
                         'The images to evaluate: the test set, or the training images.')
tf.app.flags.DEFINE_string('checkpoint_dir', '/tmp/cifar10_train',
                           'Folder whose latest checkpoint is evaluated, or a checkpoint.')
tf.app.flags.DEFINE_integer('eval_interval_secs', 300, 'Number of seconds between evaluations.',
                            lower_bound=1)
tf.app.flags.DEFINE_integer('num_examples', 10000, 'Maximum number of images to evaluate.',
                            lower_bound=1)
tf.app.flags.DEFINE_boolean('run_once', False, 'Evaluate only the latest checkpoint, then exit.')


def eval_once(saver, summary_writer, top_k_op, summary_op):
    """Evaluates the latest checkpoint once.

    Args:
        saver: a `tf.train.Saver` of the variables to restore.
        summary_writer: a `tf.summary.FileWriter`.
        top_k_op: bool [batch], whether the prediction for each image is right.
        summary_op: string [], the merged summaries.

    Raises `errors.UserError` if there is no checkpoint, or it does not fit.
    """
    with tf.Session() as sess:
        # Like saver.restore, but compares shapes, and takes the one before a damaged one.
        global_step = checkpoints.restore(saver, sess, FLAGS.checkpoint_dir)

        # Start the threads that read images.
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
            # Each image counts once: the last batch may go beyond the end of the set.
            num_examples = min(FLAGS.num_examples, cifar10.num_examples(FLAGS.eval_data == 'test'))
            predictions = []
            while len(predictions) < num_examples:
                predictions.extend(sess.run(top_k_op))
            precision = np.mean(predictions[:num_examples])
            print('%s: precision @ 1 = %.3f' % (datetime.now(), precision), flush=True)

            summary = tf.Summary()
            summary.ParseFromString(sess.run(summary_op))
            summary.value.add(tag='Precision @ 1', simple_value=precision)
            summary_writer.add_summary(summary, global_step)
            summary_writer.flush()
        finally:  # An exception of a thread replaces the error "queue is closed".
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=10)


def evaluate():
    """Evaluates the latest checkpoint once, or every --eval_interval_secs if it is a new one."""
    with tf.Graph().as_default() as g:
        tf.set_random_seed(1)  # TF_DETERMINISTIC_OPS=1 requires one. It changes nothing here.

        # Images and labels of the test set, or of the training set without distortions.
        images, labels = cifar10.inputs(eval_data=FLAGS.eval_data == 'test')

        logits = cifar10.inference(images)

        # One prediction per image; tf.nn.in_top_k would count all classes of a tie.
        top_k_op = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)

        # Restore the moving averages of the learned variables. To evaluate the variables
        # themselves, give the Saver no argument.
        variable_averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
        saver = tf.train.Saver(variable_averages.variables_to_restore())

        summary_op = tf.summary.merge_all()
        summary_writer = tf.summary.FileWriter(FLAGS.eval_dir, g)

        evaluated = None
        while True:
            latest = checkpoints.latest(FLAGS.checkpoint_dir)
            if FLAGS.run_once or (latest and latest != evaluated):
                try:
                    eval_once(saver, summary_writer, top_k_op, summary_op)
                    evaluated = latest
                except errors.UserError:  # The run may have been started over in the meantime.
                    if FLAGS.run_once or checkpoints.latest(FLAGS.checkpoint_dir) == latest:
                        raise
            elif not latest:
                print('No checkpoint file found in %s' % FLAGS.checkpoint_dir, flush=True)
            if FLAGS.run_once:
                break
            time.sleep(FLAGS.eval_interval_secs)


def main(argv=None):  # Also for `tf.app.run(main)`.
    checkpoints.refuse_other_program(FLAGS.checkpoint_dir, 'classification.py --evaluate')
    cifar10.maybe_download_and_extract()
    evaluate()


if __name__ == '__main__':
    script.run(main)
