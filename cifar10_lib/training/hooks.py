"""The hooks of a training session: everything besides the steps, one task per hook.

Common arguments: `steps`, the `StepCounter`, which precedes the others in the list of hooks;
`pace`, the `Pace`; `folder`, the path of the run's folder; `loss`, float [].
"""
import datetime
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline  # TensorFlow has no public name for it.

from cifar10_lib.program import console
from cifar10_lib.program import files
from cifar10_lib.runs import checkpoints
from cifar10_lib.runs import metrics
from cifar10_lib.runs import names
from cifar10_lib.runs import parameters

SUMMARY_STEPS = 100
_PROGRESS_SECONDS = 0.25
_KEPT_SECONDS = 2.0


def _diverged(session, folder, step, reason):
    """The exception for a loss or variable that is not finite."""
    rate = session.run(tf.get_collection('learning_rate')[0])
    latest = checkpoints.latest(folder, report=False)
    return FloatingPointError(
        f'Training diverged at step {step}: {reason}, at learning rate {rate:g}. '
        + (f'The last good checkpoint is {latest}: ' if latest else 'No checkpoint was saved: ')
        + 'lower --learning_rate, then run the same command again')


class StepCounter(tf.train.SessionRunHook):
    """Counts the steps for all other hooks.

    Every run of the session is a step. Anything else uses `run_step_fn`, which bypasses hooks.

    Attributes:
        made: number of steps made over all starts. In `before_run` of the hooks that follow, this
            is the number of the step about to run, counted from 0; in `after_run` it includes it.
    """

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.made = int(session.run(self._global_step))

    def after_run(self, run_context, run_values):
        self.made += 1


class StopHook(tf.train.SessionRunHook):
    """Stops after the running step, or before the first, when a function returns true.

    `tf.train.StopAtStepHook` makes one more step if a run resumes at its last one.
    """

    def __init__(self, is_over):
        self._is_over = is_over

    def after_create_session(self, session, coord):
        if self._is_over():
            coord.request_stop()

    def after_run(self, run_context, run_values):
        if self._is_over():
            run_context.request_stop()


class DataHook(tf.train.SessionRunHook):
    """Checks record files that change during training, so no wrong label is used silently.

    Raises `errors.DataError` if one is damaged. Here, `folder` holds the record files.
    """

    def __init__(self, steps, data_set, folder):
        self._steps = steps
        self._data_set = data_set
        self._folder = folder
        self._seen = self._states()
        data_set.check(folder)  # The files may have changed since the check at the start.

    def after_run(self, run_context, run_values):
        if self._steps.made % SUMMARY_STEPS == 0 and self._states() != self._seen:
            self._seen = self._states()
            self._data_set.check(self._folder)
            console.line(f'Record files in {self._folder} changed; all of them are valid.')

    def _states(self):
        """Inode, size and modification time of each file; None for a missing one."""
        return [(found.st_ino, found.st_size, found.st_mtime_ns) if found else None
                for found in (_stat(os.path.join(self._folder, name))
                              for name in self._data_set.files)]


def _stat(path):
    try:
        return os.stat(path)
    except OSError:
        return None


class LossHook(tf.train.SessionRunHook):
    """Prints loss and speed, and stops training if the loss is not finite.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    def __init__(self, steps, loss, examples_per_step, log_frequency, folder):
        self._steps = steps
        self._loss = loss
        self._examples_per_step = examples_per_step
        self._log_frequency = log_frequency
        self._folder = folder

    def after_create_session(self, session, coord):
        self._first = self._steps.made
        self._start_interval()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        loss, step = run_values.results, self._steps.made - 1
        if not np.isfinite(loss):
            raise _diverged(run_context.session, self._folder, step, f'the loss is {loss}')
        if step % self._log_frequency == 0:
            seconds = (time.perf_counter() - self._start_time) / (
                self._steps.made - self._start_step)
            console.line(f'{datetime.datetime.now()}: step {step}, loss = {loss:.2f} '
                         f'({self._examples_per_step / seconds:.1f} examples/sec; '
                         f'{seconds:.3f} sec/batch)')
        if step % self._log_frequency == 0 or step == self._first:
            self._start_interval()

    def _start_interval(self):
        self._start_step = self._steps.made
        self._start_time = time.perf_counter()


class SummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of every hundredth step, counted over all starts."""

    def __init__(self, steps, scaffold, folder):
        self._steps = steps
        self._scaffold = scaffold
        self._folder = folder

    def after_create_session(self, session, coord):
        self._writer = tf.summary.FileWriterCache.get(self._folder)
        # TensorBoard then drops what a killed run wrote after its last checkpoint.
        self._writer.add_session_log(
            tf.SessionLog(status=tf.SessionLog.START), self._steps.made)

    def before_run(self, run_context):
        if self._steps.made % SUMMARY_STEPS == 0:
            return tf.train.SessionRunArgs(self._scaffold.summary_op)
        return None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self._writer.add_summary(run_values.results, self._steps.made - 1)
            files.flush(self._writer, self._folder)  # For TensorBoard, and in case we are killed.


class ProfileHook(tf.train.SessionRunHook):
    """Traces one step: the time and device of each operation.

    `timeline-STEP.json` is for chrome://tracing or https://ui.perfetto.dev; TensorBoard's graph has
    the tag `step_STEP`. `tf.train.ProfilerHook` traces periodically, never a single step.
    """

    def __init__(self, steps, traced_step, max_steps, folder):
        self._steps = steps
        self._traced_step = traced_step
        self._max_steps = max_steps
        self._folder = folder

    def after_create_session(self, session, coord):
        first, end = self._steps.made, self._max_steps
        if not first <= self._traced_step < end:
            covered = f'steps {first} to {end - 1}' if first < end else 'no steps'
            console.line(
                f'Step {self._traced_step} will not be traced: this run covers {covered}.')

    def before_run(self, run_context):
        if self._steps.made == self._traced_step:
            return tf.train.SessionRunArgs(
                None, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
        return None

    def after_run(self, run_context, run_values):
        step = self._steps.made - 1
        if step == self._traced_step:
            path = os.path.join(self._folder, names.timeline(step))
            with files.new_file(path) as stream:
                stream.write(timeline.Timeline(
                    run_values.run_metadata.step_stats).generate_chrome_trace_format().encode())
            tf.summary.FileWriterCache.get(self._folder).add_run_metadata(
                run_values.run_metadata, f'step_{step}', step)
            console.line(f'Traced step {step} in {path}: open it in chrome://tracing')


class ValidationHook(tf.train.SessionRunHook):
    """Runs a `Validation` when it is due; precedes the `MetricsHook`, which records the errors.

    The line that a validation prints also has the training error: the mean over the batches of the
    epoch so far, or since this start if that was later.
    """

    def __init__(self, steps, pace, error, validation, metrics_hook):
        """`error` is the fraction of wrong predictions in the batch, float []; None if unknown."""
        self._steps = steps
        self._pace = pace
        self._error = error
        self._validation = validation
        self._metrics = metrics_hook
        self._batch_errors = []

    def before_run(self, run_context):
        return None if self._error is None else tf.train.SessionRunArgs(self._error)

    def after_run(self, run_context, run_values):
        if self._error is not None:
            self._batch_errors.append(run_values.results)
        if self._pace.validates(self._steps.made):
            start = time.perf_counter()
            errors = self._validation.run(
                run_context.session, self._steps.made,
                float(np.mean(self._batch_errors)) if self._batch_errors else None)
            self._metrics.add_validation(errors, time.perf_counter() - start)
        if self._pace.ends_epoch(self._steps.made):
            self._batch_errors = []


class MetricsHook(tf.train.SessionRunHook):
    """Writes the rows of `metrics.csv`: every hundred steps, at validations and checkpoints."""

    def __init__(self, steps, pace, loss, error, rate, folder):
        """`error` is the fraction of wrong predictions in the batch, and `rate` the learning rate,
        both float []; None if unknown."""
        self._steps = steps
        self._pace = pace
        values = {'training_loss': loss, 'training_error': error, 'learning_rate': rate}
        self._fetches = {name: value for name, value in values.items() if value is not None}
        self._folder = folder

    def after_create_session(self, session, coord):
        self._table = metrics.Metrics(self._folder, self._steps.made)
        self._writer = tf.summary.FileWriterCache.get(self._folder)
        self._start_row()

    def _start_row(self):
        self._values = {name: [] for name in self._fetches}
        self._validation_errors = None
        self._start_time = time.perf_counter()
        self._start_step = self._steps.made

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        for name, value in run_values.results.items():
            self._values[name].append(float(value))
        if self._validation_errors or self._steps.made % SUMMARY_STEPS == 0:
            self.write_row()

    def add_validation(self, errors, seconds):
        """Records a validation in the row of the current step.

        Args:
            errors: `validation.Errors`; None if a signal ended the validation.
            seconds: how long it took; does not count as training.
        """
        self._validation_errors = errors
        self._start_time += seconds

    def write_row(self):
        """Adds a row about the steps since the last row, if there are any."""
        count = self._steps.made - self._start_step
        if not count:
            return
        seconds = time.perf_counter() - self._start_time
        training_error = self._mean('training_error')
        self._write_summary(training_error)
        self._table.append(
            step=self._steps.made, wall_time=time.time(), epoch=self._pace.epochs(self._steps.made),
            learning_rate=self._values.get('learning_rate', [None])[-1],
            training_loss=self._mean('training_loss'), training_error=training_error,
            validation_error=self._validation_errors and self._validation_errors.raw,
            images_per_second=count * self._pace.examples_per_step / seconds)
        self._start_row()

    def _write_summary(self, training_error):
        values = {}
        if training_error is not None and self._steps.made % SUMMARY_STEPS == 0:
            # The evaluation's tag, so that TensorBoard shows both in one chart.
            values['Precision @ 1'] = 1 - training_error
        if self._validation_errors:
            values['validation/error'], values['validation/error_averaged'] = (
                self._validation_errors)
            if training_error is not None:
                values['training/error'] = training_error
        if values:
            self._writer.add_summary(tf.Summary(value=[
                tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
                self._steps.made)
        if self._validation_errors:
            files.flush(self._writer, self._folder)

    def _mean(self, name):
        """Mean over the steps since the last row; None if there are no values."""
        return float(np.mean(self._values[name])) if self._values.get(name) else None


class ProgressHook(tf.train.SessionRunHook):
    """Shows the progress of the epoch on a terminal.

    The line of a finished epoch stays. For small data sets, whose epochs take moments, one such
    line stays every two seconds. `clock` returns seconds.
    """

    def __init__(self, steps, pace, loss, clock=time.perf_counter):
        self._steps = steps
        self._pace = pace
        self._loss = loss
        self._clock = clock
        self._shown_time = self._start_time = clock()
        self._kept_time = -_KEPT_SECONDS
        self._start_step = None

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.update(self._steps.made, float(run_values.results))

    def update(self, step, loss):
        """Shows step and loss, a few times per second and at the end of an epoch."""
        now = self._clock()
        if self._start_step is None:  # The first step includes the set-up.
            self._start_step, self._start_time = step, now
            return
        keep = self._pace.ends_epoch(step) and now - self._kept_time >= _KEPT_SECONDS
        if not keep and now - self._shown_time < _PROGRESS_SECONDS:
            return
        self._shown_time = now
        if keep:
            self._kept_time = now
        rate = (step - self._start_step) / max(now - self._start_time, 1e-9)
        left = ''
        if step < self._pace.max_steps:  # The last validation and checkpoint follow.
            seconds = int((self._pace.max_steps - step) / rate)
            left = f', {datetime.timedelta(seconds=seconds)} left'
        console.progress(
            f'epoch {self._pace.epochs(step):.2f}: step {step} of {self._pace.max_steps}, '
            f'{rate * self._pace.examples_per_step:.0f} images/s, loss {loss:.2f}{left}',
            keep=keep)


class ParametersHook(tf.train.SessionRunHook):
    """Writes `params.h5` at the end."""

    def __init__(self, variables, folder):
        self._variables = variables
        self._folder = folder

    def end(self, session):
        values = session.run({variable.op.name: variable for variable in self._variables})
        parameters.write(os.path.join(self._folder, names.PARAMETERS), values,
                         {variable.op.name for variable in self._variables if variable.trainable})


class CheckpointTimer:
    """When the next checkpoint is due: a number of seconds, or of steps, after the last one.

    `tf.train.SecondOrStepTimer` reads the time of day: if that were set back by an hour, no
    checkpoint would be saved for an hour.
    """

    def __init__(self, seconds, steps=None, clock=time.monotonic):
        """`steps`, if not None, replaces `seconds`. `clock` returns seconds."""
        self._seconds = seconds
        self._steps = steps
        self._clock = clock
        self.saved_step = None

    def is_due(self, step):
        """Whether to save a checkpoint after this step; `saved` was called at least once."""
        if self._steps is not None:
            return step >= self.saved_step + self._steps
        return step > self.saved_step and self._clock() >= self._saved_time + self._seconds

    def saved(self, step):
        """Starts to wait for the next checkpoint after the one of this step."""
        self.saved_step, self._saved_time = step, self._clock()


class CheckpointHook(tf.train.SessionRunHook):
    """Saves a checkpoint at the start, when `timer` is due, and at the end; writes `graph.pbtxt`.

    Unlike `tf.train.CheckpointSaverHook`, refuses to save variables that are not finite, so the
    latest checkpoint stays good, and reads the step from the counter, not from the session. Writes
    the metrics up to a checkpoint first, so that a resumed run leaves no gap.
    """

    def __init__(self, steps, variables, saver, timer, metrics_hook, folder):
        """`timer` is a `CheckpointTimer`."""
        self._steps = steps
        self._variables = variables
        self._saver = saver
        self._timer = timer
        self._metrics = metrics_hook
        self._folder = folder

    def begin(self):
        """Builds the check as one tensor, bool [variables].

        In the graph, because copies of all variables in Python take memory.
        """
        self._checked = [variable for variable in self._variables if variable.dtype.is_floating]
        with tf.device('/cpu:0'), tf.name_scope('check_finite'):
            self._finite = tf.stack([
                tf.reduce_all(tf.is_finite(variable.read_value())) for variable in self._checked])

    def after_create_session(self, session, coord):
        with files.new_file(os.path.join(self._folder, names.GRAPH)) as stream:
            stream.write(str(session.graph.as_graph_def(add_shapes=True)).encode())
        self._save(session)

    def after_run(self, run_context, run_values):
        if self._timer.is_due(self._steps.made):
            self._save(run_context.session)

    def end(self, session):
        if self._steps.made != self._timer.saved_step:
            self._save(session)
        console.line(f'Saved step {self._steps.made} in {self._folder}.')

    def _save(self, session):
        step = self._steps.made
        console.progress(f'step {step}: saving a checkpoint')
        for variable, finite in zip(self._checked, session.run(self._finite)):
            if not finite:
                raise _diverged(session, self._folder, step,
                                f'{variable.op.name} is not finite')
        self._metrics.write_row()
        self._saver.save(session, os.path.join(self._folder, names.CHECKPOINT), global_step=step)
        self._timer.saved(step)
