"""What happens in a training session besides the steps: hooks, each for one thing."""
import datetime
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.client import timeline  # TensorFlow has no public name for it.

from program import console
from program import files
from runs import checkpoints
from runs import results

SUMMARY_STEPS = 100
_PROGRESS_SECONDS = 0.25
_KEPT_SECONDS = 2.0


def completes(step, examples_per_step, examples):
    """Whether a multiple of so many examples, such as an epoch, is complete with a step.

    All workers have to agree on it: worker 0 validates then, and the others wait.

    Args:
        step: counted from 1.
        examples_per_step: number of images that a step takes; may be more than `examples`.
        examples: of how many.
    """
    before, now = (made * examples_per_step // examples for made in (step - 1, step))
    return now > before


def _diverged(session, folder, step, what):
    """The exception to raise when training has left the finite numbers at a step."""
    rate = session.run(tf.get_collection('learning_rate')[0])
    return FloatingPointError(
        f'Training diverged at step {step}: {what}, at learning rate {rate:g}. '
        f'The last good checkpoint is {checkpoints.latest(folder, tell=False)}')


class StepHook(tf.train.SessionRunHook):
    """Counts steps: `step` is the number of the one that runs, from 0 over all starts.

    Every run of the session is a step; what else is to run, `run_step_fn` runs past the hooks.
    """

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context, run_values):
        self.step += 1


class StopHook(StepHook):
    """Stops when so many steps are made or a signal came, also where that was before the first."""

    def __init__(self, max_steps, caught):
        self._max_steps = max_steps
        self._caught = caught

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if self.step >= self._max_steps or self._caught:
            coord.request_stop()

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self.step >= self._max_steps or self._caught:
            run_context.request_stop()


class DataHook(StepHook):
    """Checks the record files again when one has changed: no wrong label is trained in silence."""

    def __init__(self, data_set, folder):
        """Makes the hook.

        Args:
            data_set: row of the data-set table.
            folder: of the record files.

        Raises:
            errors.DataError: a file is not whole.
        """
        self._data_set = data_set
        self._folder = folder
        self._seen = self._states()
        data_set.check(folder)  # It may have changed since it was checked at the start.

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self.step % SUMMARY_STEPS == 0 and self._states() != self._seen:
            self._seen = self._states()
            self._data_set.check(self._folder)
            console.line(f'Record files in {self._folder} have changed; all are whole.')

    def _states(self):
        """What tells whether files have changed: their numbers, sizes and times."""
        return [(found.st_ino, found.st_size, found.st_mtime_ns) if found else None
                for found in (_stat(os.path.join(self._folder, name))
                              for name in self._data_set.files)]


def _stat(path):
    try:
        return os.stat(path)
    except OSError:
        return None


class LossHook(StepHook):
    """Prints the loss and the speed, and stops training when the loss is not finite.

    The speed is that of all steps since the line before. A session's first step, which also sets
    everything up, counts only where its own line shows it.
    """

    def __init__(self, loss, examples_per_step, log_frequency, folder):
        """Makes the hook.

        Args:
            loss: float [].
            examples_per_step: number of images that a step takes, over all replicas.
            log_frequency: print a line every so many steps.
            folder: where the run's checkpoints are.
        """
        self._loss = loss
        self._examples_per_step = examples_per_step
        self._log_frequency = log_frequency
        self._folder = folder

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._first_step = self.step
        self._mark()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        loss = run_values.results
        if not np.isfinite(loss):
            raise _diverged(run_context.session, self._folder, self.step, f'the loss is {loss}')
        shown = self.step
        super().after_run(run_context, run_values)
        if shown % self._log_frequency == 0:
            seconds = (time.perf_counter() - self._marked_time) / (self.step - self._marked_step)
            console.line(f'{datetime.datetime.now()}: step {shown}, loss = {loss:.2f} '
                         f'({self._examples_per_step / seconds:.1f} examples/sec; '
                         f'{seconds:.3f} sec/batch)')
        if shown % self._log_frequency == 0 or shown == self._first_step:
            self._mark()

    def _mark(self):
        """The next line's interval begins now, with the step that comes next."""
        self._marked_step = self.step
        self._marked_time = time.perf_counter()


class SummaryHook(StepHook):
    """Writes the summaries of every hundredth step, counted over all starts."""

    def __init__(self, scaffold, folder):
        self._scaffold = scaffold
        self._folder = folder

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._writer = tf.summary.FileWriterCache.get(self._folder)
        # TensorBoard then drops what a run that was killed wrote beyond its last checkpoint.
        self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), self.step)

    def before_run(self, run_context):
        if self.step % SUMMARY_STEPS == 0:
            return tf.train.SessionRunArgs(self._scaffold.summary_op)
        return None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self._writer.add_summary(run_values.results, self.step)
            # TensorBoard shows it at once, and a kill does not lose it.
            files.flush(self._writer, self._folder)
        super().after_run(run_context, run_values)


class ProfileHook(StepHook):
    """Traces one step: what each operation took, and where.

    `timeline-STEP.json` is for chrome://tracing or https://ui.perfetto.dev; TensorBoard's graph has
    the tag `step_STEP`. `tf.train.ProfilerHook` traces every so many steps; it knows no single one.
    """

    def __init__(self, traced_step, max_steps, folder):
        self._traced_step = traced_step
        self._max_steps = max_steps
        self._folder = folder

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if not self.step <= self._traced_step < self._max_steps:
            console.line(f'Step {self._traced_step} will not be traced: this run makes steps '
                         f'{self.step} to {self._max_steps - 1}.')

    def before_run(self, run_context):
        if self.step == self._traced_step:
            return tf.train.SessionRunArgs(
                None, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
        return None

    def after_run(self, run_context, run_values):
        if self.step == self._traced_step:
            path = os.path.join(self._folder, f'timeline-{self.step}.json')
            with files.new_file(path) as stream:
                stream.write(timeline.Timeline(
                    run_values.run_metadata.step_stats).generate_chrome_trace_format().encode())
            tf.summary.FileWriterCache.get(self._folder).add_run_metadata(
                run_values.run_metadata, f'step_{self.step}', self.step)
            console.line(f'Traced step {self.step} in {path}: open it in chrome://tracing')
        super().after_run(run_context, run_values)


class MetricsHook(StepHook):
    """Writes the run's metrics, and validates where a whole number of epochs has ended.

    There is a row every hundred steps, at each validation, and, by `write_row`, before each
    checkpoint. Further: on a terminal the progress of the epoch.
    """

    def __init__(self, loss, error, rate, examples_per_step, examples_per_epoch, max_steps, folder,
                 validation=None):
        """Makes the hook.

        Args:
            loss: float [].
            error: float [], share of wrong predictions in the batch; None if unknown.
            rate: float [], the learning rate; None if unknown.
            examples_per_step: number of images that a step takes, over all replicas.
            examples_per_epoch: number of training images.
            max_steps: number of steps to make.
            folder: of the run.
            validation: a `Validation`, or None.
        """
        values = {'training_loss': loss, 'training_error': error, 'learning_rate': rate}
        self._fetches = {name: value for name, value in values.items() if value is not None}
        self._examples_per_step = examples_per_step
        self._examples_per_epoch = examples_per_epoch
        self._max_steps = max_steps
        self._folder = folder
        self._validation = validation

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._table = results.Metrics(self._folder, self.step)
        self._writer = tf.summary.FileWriterCache.get(self._folder)
        self._progress = _Progress(
            self._examples_per_step, self._examples_per_epoch, self._max_steps)
        self._begin_row()

    def _begin_row(self):
        self._values = {name: [] for name in self._fetches}
        self._row_time = time.perf_counter()
        self._row_step = self.step

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        for name, value in run_values.results.items():
            self._values[name].append(float(value))
        super().after_run(run_context, run_values)
        self._progress.update(self.step, float(run_values.results['training_loss']))
        if self._validation and self._is_due():
            self._validate(run_context.session)
        elif self.step % SUMMARY_STEPS == 0:
            self.write_row()

    def _is_due(self):
        """Whether to validate after this step: epochs have ended with it, or it is the last."""
        return self.step >= self._max_steps or completes(
            self.step, self._examples_per_step, self._validation.every * self._examples_per_epoch)

    def _validate(self, session):
        seconds = time.perf_counter() - self._row_time
        training_error = self._mean('training_error')
        errors = self._validation.run(session, self.step)
        self._row_time = time.perf_counter() - seconds  # What validation takes is no training.
        if errors is None:  # The row comes with the checkpoint.
            return
        values = {'validation/error': errors.raw, 'validation/error_averaged': errors.averaged}
        if training_error is not None:
            values['training/error'] = training_error
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
            self.step)
        files.flush(self._writer, self._folder)
        self.write_row(errors.raw)

    def write_row(self, validation_error=None):
        """Adds a row on the steps since the row before, if there are any."""
        steps = self.step - self._row_step
        if not steps:
            return
        seconds = time.perf_counter() - self._row_time
        training_error = self._mean('training_error')
        if training_error is not None and self.step % SUMMARY_STEPS == 0:
            # By the tag of the evaluation's, so that TensorBoard shows both in one chart.
            self._writer.add_summary(tf.Summary(value=[tf.Summary.Value(
                tag='Precision @ 1', simple_value=1 - training_error)]), self.step)
        self._table.append(
            step=self.step, wall_time=time.time(),
            epoch=self.step * self._examples_per_step / self._examples_per_epoch,
            learning_rate=self._values.get('learning_rate', [None])[-1],
            training_loss=self._mean('training_loss'), training_error=training_error,
            validation_error=validation_error,
            images_per_second=steps * self._examples_per_step / seconds)
        self._begin_row()

    def _mean(self, name):
        """Mean over the steps since the last row; None where there is no figure."""
        return float(np.mean(self._values[name])) if self._values.get(name) else None


class ParametersHook(tf.train.SessionRunHook):
    """Writes `params.h5` at the end."""

    def __init__(self, variables, folder):
        self._variables = variables
        self._folder = folder

    def end(self, session):
        results.write_parameters(
            os.path.join(self._folder, 'params.h5'), self._variables, session)


class _Progress:
    """The line on a terminal that tells how far the epoch is; the last of an epoch stays, but of
    small data sets, whose epochs take a moment, one every two seconds."""

    def __init__(self, examples_per_step, examples_per_epoch, max_steps):
        self._examples_per_step = examples_per_step
        self._examples_per_epoch = examples_per_epoch
        self._max_steps = max_steps
        self._shown_time = self._start_time = time.perf_counter()
        self._kept_time = -_KEPT_SECONDS
        self._start_step = None

    def update(self, step, loss):
        """Shows step and loss, a few times a second and at an epoch's end."""
        now = time.perf_counter()
        if self._start_step is None:  # The first step sets everything up: no measure of speed.
            self._start_step, self._start_time = step, now
            return
        ended = completes(step, self._examples_per_step, self._examples_per_epoch)
        keep = ended and now - self._kept_time >= _KEPT_SECONDS
        if not keep and now - self._shown_time < _PROGRESS_SECONDS:
            return
        self._shown_time = now
        if keep:
            self._kept_time = now
        rate = (step - self._start_step) / max(now - self._start_time, 1e-9)
        left = ''
        if step < self._max_steps:  # After the last step comes the last validation, and saving.
            left = f', {datetime.timedelta(seconds=int((self._max_steps - step) / rate))} left'
        console.progress(
            f'epoch {step * self._examples_per_step / self._examples_per_epoch:.2f}: '
            f'step {step} of {self._max_steps}, '
            f'{rate * self._examples_per_step:.0f} images/s, loss {loss:.2f}{left}',
            keep=keep)


class SaveListener(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite: the latest checkpoint stays good. Tells of the
    last.

    What a checkpoint covers is in the metrics first, so that a run that goes on from it has no gap.
    """

    def __init__(self, variables, metrics, folder):
        self._variables = variables
        self._metrics = metrics
        self._folder = folder

    def begin(self):
        """Builds the check as one tensor, bool [variables].

        One run of a session that fetches something new makes TensorFlow optimise the whole graph:
        a second or more. Checking inside the graph also keeps copies of the variables out of
        memory.
        """
        self._checked = [variable for variable in self._variables if variable.dtype.is_floating]
        with tf.device('/cpu:0'), tf.name_scope('check_finite'):
            self._finite = tf.stack([
                tf.reduce_all(tf.is_finite(variable.read_value())) for variable in self._checked])

    def before_save(self, session, global_step_value):
        console.progress(f'step {global_step_value}: saving a checkpoint')
        for variable, finite in zip(self._checked, session.run(self._finite)):
            if not finite:
                raise _diverged(session, self._folder, global_step_value,
                                f'{variable.op.name} is not finite')
        self._metrics.write_row()

    def end(self, session, global_step_value):
        console.line(f'Saved step {global_step_value} in {self._folder}.')
