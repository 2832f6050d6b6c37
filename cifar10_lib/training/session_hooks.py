"""Hooks of a training session, besides those that TensorFlow has.

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

    def __init__(self, me, is_complete):
        """`me` is this `worker.Worker`; `is_complete` is whether no steps are left."""
        self._me, self._is_complete = me, is_complete
        self.is_stopped = False  # Whether a worker has caught a signal during a step.
        self.in_step = False  # Whether a step is running, or has failed.

    def after_create_session(self, session, coord):
        self._me.start(session)
        # `StopAtStepHook` would make one more step. Several workers learn of a signal in a step.
        if self._is_complete or (self._me.caught and self._me.size == 1):
            coord.request_stop()

    def before_run(self, run_context):
        self.in_step = True
        return self._me.step()

    def after_run(self, run_context, run_values):
        self.in_step = False
        stopping = len(self._me.caught)
        if self._me.size > 1:
            stopping = run_values.results['stop']
        if stopping > 0:
            self.is_stopped = True
            run_context.request_stop()


class LoggerHook(tf.train.SessionRunHook):
    """Logs loss and runtime, as `_LoggerHook` of cifar10_train.py does.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    def __init__(self, loss, epochs, log_frequency):
        """`epochs` is an `EpochCounter`, `log_frequency` the number of steps between lines."""
        self._loss, self._epochs, self._log_frequency = loss, epochs, log_frequency
        self._first_step = self._step = epochs.first_step

    def after_create_session(self, session, coord):
        self._last_line = self._step, time.perf_counter()  # Number of steps, and time.

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)  # Asks for loss value.

    def after_run(self, run_context, run_values):
        step, now = self._step, time.perf_counter()
        self._step += 1
        if step % self._log_frequency == 0:
            sec_per_batch = (now - self._last_line[1]) / (self._step - self._last_line[0])
            examples_per_sec = self._epochs.images_per_step / sec_per_batch
            console.line(
                f'{datetime.datetime.now()}: step {step}, loss = {run_values.results:.2f} '
                f'({examples_per_sec:.1f} examples/sec; {sec_per_batch:.3f} sec/batch)')
        if step % self._log_frequency == 0 or step == self._first_step:
            self._last_line = self._step, now


class ProgressHook(tf.train.SessionRunHook):
    """Shows the progress of the epoch, if standard output is a terminal."""

    def __init__(self, loss, epochs):
        """`epochs` is an `EpochCounter`."""
        self._loss, self._epochs = loss, epochs
        self._step = epochs.first_step
        self._warm, self._shown_time = None, -math.inf

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self._step += 1
        now = time.perf_counter()
        if not self._warm:  # The first step includes the set-up.
            self._warm = self._step, now
        elif console.shows_progress() and now - self._shown_time >= _PROGRESS_SECONDS:
            self._shown_time = now
            seconds = (now - self._warm[1]) / (self._step - self._warm[0])
            max_steps = self._epochs.max_steps
            left = datetime.timedelta(seconds=int((max_steps - self._step) * seconds))
            console.progress(
                f'epoch {self._epochs.seen(self._step):.2f}: step {self._step} of {max_steps}, '
                f'{left} left, loss {run_values.results:.2f}, '
                f'{self._epochs.images_per_step / seconds:.0f} images/s')


class MetricsHook(tf.train.SessionRunHook):
    """Adds a row to metrics.csv every hundred steps, and whenever `add_row` is called.

    Each step fetches its loss and, if known, the fraction of wrong predictions and the rate.
    """

    def __init__(self, folder, loss, epochs):
        """`epochs` is an `EpochCounter`; `folder` that of the run."""
        self._folder, self._epochs = folder, epochs
        self._step = epochs.first_step
        self._fetches = {'training_loss': loss}
        wrong = tf.get_collection('errors')  # One per tower, if `cifar10.loss` built the loss.
        if wrong:
            with tf.name_scope('mean_error'):
                self._fetches['training_error'] = tf.add_n(wrong) / len(wrong)
        for rate in tf.get_collection('learning_rate'):
            self._fetches['learning_rate'] = rate
        self._values = {}  # What the latest step fetched.
        self._since_row, self._seconds = [], []  # One per step since the last row.
        self.epoch_errors = []  # One per step of this epoch and this start.

    def begin(self):
        metrics.start(os.path.join(self._folder, names.METRICS), self._epochs.first_step)
        self._writer = tf.summary.FileWriterCache.get(self._folder)

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
            row['images_per_second'] = self._epochs.images_per_step / np.mean(self._seconds)
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
        latest = checkpoints.newest(self._folder)
        good = 'No checkpoint was saved'
        if latest:
            good = f'The last good checkpoint is {latest.path}'
        rate = self._values.get('learning_rate')  # Unknown in a start's first step.
        if rate is not None:
            reason += f', at learning rate {rate:g}'
        return FloatingPointError(f'Training diverged at step {self._step}: {reason}. {good}: '
                                  'run again with a lower --learning_rate')


class ValidationHook(tf.train.SessionRunHook):
    """Worker 0 validates, and the others wait for it, because steps have a time limit."""

    def __init__(self, me, epochs, validation=None, metrics_hook=None):
        """Worker 0 has a `validation.Validation` and a `MetricsHook`, for the row of metrics."""
        self.worker, self._epochs, self._validation = me, epochs, validation
        self._metrics = metrics_hook
        self._step = epochs.first_step

    def after_run(self, run_context, run_values):
        self._step += 1
        if not self._epochs.validates(self._step):
            return
        if self._validation:
            training_error = None
            if self._metrics.epoch_errors:
                training_error = float(np.mean(self._metrics.epoch_errors))
            found = self._validation.run(run_context.session, self._step, training_error)
            self._metrics.add_row(found)
        self.worker.barrier('the validation')


class SaverHook(tf.train.CheckpointSaverHook):
    """Saves checkpoints, and params.h5 after the last one; also what an error would lose.

    Before each checkpoint, it adds a row to metrics.csv, so that a resumed run leaves no gap, and
    refuses to save variables that are not finite, so that the latest checkpoint stays good.
    `NanTensorHook` is not enough: the loss of a step is that of the weights before it.
    """

    def __init__(self, start, variables, metrics_hook, statistics=None):
        """`start` is the `Start` of a run, `variables` the list of those to save, `statistics` a
        `statistics.Statistics` for a network with batch norm."""
        run, self._folder = start.run, start.run.train_dir
        self._variables = {variable.op.name: variable for variable in variables}
        self.metrics_hook, self._statistics, self._found = metrics_hook, statistics, start.found
        saver = tf.train.Saver(variables, max_to_keep=run.keep_checkpoints,
                               save_relative_paths=True, keep_checkpoint_every_n_hours=1e9)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)  # The scaffold looks there.
        seconds = None
        if run.save_checkpoint_steps is None:
            seconds = run.save_checkpoint_secs
        super().__init__(self._folder, save_secs=seconds, save_steps=run.save_checkpoint_steps,
                         saver=saver, listeners=[_Listener(self)])
        self._kept = saver

    def begin(self):
        if self._found:
            older = checkpoints.candidates(self._folder)  # Damaged ones precede the latest.
            self._kept.recover_last_checkpoints(older[older.index(self._found.path):][::-1])
        super().begin()

    def save_after_error(self, session):
        """Saves the steps since the last checkpoint; call it between two steps."""
        self._timer.reset()  # It counts a save that failed as done.
        self.end(session)

    def before_save(self, session, step):
        """Checks the variables; see the class."""
        console.progress(f'step {step}: saving a checkpoint')
        if self._statistics:
            self._statistics.update(session, step)
        for name, value in session.run(self._variables).items():
            if self._variables[name].dtype.is_floating and not np.isfinite(value).all():
                raise self.metrics_hook.diverged(f'{name} is not finite')
        self.metrics_hook.add_row()

    def after_last(self, session, step):
        """Writes params.h5, unless the last checkpoint could not be saved."""
        saved = checkpoints.at_step(self._folder, step)
        if checkpoints.candidates(self._folder)[:1] == [saved]:
            console.line(f'Saved step {step} in {self._folder}.')
            checkpoints.write_parameters(
                os.path.join(self._folder, names.PARAMETERS), session.run(self._variables),
                {name for name, variable in self._variables.items() if variable.trainable})


class _Listener(tf.train.CheckpointSaverListener):
    """Calls a `SaverHook` before it saves and when it ends."""

    def __init__(self, hook):
        self._hook = hook

    def before_save(self, session, global_step_value):
        self._hook.before_save(session, global_step_value)

    def end(self, session, global_step_value):
        self._hook.after_last(session, global_step_value)
