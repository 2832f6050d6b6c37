"""Validation during training: the error on images not trained on, and the best checkpoint."""
import dataclasses
import datetime
from collections.abc import Collection, Sequence

import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib import recipes
from cifar10_lib.datasets.image_source import Source
from cifar10_lib.evaluation import accuracy, model
from cifar10_lib.evaluation.statistics import Statistics
from cifar10_lib.program import console, devices, errors
from cifar10_lib.runs import best, checkpoints


class Validation:
    """Measures the error of a training session's variables, and keeps the best of them.

    If the best is chosen on the test set, its error there is optimistic for new images; with
    `held_out`, the test set remains for one final evaluation.

    The evaluation has its own graph and session, so it does not affect training's queues and random
    numbers. Create it before the training graph is finalized.
    """

    def __init__(self, train_dir: str, variables: Sequence[tf.Variable], source: Source,
                 recipe: recipes.Recipe, images: str = 'test', caught: Collection[int] = (),
                 statistics: Statistics | None = None, resumes: bool = True) -> None:
        """Builds the evaluation's graph.

        Args:
            train_dir, variables, images, resumes: see `best.Best`.
            source: the training images.
            caught: the caught signals; when one is added, a validation stops.
            statistics: for a network with batch norm.

        Raises the errors of `accuracy.images_to_count`.
        """
        self._caught, self._statistics = caught, statistics
        self._trained = {variable.op.name: variable for variable in variables}
        self._best = best.Best(train_dir, variables, images, resumes)
        self._source = dataclasses.replace(source, subset='held_out', shard=(0, 1))
        if images == 'test':
            self._source = dataclasses.replace(
                self._source, subset='all', eval_data=True,
                examples_per_epoch=cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL)
        self._total, _ = accuracy.images_to_count(self._source)
        with tf.Graph().as_default() as self._graph:
            with tf.device('/cpu:0'):
                batch, labels = cifar10.inputs(images == 'test', self._source, recipe.prepare)
            logits = recipe.logits(batch, source.num_classes)
            self._top_k_op = [labels, accuracy.predictions(logits)]
            self._raw = model.variables_to_restore(use_moving_averages=False)
            self._averaged = model.variables_to_restore(use_moving_averages=True)
            self._loader = checkpoints.Loader(tf.global_variables())

    def run(self, session: tf.Session, step: int,
            training_error: float | None = None) -> tuple[float, float] | None:
        """Validates the training session, prints a line, and saves the best variables so far.

        The line also has the `training_error`, if given. Returns the errors of the raw and the
        averaged weights; None if a signal stopped it, or the images could not be read.
        """
        console.progress(f'step {step}: validating on {self._total} images')
        if self._statistics:
            self._statistics.update(session, step)
        values = session.run(self._trained)
        try:
            with self._source.damage_reported():
                found = [self._error(values, variables)
                         for variables in (self._raw, self._averaged)]
        except (OSError, ValueError, tf.errors.OpError) as error:  # Files that were removed.
            console.line(f'No validation at step {step}: {errors.one_line(error)}')
            return None
        if None in found:
            console.line(f'Skipped the validation at step {step}.')
            return None
        raw, averaged = found
        training = ''
        if training_error is not None:
            training = f'training error = {training_error:.4f}, '
        console.line(f'{datetime.datetime.now()}: step {step}, {training}validation error = '
                     f'{raw:.4f} ({averaged:.4f} averaged)')
        self._best.offer(session, step, values, raw, averaged)
        return raw, averaged

    def _error(self, values, variables):
        """The error with these values of variables, or None if a signal stopped it."""
        counts = accuracy.Counts(self._source.num_classes)
        with tf.Session(graph=self._graph, config=devices.session_config()) as session:
            self._loader.assign(values, variables, session)
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            try:
                for batch in accuracy.each_image_once(session, self._top_k_op, self._total):
                    if self._caught:
                        return None
                    counts.add(*batch)
            finally:  # An exception of a thread replaces the error "queue is closed".
                coordinator.request_stop()
                coordinator.join(threads)
        return counts.error
