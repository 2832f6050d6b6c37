"""Validation while training: the error on images not trained on, and the best checkpoint so far."""
import collections
import datetime

from evaluation import counting
from program import console
from runs import results

# Errors of one validation, each float, 0 to 1: with the variables, and with their moving averages.
Errors = collections.namedtuple('Errors', 'raw averaged')


class Validation:
    """Measures the error of a training session's variables, and keeps the best of them.

    Choosing on the test set makes the lowest error optimistic as an estimate of the error on new
    images; `held_out` leaves the test set for one last evaluation.

    The evaluation has a graph and session of its own: training's queues and random numbers go on as
    if nothing had been. Make it in the training graph, before that is finalized.

    Attributes:
        every: how many epochs apart validations are.
    """

    def __init__(self, train_dir, variables, every, images='test', caught=()):
        """Builds the evaluation's graph.

        Args:
            train_dir: folder of the run, which gets the folder `best`.
            variables: list of the variables that a checkpoint holds.
            every: how many epochs apart validations are.
            images: 'test' or 'held_out', see `counting.Evaluation`.
            caught: list that gets a signal which stops the run: a validation then ends, too.

        Raises:
            FileNotFoundError: a record file is missing.
            errors.DataError: there are too few training images to hold some out.
        """
        self.every = every
        self._caught = caught
        self._variables = {variable.op.name: variable for variable in variables}
        self._best = results.Best(train_dir, variables, images)
        self._evaluation = counting.Evaluation(images)

    def run(self, session, step):
        """Validates, prints a line, and keeps the variables where they are the best so far.

        Args:
            session: the training session.
            step: the global step.

        Returns:
            `Errors`, or None where a signal came before the end.
        """
        console.progress(f'step {step}: validating on {self._evaluation.total} images')
        values = session.run(self._variables)
        raw, averaged = (self._evaluation.count(values, use, self._caught)
                         for use in (False, True))
        if raw is None or averaged is None:
            console.line(f'The validation at step {step} is left out.')
            return None
        errors = Errors((raw.total - raw.correct) / raw.total,
                        (averaged.total - averaged.correct) / averaged.total)
        self._best.offer(session, step, errors.raw, errors.averaged)
        console.line(f'{datetime.datetime.now()}: step {step}, validation error = '
                     f'{errors.raw:.4f} ({errors.averaged:.4f} averaged)')
        return errors
