"""Hooks of a training session, besides those that TensorFlow has, and listeners of checkpoints.

A hook's `after_create_session` runs before the first step, `before_run` and `after_run` around each
step, `end` after the last one. In each of them, the hooks take turns in the order of the session's
list. `CheckpointSaverHook` calls its listeners before and after it saves a checkpoint.
"""
import datetime
import math
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.program import console
from cifar10_lib.runs import checkpoints, metrics, names, parameters

SUMMARY_STEPS = 100  # Number of steps between summaries, and between rows of metrics.csv.

_PROGRESS_SECONDS = 0.25


class StepHook(tf.train.SessionRunHook):
    """Base class of hooks that know the number of steps.

    TensorFlow's hooks fetch the global step with each step; whether that is the value before or
    after the update is not defined for resource variables.

    Attributes:
        steps: number of steps done, over all starts.
    """

    def after_create_session(self, session, coord):
        self.steps = int(session.run(tf.train.get_global_step()))

    def after_run(self, run_context, run_values):
        self.steps += 1


class StopAtStepHook(tf.train.StopAtStepHook):
    """Unlike TensorFlow's, does not make one more step if a run resumes at its last one."""

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if session.run(tf.train.get_global_step()) >= self._last_step:
            coord.request_stop()


class WorkerHook(tf.train.SessionRunHook):
    """Gives workers the same values at the start, and stops all after the same step on a signal.

    Attributes:
        is_stopped: whether a worker has caught a signal.
        in_step: whether a step is running, or has failed.
    """

    def __init__(self, worker, caught):
        """`caught` is the list of signals that this `worker.Worker` has caught."""
        self._worker, self._caught = worker, caught
        self.is_stopped = self.in_step = False

    def after_create_session(self, session, coord):
        self._worker.start(session)
        if self._caught and self._worker.size == 1:  # Several workers learn of it in a step.
            self.is_stopped = True
            coord.request_stop()

    def before_run(self, run_context):
        self.in_step = True
        return self._worker.step(self._caught)

    def after_run(self, run_context, run_values):
        self.in_step = False
        if run_values.results.get('stop', len(self._caught)) > 0:
            self.is_stopped = True
            run_context.request_stop()


class LoggerHook(StepHook):
    """Logs loss and speed; on a terminal, also shows the progress of the epoch.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    def __init__(self, loss, epochs, log_frequency):
        """`epochs` is an `EpochCounter`."""
        self._loss, self._epochs, self._log_frequency = loss, epochs, log_frequency
        self._shown_time = -math.inf

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._warm, self._last = None, (self.steps, time.perf_counter())

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)  # Asks for the value of the loss.

    def after_run(self, run_context, run_values):
        step, loss, now = self.steps, run_values.results, time.perf_counter()
        super().after_run(run_context, run_values)
        is_due = step % self._log_frequency == 0
        if is_due:
            examples_per_sec, sec_per_batch = self._speed(self._last, now)
            console.line(f'{datetime.datetime.now()}: step {step}, loss = {loss:.2f} '
                         f'({examples_per_sec:.1f} examples/sec; {sec_per_batch:.3f} sec/batch)')
        if is_due or not self._warm:
            self._last = self.steps, now
        if not self._warm:
            self._warm = self._last
        elif console.shows_progress() and now - self._shown_time >= _PROGRESS_SECONDS:
            self._shown_time = now
            rate, seconds = self._speed(self._warm, now)
            left = (self._epochs.max_steps - self.steps) * seconds
            console.progress(
                f'epoch {self._epochs.seen(self.steps):.2f}: step {self.steps} of '
                f'{self._epochs.max_steps}, {datetime.timedelta(seconds=int(left))} left, '
                f'loss {loss:.2f}, {rate:.0f} images/s')

    def _speed(self, since, now):
        """Images per second and seconds per step since (number of steps, time)."""
        seconds = max(now - since[1], 1e-9) / (self.steps - since[0])
        return self._epochs.images_per_step / seconds, seconds


class MetricsHook(StepHook):
    """Adds a row to metrics.csv every hundred steps, and whenever `add_row` is called.

    Each step fetches its loss and, if known, the fraction of wrong predictions and the rate.

    Attributes:
        values: those of the latest step, {name: number}.
    """

    def __init__(self, folder, loss, epochs, writer):
        """Creates the hook for a run's folder, with the folder's `tf.summary.FileWriter`."""
        self._folder, self._epochs, self._writer = folder, epochs, writer
        self._fetches = {'training_loss': loss}
        wrong = tf.get_collection('errors')  # Of each tower; empty without `cifar10.loss`.
        if wrong:
            with tf.name_scope('mean_error'):
                self._fetches['training_error'] = tf.add_n(wrong) / len(wrong)
        for rate in tf.get_collection('learning_rate'):
            self._fetches['learning_rate'] = rate
        self.values = {}
        self._since_row, self._epoch_errors = [], []
        self._seconds = None  # Of each step since the last row, without the first of the session.

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._table = metrics.Metrics(self._folder, self.steps)

    def before_run(self, run_context):
        self._start_time = time.perf_counter()
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self._seconds is None:  # It includes the set-up.
            self._seconds = []
        else:
            self._seconds.append(time.perf_counter() - self._start_time)
        self.values = run_values.results
        self._since_row.append(self.values)
        if self._epochs.ends(self.steps - 1):
            self._epoch_errors = []
        if 'training_error' in self.values:
            self._epoch_errors.append(self.values['training_error'])
        if self.steps % SUMMARY_STEPS == 0 and not self._epochs.validates(self.steps):
            self.add_row()

    def epoch_error(self):
        """Mean training error since the epoch began, or this start if later; None if unknown."""
        return float(np.mean(self._epoch_errors)) if self._epoch_errors else None

    def add_row(self, validated=None):
        """Adds a row of means since the last one, unless there was no step since.

        `validated` are the `validation.Errors` at this step.
        """
        if not self._since_row:
            return
        means = {name: np.mean([values[name] for values in self._since_row])
                 for name in self._fetches}
        training_error = means.get('training_error')
        self._table.append(
            step=self.steps, wall_time=time.time(), epoch=self._epochs.seen(self.steps),
            learning_rate=self.values.get('learning_rate'), training_loss=means['training_loss'],
            training_error=training_error, validation_error=validated and validated.raw,
            validation_error_averaged=validated and validated.averaged,
            images_per_second=(self._epochs.images_per_step / np.mean(self._seconds)
                               if self._seconds else None))
        self._since_row, self._seconds = [], []
        values = {}
        if training_error is not None and self.steps % SUMMARY_STEPS == 0:
            # The evaluation's tag, so that TensorBoard shows both in one chart.
            values['Precision @ 1'] = 1 - training_error
        if validated:
            values['validation/error'], values['validation/error_averaged'] = validated
            values['training/error'] = training_error
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
            if value is not None]), self.steps)

    def diverged(self, reason):
        """The exception for a loss or variable that is not finite."""
        latest = checkpoints.latest(self._folder, report=False)
        rate = self.values.get('learning_rate')  # Unknown in a start's first step.
        return FloatingPointError(
            f'Training diverged at step {self.steps}: {reason}'
            + (f', at learning rate {rate:g}. ' if rate is not None else '. ')
            + (f'The last good checkpoint is {latest}: ' if latest else 'No checkpoint was saved: ')
            + 'run again with a lower --learning_rate')


class ValidationHook(StepHook):
    """Worker 0 validates, and the others wait for it, because steps have a time limit."""

    def __init__(self, worker, epochs, validation=None, metrics_hook=None, stop_at=None):
        """Worker 0 has a `validation.Validation` and a `MetricsHook`, for the row of metrics.

        The `EpochCounter` knows when to validate. All workers stop when the precision of the
        averaged weights reaches `stop_at`, if given.
        """
        self._worker, self._epochs, self._validation = worker, epochs, validation
        self._metrics = metrics_hook
        self._stop_at = math.inf if stop_at is None else stop_at

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._start_time = time.perf_counter()

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if not self._epochs.validates(self.steps):
            return
        is_good = False
        if self._validation:
            found = self._validation.run(
                run_context.session, self.steps, self._metrics.epoch_error())
            self._metrics.add_row(found)
            is_good = found is not None and reaches(found.averaged, self._stop_at)
        if is_good:
            since = ' since this start' if self._epochs.first_step else ''
            console.line(
                f'Reached --stop_at={self._stop_at:g} at step {self.steps}, after '
                f'{self._epochs.images(self.steps)} images ({self._epochs.seen(self.steps):.4g} '
                f'epochs) and {time.perf_counter() - self._start_time:.1f} seconds{since}.')
        if self._worker.barrier('the validation', value=is_good):
            run_context.request_stop()


def reaches(error, precision):
    """Whether an error, a fraction of images, is that of a precision; rounding does not count."""
    return error <= 1 - precision + 1e-9


class RefuseNonFinite(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite, so that the latest checkpoint stays good.

    `NanTensorHook` is not enough: the loss of a step is that of the weights before it.
    """

    def __init__(self, variables, metrics_hook):
        """Builds the check in the graph: copies of all variables in Python would take memory."""
        self._checked = [each for each in variables if each.dtype.is_floating]
        self._metrics = metrics_hook
        with tf.device('/cpu:0'), tf.name_scope('check_finite'):
            self._finite = tf.stack([
                tf.reduce_all(tf.is_finite(variable.read_value())) for variable in self._checked])

    def before_save(self, session, global_step_value):
        console.progress(f'step {global_step_value}: saving a checkpoint')
        for variable, finite in zip(self._checked, session.run(self._finite)):
            if not finite:
                raise self._metrics.diverged(f'{variable.op.name} is not finite')


class WriteBeside(tf.train.CheckpointSaverListener):
    """Adds a row to metrics.csv before each checkpoint, so that a resumed run leaves no gap, and
    writes params.h5 after the last one."""

    def __init__(self, metrics_hook, folder, variables):
        self._metrics, self._folder, self._variables = metrics_hook, folder, variables

    def before_save(self, session, global_step_value):
        self._metrics.add_row()

    def after_save(self, session, global_step_value):
        self._saved_step = global_step_value

    def end(self, session, global_step_value):
        if global_step_value != self._saved_step:  # Saving it has failed.
            return
        console.line(f'Saved step {global_step_value} in {self._folder}.')
        values = session.run({variable.op.name: variable for variable in self._variables})
        parameters.write(
            os.path.join(self._folder, names.PARAMETERS), values,
            {variable.op.name for variable in self._variables if variable.trainable})
