"""Validation during training: the error on images not trained on, and the best checkpoint."""
import datetime

import tensorflow.compat.v1 as tf

from cifar10_lib.evaluation import accuracy
from cifar10_lib.program import console, errors
from cifar10_lib.runs import best


class Validation:
    """Measures the error of a training session's variables, and keeps the best of them.

    If the best is chosen on the test set, its error there is optimistic for new images; with
    `held_out`, the test set remains for one final evaluation.

    The evaluation has its own graph and session, so it does not affect training's queues and random
    numbers. Create it before the training graph is finalized.
    """

    def __init__(self, train_dir, variables, statistics, images='test', caught=()):
        """Builds the evaluation's graph; for errors see `accuracy.Accuracy`.

        For `train_dir`, `variables` and `images` see `best.Best`; for `caught`, `Accuracy.count`;
        `statistics` is the session's `statistics.Statistics`, or None without batch norm.
        """
        self._statistics, self._caught = statistics, caught
        self._variables = {variable.op.name: variable for variable in variables}
        self._best = best.Best(train_dir, variables, images)
        self._evaluation = accuracy.Accuracy(images)

    def run(self, session, step, training_error=None):
        """Validates the training session, prints a line, and saves the best variables so far.

        The line also has the `training_error`, float or None. Returns the errors of the raw and the
        averaged weights; None if a signal stopped it, or the images could not be read.
        """
        console.progress(f'step {step}: validating on {self._evaluation.total} images')
        if self._statistics:
            self._statistics.update(session, step)
        values = session.run(self._variables)
        try:
            results = [self._evaluation.count(values, use, caught=self._caught)
                       for use in (False, True)]
        except (OSError, ValueError, tf.errors.OpError) as error:  # Files that were removed.
            console.line(f'No validation at step {step}: {errors.one_line(error)}')
            return None
        if None in results:
            console.line(f'Skipped the validation at step {step}.')
            return None
        raw, averaged = ((result.total - result.correct) / result.total for result in results)
        training = '' if training_error is None else f'training error = {training_error:.4f}, '
        console.line(f'{datetime.datetime.now()}: step {step}, {training}validation error = '
                     f'{raw:.4f} ({averaged:.4f} averaged)')
        self._best.offer(session, step, values, raw, averaged)
        return raw, averaged
