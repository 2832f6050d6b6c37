"""Trains a network with many processes, on one machine or many, with synchronous updates.

    python cifar10_distributed_train.py --num_workers=2
    mpirun -n 4 python cifar10_distributed_train.py
    python cifar10_distributed_train.py --worker_hosts=a:2222,b:2222 --task_index=0

TF_CONFIG and Slurm say it, too. Each process is a worker with a copy of the variables of its own
and a share of the images; a step averages the gradients of all of them. Worker 0 alone prints,
validates and writes; its checkpoints are those of cifar10_train.py. When a worker is lost, all end
with a line that names it; the same command goes on from the latest checkpoint.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from program import ownership
import recipes
from training import session as training
from workers import cluster
from workers import collectives
from workers import launch
from workers import rendezvous
from workers import team as team_

FLAGS = flags.FLAGS

# Flags that must be the same for all workers; the first that differs is told.
_COMMON_FLAGS = ('batch_size', 'max_steps', 'validate_every', 'validate_on', 'learning_rate',
                 'use_fp16', 'bucket_mb', 'overlap', 'warmup_epochs', 'step_timeout',
                 'stage_timeout')


def build(images, labels, group, team=None):
    """Builds the network and what trains it.

    Args:
        images: float32 [batch, height, width, 3], this worker's.
        labels: int32 [batch].
        group: the `collectives.Group`.
        team: the `team.Team`, None for a worker alone.

    Returns:
        train_op: operation that makes one step.
        total_loss: float32 [], mean over all workers.
        gradients: list of (gradient, variable), this worker's.
    """
    net = recipes.net()
    global_step = tf.train.get_or_create_global_step()
    loss = cifar10.loss(net.inference(images, training=True), labels)
    gradients = cifar10.compute_gradients(loss)
    losses = cifar10.losses_by_name(loss)
    if team:
        errors = tf.get_collection_ref('errors')
        *means, errors[0] = team.mean_losses({**losses, 'error': errors[0]}).values()
        losses = dict(zip(losses, means))
    means = collectives.all_reduce_mean(gradients, group, FLAGS.bucket_mb, FLAGS.overlap)
    train_op = tf.group(
        cifar10.apply_gradients(means, global_step, group.size, net.schedule, net.optimizer),
        cifar10.loss_summaries(losses))
    return train_op, losses['total_loss'], gradients


def train(me=None, group=None, peers=None):
    """Builds the graph and runs it until --max_steps, from the latest checkpoint if there is one.

    Args:
        me: the `cluster.Cluster`; by default a worker alone.
        group: the `collectives.Group` that it belongs to.
        peers: the `watch.Meeting`, None for a worker alone.
    """
    me, group = me or cluster.Cluster(), group or collectives.Group()
    with tf.Graph().as_default():
        step = None if me.rank else training.first_step()
        # Worker 0 alone looks into --train_dir, which may be on its machine only.
        training.use_seed(me.rank, peers.agree('the first step', tell=step) if peers else step)
        with tf.device('/cpu:0'):  # Input on the host leaves the GPU to the network.
            tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(recipes.net().augment, (me.rank, me.size))
        team = team_.Team(group, peers) if peers else None
        train_op, loss, gradients = build(images, labels, group, team)
        if team:
            peers.agree('the gradients', {'gradients': collectives.layout(gradients)})
            team.serve(startup.session_config(FLAGS.log_device_placement), me.local_rank,
                       startup.visible_gpus())
        with training.session(loss, FLAGS.batch_size * me.size, team=team) as session:
            while not session.should_stop():
                session.run(train_op)


def facts():
    """What must be the same for all workers: dictionary from name to JSON value."""
    return {'--net': FLAGS.net, '--dataset': cifar10.data_set().name,  # Folders may differ.
            **{f'--{name}': FLAGS[name].value for name in _COMMON_FLAGS},
            'TensorFlow': tf.version.VERSION, 'a GPU': bool(startup.visible_gpus())}


def main(me):
    if me.rank:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, until the end of the process.
    training.use_recipe(me.size)
    if me.size == 1:
        if training.steps_left():
            cifar10.maybe_download_and_extract()
            train()
        return
    group = collectives.Group(me.rank, me.size, bool(startup.visible_gpus()))
    with rendezvous.join(me, facts()) as peers, collectives.failures_of(peers):
        if me.rank == 0:
            training.steps_left()  # If none are left, all workers stop before the first.
        cifar10.maybe_download_and_extract()
        peers.agree('the data', {
            'training images': cifar10.num_examples(eval_data=False),
            **{f'label {label}': name for label, name in enumerate(cifar10.data_set().classes)}})
        train(me, group, peers)


if __name__ == '__main__':
    startup.run(lambda: launch.run(main),
                [startup, cifar10, recipes, training, cluster, collectives, ownership])
