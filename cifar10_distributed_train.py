"""Trains a network with several processes, on one or several machines, with synchronous updates.

    python cifar10_distributed_train.py --num_workers=2
    mpirun -n 4 python cifar10_distributed_train.py
    python cifar10_distributed_train.py --worker_hosts=a:2222,b:2222 --task_index=0

TF_CONFIG and Slurm are supported, too. Each process is a worker with its own copy of the variables
and its own shard of the images; each step averages the gradients of all workers. Only worker 0
prints, validates and saves. The checkpoints are the same as those of cifar10_train.py. If a worker
is lost, all others exit with a line that names it; run the same command again to resume.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.nets import summaries, variables
from cifar10_lib.program import console, devices, ownership
from cifar10_lib.training import resume, session as training, worker as worker_
from cifar10_lib.workers import cluster, collectives, launch, team as team_

FLAGS = flags.FLAGS

# Flags that must have the same value for all workers; an error names the first that differs.
_COMMON_FLAGS = ('batch_size', 'epochs', 'validate_every', 'validate_on',
                 'learning_rate', 'use_fp16', 'use_bf16', 'bucket_mb',
                 'overlap', 'linear_scaling', 'warmup_epochs', 'step_timeout', 'stage_timeout')


def build(images, labels, team):
    """Builds the network and its training.

    Args:
        images: float32 [batch, height, width, 3], this worker's.
        labels: int32 [batch].
        team: a `team.Team` or `worker.Worker`.

    Returns:
        train_op: operation that runs one step.
        total_loss: float32 [], mean over all workers.
    """
    recipe = recipes.chosen(training=True)
    global_step = tf.train.get_or_create_global_step()
    loss = cifar10.loss(recipe.inference(images), labels)
    losses = team.mean_losses(summaries.losses_by_name(loss, cifar10.TOWER_NAME))
    grads = team.mean_gradients(variables.compute_gradients(loss))
    train_op = cifar10.train(losses['total_loss'], global_step, recipe, grads,
                             summaries.losses(losses), team.size)
    return train_op, losses['total_loss']


def train(team=worker_.Worker(), first_step=None):  # noqa: B008
    """Builds the graph and steps it until --max_steps, resuming if it can.

    Args:
        team: a `team.Team` or `worker.Worker`.
        first_step: the step at which worker 0 starts; the others may be unable to read its
            checkpoints.
    """
    worker = team
    with tf.Graph().as_default():
        training.use_seed(worker.rank, first_step)
        with tf.device('/cpu:0'):  # Input on the host leaves the GPU to the network.
            tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(recipes.chosen(), (worker.rank, worker.size))
        train_op, loss = build(images, labels, team)
        examples_per_step = cifar10.source().examples_per_step(worker.size)
        with training.session(loss, examples_per_step, team) as session:
            while not session.should_stop():
                session.run(train_op)


def facts():
    """Settings that all workers must share: dictionary from name to JSON value."""
    source = cifar10.source()
    return {'--net': FLAGS.net, '--dataset': source.data_set.name,  # Folders may differ.
            **{f'--{name}': FLAGS[name].value for name in _COMMON_FLAGS},
            'training images': source.num_examples(),  # The number of steps may follow from it.
            '--max_steps': FLAGS.max_steps, 'TensorFlow': tf.version.VERSION,
            'a GPU': bool(devices.visible_gpus())}


def main(cluster_):
    if not cluster_.worker.leads:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.
    training.apply_recipe_defaults(cluster_.worker.size)
    with team_.joined(cluster_, facts()) as team:
        first_step = team.barrier('the run', value=(
            resume.first_step() if team.leads and training.steps_left() else None))
        if first_step is None:  # Worker 0 has printed that no steps are left.
            return
        console.line(devices.line(dtype=variables.compute_type()))
        cifar10.maybe_download_and_extract()
        source = cifar10.source()
        team.barrier('the data', {
            'training images': source.num_examples(),
            **{f'label {label}': name for label, name in enumerate(source.data_set.classes)}})
        train(team, first_step)


if __name__ == '__main__':
    startup.run(lambda: launch.run(main),
                [devices, cifar10, settings, recipes, training, cluster, collectives,
                 launch, ownership])
