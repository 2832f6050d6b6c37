"""Trains a network on one device.

    python cifar10_train.py

The tutorial reports an accuracy of about 0.86 after 100,000 steps (256 epochs). If --train_dir
holds a checkpoint, training resumes from it; --restart starts over. Evaluate the run with
cifar10_eval.py, and watch it with tensorboard --logdir.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import time
from datetime import datetime

import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.program import console, devices, startup
from cifar10_lib.runs import starting
from cifar10_lib.training import monitored, worker
from cifar10_lib.workers import cluster

settings.define_training_flags()

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


class _LoggerHook(tf.train.SessionRunHook):
    """Prints the loss and the speed.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    def __init__(self, loss, start):
        """`loss` is the total loss, float32 []; `start` the `starting.Start`."""
        self._loss = loss
        self._log_frequency = start.run.log_frequency
        self._images_per_step = start.epochs.images_per_step
        self._first_step = self._step = start.step

    def after_create_session(self, session, coord):
        self._start_step, self._start_time = self._step, time.time()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)  # Asks for loss value.

    def after_run(self, run_context, run_values):
        step, current_time = self._step, time.time()
        self._step += 1
        if step % self._log_frequency == 0:
            loss_value = run_values.results
            sec_per_batch = (current_time - self._start_time) / (self._step - self._start_step)
            examples_per_sec = self._images_per_step / sec_per_batch
            console.line('%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
                datetime.now(), step, loss_value, examples_per_sec, sec_per_batch))
        if step % self._log_frequency == 0 or step == self._first_step:
            self._start_step, self._start_time = self._step, current_time


def train(source=None, recipe=None, start=None):
    """Builds the graph, and runs training until `start.max_steps`.

    Args:
        source: the `image_source.Source` of the training images.
        recipe: the `recipes.Recipe`: `cifar10.inference`, unless --net names another network.
        start: the `starting.Start` of the run, which says where to begin and when to stop.
    """
    if start is None:  # Programs written against the tutorial pass nothing.
        main()
        return
    with tf.Graph().as_default(), tf.device(devices.variables_on(start.run.variables)):
        monitored.use_seed(start)
        # Input and schedule on the CPU leave the GPU to the network.
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(source, recipe.distort)
            lr = recipe.learning_rate(global_step, source, start.epochs)

        logits = recipe.logits(images, source.num_classes, training=True)

        loss = recipe.loss(logits, labels)

        opt = recipe.own_optimizer(lr, start.max_steps)
        train_op = cifar10.train(loss, global_step, lr, opt)

        with monitored.session(start, hooks=[
                tf.train.StopAtStepHook(last_step=start.max_steps),
                tf.train.NanTensorHook(loss),
                _LoggerHook(loss, start),
                # Checkpoints, summaries, metrics.csv, validation.
                *monitored.shared_hooks(start, loss)]) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    cluster.refuse_several()
    devices.choose(FLAGS.device)
    recipe = recipes.chosen()
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    start = starting.read(settings.run(recipe), source, recipe)  # Reads the folder once.
    if start.steps_left():
        console.line(devices.line(dtype=recipe.dtype, device=FLAGS.device))
        cifar10.maybe_download_and_extract(source)
        with worker.interrupts_deferred():
            train(source, recipe, start)


if __name__ == '__main__':
    startup.run(main)
