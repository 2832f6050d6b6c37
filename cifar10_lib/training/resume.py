"""What a start finds in `--train_dir`: its run, what changed, the latest checkpoint, the epochs."""
import dataclasses
import datetime
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.program import console, files
from cifar10_lib.runs import checkpoints, names, run_folder

FLAGS = flags.FLAGS

_ADVICE = 'choose another --train_dir, or start over with --restart'
_OTHER = 'choose another --initial_checkpoint'


@dataclasses.dataclass(frozen=True)
class EpochCounter:
    """Counts the images of a run, over all towers and workers. `steps` is the number of steps done,
    over all starts."""

    first_step: int  # Number of steps of earlier starts.
    changes: list  # (First step, images per step from there on), from step 0 to the present.
    images_per_epoch: int
    max_steps: int = 0
    validate_every: int = 0  # Number of epochs between validations; 0 means never.

    def images(self, steps):
        """Number of images in this many steps."""
        ends = [first for first, _ in self.changes[1:]] + [steps]
        return sum(max(0, min(end, steps) - first) * images
                   for (first, images), end in zip(self.changes, ends))

    def seen(self, steps):
        """Number of epochs in this many steps, a float."""
        return self.images(steps) / self.images_per_epoch

    def last_step(self, epochs):
        """The step closest to the end of this many epochs; at least 1, except for 0."""
        changed, images = self.changes[-1]
        left = epochs * self.images_per_epoch - self.images(changed)
        return max(1, round(changed + left / images)) if epochs else 0

    def ends(self, steps, every=1):
        """Whether the latest step completed an epoch, or a multiple of `every` epochs."""
        images = every * self.images_per_epoch
        return self.images(steps) // images > self.images(steps - 1) // images

    def validates(self, steps):
        """Whether to validate now, on all workers: at these epochs, and after the last step."""
        return self.validate_every > 0 and (
            steps >= self.max_steps or self.ends(steps, self.validate_every))


def first_step():
    """The step at which this start begins: that of the latest checkpoint in `--train_dir`, or 0."""
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, report=False)
    return checkpoints.step(latest) if latest else 0


def start(examples_per_step):
    """`first_step`, and the `changes` of the `EpochCounter` if steps now take this many images."""
    step = first_step()
    run = step and run_folder.read_run(FLAGS.train_dir, _ADVICE)
    recorded = run['settings'].get('images_per_step', []) if run else []
    changes = [each for each in recorded if each[0] < step] or [[0, examples_per_step]]
    if changes[-1][1] != examples_per_step:
        changes.append([step, examples_per_step])
    return step, changes


def check_same_run():
    """The settings of the run in `--train_dir`, {} without `run.json`; raises `app.UsageError`
    if the flags describe another run."""
    run = run_folder.read_run(FLAGS.train_dir, _ADVICE)
    if not run:
        return {}
    run_folder.check_run(FLAGS.train_dir, run, FLAGS.net, cifar10.source().data_set, _ADVICE,
                         FLAGS.validate_on)
    return run['settings']


def prepare_folder(examples_per_step, saver):
    """Checks that `--train_dir` holds this run or nothing, prints what changed, and writes
    `run.json`. The saver gets the list of the run's checkpoints.

    Returns the `EpochCounter`, and the values of a checkpoint, {name: array}; variables without one
    keep their initial values. For errors see `checkpoints.values_for` and `_initial_values`.
    """
    earlier = {} if FLAGS.restart else check_same_run()
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, report=False)
    # Errors are raised before anything is changed.
    values, lines = {}, []
    if latest:
        values = checkpoints.values_for(
            latest, {variable.op.name: variable for variable in tf.global_variables()},
            _ADVICE.capitalize())
    elif FLAGS.initial_checkpoint:
        values, lines = _initial_values()
    run_folder.remove_files(FLAGS.train_dir, also_finished=FLAGS.restart)

    step, changes = start(examples_per_step)
    data_set = cifar10.source().data_set
    epochs = EpochCounter(step, changes, cifar10.source().num_examples(), FLAGS.max_steps,
                          FLAGS.validate_every or 0)
    scales = settings.scales_linearly(recipes.chosen())
    now = {'dataset': FLAGS.dataset, 'training_images': epochs.images_per_epoch,
           'learning_rate': FLAGS.learning_rate, 'linear_scaling': scales,
           **({'warmup_epochs': FLAGS.warmup_epochs} if scales else {}), 'use_fp16': FLAGS.use_fp16,
           'use_bf16': FLAGS.use_bf16, 'variables': FLAGS.variables, 'max_steps': FLAGS.max_steps}
    if step and not earlier:
        console.line(f'{FLAGS.train_dir} has no {names.RUN}: resuming with --net={FLAGS.net} '
                     f'--dataset={FLAGS.dataset}.')
    if len(changes) > 1 and changes[-1][0] == step:
        counted = f'; the schedule treats earlier steps as {examples_per_step}-image steps'
        warm_up = '; --linear_scaling does not warm up again' * (
            scales and earlier.get('linear_scaling', False))
        console.line(f'Resuming with {examples_per_step} images per step (was {changes[-2][1]})'
                     f'{counted * (recipes.chosen().schedule == cifar10.learning_rate)}{warm_up}.')
    consequences = {'max_steps': '; the learning rate now falls to 0 there', **dict.fromkeys(
        ('learning_rate', 'linear_scaling', 'warmup_epochs'),
        '; the schedule continues at the same step')}
    for name, value in now.items():
        was = earlier.get(name, value)
        if was != value and (name != 'max_steps' or recipes.chosen().ends_with_run):
            label = {'dataset': 'dataset ', 'training_images': 'a training set of size '}.get(
                name, f'--{name}=')
            shown, was = ('the default' if each is None else
                          str(each).lower() if isinstance(each, bool) else each
                          for each in (value, was))
            console.line(f'Resuming with {label}{shown} (was {was}){consequences.get(name, "")}.')
    with files.new_file(os.path.join(FLAGS.train_dir, names.RUN)) as stream:
        stream.write((json.dumps({
            'dataset': data_set.name, 'classes': data_set.classes, 'net': FLAGS.net,
            'dataset_folder': data_set.folder if os.path.isabs(data_set.folder) else None,
            'settings': {
                'batch_size': FLAGS.batch_size, 'images_per_step': changes, **now,
                'min_fraction_of_examples_in_queue': FLAGS.min_fraction_of_examples_in_queue,
                'validate_on': FLAGS.validate_on, 'data_dir': FLAGS.data_dir, 'seed': FLAGS.seed,
                'first_step': step, 'started': datetime.datetime.now().isoformat(),
                'tensorflow': tf.version.VERSION}}, indent=2, sort_keys=True) + '\n').encode())
    if step < FLAGS.max_steps:
        size = f' of {examples_per_step} images' if len(changes) == 1 else ''
        console.line(f'{FLAGS.max_steps} steps{size} are {epochs.seen(FLAGS.max_steps):.4g} epochs '
                     f'of {epochs.images_per_epoch} images.')
    if latest:
        latest = checkpoints.latest(FLAGS.train_dir)
        console.line(f'Resuming from {latest}.')
        older = checkpoints.candidates(FLAGS.train_dir)  # Damaged ones precede the latest.
        saver.recover_last_checkpoints(older[older.index(latest):][::-1])
    for line in lines:
        console.line(line)
    return epochs, values


def initial_checkpoint(report=False):
    """Path of `--initial_checkpoint`, which is given, or of the latest one in that folder; raises
    `app.UsageError` if there isn't one, or `--restart` would remove it."""
    given, run = FLAGS.initial_checkpoint, os.path.realpath(FLAGS.train_dir)
    found = checkpoints.named(given) or checkpoints.latest(given, report)
    if found is None:
        raise app.UsageError(f'No checkpoint in --initial_checkpoint={given}; expected the folder '
                             'of another run: choose one')
    if FLAGS.restart and os.path.dirname(os.path.realpath(found)) in (
            run, os.path.join(run, names.BEST)):
        raise app.UsageError(f'--restart would remove --initial_checkpoint={given}: choose another '
                             '--train_dir')
    return found


def _initial_values():
    """The values of `--initial_checkpoint` that fit, {name: array}, and lines about them.

    Weights and their averages start with its averages. Layers of another shape, the last one if its
    run had other classes, the step and the state of the optimizer start anew. Raises
    `app.UsageError` if no weights fit.
    """
    path, classes = initial_checkpoint(), cifar10.source().data_set.classes
    stored, run = checkpoints.read(path), run_folder.read_run(os.path.dirname(path), _OTHER)
    trained = {variable.op.name: variable for variable in tf.trainable_variables()}
    last_layer = list(trained)[-1].rpartition('/')[0]
    new_layer = last_layer if run and run['classes'] != list(classes) else None
    found = {}
    for variable in tf.global_variables():
        base = variable.op.name.removesuffix(names.AVERAGE)
        given, layer = stored.get(base + names.AVERAGE, stored.get(base)), base.rpartition('/')[0]
        is_state = layer == '' or layer in trained  # As `conv1/weights/Momentum`.
        if not is_state and layer != new_layer and given is not None and (
                list(given.shape) == variable.shape.as_list()):
            found[variable.op.name] = given.astype(variable.dtype.base_dtype.as_numpy_dtype)
    if not all(np.isfinite(value).all() for value in found.values()):
        raise app.UsageError(f'{path} has values that are not finite: {_OTHER}')
    kept = {name.split('/')[0] for name in trained.keys() & found.keys()}
    if not kept:
        averages = {name + names.AVERAGE: variable for name, variable in trained.items()}
        checkpoints.values_for(
            path, trained if stored.keys() & trained.keys() else averages,
            f'--net={FLAGS.net} expects these for {len(classes)} classes: {_OTHER}')
    lines = [f'Starting with {", ".join(sorted(kept))} of {path}; new: '
             f'{", ".join(sorted(trained.keys() - found.keys())) or "none"}.']
    if run and FLAGS.validate_on not in ('test', run['settings'].get('validate_on')):
        lines.append('Warning: that run did not hold out images. If it had the same ones, '
                     'validations of this run look better than they are.')
    return found, lines
