"""Evaluates each new checkpoint of a training run.

    python cifar10_eval.py

Prints the precision @ 1 (accuracy) of each new checkpoint in --checkpoint_dir on the test set, each
image once, with the moving averages of the variables. Run it next to the trainer, or with
--run_once to evaluate only the latest checkpoint. --per_class adds figures per class and the
confusion matrix.
"""
import contextlib
import datetime
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.evaluation import accuracy, checkpoint_flags, confusion
from cifar10_lib.program import console, devices, files, path_flags
from cifar10_lib.runs import checkpoints, events, folder as run_folder

path_flags.define('eval_dir', '/tmp/cifar10_eval', 'Folder for event files.')
flags.DEFINE_enum('eval_data', 'test', ['test', 'train_eval', 'held_out'],
                  'The images to evaluate: the test set, all training images, or those that '
                  '--validate_on=held_out excludes from training.')
flags.DEFINE_integer('eval_interval_secs', 300, 'Minimum number of seconds between evaluations.',
                     lower_bound=1, upper_bound=10**9)
flags.DEFINE_integer('num_examples', 10000, 'Maximum number of images to evaluate.', lower_bound=1,
                     upper_bound=10**9)
flags.DEFINE_boolean('run_once', False, 'Evaluate only the latest checkpoint, then exit.')
flags.DEFINE_boolean('per_class', False, 'Also print recall and precision per class and the '
                     'confusion matrix, and write them for TensorBoard.')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def evaluate():
    """Evaluates each new checkpoint once, or with --run_once only the latest.

    Raises:
        app.UsageError: no checkpoint with --run_once, or a checkpoint does not fit the network.
    """
    if os.path.realpath(FLAGS.eval_dir) == os.path.realpath(FLAGS.checkpoint_dir):
        console.line('Warning: --eval_dir is the folder of the run: TensorBoard will draw the '
                     'curves of training and evaluation as one.')
    current = writer = trained_on = None
    with files.explain_full_disk(FLAGS.eval_dir), contextlib.ExitStack() as stack:
        for checkpoint in _checkpoints():  # Before any download: there may be none.
            validated_on = _validated_on(checkpoint_flags.use_run() or {})
            if trained_on != (FLAGS.net, FLAGS.dataset):  # At first, or a run after `--restart`.
                trained_on, current, writer = (FLAGS.net, FLAGS.dataset), _evaluation(), None
            result = _run_unless_gone(current, checkpoint)
            if result is not None:
                try:
                    files.own_folder(FLAGS.eval_dir)
                    if writer is None:
                        writer = stack.enter_context(events.Writer(FLAGS.eval_dir))
                        writer.add_graph(current.graph)
                    _write(writer, result, current.total == current.size
                           and FLAGS.eval_data == validated_on)
                finally:  # Print the result even if it cannot be written.
                    _print(checkpoint, result)


def _evaluation():
    """The `Evaluation` that the flags describe."""
    cifar10.maybe_download_and_extract()
    current = accuracy.Evaluation(FLAGS.eval_data, FLAGS.use_moving_averages, FLAGS.num_examples)
    if current.total < current.size:
        console.line(f'Evaluating the first {current.total} of {current.size} images; see '
                     '--num_examples.')
    return current


def _validated_on(settings):
    """The images that a run with these settings validates on: 'test' or 'held_out'.

    Raises:
        app.UsageError: the run was trained on the images of `--eval_data=held_out`.
    """
    validated_on = settings.get('validate_on', 'test')
    if FLAGS.eval_data == 'held_out' != validated_on:
        raise app.UsageError(f'{FLAGS.checkpoint_dir} was trained without --validate_on=held_out, '
                             'on all training images: choose another --eval_data')
    return validated_on


def _print(checkpoint, result):
    weights = 'averaged' if FLAGS.use_moving_averages else 'raw'
    console.line(f'Evaluated {checkpoint}{run_folder.owner(FLAGS.checkpoint_dir)} (step '
                 f'{result.step}, {weights} weights) on {result.total} images.')
    console.line(f'{datetime.datetime.now()}: precision @ 1 = {result.precision:.3f}')
    if _has_many_classes():
        console.line(f'precision @ {accuracy.TOP} = {result.top:.3f}')
    if FLAGS.per_class:
        names = cifar10.source().data_set.classes
        text = '\n\n'.join([confusion.table(result.confusion, names),
                            confusion.matrix(result.confusion, names)])
        for line in text.split('\n'):
            console.line(line)


def _has_many_classes():
    """Whether the right class among the first five says something."""
    return cifar10.source().data_set.num_classes > 2 * accuracy.TOP


def _run_unless_gone(current, checkpoint):
    """Evaluates a checkpoint; returns None if it was removed in the meantime."""
    try:
        console.progress(f'Evaluating {checkpoint}')
        return current.run(checkpoint, summarise=True)
    except checkpoints.Unreadable:
        if FLAGS.run_once:
            raise
        console.line(f'Skipped {checkpoint}: the trainer removed it to keep only the last few.')
        return None


def _checkpoints():
    """Yields the path of the latest checkpoint, then without --run_once of each new one."""
    if FLAGS.run_once:
        yield checkpoint_flags.checkpoint()
        return
    if not checkpoints.candidates(checkpoint_flags.folder()):
        console.line(f'Waiting for a checkpoint in {checkpoint_flags.folder()}.')
    yield from checkpoints.watch(checkpoint_flags.folder(), FLAGS.eval_interval_secs)


def _write(writer, result, like_training):
    """Writes the precision and the summaries of a result at the checkpoint's step.

    If training validates on the same images (`like_training`), also writes the error, with
    training's tag.
    """
    summary = tf.Summary.FromString(result.summary)
    summary.value.add(tag='Precision @ 1', simple_value=result.precision)
    if _has_many_classes():
        summary.value.add(tag=f'Precision @ {accuracy.TOP}', simple_value=result.top)
    if like_training:
        summary.value.add(tag='validation/error' + '_averaged' * FLAGS.use_moving_averages,
                          simple_value=1 - result.precision)
    if FLAGS.per_class:
        summary.MergeFrom(confusion.summary(result.confusion, cifar10.source().data_set.classes))
    writer.add_summary(summary, result.step)
    writer.flush()


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    devices.visible_gpus()
    if FLAGS.run_once:
        console.fail_if_stdout_closes()
    evaluate()


if __name__ == '__main__':
    startup.run(main, unused=settings.TRAINING_FLAGS)
