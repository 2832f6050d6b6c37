"""Writes the averaged weights of a run as a checkpoint of their own, a quarter as large.

    python models/weights.py --checkpoint_dir=/tmp/resnet23 --model_dir=/tmp/weights

Every script reads it like a run's folder: prediction, evaluation, export, and training with
--initial_checkpoint. It has no raw weights and no state of the optimizer, so no run can be resumed
from it.
"""
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

from cifar10_lib import settings
from cifar10_lib.evaluation import checkpoint_flags, model
from cifar10_lib.program import console, devices, files, path_flags
from cifar10_lib.runs import checkpoints, names

path_flags.define('model_dir', None, 'Folder to create for the weights.')

FLAGS = flags.FLAGS


def write():
    """Writes the averages of the checkpoint that the flags select to --model_dir.

    Raises:
        app.UsageError: --model_dir is not given or not empty, or the checkpoint is missing or does
            not fit, as one without averages.
    """
    if not FLAGS.model_dir:
        raise app.UsageError('--model_dir is missing: choose a new folder')
    path = checkpoint_flags.checkpoint()
    if checkpoint_flags.use_run() is None:
        raise app.UsageError(f'{FLAGS.checkpoint_dir} has no {names.RUN}: choose the folder of a '
                             'run')
    with files.new_folder(FLAGS.model_dir, '--model_dir') as partial:
        values = model.Model.of_pixels().read(path, True, 'Choose another --checkpoint_dir')
        if values.keys() - checkpoints.read(path).keys():
            raise app.UsageError(f'{path} has no statistics for its averages, as one of an earlier '
                                 'version: continue its run, or choose another --checkpoint_dir')
        values['global_step'] = np.int64(checkpoints.step(path))
        with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
            variables = [tf.Variable(value, name=name) for name, value in sorted(values.items())]
            session.run(tf.variables_initializer(variables))
            tf.train.Saver(variables, save_relative_paths=True).save(
                session, os.path.join(partial, os.path.basename(path)), write_meta_graph=False)
        shutil.copy(os.path.join(FLAGS.checkpoint_dir, names.RUN), partial)
    console.line(f'{FLAGS.model_dir} holds the averaged weights of {path}.')


if __name__ == '__main__':
    startup.run(write, unused=(*settings.TRAINING_FLAGS, *settings.INPUT_FLAGS,
                               'use_moving_averages'))
