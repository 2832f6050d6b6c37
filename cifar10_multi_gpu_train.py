"""Trains a network on several GPUs with synchronous updates.

    python cifar10_multi_gpu_train.py --num_gpus=2

Each GPU runs a copy of the network, a tower, on its own batches. The variables are in host memory,
unless --variables=gpu, and are updated with the mean of the towers' gradients. With fewer GPUs than
towers, towers share GPUs; without GPUs, all run on the CPU. The checkpoints are the same as those
of cifar10_train.py. Unlike the published script, it prints the mean loss of all towers and the time
of a whole step.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_input
from cifar10_lib import recipes
from cifar10_lib.nets import summaries, variables
from cifar10_lib.program import console, devices
from cifar10_lib.training import session as training
from cifar10_lib.workers import cluster

flags.DEFINE_integer('num_gpus', 1, 'Number of towers, one per GPU; each takes a batch per step.',
                     lower_bound=1, upper_bound=256)

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def tower_loss(scope, images, labels):
    """Builds one tower.

    Args:
        scope: name scope of the tower, for example 'tower_0/'.
        images: float32 [batch, height, width, 3].
        labels: int32 [batch].

    Returns:
        float32 [], the total loss of the tower's batch.
    """
    with tf.name_scope(scope):
        recipe = recipes.chosen(training=True)
        logits = recipe.inference(images)  # cifar10.inference, unless --net names another.
        return cifar10.loss(logits, labels, recipe.label_smoothing, scope)


def average_gradients(tower_grads):
    """Averages the gradient of each variable over all towers: the point where they synchronise.

    Args:
        tower_grads: list over towers of lists of (gradient, variable), all in the same order.

    Returns:
        List of (mean gradient, variable), without variables for which no tower has a gradient.

    Raises:
        ValueError: only some of the towers have a gradient for a variable.
    """
    averages = []
    for pairs in zip(*tower_grads):
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        variable = pairs[0][1]  # All towers share it.
        if not gradients:
            continue
        if len(gradients) < len(pairs):
            raise ValueError(f'{len(gradients)} of {len(pairs)} towers have a gradient for '
                             f'{variable.op.name}; expected all or none')
        with tf.name_scope(f'average_gradients/{variable.op.name}/'):
            averages.append((tf.add_n(gradients) / len(gradients), variable))
    return averages


def build_towers(batch_queue):
    """Builds `--num_gpus` towers that share their variables; each dequeues batches of its own.

    Returns:
        tower_grads: list over towers of lists of (gradient, variable).
        tower_losses: list over towers of dictionaries from name to float32 [].
    """
    tower_grads, tower_losses = [], []
    for i in range(FLAGS.num_gpus):
        with tf.variable_scope(tf.get_variable_scope(), reuse=i > 0), \
                tf.name_scope(f'{cifar10.TOWER_NAME}_{i}') as scope:
            image_batch, label_batch = cifar10_input.dequeue(batch_queue)
            with tf.device(f'/gpu:{i}'):
                loss = tower_loss(scope, image_batch, label_batch)
                tower_grads.append(variables.compute_gradients(loss))
            tower_losses.append(summaries.losses_by_name(loss, cifar10.TOWER_NAME, scope))
    return tower_grads, tower_losses


def mean_losses(tower_losses):
    """Means over towers: list of dictionaries from name to float32 [] -> one such dictionary."""
    with tf.name_scope('mean_losses'):
        return {name: tf.add_n([losses[name] for losses in tower_losses]) / len(tower_losses)
                for name in tower_losses[0]}


def train():
    """Builds the towers and steps them until --max_steps, resuming if it can."""
    recipe = recipes.chosen()
    with tf.Graph().as_default(), tf.device('/cpu:0'):
        training.use_seed()
        global_step = tf.train.get_or_create_global_step()
        batch_queue = cifar10_input.distorted_batches(
            cifar10.source(), recipe.augment, 2 * FLAGS.num_gpus,
            FLAGS.min_fraction_of_examples_in_queue)

        tower_grads, tower_losses = build_towers(batch_queue)
        with tf.device(variables.device()):
            grads = average_gradients(tower_grads)
        losses = mean_losses(tower_losses)
        train_op = cifar10.train(losses['total_loss'], global_step, recipe, grads,
                                 summaries.losses(losses), FLAGS.num_gpus)
        with training.session(losses['total_loss'], FLAGS.batch_size * FLAGS.num_gpus) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    cluster.refuse_several()
    used = devices.line(FLAGS.num_gpus, variables.compute_type())
    training.apply_recipe_defaults(FLAGS.num_gpus)
    if training.steps_left():
        console.line(used)
        cifar10.maybe_download_and_extract()
        train()


if __name__ == '__main__':
    FLAGS.set_default('max_steps', 1000000)
    startup.run(main)
