"""What a training session does besides steps, one task per action.

Any order of actions has the same effects: an action that needs another calls it.
"""
import datetime
import math
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import text_format
from tensorflow.python.client import timeline  # TensorFlow has no public name for it.

from cifar10_lib.program import console, files
from cifar10_lib.runs import metrics, names, parameters

_PROGRESS_SECONDS = 0.25
_KEPT_SECONDS = 2.0


class Action:
    """Base class; an action defines the methods that it needs."""

    def __init__(self, run):
        """`run` is the session's `Run`."""
        self._run = run

    def start(self, session):
        """Runs before the first step."""

    def run(self, session):
        """Runs after a step if it is due."""

    def end(self, session):
        """Runs after the last step."""


class Print(Action):
    """Prints loss and speed.

    The speed is the mean over all steps since the last line. A session's first step, which includes
    the set-up, only counts in its own line.
    """

    _since = None

    def run(self, session):
        run = self._run
        steps, start_time = self._since or run.start
        self._since = run.steps_done, time.perf_counter()
        seconds = (self._since[1] - start_time) / (run.steps_done - steps)
        console.line(f'{datetime.datetime.now()}: step {run.steps_done - 1}, loss = '
                     f'{run.values["training_loss"]:.2f} '
                     f'({run.pace.examples_per_step / seconds:.1f} examples/sec; '
                     f'{seconds:.3f} sec/batch)')


class Progress(Action):
    """Shows the progress of the epoch on a terminal, a few times per second.

    The line of a finished epoch stays. For small data sets, whose epochs take moments, one such
    line stays every two seconds.
    """

    _is_warm = False
    _shown_time = _kept_time = -math.inf

    def run(self, session):
        run, now = self._run, time.perf_counter()
        steps, start_time = run.start
        keep = run.pace.ends_epoch(run.steps_done) and now - self._kept_time >= _KEPT_SECONDS
        was_warm, self._is_warm = self._is_warm, True  # The first step includes the set-up.
        if not was_warm or not keep and now - self._shown_time < _PROGRESS_SECONDS:
            return
        self._shown_time = now
        if keep:
            self._kept_time = now
        rate = (run.steps_done - steps) / max(now - start_time, 1e-9)
        left = ''
        if run.steps_done < run.pace.max_steps:  # The last validation and checkpoint follow.
            seconds = int((run.pace.max_steps - run.steps_done) / rate)
            left = f', {datetime.timedelta(seconds=seconds)} left'
        console.progress(
            f'epoch {run.pace.epochs(run.steps_done):.2f}: step {run.steps_done} of '
            f'{run.pace.max_steps}, {rate * run.pace.examples_per_step:.0f} images/s, loss '
            f'{run.values["training_loss"]:.2f}{left}', keep=keep)


class Summarise(Action):
    """Writes the summaries of a step."""

    def start(self, session):
        self._run.writer.add_graph(session.graph)
        self._run.writer.add_start(self._run.steps_done)

    def run(self, session):
        run = self._run
        if run.summary is not None:  # The graph may have no summaries.
            run.writer.add_summary(run.summary, run.steps_done - 1)
            run.writer.flush()


class Trace(Action):
    """Writes the trace of a step: the time and device of each operation.

    `timeline-STEP.json` is for chrome://tracing or https://ui.perfetto.dev; TensorBoard's graph has
    the tag `step_STEP`. `tf.train.ProfilerHook` traces periodically, never a single step.
    """

    def start(self, session):
        step, first, end = self._run.pace.profile, self._run.steps_done, self._run.pace.max_steps
        if step is not None and not first <= step < end:
            covered = f'steps {first} to {end - 1}' if first < end else 'no steps'
            console.line(f'Step {step} will not be traced: this run covers {covered}.')

    def run(self, session):
        step, metadata = self._run.pace.profile, self._run.metadata
        path = os.path.join(self._run.folder, names.TIMELINE % step)
        with files.new_file(path) as stream:
            stream.write(timeline.Timeline(
                metadata.step_stats).generate_chrome_trace_format().encode())
        self._run.writer.add_run_metadata(metadata, f'step_{step}', step)
        console.line(f'Traced step {step} in {path}: open it in chrome://tracing')


class Validate(Action):
    """Worker 0 validates, and the others wait for it, because steps have a time limit."""

    def __init__(self, run, validation=None, stop_at=None):
        """`validation` is worker 0's `validation.Validation`; at the precision `stop_at` of the
        averaged weights, all workers stop."""
        super().__init__(run)
        self._validation = validation
        self._stop_at = math.inf if stop_at is None else stop_at

    def start(self, session):
        self._start_time = time.perf_counter()

    def run(self, session):
        """Returns `validation.Errors`; None if a signal ended the validation."""
        run = self._run
        errors = self._validation and self._validation.run(
            session, run.steps_done, _mean(run.epoch_errors))
        is_good = errors is not None and 1 - errors.averaged >= self._stop_at
        if is_good:
            since = ' since this start' if run.pace.first_step else ''
            console.line(
                f'Reached --stop_at={self._stop_at:g} at step {run.steps_done}, after '
                f'{run.pace.images(run.steps_done)} images ({run.pace.epochs(run.steps_done):.4g} '
                f'epochs) and {time.perf_counter() - self._start_time:.1f} seconds{since}.')
        run.is_good = run.team.barrier('the validation', value=is_good)
        return errors


def _mean(values):
    """Mean of a list of numbers, a float; None if it is empty."""
    return float(np.mean(values)) if values else None


class Record(Action):
    """Validates if that is due, and adds a row to `metrics.csv` and a summary."""

    def __init__(self, run, validate):
        super().__init__(run)
        self._validate = validate

    def start(self, session):
        self._validate.start(session)
        self._table = metrics.Metrics(self._run.folder, self._run.steps_done)
        self._start_time = time.perf_counter()

    def run(self, session):
        """Does nothing if there was no step since the last row."""
        run = self._run
        if not run.since_row:
            return
        seconds = time.perf_counter() - self._start_time
        errors = self._validate.run(session) if run.pace.validates(run.steps_done) else None
        means = {name: _mean([values[name] for values in run.since_row])
                 for name in run.fetches}
        training_error = means.get('training_error')
        self._table.append(
            step=run.steps_done, wall_time=time.time(), epoch=run.pace.epochs(run.steps_done),
            learning_rate=run.values.get('learning_rate'), training_loss=means['training_loss'],
            training_error=training_error, validation_error=errors and errors.raw,
            validation_error_averaged=errors and errors.averaged,
            images_per_second=len(run.since_row) * run.pace.examples_per_step / seconds)
        self._write_summary(errors, training_error)
        run.since_row = []
        self._start_time = time.perf_counter()  # A validation does not count as training.

    def _write_summary(self, errors, training_error):
        run, values = self._run, {}
        if training_error is not None and run.pace.ends_interval(run.steps_done):
            # The evaluation's tag, so that TensorBoard shows both in one chart.
            values['Precision @ 1'] = 1 - training_error
        if errors:
            values['validation/error'], values['validation/error_averaged'] = errors
            if training_error is not None:
                values['training/error'] = training_error
        if values:
            run.writer.add_summary(tf.Summary(value=[
                tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
                run.steps_done)
        if errors:
            run.writer.flush()


class Save(Action):
    """Saves a checkpoint at the start, when it is due, and at the end; then writes `params.h5`.

    Unlike `tf.train.CheckpointSaverHook`, refuses to save variables that are not finite, so the
    latest checkpoint stays good. Records the steps up to a checkpoint first, so that a resumed run
    leaves no gap in the metrics.
    """

    def __init__(self, run, record, statistics, saver, seconds, steps=None):
        """A checkpoint is due a number of seconds, or of steps if given, after the last one.

        `statistics` is a `statistics.Statistics`. Builds the check in the graph: copies of all
        variables in Python would take memory.
        """
        super().__init__(run)
        self._record, self._statistics = record, statistics
        self._saver = saver
        self._seconds = seconds
        self._steps = steps
        self._checked = [each for each in run.variables if each.dtype.is_floating]
        with tf.device('/cpu:0'), tf.name_scope('check_finite'):
            self._finite = tf.stack([
                tf.reduce_all(tf.is_finite(variable.read_value())) for variable in self._checked])

    def is_due(self, steps):
        """Whether a checkpoint is due after this number of steps.

        `tf.train.SecondOrStepTimer` reads the time of day: if that were set back by an hour, no
        checkpoint would be saved for an hour.
        """
        if self._steps is not None:
            return steps >= self._saved_step + self._steps
        return steps > self._saved_step and time.monotonic() >= self._saved_time + self._seconds

    def start(self, session):
        with files.new_file(os.path.join(self._run.folder, names.GRAPH)) as stream:
            # `str` of protobuf 5.29 does not escape quotation marks.
            stream.write(text_format.MessageToString(
                session.graph.as_graph_def(add_shapes=True)).encode())
        self.run(session)

    def run(self, session):
        run, step = self._run, self._run.steps_done
        console.progress(f'step {step}: saving a checkpoint')
        for variable, finite in zip(self._checked, session.run(self._finite)):
            if not finite:
                raise run.diverged(step, f'{variable.op.name} is not finite')
        self._record.run(session)
        # Other workers wait for the step; see --step_timeout.
        self._statistics.update(session, step, run.caught, run.team.step_seconds / 3)
        self._saver.save(session, os.path.join(run.folder, names.CHECKPOINT), global_step=step)
        self._saved_step, self._saved_time = step, time.monotonic()

    def end(self, session):
        if self._run.steps_done != self._saved_step:
            self.run(session)
        console.line(f'Saved step {self._saved_step} in {self._run.folder}.')
        values = session.run({variable.op.name: variable for variable in self._run.variables})
        parameters.write(
            os.path.join(self._run.folder, names.PARAMETERS), values,
            {variable.op.name for variable in self._run.variables if variable.trainable})
