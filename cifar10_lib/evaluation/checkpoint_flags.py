"""Flags that name a trained model: the checkpoint to evaluate, predict with or export.

They have a module of their own, so that trainers do not accept flags that would have no effect.
"""
import os

from absl import app, flags

from cifar10_lib.program import command_line
from cifar10_lib.runs import checkpoints, names

command_line.define_path(
    'checkpoint_dir', '/tmp/cifar10_train', 'Folder whose latest checkpoint is read, or a '
    'checkpoint, such as FOLDER/model.ckpt-20.')
flags.DEFINE_boolean('best', False, 'Use the best checkpoint of a validated run, in '
                     '--checkpoint_dir/best, instead of the latest.')
flags.DEFINE_boolean('use_moving_averages', True, 'Use the moving averages of the variables '
                     'instead of the raw weights.')

FLAGS = flags.FLAGS


def folder():
    """Path of the folder whose latest checkpoint the flags name, or of a certain checkpoint."""
    return os.path.join(FLAGS.checkpoint_dir, names.BEST) if FLAGS.best else FLAGS.checkpoint_dir


def checkpoint():
    """Path of the checkpoint that the flags name; raises `app.UsageError` if there isn't one."""
    found = checkpoints.named(folder()) or checkpoints.latest(folder())
    if found is None:
        advice = ('train with --validate_every, or leave out --best' if FLAGS.best else
                  'train first, or choose another --checkpoint_dir')
        raise app.UsageError(f'No checkpoint in {folder()}: {advice}')
    return found
