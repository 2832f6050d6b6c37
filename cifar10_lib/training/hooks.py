"""Hooks of a training session, besides those that TensorFlow has, and a listener of checkpoints.

They count the steps themselves: TensorFlow's fetch the global step with each step, and whether that
is the value before or after the update is not defined for resource variables.
"""
import datetime
import math
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.program import console
from cifar10_lib.runs import checkpoints, metrics, names

SUMMARY_STEPS = 100  # Number of steps between summaries, and between rows of metrics.csv.

_PROGRESS_SECONDS = 0.25


class WorkerHook(tf.train.SessionRunHook):
    """Gives workers the same values at the start, and stops all after the same step on a signal."""

    def __init__(self, worker, caught, is_complete):
        """`caught` is the list of signals that this `worker.Worker` has caught."""
        self._worker, self._caught, self._is_complete = worker, caught, is_complete
        self.is_stopped = False  # Whether a worker has caught a signal during a step.
        self.in_step = False  # Whether a step is running, or has failed.

    def after_create_session(self, session, coord):
        self._worker.start(session)
        # `StopAtStepHook` would make one more step. Several workers learn of a signal in a step.
        if self._is_complete or self._caught and self._worker.size == 1:
            coord.request_stop()

    def before_run(self, run_context):
        self.in_step = True
        return self._worker.step(self._caught)

    def after_run(self, run_context, run_values):
        self.in_step = False
        if (run_values.results or {}).get('stop', len(self._caught)) > 0:
            self.is_stopped = True
            run_context.request_stop()


class LoggerHook(tf.train.SessionRunHook):
    """Logs loss and speed; on a terminal, also shows the progress of the epoch.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    def __init__(self, loss, epochs, log_frequency):
        """`epochs` is an `EpochCounter`."""
        self._loss, self._epochs, self._log_frequency = loss, epochs, log_frequency
        self._step = epochs.first_step
        self._warm, self._shown_time = None, -math.inf

    def after_create_session(self, session, coord):
        self._last = self._step, time.perf_counter()  # Number of steps and time, as `_warm`.

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)  # Asks for the value of the loss.

    def after_run(self, run_context, run_values):
        step, loss, now = self._step, run_values.results, time.perf_counter()
        self._step += 1
        images_per_step, max_steps = self._epochs.changes[-1][1], self._epochs.max_steps
        if step % self._log_frequency == 0:
            sec_per_batch = (now - self._last[1]) / (self._step - self._last[0])
            console.line(f'{datetime.datetime.now()}: step {step}, loss = {loss:.2f} '
                         f'({images_per_step / sec_per_batch:.1f} examples/sec; '
                         f'{sec_per_batch:.3f} sec/batch)')
            self._last = self._step, now
        if not self._warm:
            self._warm = self._last = self._step, now
        elif console.shows_progress() and now - self._shown_time >= _PROGRESS_SECONDS:
            self._shown_time = now
            seconds = (now - self._warm[1]) / (self._step - self._warm[0])
            left = datetime.timedelta(seconds=int((max_steps - self._step) * seconds))
            console.progress(
                f'epoch {self._epochs.seen(self._step):.2f}: step {self._step} of {max_steps}, '
                f'{left} left, loss {loss:.2f}, {images_per_step / seconds:.0f} images/s')


class MetricsHook(tf.train.SessionRunHook):
    """Adds a row to metrics.csv every hundred steps, and whenever `add_row` is called.

    Each step fetches its loss and, if known, the fraction of wrong predictions and the rate.
    """

    def __init__(self, folder, loss, epochs, writer):
        """`epochs` is an `EpochCounter`; `writer` the `tf.summary.FileWriter` of `folder`."""
        self._folder, self._epochs, self._writer = folder, epochs, writer
        self._step = epochs.first_step
        self._fetches = {'training_loss': loss}
        wrong = tf.get_collection('errors')  # Of each tower; empty without `cifar10.loss`.
        if wrong:
            with tf.name_scope('mean_error'):
                self._fetches['training_error'] = tf.add_n(wrong) / len(wrong)
        for rate in tf.get_collection('learning_rate'):
            self._fetches['learning_rate'] = rate
        self._values = {}  # Of the latest step.
        self._since_row, self._seconds = [], []  # Of each step since the last row.
        self.epoch_errors = []  # Of each step since the epoch began, or this start if later.
        metrics.start(os.path.join(folder, names.METRICS), epochs.first_step)

    def before_run(self, run_context):
        self._start_time = time.perf_counter()
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        self._values = run_values.results
        self._since_row.append(self._values)
        if self._step > self._epochs.first_step:  # A session's first step includes the set-up.
            self._seconds.append(time.perf_counter() - self._start_time)
        if self._epochs.ends(self._step):
            self.epoch_errors = []
        if 'training_error' in self._values:
            self.epoch_errors.append(self._values['training_error'])
        self._step += 1
        if self._step % SUMMARY_STEPS == 0 and not self._epochs.validates(self._step):
            self.add_row()

    def add_row(self, validated=None):
        """Adds a row of means since the last one, if there was a step since, with the errors
        `validated` at this step, from `validation.Validation.run`."""
        if not self._since_row:
            return
        row = {name: np.mean([values[name] for values in self._since_row])
               for name in self._fetches}
        row |= {'step': self._step, 'epoch': self._epochs.seen(self._step),
                'wall_time': time.time(), 'learning_rate': self._values.get('learning_rate')}
        if self._seconds:
            row['images_per_second'] = self._epochs.changes[-1][1] / np.mean(self._seconds)
        shown, training_error = {}, row.get('training_error')
        if validated:
            row['validation_error'], row['validation_error_averaged'] = validated
            shown = {'validation/error': validated[0], 'training/error': training_error,
                     'validation/error_averaged': validated[1]}
        if training_error is not None and self._step % SUMMARY_STEPS == 0:
            # The evaluation's tag, so that TensorBoard shows both in one chart.
            shown['Precision @ 1'] = 1 - training_error
        with open(os.path.join(self._folder, names.METRICS), 'ab') as stream:
            metrics.write(stream, row)
        self._since_row, self._seconds = [], []  # If `add_summary` raises: a retry adds no row.
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=tag, simple_value=value) for tag, value in shown.items()
            if value is not None]), self._step)

    def diverged(self, reason):
        """The exception for a loss or variable that is not finite."""
        latest = checkpoints.latest(self._folder, report=False)
        good = f'The last good checkpoint is {latest}' if latest else 'No checkpoint was saved'
        rate = self._values.get('learning_rate')  # Unknown in a start's first step.
        reason += '' if rate is None else f', at learning rate {rate:g}'
        return FloatingPointError(f'Training diverged at step {self._step}: {reason}. {good}: '
                                  'run again with a lower --learning_rate')


class ValidationHook(tf.train.SessionRunHook):
    """Worker 0 validates, and the others wait for it, because steps have a time limit.

    All stop when the precision of the averaged weights reaches `stop_at`, if given.
    """

    def __init__(self, worker, epochs, validation=None, metrics_hook=None, stop_at=None):
        """Worker 0 has a `validation.Validation` and a `MetricsHook`, for the row of metrics."""
        self._worker, self._epochs, self._validation = worker, epochs, validation
        self._metrics, self._stop_at = metrics_hook, stop_at
        self._step = epochs.first_step

    def after_create_session(self, session, coord):
        self._start_time = time.perf_counter()

    def after_run(self, run_context, run_values):
        self._step += 1
        if not self._epochs.validates(self._step):
            return
        is_good = False
        if self._validation:
            errors = self._metrics.epoch_errors
            found = self._validation.run(
                run_context.session, self._step, float(np.mean(errors)) if errors else None)
            self._metrics.add_row(found)
            is_good = None not in (found, self._stop_at) and reaches(found[1], self._stop_at)
        if is_good:
            since = ' since this start' if self._epochs.first_step else ''
            console.line(
                f'Reached --stop_at={self._stop_at:g} at step {self._step}, after '
                f'{self._epochs.images(self._step)} images ({self._epochs.seen(self._step):.4g} '
                f'epochs) and {time.perf_counter() - self._start_time:.1f} seconds{since}.')
        if self._worker.barrier('the validation', value=is_good):
            run_context.request_stop()


def reaches(error, precision):
    """Whether an error, a fraction of images, is low enough for a precision, up to rounding."""
    return error <= 1 - precision + 1e-9


class CheckpointListener(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite, so that the latest checkpoint stays good.

    `NanTensorHook` is not enough: the loss of a step is that of the weights before it. Adds a row
    to metrics.csv before each checkpoint, so that a resumed run leaves no gap, and writes params.h5
    after the last one.
    """

    def __init__(self, folder, variables, metrics_hook):
        self._folder, self._metrics = folder, metrics_hook
        self._variables = {variable.op.name: variable for variable in variables}

    def before_save(self, session, global_step_value):
        console.progress(f'step {global_step_value}: saving a checkpoint')
        for name, value in session.run(self._variables).items():
            if self._variables[name].dtype.is_floating and not np.isfinite(value).all():
                raise self._metrics.diverged(f'{name} is not finite')
        self._metrics.add_row()

    def end(self, session, global_step_value):
        saved = checkpoints.at_step(self._folder, global_step_value)
        if checkpoints.candidates(self._folder)[:1] == [saved]:  # Not after an error in saving it.
            console.line(f'Saved step {global_step_value} in {self._folder}.')
            checkpoints.write_parameters(
                os.path.join(self._folder, names.PARAMETERS), session.run(self._variables),
                {name for name, variable in self._variables.items() if variable.trainable})
