"""Evaluates each new checkpoint of a training run.

    python cifar10_eval.py

Prints the precision @ 1 (accuracy) of each new checkpoint in --checkpoint_dir on the test set, each
image once, with the moving averages of the variables. Run it next to the trainer, or with
--run_once to evaluate only the latest checkpoint.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import dataclasses
import itertools
import os
from datetime import datetime

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.datasets import image_source
from cifar10_lib.evaluation import accuracy, confusion, model, trained
from cifar10_lib.program import command_line, console, devices, files, startup
from cifar10_lib.runs import checkpoints, events, names, run_folder

settings.define_checkpoint_flags()
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


@dataclasses.dataclass(frozen=True)
class Images:
    """What is evaluated.

    Attributes:
        source: the `image_source.Source` of the images.
        count: number of images to count, from the first.
        classes: names of the network's classes.
        weights: 'averaged' or 'raw'.
        kind: what makes this another evaluation than that of all test images with averaged
            weights, such as ['training images', 'raw weights'].
    """

    source: image_source.Source
    count: int
    classes: tuple
    weights: str
    kind: list

    def tag(self, name):
        """The tag of a figure; each kind of evaluation has a curve of its own."""
        if not self.kind:
            return name
        return f'{name} ({", ".join(self.kind)})'


def eval_once(saver, summary_writer, top_k_op, summary_op, checkpoint, evaluated):
    """Runs an evaluation once: each image counts once.

    Args:
        saver: a `tf.train.Saver` of the variables to restore.
        summary_writer: a `tf.summary.FileWriter`; None to write no summaries.
        top_k_op: list of labels, int32 [batch], and the most probable classes, int32 [batch, k].
        summary_op: string [], the merged summaries.
        checkpoint: path of the checkpoint.
        evaluated: the `Images`.

    Raises `checkpoints.Unreadable` if the trainer has just removed the checkpoint, and
    `errors.DataError` if a record file was replaced by a damaged one.
    """
    with tf.Session(config=devices.session_config()) as sess, evaluated.source.damage_reported():
        try:
            saver.restore(sess, checkpoint)
        except (tf.errors.NotFoundError, tf.errors.DataLossError, tf.errors.OutOfRangeError,
                tf.errors.InvalidArgumentError, tf.errors.AbortedError, ValueError) as error:
            raise checkpoints.Unreadable(f'{checkpoint} cannot be read') from error
        global_step = checkpoints.step(checkpoint)

        # The threads that read images.
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        try:
            counts = accuracy.Counts(len(evaluated.classes))
            for labels, predictions in accuracy.each_image_once(sess, top_k_op, evaluated.count):
                counts.add(labels, predictions)
            precision = counts.correct / counts.total

            summary = tf.Summary()
            summary.ParseFromString(sess.run(summary_op))
        finally:  # An exception of a thread replaces the error "queue is closed".
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=10)

    report(checkpoint, global_step, evaluated, summary_writer is not None)
    console.line('%s: precision @ 1 = %.3f' % (datetime.now(), precision))
    summary.value.add(tag=evaluated.tag('Precision @ 1'), simple_value=precision)
    report_classes(counts, evaluated, summary)
    if summary_writer is not None:
        with files.explain_full_disk(FLAGS.eval_dir):
            summary_writer.add_summary(summary, global_step)
            summary_writer.flush()


def report(checkpoint, global_step, evaluated, is_of_own_images):
    """Prints what was evaluated: the checkpoint, its weights, and the images.

    `is_of_own_images`: whether the images are of the data set that the network was trained on.
    """
    other = ''
    if not is_of_own_images:
        other = f" of {evaluated.source.data_set.flag} (not the run's own data set: no curve)"
    console.line(f'Evaluated {checkpoint}{run_folder.owner(os.path.dirname(checkpoint))} (step '
                 f'{global_step}, {evaluated.weights} weights) on {evaluated.count} images{other}.')


def report_classes(counts, evaluated, summary):
    """Prints precision @ 5 of many classes and, with --per_class, a table; adds both to a
    `tf.Summary`."""
    if len(evaluated.classes) > 2 * accuracy.TOP:
        console.line(f'precision @ {accuracy.TOP} = {counts.precision_of_top:.3f}')
        summary.value.add(tag=evaluated.tag(f'Precision @ {accuracy.TOP}'),
                          simple_value=counts.precision_of_top)
    if FLAGS.per_class:
        for line in confusion.lines(counts.confusion, evaluated.classes):
            console.line(line)
        for value in confusion.summary(counts.confusion, evaluated.classes).value:
            value.tag = evaluated.tag(value.tag)
            summary.value.append(value)


def evaluate(network=None, found=None, once=False):
    """Evaluates each checkpoint once.

    Args:
        network: the `trained.Trained` of the first checkpoint.
        found: iterator over checkpoints, as `found_checkpoints` yields them.
        once: whether it is an error if one was removed.

    Raises `app.UsageError` if a checkpoint does not fit the network, and `OSError` if --eval_dir
    cannot be written.
    """
    if network is None:  # Programs written against the tutorial pass nothing.
        main()
        return
    source, recipe = network.source(FLAGS.eval_data), network.recipe
    cifar10.maybe_download_and_extract(source)
    num_examples, size = accuracy.images_to_count(source, FLAGS.num_examples)
    if num_examples < size:
        console.line(f'Evaluating the first {num_examples} of {size} images; see --num_examples.')
    with tf.Graph().as_default() as g:
        with tf.device('/cpu:0'):
            images, labels = cifar10.inputs(source.eval_data, source, recipe.prepare)
            labels = tf.gather(network.class_numbers, labels)

        logits = recipe.logits(images, len(network.classes))

        top_k_op = [labels, accuracy.predictions(logits)]

        # Each variable is loaded from its moving average. To evaluate the raw weights, as
        # --use_moving_averages=false does, restore tf.global_variables() instead.
        variable_averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
        variables_to_restore = variable_averages.variables_to_restore()
        if not FLAGS.use_moving_averages:
            variables_to_restore = {var.op.name: var for var in tf.global_variables()}
        saver = tf.train.Saver(variables_to_restore)

        summary_op = tf.summary.merge_all()

        weights = 'raw'
        if any(name.endswith(names.AVERAGE) for name in variables_to_restore):
            weights = 'averaged'
        evaluated = Images(source, num_examples, network.classes, weights,
                           kind_of_evaluation(weights, num_examples < size))
        summary_writer, run = None, None
        for checkpoint, latest in found:
            latest.check_same(network, checkpoint)
            if not latest.is_of_own_images:
                summary_writer = None
            elif latest.run != run or not os.path.isdir(FLAGS.eval_dir):
                summary_writer = events.writer(FLAGS.eval_dir, g, latest.run, is_first=run is None)
            run = latest.run
            console.progress(f'Evaluating {checkpoint}')
            try:
                # Names all variables that do not fit; `saver` would name one.
                checkpoints.values_for(checkpoint, variables_to_restore,
                                       model.advice(FLAGS.use_moving_averages))
                eval_once(saver, summary_writer, top_k_op, summary_op, checkpoint, evaluated)
            except checkpoints.Unreadable:
                if once:
                    raise
                console.line(f'Skipped {checkpoint}: the trainer removed it to keep only the last '
                             'few.')


def kind_of_evaluation(weights, is_partial):
    """The `kind` of `Images` with these `weights`; `is_partial` says that some are not counted."""
    kind = []
    if FLAGS.eval_data == 'train_eval':
        kind.append('training images')
    if FLAGS.eval_data == 'held_out':
        kind.append('held-out images')
    if weights == 'raw':
        kind.append('raw weights')
    if is_partial:
        kind.append(f'first {FLAGS.num_examples}')
    return kind


def evaluates_once():
    """Whether to evaluate one checkpoint: the latest with --run_once, or the one that is named."""
    return FLAGS.run_once or checkpoints.named(trained.folder(settings.checkpoint())) is not None


def found_checkpoints():
    """Yields each new checkpoint, or only one: its path and its `trained.Trained`.

    Raises `app.UsageError` if there is no checkpoint for --run_once.
    """
    given = settings.checkpoint()
    folder = trained.folder(given)
    if evaluates_once():
        paths = iter([trained.checkpoint(given)])
    else:
        if not checkpoints.candidates(folder):
            console.line(f'Waiting for a checkpoint in {folder}.')
        paths = checkpoints.watch(folder, FLAGS.eval_interval_secs)
    for path in paths:
        yield path, trained.read(os.path.dirname(path))


def main(argv=None):  # `tf.app.run` passes the arguments.
    del argv
    devices.choose(FLAGS.device)
    once = evaluates_once()
    if once:
        console.fail_if_stdout_closes()
    found = found_checkpoints()
    first = next(found)
    _, network = first
    if FLAGS.eval_data == 'held_out' and not network.held_out:
        raise app.UsageError(f'{FLAGS.checkpoint_dir} was trained without --validate_on=held_out, '
                             'on all training images: choose another --eval_data')
    evaluate(network, itertools.chain([first], found), once)


if __name__ == '__main__':
    startup.run(main, unused=settings.TRAINING_FLAGS)
