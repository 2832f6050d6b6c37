"""Hooks of classification.py's session: lines on the console, metrics.csv, validation.

They count the steps by themselves: whether a step that fetches the global step gets its value
before or after the update is not defined.
"""
import contextlib
import time
from datetime import datetime

from cifar10_lib import checkpoints, errors
from classification_lib import run

import numpy as np
import tensorflow.compat.v1 as tf
import tqdm


class LoggerHook(tf.train.SessionRunHook):
    """Writes run.json, and every few steps a line on the console and a row of metrics.csv.

    Their figures are means over all steps since the last ones. A session's first step, which
    includes the set-up, does not count for the speed. Shows a progress bar on a terminal.
    """

    def __init__(self, train_dir, content, plan, figures, log_frequency):
        """Takes the folder of the run and the content of its run.json, the `run.Plan`, the figures
        training_loss, training_error and learning_rate, float32 [] by name, and the number of steps
        between two lines."""
        self._train_dir, self._content, self._plan = train_dir, content, plan
        self._figures, self._log_frequency = figures, log_frequency
        self._step = plan.first_step
        self._values, self._seconds = [], []  # One per step since the last line.
        self._epoch_errors = []  # One per step since the last validation.

    def begin(self):  # The folder is locked, and --restart has removed the earlier run.
        found = checkpoints.newest(self._train_dir)
        if (checkpoints.step(found) if found else 0) != self._plan.first_step:
            raise errors.UserError(f'another process trained in {self._train_dir} until now: run '
                                    'the same command again to resume')
        run.write(self._train_dir, self._content)
        self._metrics = run.Metrics(self._train_dir, self._plan.first_step)
        self._bar = tqdm.tqdm(total=self._plan.max_steps, initial=self._step, unit=' steps',
                              disable=None, leave=False)

    def before_run(self, run_context):
        self._start_time = time.perf_counter()
        return tf.train.SessionRunArgs(self._figures)

    def after_run(self, run_context, run_values):
        self._values.append(run_values.results)
        self._epoch_errors.append(run_values.results['training_error'])
        if self._step > self._plan.first_step:
            self._seconds.append(time.perf_counter() - self._start_time)
        self._step += 1
        self._bar.update()
        if self._step % self._log_frequency == 0 and not self._plan.validates(self._step):
            self._log()

    def validated(self, error):
        """Logs the validation error of this step; None if it was not measured."""
        self._log(error)
        if error is not None:
            self._show(f'epoch {self._plan.epochs(self._step):.4g}, training error = '
                       f'{np.mean(self._epoch_errors):.4f}, validation error = {error:.4f}')
            self._epoch_errors = []
            curve = tf.Summary.Value(tag='metrics/validation_error', simple_value=error)
            tf.summary.FileWriterCache.get(self._train_dir).add_summary(
                tf.Summary(value=[curve]), self._step)

    def end(self, session):
        if self._values:
            self._log()
        self._bar.close()

    def _log(self, validation_error=None):
        row = {name: np.mean([values[name] for values in self._values], dtype=np.float64)
               for name in self._figures}
        row |= {'step': self._step, 'epoch': self._plan.epochs(self._step),
                'wall_time': time.time(), 'validation_error': validation_error}
        speed = ''
        if self._seconds:
            sec_per_batch = np.mean(self._seconds)
            row['images_per_second'] = self._plan.images_per_step / sec_per_batch
            speed = (f' ({row["images_per_second"]:.1f} examples/sec; '
                     f'{sec_per_batch:.3f} sec/batch)')
        self._metrics.add(row)
        self._show(f'step {self._step}, loss = {row["training_loss"]:.2f}, training error = '
                   f'{row["training_error"]:.4f}{speed}')
        self._values, self._seconds = [], []

    def _show(self, text):
        with tqdm.tqdm.external_write_mode():  # Above the bar.
            print(f'{datetime.now()}: {text}', flush=True)


class ValidationHook(tf.train.SessionRunHook):
    """Measures the validation error after every few epochs; each worker counts its shard.

    Worker 0 logs the error, and keeps the best checkpoint.
    """

    def __init__(self, worker, plan, initializer, count_op, logger, best):
        """Takes an operation that begins with the first image of the shard, and one that counts the
        wrong predictions and the images of the next batch, float32 [2]. A signal, which the worker
        knows, ends a validation. The `logger` comes before this hook."""
        self._worker, self._plan = worker, plan
        self._initializer, self._count_op = initializer, count_op
        self._logger, self._best = logger, best
        self._step = plan.first_step

    def after_run(self, run_context, run_values):
        self._step += 1
        if not self._plan.validates(self._step):
            return
        session = run_context.session
        self._worker.share_variables(session)  # Those that are saved.
        counts = np.zeros(3)  # Wrong predictions, images, and workers that were stopped.
        session.run(self._initializer)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while not self._worker.caught:
                counts[:2] += session.run(self._count_op)
        counts[2] = bool(self._worker.caught)
        wrong, images, stopped = self._worker.sum(counts)
        if not self._worker.is_chief:
            return
        if stopped:
            self._logger.validated(None)
            return
        error = float(wrong / images)
        self._logger.validated(error)
        self._best.offer(session, self._step, error)
