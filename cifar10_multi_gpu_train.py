"""Trains the network on several GPUs with synchronous updates.

    python cifar10_multi_gpu_train.py --num_gpus=2

Each GPU runs a copy of the network, a tower, on its own batches. The variables are in host memory,
and are updated with the mean of the towers' gradients. With fewer GPUs than towers, towers share
GPUs; without GPUs, all run on the CPU. It resumes runs of cifar10_train.py, and vice versa.
"""
import re
import time
from datetime import datetime

from cifar10_lib import script, session

import tensorflow.compat.v1 as tf
from six.moves import xrange

import cifar10

FLAGS = tf.app.flags.FLAGS

tf.app.flags.DEFINE_string('train_dir', '/tmp/cifar10_train',
                           'Folder for checkpoints and event files.')
tf.app.flags.DEFINE_integer('max_steps', 1000000, 'Total number of steps, including those before a '
                            'resume.', lower_bound=1)
tf.app.flags.DEFINE_integer('num_gpus', 1, 'Number of towers, one per GPU; each takes a batch per '
                            'step.', lower_bound=1)
tf.app.flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
tf.app.flags.DEFINE_integer('log_frequency', 10, 'Number of steps between printed lines.',
                            lower_bound=1)
tf.app.flags.DEFINE_boolean('restart', False,
                            "Remove an earlier run's files from --train_dir and start over.")


def tower_loss(scope, images, labels):
    """Builds one tower, and returns the total loss of its batch, float32 [].

    Args:
        scope: name scope of the tower, such as 'tower_0/'.
        images: float32 [batch, height, width, 3].
        labels: int32 [batch].
    """
    logits = cifar10.inference(images)

    # Adds to the collection `losses`. The sum that it returns has those of earlier towers, too.
    _ = cifar10.loss(logits, labels)

    # Keep those whose names start with this tower's scope.
    losses = tf.get_collection('losses', scope)
    total_loss = tf.add_n(losses, name='total_loss')

    # A curve for each loss of the first tower, without its name, and outside of its scope.
    if tf.get_variable_scope().reuse is not True:
        for each in losses + [total_loss]:
            loss_name = re.sub('%s_[0-9]*/' % cifar10.TOWER_NAME, '', each.op.name)
            with tf.name_scope(None):
                tf.summary.scalar(loss_name, each)
    return total_loss


def average_gradients(tower_grads):
    """Averages the gradient of each variable over all towers: the point where they synchronise.

    Args:
        tower_grads: list over towers of lists of (gradient, variable), all in the same order.

    Returns a list of (mean gradient, variable), without variables that have no gradient.
    """
    average_grads = []
    for grad_and_vars in zip(*tower_grads):
        # ((grad of tower 0, var), (grad of tower 1, var), ...), where the towers share var.
        grads = [grad for grad, _ in grad_and_vars if grad is not None]
        if not grads:
            continue
        var = grad_and_vars[0][1]
        with tf.device(var.device):
            average_grads.append((tf.add_n(grads) / len(grad_and_vars), var))
    return average_grads


def train():
    """Trains CIFAR-10 on --num_gpus towers until --max_steps."""
    with tf.Graph().as_default(), tf.device('/cpu:0'):
        global_step = tf.train.get_or_create_global_step()

        # The schedule counts images, so it does not depend on the number of towers.
        lr = cifar10.learning_rate(global_step, FLAGS.batch_size * FLAGS.num_gpus)
        tf.summary.scalar('learning_rate', lr)
        opt = cifar10.optimizer(lr)

        images, labels = cifar10.distorted_inputs()
        batch_queue = tf.FIFOQueue(2 * FLAGS.num_gpus, [images.dtype, labels.dtype],
                                   [images.shape, labels.shape], name='prefetch_queue')
        enqueue_op = batch_queue.enqueue([images, labels])
        tf.train.add_queue_runner(tf.train.QueueRunner(batch_queue, [enqueue_op]))

        tower_losses = []
        tower_grads = []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in xrange(FLAGS.num_gpus):
                with tf.device('/gpu:%d' % i):
                    with tf.name_scope('%s_%d' % (cifar10.TOWER_NAME, i)) as scope:
                        # Each tower takes a batch of its own.
                        image_batch, label_batch = batch_queue.dequeue()

                        # A whole network, with the variables of the first tower.
                        loss = tower_loss(scope, image_batch, label_batch)

                        # Later towers share the variables, and add no summaries.
                        tf.get_variable_scope().reuse_variables()

                        grads = cifar10.compute_gradients(opt, loss)
                        tower_losses.append(loss)
                        tower_grads.append(grads)

        # tf.Variable makes one per tower, of which the first alone would be trained.
        for var in tf.trainable_variables('%s_[1-9]' % cifar10.TOWER_NAME):
            raise ValueError('The towers do not share %s: create it by tf.get_variable'
                             % var.op.name)

        # Here the towers wait for one another.
        grads = average_gradients(tower_grads)
        mean_loss = tf.reduce_mean(tower_losses, name='mean_loss')

        # One update of the shared variables, as in cifar10_train.py.
        train_op = cifar10.update(opt, grads, global_step)

        if FLAGS.restart:
            session.remove_run(FLAGS.train_dir)
        # Some operations have no GPU kernel, and there may be fewer GPUs than towers: soft
        # placement moves them to other devices.
        with session.training_session(
                checkpoint_dir=FLAGS.train_dir,
                hooks=[tf.train.StopAtStepHook(last_step=FLAGS.max_steps),
                       tf.train.NanTensorHook(mean_loss)],
                config=tf.ConfigProto(allow_soft_placement=True,
                                      log_device_placement=FLAGS.log_device_placement)) as mon_sess:
            step = tf.train.global_step(mon_sess.raw_session(), global_step)
            while not mon_sess.should_stop():
                start_time = time.perf_counter()
                _, loss_value = mon_sess.run([train_op, mean_loss])
                duration = time.perf_counter() - start_time

                if step % FLAGS.log_frequency == 0:
                    examples_per_sec = FLAGS.batch_size * FLAGS.num_gpus / duration
                    print('%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
                        datetime.now(), step, loss_value, examples_per_sec, duration), flush=True)
                step += 1


def main(argv=None):  # Also for `tf.app.run(main)`.
    script.show_devices(cifar10.compute_type(), FLAGS.num_gpus)
    cifar10.maybe_download_and_extract()
    train()


if __name__ == '__main__':
    script.run(main)
