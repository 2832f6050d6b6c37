"""The flags that several scripts share, and the values that they stand for.

Only scripts, `cifar10.py` and this module read flags: everything else takes arguments. The flags of
data and network are defined when this module is imported; those of a training run, and those that
name a trained model, by a function that a script calls.
"""
import dataclasses
import os
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.datasets import image_source, table
from cifar10_lib.program import command_line, errors
from cifar10_lib.runs import starting

command_line.define_path('dataset', 'cifar10', f'The images: {", ".join(table.TABLE)}, or a folder '
                         'made by cifar10_convert.py.')
flags.DEFINE_string('data_url', None, 'URL (http, https or file) to download the archive from; by '
                    "default the data set's own.")
flags.DEFINE_enum('validate_on', 'test', ['test', 'held_out'], 'Images for --validate_every: '
                  'the test set, or a tenth of the training images, which is then excluded from '
                  'training.')
flags.DEFINE_float('learning_rate', None, 'Initial learning rate. The default depends on --net and '
                   '--dataset.', lower_bound=0.0, upper_bound=1e6, short_name='l')
flags.DEFINE_boolean('linear_scaling', None, 'With k batches per step, use k times the learning '
                     'rate after a warm-up. Counts the batches of all towers and workers; a batch '
                     'of k times the default --batch_size counts as k. Default: true for resnet23.')
flags.DEFINE_float('warmup_epochs', 5, 'Epochs of the warm-up of --linear_scaling; 0 starts at the '
                   'full rate.', lower_bound=0.0, upper_bound=1e6, short_name='e')
flags.DEFINE_float('min_fraction_of_examples_in_queue', None, 'Fraction of the training images to '
                   'keep in the shuffle queue; by default that of cifar10_input.py, 0.4.',
                   lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_string('net', 'tutorial', 'The network and how it trains: tutorial, tutorial_fast (80 '
                    'epochs), resnet23 (300 epochs in batches of 64) or airbench94 (14 epochs in '
                    'batches of 1,024).', short_name='n')
flags.DEFINE_boolean('use_bf16', False, 'Compute in bfloat16 with float32 variables; for GPUs, and '
                     'CPUs with AMX or AVX512_BF16.')
flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu'],
                  'auto uses GPUs if available, cpu uses only the CPU, gpu requires a GPU.',
                  short_name='c')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.

# Scripts that do not train, or do not read record files, omit these from --help.
TRAINING_FLAGS = ('learning_rate', 'linear_scaling', 'min_fraction_of_examples_in_queue',
                  'validate_on', 'warmup_epochs')
INPUT_FLAGS = ('batch_size', 'data_dir', 'data_url')

# Programs written against the tutorial may define their own flags of these names, which then
# replace ours.
for _name in (*TRAINING_FLAGS, 'dataset', 'data_url', 'net', 'use_bf16', 'device'):
    FLAGS[_name].allow_override = True


@flags.validator('dataset')
def _check_dataset(name):
    try:
        image_source.find(name)
    except errors.DataError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def given(name: str) -> Any:
    """The value of a flag if the user gave one, else None."""
    if FLAGS[name].using_default_value:
        return None
    return FLAGS[name].value


def first_rate(*rates: float | None) -> float | None:
    """The first of these learning rates that is not None; None if all are."""
    return next((rate for rate in rates if rate is not None), None)


@dataclasses.dataclass(frozen=True)
class Network:
    """Which network to use, and how its learning rate differs; fields have the names of the flags.

    `learning_rate` and `linear_scaling` are None where those of the network apply.
    """

    net: str
    learning_rate: float | None
    linear_scaling: bool | None
    warmup_epochs: float


def network() -> Network:
    """The `Network` of the flags."""
    return Network(FLAGS.net, FLAGS.learning_rate, FLAGS.linear_scaling, FLAGS.warmup_epochs)


def batch_size(recipe) -> int:
    """--batch_size, or the default of a `Recipe` if it has one and the flag is not given."""
    if recipe.batch_size is None or given('batch_size') is not None:
        return FLAGS.batch_size
    return recipe.batch_size


def _is_defined(name):
    """Whether another script in this process has defined a flag of this module."""
    return flags.FLAGS.find_module_defining_flag(name) == __name__


def define_training_flags(max_steps: int = 100000) -> None:
    """Defines the flags of a training run, once in a process; `max_steps` is the default of
    --max_steps."""
    if _is_defined('train_dir'):
        return
    count: dict[str, Any] = {'lower_bound': 1, 'upper_bound': 10**9}
    command_line.define_path(
        'train_dir', '/tmp/cifar10_train', 'Folder for checkpoints and event files.')
    flags.DEFINE_integer('max_steps', max_steps,
                         'Total number of steps, including those before a resume.',
                         lower_bound=0, upper_bound=10**12)
    flags.DEFINE_float('epochs', None, 'Total number of epochs, instead of --max_steps; may have a '
                       'fraction.', lower_bound=0.0, upper_bound=1e6)
    flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
    flags.DEFINE_integer('log_frequency', 10, 'Number of steps between printed lines.', **count)
    flags.DEFINE_integer('save_checkpoint_secs', 600, 'Seconds between checkpoints.', **count)
    flags.DEFINE_integer('save_checkpoint_steps', None,
                         'Steps between checkpoints, instead of --save_checkpoint_secs.', **count)
    flags.DEFINE_integer('keep_checkpoints', 5, 'Number of checkpoints to keep: the last ones. A '
                         'resumed run keeps as many as there are, if they are more.', **count)
    flags.DEFINE_integer('validate_every', None, 'Number of epochs between validations on the '
                         'images of --validate_on; 0 means never, the default except for resnet23 '
                         '(1).', lower_bound=0, upper_bound=10**9)
    flags.DEFINE_integer('profile', None, 'Trace one step every N steps: writes '
                         'timeline-STEP.json into --train_dir for chrome://tracing, and adds the '
                         "trace to TensorBoard's graph.", **count)
    flags.DEFINE_integer('seed', None, 'Seed of the random numbers: the same command then starts '
                         'with the same variables. Batches may still differ, because threads and '
                         'towers race for them. A resumed run draws new numbers.',
                         lower_bound=0, upper_bound=2**63 - 1)
    command_line.define_path(
        'initial_checkpoint', None, "Another run's folder or checkpoint, whose weights a new run "
        'starts with; layers that do not fit, such as the last one for other classes, start anew.')
    flags.DEFINE_boolean('restart', False,
                         "Remove an earlier run's files from --train_dir and start over.")
    flags.DEFINE_enum('variables', 'cpu', ['cpu', 'gpu'], 'Memory for the variables and their '
                      "update: the host's, or that of the first GPU, which saves copying them in "
                      'each step.')
    for name, other, what in (
            ('epochs', 'max_steps', 'the length of the training'),
            ('save_checkpoint_steps', 'save_checkpoint_secs', 'when to save a checkpoint')):
        flags.register_multi_flags_validator(
            sorted([name, other]), lambda values, name=name, other=other: (
                values[name] is None or FLAGS[other].using_default_value),
            f'both set {what}; expected only one of them: remove the other')


def run(recipe) -> starting.Run:
    """The values of the flags, with the defaults of a `Recipe`."""
    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(starting.Run)}
    if values['validate_every'] is None:
        values['validate_every'] = recipe.validate_every
    if values['epochs'] is None and given('max_steps') is None:
        values['epochs'] = recipe.epochs
    return starting.Run(**values)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Which trained model to use: the flags of `define_checkpoint_flags`."""

    checkpoint_dir: str
    best: bool
    use_moving_averages: bool


def define_checkpoint_flags() -> None:
    """Defines the flags that name a trained model, to evaluate, predict with or export, once in a
    process."""
    if _is_defined('checkpoint_dir'):
        return
    command_line.define_path(
        'checkpoint_dir', '/tmp/cifar10_train', 'Folder whose latest checkpoint is read, or a '
        'checkpoint, such as FOLDER/model.ckpt-20.')
    flags.DEFINE_boolean('best', False, 'Use the best checkpoint of a validated run, in '
                         '--checkpoint_dir/best, instead of the latest.')
    flags.DEFINE_boolean('use_moving_averages', True, 'Use the moving averages of the variables '
                         'instead of the raw weights.')


def checkpoint() -> Checkpoint:
    """The values of the flags."""
    return Checkpoint(os.fspath(FLAGS.checkpoint_dir), FLAGS.best, FLAGS.use_moving_averages)
