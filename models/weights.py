"""Writes the averaged weights of a run as a checkpoint of their own, a quarter as large.

    python models/weights.py --checkpoint_dir=/tmp/resnet23 --model_dir=/tmp/weights

Every script reads it like a run's folder: prediction, evaluation, export, and training with
--initial_checkpoint. It has no raw weights and no state of the optimizer, so no run can be resumed
from it.

The moving statistics of batch norms belong to the raw weights of the last steps. Averaged weights
have other ones, which this program computes from training images without distortions, as in section
3.2 of Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (2018).
"""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
import cifar10_input
from cifar10_lib import recipes, settings
from cifar10_lib.evaluation import checkpoint_flags, model
from cifar10_lib.program import console, devices, files, ownership, paths
from cifar10_lib.runs import checkpoints, names

paths.define('model_dir', None, 'Folder to create for the weights.')

FLAGS = flags.FLAGS

_AVERAGE = '/ExponentialMovingAverage'
_BATCH_SIZE = 250
_BATCHES = 40  # Statistics move by a tenth of the way per batch, so the first few do not matter.


def write():
    """Writes the averages of the checkpoint that the flags select to --model_dir.

    Raises:
        app.UsageError: --model_dir is not given or not empty, or the checkpoint is missing or does
            not fit, as one without averages.
        errors.DataError: the data set is damaged, or cannot be downloaded.
    """
    if not FLAGS.model_dir:
        raise app.UsageError('--model_dir is missing: choose a new folder')
    path = checkpoint_flags.checkpoint()
    if checkpoint_flags.use_run() is None:
        raise app.UsageError(f'{FLAGS.checkpoint_dir} has no {names.RUN}: choose the folder of a '
                             'run')
    with files.new_folder(FLAGS.model_dir, '--model_dir') as partial:
        values = model.Model.of_pixels().read(path, True, 'Choose another --checkpoint_dir')
        values.update(_statistics(values), global_step=np.int64(checkpoints.step(path)))
        with tf.Graph().as_default(), tf.Session() as session:
            variables = [tf.Variable(value, name=name) for name, value in sorted(values.items())]
            session.run(tf.variables_initializer(variables))
            tf.train.Saver(variables, save_relative_paths=True).save(
                session, os.path.join(partial, os.path.basename(path)), write_meta_graph=False)
        shutil.copy(os.path.join(FLAGS.checkpoint_dir, names.RUN), partial)
    console.line(f'{FLAGS.model_dir} holds the averaged weights of {path}.')


def _statistics(values):
    """The moving statistics of batch norms that fit averaged weights, {name: array}.

    `values` is {name of an average or statistic: array}; the statistics are those to start with.
    The result is empty if the network has none.
    """
    cifar10.maybe_download_and_extract()
    FLAGS.batch_size = _BATCH_SIZE
    source = cifar10.source()
    with source.damage_reported(), tf.Graph().as_default(), \
            tf.Session(config=devices.session_config()) as session:
        with tf.device('/cpu:0'):
            images, _ = cifar10_input.batches(source, recipes.chosen().prepare)
        recipes.chosen().inference(images, training=True)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        loader = checkpoints.Loader(list(variables.values()))
        loader.assign({name.removesuffix(_AVERAGE): value for name, value in values.items()},
                      variables, session)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        try:
            for _ in range(_BATCHES if updates else 0):
                session.run(updates)
        finally:  # An exception of a thread replaces the error "queue is closed".
            coordinator.request_stop()
            coordinator.join(threads)
        return session.run({name: variable for name, variable in variables.items()
                            if name in values})


if __name__ == '__main__':
    startup.run(write, [devices, cifar10, settings, recipes, checkpoint_flags, ownership],
                unused=(*settings.TRAINING_FLAGS, 'batch_size', 'use_moving_averages'))
