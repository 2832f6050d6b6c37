"""Counts how many images of a set a checkpoint, or a session that trains, classifies rightly."""
import collections
import contextlib

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10
from program import errors
from program import startup
import recipes
from runs import checkpoints

# What an evaluation found:
#   precision: float, the share of images whose top prediction is their label (precision @ 1)
#   correct, total: int, the numbers behind it
#   confusion: int64 [classes, classes], how many images of each label (row) got each prediction
#   step: int, the global step of the checkpoint; None for other values
#   summary: a serialised `Summary` of the first batch, or None
Result = collections.namedtuple('Result', 'precision correct total confusion step summary')


class Evaluation:
    """The graph that evaluates one set; `run` it on as many checkpoints as there are, or `count`
    with values from elsewhere.

    Attributes:
        graph: a `tf.Graph` of its own.
        total: number of images to count.
        size: number of images in the set.
    """

    def __init__(self, eval_data='test', use_moving_averages=True, num_examples=None):
        """Builds the graph.

        Args:
            eval_data: 'test'; for the training images, not distorted, 'train_eval' (all of them) or
                'held_out' (every tenth: those that `--validate_on=held_out` does not train on).
            use_moving_averages: whether `run` uses the moving averages of the variables.
            num_examples: how many images to count, from the first; None or too many means the set.

        Raises:
            FileNotFoundError: a record file is missing.
            errors.DataError: there are too few training images to hold some out.
        """
        self._use_moving_averages = use_moving_averages
        self._advice = (
            '--use_moving_averages=false evaluates without averages' if use_moving_averages else
            'Name the folder of another run')
        use_test_set, held_out = eval_data == 'test', eval_data == 'held_out'
        self.size = cifar10.num_held_out() if held_out else cifar10.num_examples(use_test_set)
        if not self.size:
            raise errors.DataError(f'{cifar10.data_folder()} has fewer than 10 training images: '
                                   'none can be held out; use --validate_on=test')
        self.total = self.size if num_examples is None else min(num_examples, self.size)
        self.graph = tf.Graph()
        with self.graph.as_default():
            with tf.device('/cpu:0'):
                images, labels = cifar10.inputs(use_test_set, recipes.net().prepare, held_out)
            logits = recipes.net().inference(images, training=False)
            self._classes = cifar10.data_set().num_classes
            with tf.name_scope('confusion'):
                # One prediction an image: `in_top_k` would call every class of a tie the top one.
                predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
                # A cell of the confusion matrix for each image, row by row.
                self._cells = labels * self._classes + predictions
            self._summary = tf.summary.merge_all()
            self._variables = {
                averaged: cifar10.variables_to_restore(averaged) for averaged in (False, True)}
            self._loader = checkpoints.Loader(tf.global_variables())
            self._initialiser = tf.local_variables_initializer()
            self.graph.finalize()

    @property
    def whole(self):
        """Whether all images of the set count."""
        return self.total == self.size

    def run(self, checkpoint, summarise=False):
        """Evaluates a checkpoint.

        Args:
            checkpoint: path of the checkpoint, without `.index`.
            summarise: whether to make summaries, of the first batch.

        Returns:
            A `Result`.

        Raises:
            app.UsageError: the checkpoint does not fit; names the variables.
            checkpoints.Unreadable: the checkpoint was deleted in the meantime.
        """
        step = checkpoints.step(checkpoint)
        variables = self._variables[self._use_moving_averages]
        return self._run(lambda session: self._loader.load(
            checkpoint, variables, session, self._advice), step, summarise)

    def count(self, values, use_moving_averages, caught=()):
        """Evaluates values that another session holds.

        Args:
            values: dictionary from name of a variable or average to its value; may hold more.
            use_moving_averages: whether to use the averages.
            caught: list that gets a signal which is to end this.

        Returns:
            A `Result` without step and summary; None where a signal came before the end.
        """
        variables = self._variables[use_moving_averages]
        return self._run(lambda session: self._loader.assign(values, variables, session),
                         caught=caught)

    def _run(self, load, step=None, summarise=False, caught=()):
        """Counts in a new session, whose variables the function `load` sets."""
        with tf.Session(graph=self.graph, config=startup.session_config()) as session:
            session.run(self._initialiser)
            load(session)
            with _queues_running(session):
                confusion, summary = self._count(session, summarise, caught)
        if caught:
            return None
        correct, total = int(np.trace(confusion)), int(confusion.sum())
        return Result(correct / total, correct, total, confusion, step, summary)

    def _count(self, session, summarise, caught):
        """The confusion matrix of the first `total` images, and the summary or None; less where a
        signal is caught."""
        confusion, total, summary = np.zeros(self._classes ** 2, np.int64), 0, None
        while total < self.total and not caught:
            fetches = {'cells': self._cells}
            if summarise and total == 0:
                fetches['summary'] = self._summary
            try:
                results = session.run(fetches)
            except tf.errors.OutOfRangeError as error:
                raise errors.DataError(
                    f'{cifar10.data_folder()} held {self.total} images or more at the start, and '
                    f'holds {total} now: start again to count those') from error
            cells = results['cells'][:self.total - total]
            confusion += np.bincount(cells, minlength=len(confusion))
            total += len(cells)
            summary = results.get('summary', summary)
        return confusion.reshape(self._classes, self._classes), summary


@contextlib.contextmanager
def _queues_running(session):
    """Runs the graph's queue runners; an exception of theirs is raised in place of "queue is
    closed"."""
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    try:
        yield
    finally:
        coordinator.request_stop()
        coordinator.join(threads)
