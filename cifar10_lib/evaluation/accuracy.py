"""Counts the images of a set that a checkpoint, or a training session, classifies correctly."""
import collections

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10
import cifar10_input
from cifar10_lib import recipes
from cifar10_lib.evaluation import model
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints

# The result of an evaluation:
#   precision: float, the fraction of images whose top prediction is their label (precision @ 1)
#   correct, total: int, the number of correctly classified images, and of all images
#   top: float, the fraction whose label is one of the `TOP` most probable classes
#   confusion: int64 [classes, classes], number of images by label (row) and prediction (column)
#   step: int, the global step of the checkpoint; None without a checkpoint
#   summary: a serialised `Summary` of the first batch, or None
TOP = 5
Result = collections.namedtuple('Result', 'precision correct total top confusion step summary')


class Accuracy:
    """The graph that evaluates a set of images: `run` it on checkpoints, or `count` with values.

    Attributes:
        graph: a `tf.Graph` of its own.
        total: number of images to count.
        size: number of images in the set.
    """

    def __init__(self, eval_data='test', use_moving_averages=True, num_examples=None):
        """Builds the graph.

        Args:
            eval_data: 'test'; or undistorted training images: 'train_eval' for all, 'held_out' for
                the tenth that `--validate_on=held_out` excludes from training.
            use_moving_averages: whether `run` uses the moving averages.
            num_examples: maximum number of images to count, from the first; None for all.

        Raises `errors.MissingFile` if a record file is missing, and `errors.DataError` if there are
        too few training images to hold some out.
        """
        self._use_moving_averages = use_moving_averages
        subset = 'held_out' if eval_data == 'held_out' else 'all'
        self._source = cifar10.source(eval_data == 'test', subset)
        self.size = min(self._source.num_examples(), self._source.num_records())
        if not self.size:
            raise errors.DataError(f'{self._source.folder} has fewer than 10 training images, too '
                                   'few to hold some out: use the test images')
        self.total = self.size if num_examples is None else min(num_examples, self.size)
        self._model = model.Model(self._inputs, self._source.batch_size)
        self.graph = self._model.graph
        with self.graph.as_default():
            self._summary_op = tf.summary.merge_all()
            self._initialiser = tf.local_variables_initializer()
        self.graph.finalize()

    def _inputs(self):
        with tf.device('/cpu:0'):
            images, self._labels = cifar10_input.batches(
                self._source, recipes.chosen().prepare, num_epochs=1)
        return images

    def run(self, checkpoint, summarise=False):
        """Evaluates a checkpoint, by its path without `.index`; returns a `Result`.

        Raises `app.UsageError`, which names the variables, if the checkpoint does not fit,
        `checkpoints.Unreadable` if it was removed in the meantime, and `errors.DataError` if a
        record file was replaced by a damaged one.
        """
        step = checkpoints.step(checkpoint)
        values = self._model.read(checkpoint, self._use_moving_averages)
        return self.count(values, self._use_moving_averages, summarise)._replace(step=step)

    def count(self, values, use_moving_averages, summarise=False, caught=()):
        """Evaluates values of the variables, in a session of its own.

        Args:
            values: dictionary from name of a variable or average to array; other items are ignored.
            use_moving_averages: whether to use the moving averages.
            summarise: whether to make the summaries of the first batch.
            caught: list of caught signals; when one is added, the evaluation stops.

        Returns a `Result`; None if a signal stopped the evaluation.
        """
        confusion = np.zeros([len(self._source.data_set.classes)] * 2, np.int64)
        total, in_top, summary = 0, 0, None
        with self._source.damage_reported(), \
                self._model.session(values, use_moving_averages) as session:
            session.run(self._initialiser)
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            try:
                while total < self.total and not caught:
                    *counted, first = session.run([
                        self._labels, self._model.outputs['logits'],
                        self._summary_op if summarise and not total else []])
                    labels, logits = (each[:self.total - total] for each in counted)
                    # One prediction per image: `in_top_k` would count all classes of a tie.
                    best = np.argsort(-logits, axis=1, kind='stable')[:, :TOP]
                    np.add.at(confusion, (labels, best[:, 0]), 1)
                    in_top += int((best == labels[:, np.newaxis]).sum())
                    total += len(labels)
                    summary = first or summary
            except tf.errors.OutOfRangeError as error:
                raise errors.DataError(
                    f'{self._source.folder} had at least {self.total} images at the start and '
                    f'has {total} now: run the same command again to count these') from error
            finally:  # An exception of a thread replaces the error "queue is closed".
                coordinator.request_stop()
                coordinator.join(threads)
        if caught:
            return None
        correct = int(np.trace(confusion))
        return Result(correct / total, correct, total, in_top / total, confusion, None, summary)
