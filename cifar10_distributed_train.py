"""Trains a network with several processes, on one or several machines, with synchronous updates.

    python cifar10_distributed_train.py --num_workers=2
    mpirun -n 4 python cifar10_distributed_train.py
    python cifar10_distributed_train.py --worker_hosts=a:2222,b:2222 --task_index=0

torchrun, TF_CONFIG and Slurm are supported, too. Each process is a worker with its own copy of the
variables and its own shard of the images; each step averages the gradients of all workers. Only
worker 0 prints, validates and saves. The checkpoints are the same as those of cifar10_train.py. If
a worker is lost, all others exit with a line that names it; run the same command again to resume.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import dataclasses
import os
import sys

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.nets import precision
from cifar10_lib.program import console, devices, startup
from cifar10_lib.runs import starting
from cifar10_lib.training import monitored, session_hooks, worker
from cifar10_lib.workers import cluster, connected, launch

settings.define_training_flags()
flags.DEFINE_list('worker_hosts', [], 'HOST:PORT of every worker, as the other workers reach it; '
                  'separated by commas.')
flags.DEFINE_integer('task_index', None, 'Index of this worker in --worker_hosts, from 0.',
                     lower_bound=0, upper_bound=10**6)
flags.DEFINE_integer('num_workers', None, 'Start this number of workers on this machine.',
                     lower_bound=1, upper_bound=256)
flags.DEFINE_string('coordinator', None, 'HOST:PORT where worker 0 listens for the others, with '
                    'mpirun, mpiexec, srun and torchrun. By default a port of the host of worker '
                    '0, if its name is known.')
flags.DEFINE_float('start_timeout', cluster.Cluster.start_timeout, 'Seconds within which all '
                   'workers must join.', lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('step_timeout', cluster.Cluster.step_timeout, 'Seconds within which all workers '
                   'end if one fails, freezes or cannot be reached. A step must take less, '
                   'including the time in which worker 0 saves a checkpoint.', lower_bound=1.0,
                   upper_bound=1e6)
flags.DEFINE_float('stage_timeout', cluster.Cluster.stage_timeout, 'Seconds that the first worker '
                   'to reach a point outside of steps (the data, the graph, a validation) waits '
                   'for the others. A download and a validation must take less.', lower_bound=1.0,
                   upper_bound=1e7)

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.

# Flags on which the updates and the waiting times of all workers depend.
_COMMON_FLAGS = ('epochs', 'learning_rate', 'linear_scaling', 'warmup_epochs', 'use_fp16',
                 'use_bf16', 'step_timeout')


def average_losses(total_loss, me):
    """Replaces the losses in the collection `losses` by their means over all workers.

    Args:
        total_loss: float32 [], of this worker's batch.
        me: this `worker.Worker`.

    Returns the mean of the total loss, float32 [].
    """
    losses = tf.get_collection_ref('losses')
    own = {_plain_name(each, me): each for each in [*losses, total_loss]}
    with tf.name_scope(None), tf.device('/cpu:0'):
        means = {name: tf.identity(mean, name=name)
                 for name, mean in me.mean_losses(own).items()}
    losses[:] = [means[_plain_name(each, me)] for each in losses]
    return means[_plain_name(total_loss, me)]


def _plain_name(tensor, me):
    """The name of a tensor's op without the tower, as in cifar10_train.py: 'cross_entropy' etc."""
    return tensor.op.name.removeprefix(_tower(me) + '/')


def _tower(me):
    """The name scope of a worker's ops: each worker is a tower."""
    return '%s_%d' % (cifar10.TOWER_NAME, me.rank)


def train(source, recipe, start, me):
    """Trains for a number of steps, together with the other workers.

    Args:
        source: the `image_source.Source` of the training images; this worker reads its shard.
        recipe: the `recipes.Recipe`: `cifar10.inference`, unless --net names another network.
        start: the `starting.Start` of the run, which says where to begin and when to stop.
        me: this `worker.Worker`.
    """
    with tf.Graph().as_default(), tf.device(devices.variables_on(start.run.variables)):
        monitored.use_seed(start, me.rank)
        # Input and schedule on the CPU leave the GPU to the network.
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            shard = dataclasses.replace(source, shard=(me.rank, me.size))
            images, labels = cifar10.distorted_inputs(shard, recipe.distort)
            lr = recipe.learning_rate(global_step, source, start.epochs)

        # This worker's logits, loss and gradients.
        opt = recipe.own_optimizer(lr, start.max_steps)
        if opt is None:
            opt = precision.scaled(tf.train.GradientDescentOptimizer(lr), recipe.dtype)
        with tf.name_scope(_tower(me)):
            logits = recipe.logits(images, source.num_classes, training=True)
            loss = recipe.loss(logits, labels)
            grads = opt.compute_gradients(loss, gate_gradients=opt.GATE_NONE)  # As in cifar10.py.

        # Here the workers wait for one another.
        loss = average_losses(loss, me)
        grads = me.mean_gradients(grads)

        # All workers make the same update, each of its own variables.
        train_op = cifar10.train(loss, global_step, lr, opt, grads)

        hooks = [tf.train.StopAtStepHook(last_step=start.max_steps)]
        if me.rank == 0:
            hooks += [
                tf.train.NanTensorHook(loss),
                session_hooks.LoggerHook(loss, start.epochs, start.run.log_frequency)]
        # Checkpoints, summaries, metrics.csv, validation: worker 0's.
        hooks += monitored.shared_hooks(start, loss, me=me)
        with monitored.session(start, hooks, me) as mon_sess:
            while not mon_sess.should_stop():
                mon_sess.run(train_op)


def facts(run, source, recipe):
    """What must be the same for all workers; an error names the first that differs.

    Folders may differ, and flags that only worker 0 uses. Returns {name: JSON value}.
    """
    found = {'--net': recipe.name, '--dataset': source.data_set.name}
    for name in _COMMON_FLAGS:
        found[f'--{name}'] = FLAGS[name].value
    found['--batch_size'] = source.batch_size  # Their defaults may be the recipe's.
    found['--validate_every'] = run.validate_every
    found['training images'] = source.num_examples()  # The number of steps may follow from it.
    found['--max_steps'] = settings.given('max_steps')
    for name, value in vars(cifar10).items():  # One copy may be edited.
        if name.isupper() and isinstance(value, (int, float)):
            found[name] = value
    found['TensorFlow'] = tf.version.VERSION
    found['a GPU'] = bool(devices.visible_gpus())
    return found


def work(workers):
    """Trains as one of several workers, a `cluster.Cluster`."""
    if workers.rank:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.
    recipe = recipes.chosen()
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    run = settings.run(recipe)
    with connected.joined(workers, lambda: facts(run, source, recipe)) as me:
        begin = None
        if me.rank == 0:  # Reads the run's files: an error in them now ends all workers.
            start = starting.read(run, source, recipe, me.size)
            if start.steps_left():
                begin = start.step, start.epochs.changes, start.max_steps
        begin = me.barrier('the run', value=begin)
        if begin is None:  # Worker 0 has printed that no steps are left.
            return
        if me.rank:  # Worker 0's files may be out of reach.
            start = starting.follow(run, source, recipe, *begin)
        console.line(devices.line(dtype=recipe.dtype, device=FLAGS.device))
        cifar10.maybe_download_and_extract(source)
        me.barrier('the data', {
            'training images': source.num_examples(),
            'the number of classes': source.num_classes,
            **{f'the size of {os.path.relpath(path, source.folder)}': os.path.getsize(path)
               for path in source.files()},
            **{f'label {label}': name for label, name in enumerate(source.data_set.classes)}})
        with worker.interrupts_deferred():
            train(source, recipe, start, me)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    devices.choose(FLAGS.device)
    workers = dataclasses.replace(
        cluster.resolve(FLAGS.worker_hosts, FLAGS.task_index, FLAGS.num_workers, FLAGS.coordinator),
        start_timeout=FLAGS.start_timeout, step_timeout=FLAGS.step_timeout,
        stage_timeout=FLAGS.stage_timeout)
    return launch.run(work, workers, FLAGS.num_workers or 1)


if __name__ == '__main__':
    startup.run(main)
