"""What a trainer finds in `--train_dir` when it starts: its run, what changed, the checkpoint."""
import dataclasses
import datetime
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.datasets.image_source import Source
from cifar10_lib.program import console, files
from cifar10_lib.runs import checkpoints, initial, names, run_folder
from cifar10_lib.runs.epochs import EpochCounter

_ADVICE = 'choose another --train_dir, or start over with --restart'


@dataclasses.dataclass(frozen=True)
class Run:
    """How a trainer shall train and what it shall write: `settings.define_training_flags`.

    Fields have the names of the flags. `max_steps` counts if `epochs` is None; `validate_every` is
    0 for never.
    """

    train_dir: str
    max_steps: int
    epochs: float | None
    log_device_placement: bool
    log_frequency: int
    save_checkpoint_secs: int
    save_checkpoint_steps: int | None
    keep_checkpoints: int
    validate_on: str
    validate_every: int
    profile: int | None
    seed: int | None
    initial_checkpoint: str | None
    restart: bool
    variables: str


@dataclasses.dataclass(frozen=True)
class Start:
    """What the folder of a run holds, read once, and how far to train.

    Attributes:
        source: the training images.
        recipe: a `recipes.Recipe`; a module that this package cannot import.
        found: the checkpoint from which the run resumes; None if it is new.
        weights: those of another run with which a new run starts, or None.
        earlier: the settings of the last start, {} if there is no checkpoint from one.
        listed: paths of the checkpoints in the folder when it was read.
    """

    run: Run
    source: Source
    recipe: Any
    epochs: EpochCounter
    found: checkpoints.Found | None = None
    weights: checkpoints.Found | None = None
    earlier: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    listed: Sequence[str] = ()

    @property
    def step(self) -> int:
        """Number of steps of earlier starts."""
        return self.epochs.first_step

    @property
    def max_steps(self) -> int:
        """Number of steps at which the run ends."""
        return self.epochs.max_steps

    def steps_left(self) -> bool:
        """Whether training should go on; prints a line if not."""
        folder = self.run.train_dir
        if self.found is None or self.step < self.max_steps:
            return True
        is_ours = os.path.exists(os.path.join(folder, names.METRICS))
        if is_ours and not os.path.exists(os.path.join(folder, names.PARAMETERS)):
            return True  # The last start ended before it wrote its last file.
        length = f'--max_steps={self.max_steps}'
        if self.run.epochs is not None:
            length = f'--epochs={self.run.epochs:g} ({self.max_steps} steps)'
        console.line(f'Nothing to do: {self.found.path}{run_folder.owner(folder)} has reached '
                     f'{length}.')
        return False

    def check_unchanged(self) -> None:
        """Raises `app.UsageError` if another trainer has used the folder since it was read."""
        listed = []
        if not self.run.restart:
            listed = checkpoints.candidates(self.run.train_dir)
        if listed != list(self.listed):
            raise app.UsageError(f'{self.run.train_dir} has just been used by another trainer: run '
                                 'the same command again, or choose another --train_dir')

    def values_for(self, variables: Sequence[tf.Variable]) -> dict[str, np.ndarray]:
        """The values with which a session starts; others keep their initial ones.

        `variables` are those of the graph. Raises `app.UsageError` if the checkpoint does not fit
        them. Old checkpoints lack the averages of the losses, which start anew.
        """
        if self.found is None:
            values = self.recipe.initial_values(self.source)
            if self.weights:
                values |= initial.values_for(
                    self.weights, variables, self.recipe.name, self.source.data_set.classes)
            return values
        wanted = {each.op.name: each for each in variables}
        for name in list(wanted):
            if name.endswith(names.LOSS_AVERAGE) and name not in self.found.values:
                del wanted[name]
        return checkpoints.values_for(
            self.found.path, wanted, _ADVICE.capitalize(), self.found.values)

    def report(self, variables: Sequence[tf.Variable], values: Mapping[str, np.ndarray]) -> None:
        """Prints what resumes, and each setting that changed.

        `variables` are those of the graph, `values` those of `values_for`.
        """
        if self.found and not self.earlier:
            console.line(f'{self.run.train_dir} has no {names.RUN}: resuming with '
                         f'--net={self.recipe.name} --dataset={self.source.data_set.flag}.')
        for what, value, was in self._changed():
            console.line(f'Resuming with {what.format(_shown(value))} (was {_shown(was)}).')
        if self.step < self.max_steps:
            size = ''
            if len(self.epochs.changes) == 1:
                size = f' of {self.epochs.images_per_step} images'
            console.line(f'{self.max_steps} steps{size} are {self.epochs.seen(self.max_steps):.4g} '
                         f'epochs of {self.epochs.images_per_epoch} images.')
        if self.found:
            console.line(f'Resuming from {self.found.path}.')
        elif self.weights:
            for line in initial.lines(self.weights, values, variables, self.run.validate_on):
                console.line(line)

    def _changed(self):
        """The settings that changed since the run's last start: list of (text with a place for the
        value, value, earlier value)."""
        found = []
        changes = self.epochs.changes
        if len(changes) > 1 and changes[-1][0] == self.step:
            found.append(('{} images per step', self.epochs.images_per_step, changes[-2][1]))
        for name, value in self._settings().items():
            found.append((f'--{name}={{}}', value, self.earlier.get(name, value)))
        images = self.epochs.images_per_epoch
        found.append(('{} training images', images, self.earlier.get('training_images', images)))
        return [each for each in found if each[1] != each[2]]

    def write(self) -> None:
        """Writes `run.json`; removes the `params.h5` with which an earlier start ended."""
        pathlib.Path(self.run.train_dir, names.PARAMETERS).unlink(missing_ok=True)
        data_set = self.source.data_set
        content = {
            'dataset': data_set.name, 'classes': data_set.classes, 'net': self.recipe.name,
            'settings': {
                **self._settings(), 'max_steps': self.max_steps,
                'training_images': self.epochs.images_per_epoch, 'records': _records(self.source),
                'batch_size': self.source.batch_size, 'images_per_step': self.epochs.changes,
                'min_fraction_of_examples_in_queue': self.source.min_fraction,
                'validate_on': self.run.validate_on,
                'data_dir': os.path.dirname(self.source.folder),
                'seed': self.run.seed, 'first_step': self.step,
                'started': datetime.datetime.now().isoformat(),
                'tensorflow': tf.version.VERSION}}
        with files.new_file(os.path.join(self.run.train_dir, names.RUN)) as stream:
            stream.write((json.dumps(content, indent=2, sort_keys=True) + '\n').encode())

    def _settings(self):
        """The flags whose change is reported when the run resumes, {name: value}."""
        return {'dataset': self.source.data_set.flag, **self.recipe.flags(self.epochs),
                'variables': self.run.variables}


def read(run: Run, source: Source, recipe: Any, batches_per_step: int = 1) -> Start:
    """Reads the folder of a run, once.

    `source` are the training images; `batches_per_step` counts the batches of all towers and
    workers. Raises `app.UsageError` if the folder cannot hold this run.
    """
    folder = run.train_dir
    run_folder.check_path(folder)
    if os.path.isdir(folder):
        files.check_owner(folder)
    earlier, listed, found, weights = {}, [], None, None
    if not run.restart:
        earlier_run = run_folder.read_run(folder, _ADVICE)
        if earlier_run:
            run_folder.check_run(
                folder, earlier_run, recipe.name, source.data_set, run.validate_on, _ADVICE)
        listed = checkpoints.candidates(folder)
        found = checkpoints.newest(folder)
        if earlier_run and found:
            earlier = earlier_run['settings']
    _check_held_out(run, earlier, _records(source))
    step = 0
    if found:
        step = checkpoints.step(found.path, found.values)
    elif run.initial_checkpoint:
        weights = initial.find(run.initial_checkpoint, folder, run.restart)
    epochs = EpochCounter(
        step, _changes(earlier, step, source.batch_size * batches_per_step),
        source.num_examples(), validate_every=run.validate_every)
    max_steps = run.max_steps
    if run.epochs is not None:
        max_steps = epochs.last_step(run.epochs)
    return Start(run, source, recipe, dataclasses.replace(epochs, max_steps=max_steps), found,
                 weights, earlier, listed)


def _check_held_out(run, earlier, records):
    """Raises `app.UsageError` if a run that resumes would hold out images that it trained on."""
    before = earlier.get('records', records)
    if run.validate_on == 'held_out' and records != before:
        raise app.UsageError(
            f'{run.train_dir} holds a run that held out a tenth of {before} images. Of {records}, '
            f'it would hold out others, which it has trained on: {_ADVICE}')


def _records(source):
    """Number of training records, held out or not."""
    return dataclasses.replace(source, subset='all').num_records()


def follow(run: Run, source: Source, recipe: Any, step: int, changes: Sequence[Sequence[int]],
           max_steps: int) -> Start:
    """The `Start` of a worker that does not read the folder, with what worker 0 has read there.

    `step`, `changes` and `max_steps` are those of worker 0's `EpochCounter`; for the rest, see
    `read`.
    """
    return Start(run, source, recipe, EpochCounter(
        step, changes, source.num_examples(), max_steps, run.validate_every))


def _changes(earlier, step, images_per_step):
    """The `changes` of the `EpochCounter` if steps now take this many images."""
    changes = [each for each in earlier.get('images_per_step', []) if each[0] < step]
    if not changes:
        changes = [[0, images_per_step]]
    if changes[-1][1] != images_per_step:
        changes.append([step, images_per_step])
    return changes


def _shown(value):
    """A setting's value as a line shows it."""
    if value is None:
        return 'the default'
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
