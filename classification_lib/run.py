"""What the folder of a run of classification.py holds, besides checkpoints and event files.

`run.json` has the settings of the run; `metrics.csv` its figures, one row per --log_frequency steps
and validation; `params.h5` the variables at the end; `best/` the checkpoint with the lowest
validation error so far. A folder of checkpoints without `run.json` is a run of the tutorial.
"""
import contextlib
import csv
import dataclasses
import glob
import io
import itertools
import json
import os
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from cifar10_lib import checkpoints, errors, files, session

import numpy as np
import tensorflow.compat.v1 as tf
import tqdm

FILE, METRICS, PARAMETERS, BEST = 'run.json', 'metrics.csv', 'params.h5', 'best'

# `step` is the number of steps so far, `wall_time` in seconds since 1970. Training figures are
# means over the steps since the row before; others than these follow. A figure that was not
# measured is empty.
COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'images_per_second')

ADVICE = 'choose another --train_dir, or start over with --restart'

# Settings that must not change when a run resumes.
_FIXED = {'fixed': True}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything on which the updates of a run depend. Those with a flag have its name."""

    net: str = dataclasses.field(metadata=_FIXED)
    dataset: str  # A name, or a folder.
    data_dir: str  # It and the folder may have been moved.
    classes: tuple[str, ...] = dataclasses.field(metadata=_FIXED)
    validate_on: str = dataclasses.field(metadata=_FIXED)
    training_images: int = dataclasses.field(metadata=_FIXED)  # Number of images of an epoch.
    # Of the files of the training and the validation images.
    images_checksum: str = dataclasses.field(metadata=_FIXED)
    seed: int = dataclasses.field(metadata=_FIXED)
    batch_size: int = dataclasses.field(metadata=_FIXED)  # Images per step of each worker.
    workers: int = dataclasses.field(metadata=_FIXED)
    max_steps: int  # Number of steps at the end of the run.
    learning_rate: float
    warmup_epoch: float  # Number of epochs of the warm-up.
    validate_every: int  # Number of epochs between validations; 0 means never.
    use_fp16: bool
    use_bf16: bool
    sync_bn: bool  # Whether batch norms take the batches of all workers for one.
    initial_checkpoint: str | None

    @property
    def images_per_step(self) -> int:
        """Number of images in a step, over all workers."""
        return self.batch_size * self.workers

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in which the network sees each image once."""
        return self.training_images / self.images_per_step

    def epochs(self, steps: int) -> float:
        """Number of epochs in this many steps."""
        return steps / self.steps_per_epoch

    def validates(self, steps: int) -> bool:
        """Whether to validate after this many steps; also at the end of the run."""
        if self.validate_every == 0 or steps == 0:
            return False
        images = self.validate_every * self.training_images
        before, now = (steps - 1) * self.images_per_step, steps * self.images_per_step
        return steps == self.max_steps or now // images > before // images


def check_resume(folder: str, earlier: Mapping[str, Any], settings: Settings) -> None:
    """Compares the settings of a run that resumes with those in its `run.json`.

    Prints a line for each that has changed. Raises `errors.UserError` if one of them must not.
    """
    for field in dataclasses.fields(settings):
        now = getattr(settings, field.name)
        was = earlier.get(field.name, now)  # It may be a new one.
        if isinstance(now, tuple):
            was, now = ', '.join(was), ', '.join(now)
        if was == now:
            continue
        if field.metadata:
            raise errors.UserError(f'{folder} holds a run with {field.name} {was}, not {now}: '
                                   f'change that back, {ADVICE}')
        if field.name not in ('dataset', 'data_dir'):
            print(f'Resuming with --{field.name}={now} (was {was}).', flush=True)


def read(folder: str) -> dict[str, Any] | None:
    """The content of `run.json`, settings by name; None if it is missing.

    Raises `errors.UserError` if it is not what a run wrote.
    """
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding='utf-8') as stream:
            content = json.load(stream)
        if not (isinstance(content, dict) and content.get('net') and content.get('classes')):
            raise ValueError('the network or its classes are missing')
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise errors.UserError(f'{path} is not what a run wrote ({error}): restore it, or choose '
                               'another folder') from error
    return content | content.pop('settings', {})  # Version 1 had two levels.


def earlier(opened: session.Run) -> dict[str, Any]:
    """The settings of an earlier start of a run, by name; {} in a new run, or to start over.

    Raises `errors.UserError` if the run could not continue exactly.
    """
    if opened.restart:
        return {}
    folder = opened.folder
    found = read(folder)
    if opened.found is None:
        if read_metrics(folder) or read(os.path.join(folder, BEST)):
            raise errors.UserError(f'{folder} holds results of a run, but no checkpoint from which '
                                   f'it could resume: restore one, {ADVICE}')
        return {}
    if found is None:
        raise errors.UserError(f"{folder} holds a run of the tutorial's programs ({FILE} is "
                               f'missing): {ADVICE}')
    if 'warmup_epoch' not in found:
        raise errors.UserError(f'{folder} holds a run of version 1, which cannot continue: give it '
                               'as --initial_checkpoint to a run in another --train_dir')
    return found


def remove_files(folder: str) -> None:
    """Removes the files of a run from its folder, to start over; other files stay."""
    for place in (folder, os.path.join(folder, BEST)):
        if os.path.isdir(place):
            session.remove_files(place, FILE, METRICS, PARAMETERS)


def write(folder: str, settings: Settings, **more: Any) -> None:
    """Writes `run.json`, all or nothing; `more` has other JSON values by name."""
    content = {**dataclasses.asdict(settings), 'tensorflow': tf.version.VERSION,
               'written': datetime.now().isoformat(), **more}
    with files.new_file(os.path.join(folder, FILE)) as stream:
        stream.write((json.dumps(content, indent=2, sort_keys=True) + '\n').encode())


def read_metrics(folder: str) -> list[dict[str, Any]]:
    """The rows of `metrics.csv`, {column: figure or None}; of older versions, too.

    Leaves out a last line that a crash cut short. The file may be missing. Raises
    `errors.UserError` if it is not a table of figures.
    """
    path = os.path.join(folder, METRICS)
    try:
        with open(path, encoding='utf-8', newline='') as stream:
            lines = [line for line in stream if line.endswith('\n')]
        rows = [{name: float(figure) if figure else None for name, figure in row.items()}
                for row in csv.DictReader(lines)]
        if any(row.get('step') is None for row in rows):
            raise ValueError('a row has no step')
        return rows
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, csv.Error) as error:
        raise errors.UserError(f'{path} is not a table that a run wrote ({error}): move it '
                                'away') from error


class Log:
    """Writes the figures of a run: lines on the console, a progress bar, and `metrics.csv`, without
    gaps or duplicates over all starts. A context, in which the session has begun.

    The figures of a line are means over all steps since the line before. The first step of a start,
    which includes the set-up, does not count for the speed.
    """

    def __init__(self, folder: str, settings: Settings, first_step: int, frequency: int) -> None:
        """Continues or creates `metrics.csv`; rows after `first_step`, from which the run resumes,
        were of steps that are made again. `frequency` is the number of steps between two lines."""
        self._folder, self._settings, self._frequency = folder, settings, frequency
        self._first_step = self._step = first_step
        self._rows = [row for row in read_metrics(folder) if row['step'] <= first_step]
        self._columns = list(dict.fromkeys(itertools.chain(COLUMNS, *self._rows)))
        self._values: list[Mapping[str, float]] = []  # One per step since the last line,
        self._seconds: list[float] = []  # and how long it took.
        self._epoch_errors: list[float] = []  # One per step since the last validation,
        self._epoch_start = first_step  # which was after this step.

    def __enter__(self) -> 'Log':
        self._rewrite()
        self._bar = tqdm.tqdm(total=self._settings.max_steps, initial=self._first_step,
                              unit=' steps', disable=None, leave=False)
        self._start_time = time.perf_counter()
        return self

    def lacks_validation(self) -> bool:
        """Whether the run was stopped in the validation of the step from which it resumes."""
        return self._settings.validates(self._step) and not any(
            row['step'] == self._step and row.get('validation_error') is not None
            for row in self._rows)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the figures of a step by name: training_loss, training_error, and any others."""
        if step > self._first_step + 1:
            self._seconds.append(time.perf_counter() - self._start_time)
        self._step = step
        self._values.append(values)
        self._epoch_errors.append(values['training_error'])
        self._bar.update()
        if step % self._frequency == 0:
            self._log()
        self._start_time = time.perf_counter()

    def validated(self, step: int, error: float | None) -> None:
        """Adds the validation error of a step; None if a signal ended the validation."""
        self._step = step
        self._log()
        if error is not None:
            row = {'step': step, 'epoch': self._settings.epochs(step), 'wall_time': time.time()}
            if self._rows and self._rows[-1]['step'] == step:
                row = self._rows.pop()
            self._rows.append({**row, 'validation_error': error})
            self._rewrite()
            training = ''
            if self._epoch_errors:
                since = f' since step {self._epoch_start}'
                if self._epoch_start == 0 or self._settings.validates(self._epoch_start):
                    since = ''
                training = f'training error{since} = {np.mean(self._epoch_errors):.4f}, '
            self._show(f'epoch {self._settings.epochs(step):.4g}, {training}validation error = '
                       f'{error:.4f}')
            self._epoch_errors, self._epoch_start = [], step
            curve = tf.Summary.Value(tag='metrics/validation_error', simple_value=error)
            tf.summary.FileWriterCache.get(self._folder).add_summary(
                tf.Summary(value=[curve]), step)
        self._start_time = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        """Logs the steps since the last line."""
        with errors.reader_may_be_gone():
            self._log()
        self._bar.close()

    def _log(self):
        """Adds a row with the means over the steps since the last one, if any; prints them."""
        if not self._values:
            return
        row = {'step': self._step, 'epoch': self._settings.epochs(self._step),
               'wall_time': time.time()}
        row |= {name: np.mean([values[name] for values in self._values], dtype=np.float64)
                for name in self._values[0]}
        text = (f'step {self._step}, loss = {row["training_loss"]:.2f}, '
                f'training error = {row["training_error"]:.4f}')
        if self._seconds:
            sec_per_batch = np.mean(self._seconds)
            row['images_per_second'] = self._settings.images_per_step / sec_per_batch
            text += (f' ({row["images_per_second"]:.1f} examples/sec; '
                     f'{sec_per_batch:.3f} sec/batch)')
        self._values, self._seconds = [], []
        self._rows.append(row)
        more = [name for name in row if name not in self._columns]
        if more:
            self._columns += more
            self._rewrite()
        else:
            path = os.path.join(self._folder, METRICS)
            with open(path, 'a', encoding='utf-8', newline='') as stream:
                stream.write(self._line(row))
        self._show(text)

    def _rewrite(self):
        lines = [','.join(self._columns) + '\n', *map(self._line, self._rows)]
        with files.new_file(os.path.join(self._folder, METRICS)) as stream:
            stream.write(''.join(lines).encode())

    def _line(self, row):
        """A line of `metrics.csv`."""
        formats = {'step': '.0f', 'wall_time': '.3f'}  # The others have the digits of a float32.
        return ','.join('' if row.get(name) is None else format(row[name], formats.get(name, '.7g'))
                        for name in self._columns) + '\n'

    def _show(self, text):
        with tqdm.tqdm.external_write_mode():  # Above the bar.
            print(f'{datetime.now()}: {text}', flush=True)


def best_checkpoint(folder: str) -> str | None:
    """The path of the checkpoint that the `run.json` of a folder `best/` names, or None."""
    content = read(folder)
    if content is None or 'checkpoint' not in content:
        return None
    return checkpoints.named(os.path.join(folder, content['checkpoint']))


class Best:
    """The checkpoint of a run with the lowest validation error so far, in `best/`.

    Its `run.json` names the checkpoint and its error; it is replaced as a whole, after the new
    checkpoint is complete and before the old one is removed.
    """

    def __init__(self, folder: str, settings: Settings) -> None:
        """Adds operations to the default graph; `folder` is that of the run."""
        self._folder, self._settings = os.path.join(folder, BEST), settings
        self._path, self._error = best_checkpoint(self._folder), np.inf
        if self._path:
            self._error = (read(self._folder) or {}).get('validation_error', np.inf)
        self._saver = tf.train.Saver(max_to_keep=None, save_relative_paths=True)
        self._is_finite = tf.reduce_all([
            tf.reduce_all(tf.math.is_finite(variable)) for variable in tf.global_variables()
            if variable.dtype.base_dtype.is_floating])

    def offer(self, session: tf.Session, step: int, error: float | None) -> None:
        """Saves the variables of a session, if their validation error is the lowest so far, over
        all starts of the run; None is no error."""
        if error is None or error >= self._error or not session.run(self._is_finite):
            return
        os.makedirs(self._folder, exist_ok=True)
        name = f'{checkpoints.NAME}-{step}'
        if name == os.path.basename(self._path or ''):  # After a kill, this step was made again.
            name = f'{checkpoints.NAME}-again-{step}'
        self._path = os.path.join(self._folder, name)
        self._saver.save(session, self._path, write_meta_graph=False, write_state=False)
        write(self._folder, self._settings, step=step, validation_error=error,
              checkpoint=name)
        self._error = error
        for other in glob.glob(f'{glob.escape(self._folder)}/{checkpoints.NAME}-*'):
            if not other.startswith(f'{self._path}.'):
                os.remove(other)


class Nothing(contextlib.nullcontext):
    """What the other workers log and keep: nothing."""

    def _nothing(self, *_: Any) -> None:
        pass

    lacks_validation = add = validated = offer = _nothing


def write_parameters(folder: str, network: Collection[str]) -> None:
    """Writes `params.h5`, an HDF5 file with the newest checkpoint's variables of a `network`, whose
    names these are.

    `statistics/NAME` are the moving statistics of batch norms, `weights/NAME` the other variables,
    `averages/NAME` the averages. The attribute `global_step` is the number of steps. The state of
    the optimizer is left out.
    """
    import h5py  # Here, because the import is slow.
    found = checkpoints.newest(folder)
    if found is None:
        return
    image = io.BytesIO()  # HDF5 opens files by name, and hides the error of a full disk.
    with h5py.File(image, 'w') as stream:
        for name, value in found.values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name.endswith(checkpoints.AVERAGE):
                stream[f'averages/{name.removesuffix(checkpoints.AVERAGE)}'] = value
            elif name.endswith(('moving_mean', 'moving_variance')):
                stream[f'statistics/{name}'] = value
            elif name in network:
                stream[f'weights/{name}'] = value
    with files.new_file(os.path.join(folder, PARAMETERS)) as stream:
        stream.write(image.getbuffer())
