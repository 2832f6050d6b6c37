"""Trains a network with several processes, on one or several machines, with synchronous updates.

    python cifar10_distributed_train.py --num_workers=2
    mpirun -n 4 python cifar10_distributed_train.py
    python cifar10_distributed_train.py --worker_hosts=a:2222,b:2222 --task_index=0

torchrun, TF_CONFIG and Slurm are supported, too. Each process is a worker with its own copy of the
variables and its own shard of the images; each step averages the gradients of all workers. Only
worker 0 prints, validates and saves. The checkpoints are the same as those of cifar10_train.py. If
a worker is lost, all others exit with a line that names it; run the same command again to resume.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from cifar10_lib import recipes
from cifar10_lib.nets import summaries, variables
from cifar10_lib.program import console, devices
from cifar10_lib.training import resume, session as training, worker
from cifar10_lib.workers import connected, launch

FLAGS = flags.FLAGS

# Flags on which the updates and the waiting times of all workers depend.
_COMMON_FLAGS = ('batch_size', 'epochs', 'validate_every', 'learning_rate', 'linear_scaling',
                 'warmup_epochs', 'use_fp16', 'use_bf16', 'step_timeout')


def train(me=worker.Worker(), first_step=None):  # noqa: B008, it has no state.
    """Builds the graph and steps it until --max_steps, resuming if it can.

    Args:
        me: this `worker.Worker`.
        first_step: worker 0's `resume.first_step`; others may be unable to read its files.
    """
    recipe = recipes.chosen(training=True)
    with tf.Graph().as_default():
        training.use_seed(me.rank, first_step)
        with tf.device('/cpu:0'):  # Input on the host leaves the GPU to the network.
            global_step = tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs(recipe, shard=(me.rank, me.size))
        logits = recipe.inference(images)  # cifar10.inference, unless --net names another.
        loss = cifar10.loss(logits, labels, recipe.label_smoothing)
        # Means over all workers: here they wait for one another in each step.
        losses = me.mean_losses(summaries.losses_by_name(loss, cifar10.TOWER_NAME))
        grads = me.mean_gradients(variables.compute_gradients(loss))
        train_op = cifar10.train(losses['total_loss'], global_step, recipe, grads,
                                 summaries.losses(losses), me.size)
        with training.session(losses['total_loss'], FLAGS.batch_size * me.size, me) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def facts():
    """What must be the same for all workers; an error names the first that differs.

    Folders may differ, and flags that only worker 0 uses. Returns {name: JSON value}.
    """
    source = cifar10.source()
    return {'--net': FLAGS.net, '--dataset': source.data_set.name,
            **{f'--{name}': FLAGS[name].value for name in _COMMON_FLAGS},
            'training images': source.num_examples(),  # The number of steps may follow from it.
            '--max_steps': None if FLAGS['max_steps'].using_default_value else FLAGS.max_steps,
            **{name: value for name, value in vars(cifar10).items()
               if name.isupper() and isinstance(value, (int, float))},  # One copy may be edited.
            'TensorFlow': tf.version.VERSION,
            'a GPU': bool(devices.visible_gpus())}


def main(workers):
    """Trains as one of several workers, a `cluster.Cluster`."""
    if workers.rank:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.
    training.apply_recipe_defaults(workers.size, leads=False)
    with connected.joined(workers, facts()) as me:
        if me.rank == 0:  # Reads the run's files: an error in them now ends all workers.
            training.apply_recipe_defaults(me.size)
        run = me.barrier('the run', value=(FLAGS.max_steps, resume.first_step())
                         if me.rank == 0 and training.steps_left() else None)
        if run is None:  # Worker 0 has printed that no steps are left.
            return
        FLAGS.set_default('max_steps', run[0])
        console.line(devices.line(dtype=variables.compute_type()))
        cifar10.maybe_download_and_extract()
        source = cifar10.source()
        me.barrier('the data', {
            'training images': source.num_examples(),
            **{f'label {label}': name for label, name in enumerate(source.data_set.classes)}})
        train(me, run[1])


if __name__ == '__main__':
    startup.run(lambda: launch.run(main))
