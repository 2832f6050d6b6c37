"""What the folder of a run of classification.py holds, besides checkpoints and event files.

`run.json` has the network, the classes and the settings of the run; `metrics.csv` its figures, one
row per hundred steps and validation; `params.h5` the variables after the last step; `best/` the
checkpoint with the lowest validation error so far, with a `run.json` that contains the error. A
folder of checkpoints without `run.json` is a run of the tutorial.
"""
import csv
import dataclasses
import glob
import io
import json
import logging
import os
import random
from collections.abc import Collection, Mapping
from typing import Any

from cifar10_lib import checkpoints, errors, files

import numpy as np
import tensorflow.compat.v1 as tf

FILE, METRICS, PARAMETERS, BEST = 'run.json', 'metrics.csv', 'params.h5', 'best'

# `step` is the number of steps so far, `wall_time` in seconds since 1970. Training figures are
# means over the steps since the row before. A figure that was not measured is empty.
COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'images_per_second')

# The settings with which a run sees the same images in the same order after it resumes.
_KEPT = ('batch_size', 'workers', 'validate_on', 'training_images', 'images_checksum', 'seed')

_ADVICE = 'choose another --train_dir, or start over with --restart'


@dataclasses.dataclass(frozen=True)
class Plan:
    """How far a run goes, and in what steps: what its schedule may depend on."""

    first_step: int  # Number of steps of earlier starts.
    max_steps: int  # Number of steps at the end of the run.
    batch_size: int  # Number of images per step of each worker.
    workers: int
    images_per_epoch: int
    validate_every: int = 0  # Number of epochs between validations; 0 means never.
    warmup_epoch: float = 0  # Number of epochs of the warm-up.

    @property
    def images_per_step(self) -> int:
        """Number of images in a step, over all workers."""
        return self.batch_size * self.workers

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in which the network sees each image once."""
        return self.images_per_epoch / self.images_per_step

    def epochs(self, steps: int) -> float:
        """Number of epochs in this many steps."""
        return steps / self.steps_per_epoch

    def validates(self, steps: int) -> bool:
        """Whether to validate after this many steps; also at the end of the run."""
        if self.validate_every == 0:
            return False
        images = self.validate_every * self.images_per_epoch
        before, now = (steps - 1) * self.images_per_step, steps * self.images_per_step
        return steps == self.max_steps or now // images > before // images


def read(folder: str) -> dict[str, Any] | None:
    """The content of `run.json`; None if it is missing.

    Raises `errors.UserError` if it is not JSON.
    """
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding='utf-8') as stream:
            return json.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise errors.UserError(f'{path} is not JSON ({error}): restore it, or choose another '
                                'folder') from error


def write(folder: str, content: Mapping[str, Any]) -> None:
    """Writes `run.json`, all or nothing."""
    with files.new_file(os.path.join(folder, FILE)) as stream:
        stream.write((json.dumps(content, indent=2, sort_keys=True) + '\n').encode())


def facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same when a run resumes, and for all workers: {name: JSON value}."""
    found = {'net': content['net']}
    found |= {f'class {label}': name for label, name in enumerate(content['classes'])}
    return found | {name: content['settings'].get(name) for name in _KEPT}


def begin(folder: str, content: Mapping[str, Any], restart: bool) -> tuple[int, int]:
    """The number of steps of earlier starts of a run, and its seed.

    `content` is that of its new `run.json`; without a seed, if the user did not give one.

    Raises `errors.UserError` if the folder holds a run with other facts, or one whose checkpoints
    were removed: it could not continue exactly.
    """
    seed = content['settings']['seed']
    if seed is None:
        seed = random.SystemRandom().randrange(2 ** 31)
    if restart:
        return 0, seed
    earlier, found = read(folder), checkpoints.newest(folder)
    if found is None:
        if read_metrics(folder) or checkpoints.candidates(os.path.join(folder, BEST)):
            raise errors.UserError(f'{folder} holds results of a run, but no checkpoint from '
                                    f'which it could resume: restore one, {_ADVICE}')
        return 0, seed
    if earlier is None:
        raise errors.UserError(f"{folder} holds a run of the tutorial's programs ({FILE} is "
                                f'missing): {_ADVICE}')
    if content['settings']['seed'] is None:
        seed = earlier['settings'].get('seed')
    was, now = facts(earlier), facts(content) | {'seed': seed}
    for name in [*was, *now]:
        if was.get(name) != now.get(name):
            raise errors.UserError(f'{folder} holds a run with {name} {was.get(name)}, not '
                                    f'{now.get(name)}: change that back, {_ADVICE}')
    return checkpoints.step(found), seed


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


def read_curves(folder: str) -> dict[str, list[tuple[float, float]]]:
    """Losses and errors of a run or an evaluation: {'training_loss': [(step, figure), ...]}.

    Of the tutorial's programs, they are in event files. Raises `errors.UserError` without any.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in read_metrics(folder):
        for name, figure in row.items():  # Of older versions, also validation_error_averaged.
            if figure is not None and ('loss' in name or 'error' in name):
                found.setdefault(name, []).append((row['step'], figure))
    if not found and os.path.isdir(folder):
        # Here, because the import is slow.
        from tensorboard.backend.event_processing import event_accumulator
        logging.getLogger('tensorboard').setLevel(logging.ERROR)  # It warns about resumed runs.
        events = event_accumulator.EventAccumulator(folder, {event_accumulator.SCALARS: 0}).Reload()
        tags = events.Tags()[event_accumulator.SCALARS]
        if 'total_loss_1' in tags:  # In runs on one device an average, which begins with 0.
            found['training_loss'] = [
                (event.step, event.value) for event in events.Scalars('total_loss_1')[1:]]
        if 'Precision @ 1' in tags:
            found['evaluation_error'] = [
                (event.step, 1 - event.value) for event in events.Scalars('Precision @ 1')]
    if not found:
        raise errors.UserError(f'{folder} has no {METRICS}, and no event files of training or '
                                'evaluation: choose another folder')
    return found


class Metrics:
    """Writes `metrics.csv` without gaps or duplicates over all starts of a run."""

    def __init__(self, folder: str, first_step: int) -> None:
        """Continues the file, or creates it: rows after `first_step`, from which the run resumes,
        were of steps that are made again."""
        self._path = os.path.join(folder, METRICS)
        kept = [row for row in read_metrics(folder) if row['step'] <= first_step]
        with files.new_file(self._path) as stream:
            stream.write((','.join(COLUMNS) + '\n' + ''.join(map(_line, kept))).encode())

    def add(self, row: Mapping[str, float | None]) -> None:
        """Adds the figures of a row, by column; some may be missing."""
        with open(self._path, 'a', encoding='utf-8', newline='') as stream:
            stream.write(_line(row))


def _line(row):
    """A line of `metrics.csv`."""
    formats = {'step': '.0f', 'wall_time': '.3f'}  # The others have the digits of a float32.
    return ','.join('' if row.get(name) is None else format(row[name], formats.get(name, '.7g'))
                    for name in COLUMNS) + '\n'


class Best:
    """The checkpoint of a run with the lowest validation error so far, in `best/`."""

    def __init__(self, train_dir: str, content: Mapping[str, Any]) -> None:
        """Adds operations to the default graph; `content` is that of the run's `run.json`."""
        self._folder, self._content = os.path.join(train_dir, BEST), content
        self._error: Any = None  # Until the first validation: --restart removes an earlier run's.
        self._saver = tf.train.Saver(max_to_keep=None, save_relative_paths=True)
        self._is_finite = tf.reduce_all([
            tf.reduce_all(tf.math.is_finite(variable)) for variable in tf.global_variables()
            if variable.dtype.base_dtype.is_floating])

    def offer(self, session: tf.Session, step: int, error: float) -> None:
        """Saves the variables of a session, if their validation error is the lowest so far, over
        all starts of the run.

        The earlier checkpoint is removed when the new one and its error are complete.
        """
        if self._error is None:
            self._error = (read(self._folder) or {}).get('validation_error', np.inf)
        if error >= self._error or not session.run(self._is_finite):
            return
        os.makedirs(self._folder, exist_ok=True)
        earlier = checkpoints.candidates(self._folder)
        saved = self._saver.save(session, os.path.join(self._folder, checkpoints.NAME),
                                 global_step=step, write_meta_graph=False)
        write(self._folder, {**self._content, 'step': step, 'validation_error': error})
        self._error = error
        for path in earlier:
            if os.path.basename(path) != os.path.basename(saved):
                for part in glob.glob(glob.escape(path) + '.*'):
                    os.remove(part)


def write_parameters(path: str, values: Mapping[str, np.ndarray],
                     network: Collection[str]) -> None:
    """Writes `params.h5`, an HDF5 file with the values of the variables of a `network`, by name.

    `statistics/NAME` are the moving statistics of batch norms, `weights/NAME` the other variables,
    `averages/NAME` the averages. The attribute `global_step` is the number of steps. The state of
    the optimizer is left out.
    """
    import h5py  # Here, because the import is slow.
    image = io.BytesIO()  # HDF5 opens files by name, and hides the error of a full disk.
    with h5py.File(image, 'w') as stream:
        for name, value in values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name.endswith(checkpoints.AVERAGE):
                stream[f'averages/{name.removesuffix(checkpoints.AVERAGE)}'] = value
            elif name.endswith(('moving_mean', 'moving_variance')):
                stream[f'statistics/{name}'] = value
            elif name in network:
                stream[f'weights/{name}'] = value
    with files.new_file(path) as stream:
        stream.write(image.getbuffer())
