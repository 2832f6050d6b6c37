"""What a trainer finds in `--train_dir` when it starts: its run, what changed, the checkpoint."""
import dataclasses
import datetime
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.program import console, files
from cifar10_lib.runs import best, checkpoints, names, run_folder
from cifar10_lib.runs.epochs import EpochCounter

_ADVICE = 'choose another --train_dir, or start over with --restart'
_OTHER = 'choose another --initial_checkpoint'


@dataclasses.dataclass(frozen=True)
class Start:
    """What the folder of a run holds, read once, and how far to train.

    Attributes:
        run: the `settings.Run`.
        source, recipe: the `Source` of the training images, and the `Recipe`.
        epochs: the `EpochCounter`.
        found: the `checkpoints.Found` from which the run resumes or, if it is new, starts.
        earlier: the settings of the run's last start, {} if it is new.
        listed: paths of the checkpoints in the folder when it was read.
    """

    run: object
    source: object
    recipe: object
    epochs: EpochCounter
    found: checkpoints.Found = checkpoints.Found(None, {}, ())
    earlier: dict = dataclasses.field(default_factory=dict)
    listed: tuple = ()

    @property
    def step(self):
        """Number of steps of earlier starts."""
        return self.epochs.first_step

    @property
    def max_steps(self):
        """Number of steps at which the run ends."""
        return self.epochs.max_steps

    @property
    def resumes(self):
        """Whether there is a checkpoint in the run's own folder."""
        return bool(self.listed)

    def steps_left(self):
        """Whether training should go on; prints a line if not.

        That is, the last step has not been reached, or `--stop_at` has not.
        """
        reached = self._reached()
        if reached is None:
            return True
        checkpoint, length = reached
        console.line(f'Nothing to do: {checkpoint}{run_folder.owner(self.run.train_dir)} has '
                     f'reached {length}.')
        return False

    def _reached(self):
        """A checkpoint, and the flag whose goal it has reached; or None."""
        if self.run.restart:
            return None
        folder = self.run.train_dir
        if self.step >= self.max_steps:
            parameters = os.path.join(folder, names.PARAMETERS)
            if checkpoints.parameters_step(parameters) != self.step:
                return None  # The last start ended before it wrote its last file.
            if self.run.epochs is None:
                return self.found.path, f'--max_steps={self.max_steps}'
            return self.found.path, f'--epochs={self.run.epochs:g} ({self.max_steps} steps)'
        if self.run.stop_at is None or not self.resumes:
            return None
        error, best_step = best.read(folder, self.run.validate_on)
        if not best.reaches(error, self.run.stop_at):
            return None
        return (checkpoints.at_step(os.path.join(folder, names.BEST), best_step),
                f'--stop_at={self.run.stop_at:g}')

    def check_unchanged(self):
        """Raises `app.UsageError` if another trainer has used the folder since it was read."""
        listed = ()
        if not self.run.restart:
            listed = tuple(checkpoints.candidates(self.run.train_dir))
        if listed != self.listed:
            raise app.UsageError(f'{self.run.train_dir} has just been used by another trainer: run '
                                 'the same command again, or choose another --train_dir')

    def values_for(self, variables):
        """The values with which a session starts, {name: array}; others keep their initial ones.

        `variables` is the list of the graph's variables. Raises `app.UsageError` if the checkpoint
        does not fit them. Old checkpoints lack the averages of the losses, which start anew.
        """
        if not self.resumes:
            values = {}
            if self.found.path:
                values = self._initial_values(variables)[0]
            return {**self.recipe.initial_values(self.source), **values}
        wanted = {each.op.name: each for each in variables}
        for name in list(wanted):
            if name.endswith(names.LOSS_AVERAGE) and name not in self.found.values:
                del wanted[name]
        return checkpoints.values_for(
            self.found.path, wanted, _ADVICE.capitalize(), self.found.values)

    def report(self, variables):
        """Prints what resumes, and each setting that changed; `variables` as in `values_for`."""
        run, epochs = self.run, self.epochs
        for line in self.recipe.defaults_used(run, self.source, epochs):
            console.line(line)
        if self.resumes and not self.earlier:
            console.line(f'{run.train_dir} has no {names.RUN}: resuming with '
                         f'--net={self.recipe.name} --dataset={self.source.data_set.flag}.')
        changes = epochs.changes
        if len(changes) > 1 and changes[-1][0] == self.step:
            console.line(f'Resuming with {epochs.images_per_step} images per step (was '
                         f'{changes[-2][1]}).')
        for name, value in self._settings().items():
            if name in self.earlier and self.earlier[name] != value:
                console.line(f'Resuming with --{name}={_shown(value)} (was '
                             f'{_shown(self.earlier[name])}).')
        was = self.earlier.get('training_images', epochs.images_per_epoch)
        if was != epochs.images_per_epoch:
            console.line(f'Resuming with {epochs.images_per_epoch} training images (was {was}).')
        if self.step < self.max_steps:
            size = ''
            if len(changes) == 1:
                size = f' of {epochs.images_per_step} images'
            console.line(f'{self.max_steps} steps{size} are {epochs.seen(self.max_steps):.4g} '
                         f'epochs of {epochs.images_per_epoch} images.')
        if self.found.faults:
            console.line(f'{"; ".join(self.found.faults)}: using '
                         f'{os.path.basename(self.found.path)}.')
        if self.resumes:
            console.line(f'Resuming from {self.found.path}.')
        elif self.found.path:
            for line in self._initial_values(variables)[1]:
                console.line(line)

    def write(self):
        """Writes `run.json`."""
        data_set = self.source.data_set
        folder = data_set.folder if os.path.isabs(data_set.folder) else None
        content = {
            'dataset': data_set.name, 'classes': data_set.classes, 'net': self.recipe.name,
            'dataset_folder': folder,
            'settings': {
                **self._settings(), 'max_steps': self.max_steps,
                'training_images': self.epochs.images_per_epoch,
                'batch_size': self.source.batch_size, 'images_per_step': self.epochs.changes,
                'min_fraction_of_examples_in_queue': self.source.min_fraction,
                'validate_on': self.run.validate_on, 'data_dir': os.path.dirname(self.source.folder),
                'seed': self.run.seed, 'first_step': self.step,
                'started': datetime.datetime.now().isoformat(),
                'tensorflow': tf.version.VERSION}}
        with files.new_file(os.path.join(self.run.train_dir, names.RUN)) as stream:
            stream.write((json.dumps(content, indent=2, sort_keys=True) + '\n').encode())

    def _settings(self):
        """The flags whose change is reported when the run resumes, {name: value}."""
        recipe = self.recipe
        found = {'dataset': self.source.data_set.flag, 'learning_rate': recipe.given_learning_rate,
                 'linear_scaling': recipe.linear_scaling,
                 'use_fp16': recipe.dtype == tf.float16, 'use_bf16': recipe.dtype == tf.bfloat16,
                 'variables': self.run.variables}
        if recipe.linear_scaling:
            found['warmup_epochs'] = recipe.warmup_epochs
        if recipe.ends_with_run:  # The rate falls to 0 at the last step.
            found['max_steps'] = self.max_steps
        return found

    def _initial_values(self, variables):
        """The values of `--initial_checkpoint` that fit, {name: array}, and lines about them.

        Weights and their averages start with its averages. Layers of another shape, the last one if
        its run had other classes, the step and the state of the optimizer start anew. Raises
        `app.UsageError` if no weights fit.
        """
        path, stored = self.found.path, self.found.values
        classes = list(self.source.data_set.classes)
        run = run_folder.read_run(os.path.dirname(path), _OTHER)
        trained = {each.op.name: each for each in variables if each.trainable}
        last_layer = list(trained)[-1].rpartition('/')[0]
        new_layer = None
        if run and run['classes'] != classes:
            new_layer = last_layer
        found = {}
        for variable in variables:
            base = variable.op.name.removesuffix(names.AVERAGE)
            layer = base.rpartition('/')[0]
            is_of_network = base in trained or base.endswith(names.STATISTICS)
            given = stored.get(base + names.AVERAGE, stored.get(base))
            if is_of_network and layer != new_layer and given is not None and (
                    list(given.shape) == variable.shape.as_list()):
                found[variable.op.name] = given.astype(variable.dtype.base_dtype.as_numpy_dtype)
        if not all(np.isfinite(value).all() for value in found.values()):
            raise app.UsageError(f'{path} has values that are not finite: {_OTHER}')
        kept = {name.split('/')[0] for name in trained.keys() & found.keys()}
        if not kept:
            wanted = trained
            if not stored.keys() & trained.keys():
                wanted = {name + names.AVERAGE: each for name, each in trained.items()}
            checkpoints.values_for(
                path, wanted, f'--net={self.recipe.name} expects these for {len(classes)} classes: '
                f'{_OTHER}', stored)
        new = sorted(trained.keys() - found.keys())
        lines = [f'Starting with {", ".join(sorted(kept))} of {path}; new: '
                 f'{", ".join(new) or "none"}.']
        if run and self.run.validate_on not in ('test', run['settings'].get('validate_on')):
            lines.append('Warning: that run did not hold out images. If it had the same ones, '
                         'validations of this run look better than they are.')
        return found, lines


def read(run, source, recipe, batches_per_step=1):
    """Reads the folder of a run, once: a `Start`.

    Args:
        run: the `settings.Run`.
        source: the `Source` of the training images.
        recipe: the `Recipe`.
        batches_per_step: number of batches in a step, over all towers and workers.

    Raises `app.UsageError` if the folder cannot hold this run, or the flags contradict each other.
    """
    if run.stop_at is not None and not run.validate_every:
        raise app.UsageError(f'--stop_at={run.stop_at:g} requires validations: add '
                             '--validate_every=1')
    folder = run.train_dir
    run_folder.check_path(folder)
    earlier, found, listed = {}, checkpoints.Found(None, {}, ()), ()
    if not run.restart:
        earlier = _earlier_settings(run, source, recipe)
        listed = tuple(checkpoints.candidates(folder))
        found = checkpoints.newest(folder)
    step = 0
    if found.path:
        step = checkpoints.step(found.path, found.values)
    elif run.initial_checkpoint:
        found = _initial_checkpoint(run)
    epochs = EpochCounter(
        step, _changes(earlier, step, source.batch_size * batches_per_step),
        source.num_examples(), validate_every=run.validate_every)
    max_steps = run.max_steps
    if max_steps is None:
        max_steps = epochs.last_step(run.epochs)
    return Start(run, source, recipe, dataclasses.replace(epochs, max_steps=max_steps), found,
                 earlier, listed)


def _earlier_settings(run, source, recipe):
    """The settings in `run.json`, {} if it is missing; raises `app.UsageError` if it describes
    another run."""
    found = run_folder.read_run(run.train_dir, _ADVICE)
    if not found:
        return {}
    run_folder.check_run(run.train_dir, found, recipe.name, source.data_set, _ADVICE,
                         run.validate_on)
    return found['settings']


def _changes(earlier, step, images_per_step):
    """The `changes` of the `EpochCounter` if steps now take this many images."""
    changes = [each for each in earlier.get('images_per_step', []) if each[0] < step]
    if not changes:
        changes = [[0, images_per_step]]
    if changes[-1][1] != images_per_step:
        changes.append([step, images_per_step])
    return changes


def _initial_checkpoint(run):
    """The `checkpoints.Found` of `--initial_checkpoint`; raises `app.UsageError` if there isn't
    one, or `--restart` would remove it."""
    given, folder = run.initial_checkpoint, os.path.realpath(run.train_dir)
    named = checkpoints.named(given)
    if named:
        found = checkpoints.Found(named, checkpoints.read(named), ())
    else:
        found = checkpoints.newest(given)
    if found.path is None:
        raise app.UsageError(f'No checkpoint in --initial_checkpoint={given}; expected the folder '
                             'of another run: choose one')
    if run.restart and os.path.dirname(os.path.realpath(found.path)) in (
            folder, os.path.join(folder, names.BEST)):
        raise app.UsageError(f'--restart would remove --initial_checkpoint={given}: choose another '
                             '--train_dir')
    return found


def _shown(value):
    """A setting's value as a line shows it."""
    if value is None:
        return 'the default'
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
