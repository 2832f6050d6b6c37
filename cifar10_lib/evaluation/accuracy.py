"""Counts the images of a set that a checkpoint, or a training session, classifies correctly."""
import collections

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10
import cifar10_input
from cifar10_lib.evaluation import model
from cifar10_lib.program import devices, errors
from cifar10_lib import recipes
from cifar10_lib.runs import checkpoints

# The result of an evaluation:
#   precision: float, the fraction of images whose top prediction is their label (precision @ 1)
#   correct, total: int, the number of correctly classified images, and of all images
#   top: float, the fraction of images whose label is one of the five most probable classes
#   confusion: int64 [classes, classes], number of images by label (row) and prediction (column)
#   step: int, the global step of the checkpoint; None without a checkpoint
#   summary: a serialised `Summary` of the first batch, or None
TOP = 5
Result = collections.namedtuple('Result', 'precision correct total top confusion step summary')


class Evaluation:
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

        Raises:
            errors.MissingFile: a record file is missing.
            errors.DataError: there are too few training images to hold some out.
        """
        self._use_moving_averages = use_moving_averages
        self._advice = (
            '--use_moving_averages=false evaluates the raw weights' if use_moving_averages else
            'Choose another run')
        subset = 'held_out' if eval_data == 'held_out' else 'all'
        self._source = cifar10.source(eval_data == 'test', subset)
        self.size = min(self._source.num_examples(), self._source.num_records())
        if not self.size:
            raise errors.DataError(f'{self._source.folder} has fewer than 10 training images, too '
                                   'few to hold some out: use the test images')
        self.total = self.size if num_examples is None else min(num_examples, self.size)
        self._classes = self._source.data_set.num_classes
        self._model = model.Model(self._read, self._source.batch_size)
        self.graph = self._model.graph
        with self.graph.as_default():
            with tf.name_scope('confusion'):
                # One prediction per image: `in_top_k` would count all classes of a tie.
                predictions = tf.cast(self._model.outputs['classes'], tf.int32)
                top = tf.nn.top_k(self._model.outputs['logits'], min(TOP, self._classes)).indices
                in_top = tf.reduce_any(tf.equal(top, self._labels[:, tf.newaxis]), axis=1)
                # For each image: its cell in the confusion matrix, row by row; and whether its
                # label is one of the `TOP` most probable classes.
                self._counted = self._labels * self._classes + predictions, in_top
            self._summary = tf.summary.merge_all()
            self._initialiser = tf.local_variables_initializer()
            self.graph.finalize()

    def _read(self):
        with tf.device('/cpu:0'):
            images, self._labels = cifar10_input.batches(
                self._source, recipes.chosen().prepare, num_epochs=1)
        return images

    def run(self, checkpoint, summarise=False):
        """Evaluates a checkpoint, by its path without `.index`; returns a `Result`.

        Raises:
            app.UsageError: the checkpoint does not fit; the message names the variables.
            checkpoints.Unreadable: the checkpoint was removed in the meantime.
            errors.DataError: a record file was replaced by a damaged one.
        """
        step = checkpoints.step(checkpoint)
        values = self._model.read(checkpoint, self._use_moving_averages, self._advice)
        return self.count(values, self._use_moving_averages, step, summarise)

    def count(self, values, use_moving_averages, step=None, summarise=False, caught=()):
        """Evaluates values of the variables, in a session of its own.

        Args:
            values: dictionary from name of a variable or average to array; other items are ignored.
            use_moving_averages: whether to use the moving averages.
            step: global step of the values, for the `Result`.
            summarise: whether to make the summaries of the first batch.
            caught: list of caught signals; when one is added, the evaluation stops.

        Returns:
            A `Result`; None if a signal stopped the evaluation.
        """
        with self._source.damage_reported(), \
                tf.Session(graph=self.graph, config=devices.session_config()) as session:
            session.run(self._initialiser)
            self._model.assign(values, session, use_moving_averages)
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            try:
                confusion, in_top, summary = self._count(session, summarise, caught)
            finally:  # An exception of a thread replaces the error "queue is closed".
                coordinator.request_stop()
                coordinator.join(threads)
        if caught:
            return None
        correct, total = int(np.trace(confusion)), int(confusion.sum())
        return Result(correct / total, correct, total, in_top / total, confusion, step, summary)

    def _count(self, session, summarise, caught):
        """The sums of `_counted` over the first `total` images, and the summary or None; incomplete
        if a signal is caught."""
        confusion, top, total, summary = np.zeros(self._classes ** 2, np.int64), 0, 0, None
        while total < self.total and not caught:
            fetches = {'counted': self._counted}
            if summarise and total == 0:
                fetches['summary'] = self._summary
            try:
                results = session.run(fetches)
            except tf.errors.OutOfRangeError as error:
                raise errors.DataError(
                    f'{self._source.folder} had at least {self.total} images at the start and '
                    f'has {total} now: run the same command again to count these') from error
            cells, in_top = (each[:self.total - total] for each in results['counted'])
            confusion += np.bincount(cells, minlength=len(confusion))
            top += int(in_top.sum())
            total += len(cells)
            summary = results.get('summary', summary)
        return confusion.reshape(self._classes, self._classes), top, summary
