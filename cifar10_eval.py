"""Evaluates each new checkpoint of a training run.

    python cifar10_eval.py

Prints the precision @ 1 (accuracy) of each new checkpoint in --checkpoint_dir on the test set, each
image once, with the moving averages of the variables. Run it next to the trainer, or with
--run_once to evaluate only the latest checkpoint. --per_class adds figures per class and the
confusion matrix.
"""
import datetime
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.evaluation import accuracy, checkpoint_flags, confusion, model
from cifar10_lib.program import command_line, console, devices, files
from cifar10_lib.runs import checkpoints, run_folder

command_line.define_path('eval_dir', '/tmp/cifar10_eval', 'Folder for event files.')
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


def eval_once(evaluation, summary_writer, checkpoint):
    """Evaluates a checkpoint once: writes summaries, and prints the precision.

    Args:
        evaluation: an `accuracy.Accuracy`, which restores the variables and counts the images.
        summary_writer: a `tf.summary.FileWriter`; None for images that are not the run's own.
        checkpoint: path of the checkpoint. It is skipped if the trainer has just removed it.

    Raises `app.UsageError` if the checkpoint does not fit the network, `checkpoints.Unreadable` if
    it was removed and --run_once was given, and `OSError` if the event file cannot be written.
    """
    console.progress(f'Evaluating {checkpoint}')
    try:
        result = evaluation.run(checkpoint, summarise=True)
    except checkpoints.Unreadable:
        if FLAGS.run_once:
            raise
        console.line(f'Skipped {checkpoint}: the trainer removed it to keep only the last few.')
        return
    data_set = cifar10.source().data_set
    has_many_classes = len(data_set.classes) > 2 * accuracy.TOP
    summary = tf.Summary.FromString(result.summary)
    summary.value.add(tag='Precision @ 1', simple_value=result.precision)
    if has_many_classes:
        summary.value.add(tag=f'Precision @ {accuracy.TOP}', simple_value=result.top)
    if FLAGS.per_class:
        summary.MergeFrom(confusion.summary(result.confusion, data_set.classes))
    if summary_writer:
        with files.explain_full_disk(FLAGS.eval_dir):
            summary_writer.add_summary(summary, result.step)
            summary_writer.flush()

    other = '' if summary_writer else f" of {FLAGS.dataset} (not the run's own data set: no curve)"
    weights = 'averaged' if FLAGS.use_moving_averages else 'raw'
    console.line(f'Evaluated {checkpoint}{run_folder.owner(os.path.dirname(checkpoint))} (step '
                 f'{result.step}, {weights} weights) on {result.total} images{other}.')
    console.line(f'{datetime.datetime.now()}: precision @ 1 = {result.precision:.3f}')
    if has_many_classes:
        console.line(f'precision @ {accuracy.TOP} = {result.top:.3f}')
    if FLAGS.per_class:
        text = '\n\n'.join([confusion.table(result.confusion, data_set.classes),
                            confusion.matrix(result.confusion, data_set.classes)])
        for line in text.split('\n'):
            console.line(line)


def evaluate():
    """Evaluates each new checkpoint once, or only the latest (--run_once) or a certain one.

    Raises `app.UsageError` if there is no checkpoint for --run_once, or one does not fit the
    network, and `OSError` if --eval_dir cannot be written.
    """
    run_once = FLAGS.run_once  # The first use of a flag parses the command line.
    folder = checkpoint_flags.folder()
    if run_once or checkpoints.named(folder):
        FLAGS.run_once = True
        found = [checkpoint_flags.checkpoint()]
    else:
        if not checkpoints.candidates(folder):
            console.line(f'Waiting for a checkpoint in {folder}.')
        found = checkpoints.watch(folder, FLAGS.eval_interval_secs)
    earlier = None
    for checkpoint in found:
        run = model.use_run(checkpoint)
        trained = run.get('settings', {})
        if FLAGS.eval_data == 'held_out' and trained.get('validate_on') != 'held_out':
            raise app.UsageError(f'{FLAGS.checkpoint_dir} was trained without '
                                 '--validate_on=held_out, on all training images: choose another '
                                 '--eval_data')
        own = run.get('dataset_folder') or run.get('dataset', FLAGS.dataset)
        is_own = os.path.realpath(own) == os.path.realpath(FLAGS.dataset) or (
            os.path.isabs(own) and not os.path.exists(own)  # It has moved.
            and run.get('dataset') == cifar10.source().data_set.name)
        # At first, whenever a trainer has started again, and if the folder was removed.
        is_new = run != earlier or is_own and not os.path.isdir(FLAGS.eval_dir)
        if is_own:
            with files.explain_full_disk(FLAGS.eval_dir):  # `FileWriter` reports no errors.
                files.own_folder(FLAGS.eval_dir)
                with tempfile.TemporaryFile(dir=FLAGS.eval_dir) as probe:
                    probe.write(bytes(1 << 20))  # The graph and the summaries take less.
                    probe.flush()
        if is_new:
            cifar10.maybe_download_and_extract()
            evaluation = accuracy.Accuracy(
                FLAGS.eval_data, FLAGS.use_moving_averages, FLAGS.num_examples)
            if evaluation.total < evaluation.size:
                console.line(f'Evaluating the first {evaluation.total} of {evaluation.size} '
                             'images; see --num_examples.')
            summary_writer = tf.summary.FileWriter(
                FLAGS.eval_dir, evaluation.graph,
                filename_suffix=f'.{os.getpid()}') if is_own else None
            if is_own and earlier is not None:  # TensorBoard drops what an earlier start had after
                first_step = trained.get('first_step', 0)  # this step; all with --restart.
                summary_writer.add_session_log(
                    tf.SessionLog(status=tf.SessionLog.START), first_step and first_step + 1)
            earlier = run
        eval_once(evaluation, summary_writer, checkpoint)


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    devices.visible_gpus()
    if FLAGS.run_once:
        console.fail_if_stdout_closes()
    evaluate()


if __name__ == '__main__':
    startup.run(main, unused=settings.TRAINING_FLAGS)
