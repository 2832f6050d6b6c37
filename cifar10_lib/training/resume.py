"""How a start finds `--train_dir`: which run it holds, what changed, and its latest checkpoint."""
import datetime
import os

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import recipes, settings
from cifar10_lib.program import console
from cifar10_lib.runs import checkpoints, folder as run_folder, names

FLAGS = flags.FLAGS

_ADVICE = 'choose another --train_dir, or start over with --restart'
_OTHER = 'choose another --initial_checkpoint'


def first_step():
    """The step at which this start begins: that of the latest checkpoint in `--train_dir`, or 0."""
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, report=False)
    return checkpoints.step(latest) if latest else 0


def start(examples_per_step):
    """`first_step`, and `changes` of the `EpochCounter` up to this start with this many images."""
    step = first_step()
    run = step and run_folder.read_run(FLAGS.train_dir, _ADVICE)
    recorded = run['settings'].get('images_per_step', []) if run else []
    changes = [each for each in recorded if each[0] < step] or [[0, examples_per_step]]
    if changes[-1][1] != examples_per_step:
        changes.append([step, examples_per_step])
    return step, changes


def prepare_folder(examples_per_step):
    """Checks that `--train_dir` holds this run or nothing; writes `run.json`; returns `start`."""
    earlier = {} if FLAGS.restart else check_same_run() or {}
    _values_to_load(tf.global_variables())  # Raises an error before anything is changed.
    run_folder.remove_files(FLAGS.train_dir, also_finished=FLAGS.restart)
    step, changes = start(examples_per_step)
    if step and not earlier:
        console.line(f'{FLAGS.train_dir} has no {names.RUN}: resuming with --net={FLAGS.net} '
                     f'--dataset={FLAGS.dataset}.')
    scales = settings.scales_linearly(recipes.chosen())
    schedule = {'learning_rate': FLAGS.learning_rate, 'linear_scaling': scales,
                'warmup_epochs': FLAGS.warmup_epochs if scales else None}
    source = cifar10.source()
    data_set = source.data_set
    images = {'dataset': FLAGS.dataset, 'training_images': source.num_examples()}
    types = {name: FLAGS[name].value for name in ('use_fp16', 'use_bf16', 'variables')}
    if len(changes) > 1 and changes[-1][0] == step:
        warm_up = '; --linear_scaling does not warm up again' * (
            scales and earlier.get('linear_scaling', False))
        console.line(f'Resuming with {examples_per_step} images per step (was {changes[-2][1]}); '
                     f'the schedule treats earlier steps as {examples_per_step}-image steps'
                     f'{warm_up}.')
    for name, value in images.items():
        if earlier.get(name, value) != value:
            console.line(f'Resuming with {name.replace("_", " ")} {value} (was {earlier[name]}).')
    for name, value in {**schedule, **types}.items():
        if earlier.get(name, value) != value:
            now, then = ('the default' if each is None else str(each).lower()
                         for each in (value, earlier[name]))
            continues = '; the schedule continues at the same step' * (name in schedule)
            console.line(f'Resuming with --{name}={now} (was {then}){continues}.')
    planned = earlier.get('max_steps', FLAGS.max_steps)
    if recipes.chosen().ends_with_run and planned != FLAGS.max_steps:
        console.line(f'Resuming with --max_steps={FLAGS.max_steps} (was {planned}); the learning '
                     'rate now falls to 0 there.')
    run_folder.write_run(FLAGS.train_dir, {
        'dataset': data_set.name, 'classes': data_set.classes, 'net': FLAGS.net,
        'dataset_folder': data_set.folder if os.path.isabs(data_set.folder) else None,
        'settings': {
            'batch_size': FLAGS.batch_size, 'images_per_step': changes,
            'max_steps': FLAGS.max_steps, **images, **schedule, **types,
            'min_fraction_of_examples_in_queue': FLAGS.min_fraction_of_examples_in_queue,
            'validate_on': FLAGS.validate_on, 'data_dir': FLAGS.data_dir, 'seed': FLAGS.seed,
            'first_step': step, 'started': datetime.datetime.now().isoformat(),
            'tensorflow': tf.version.VERSION}})
    return step, changes


def check_same_run():
    """The settings of the run in `--train_dir`, None without `run.json`; raises `app.UsageError`
    if the flags describe another run."""
    run = run_folder.read_run(FLAGS.train_dir, _ADVICE)
    if run:
        run_folder.check_run(FLAGS.train_dir, run, FLAGS.net, cifar10.source().data_set, _ADVICE)
    found = run and run['settings']
    earlier = found and found.get('validate_on', 'test')
    if earlier not in (None, FLAGS.validate_on):
        raise app.UsageError(
            f'{FLAGS.train_dir} holds a run with --validate_on={earlier}, which trains on other '
            f'images than --validate_on={FLAGS.validate_on}: {_ADVICE}')
    return found


def load(session, saver, loader, variables):
    """Loads the latest checkpoint, if any, and gives the saver the list of older ones.

    A new run loads `--initial_checkpoint` instead.
    """
    latest = checkpoints.latest(FLAGS.train_dir)
    by_name = {variable.op.name: variable for variable in variables}
    values = _values_to_load(variables)
    new = {name: variable for name, variable in by_name.items() if name not in values}
    if latest:
        console.line(f'Resuming from {latest}.')
        older = checkpoints.candidates(FLAGS.train_dir)  # Damaged ones precede the latest.
        saver.recover_last_checkpoints(older[older.index(latest):][::-1])
    elif values:
        path, trained = initial_checkpoint(), {each.op.name for each in tf.trainable_variables()}
        kept = {name.split('/')[0] for name in trained & values.keys()}
        console.line(f'Starting with {", ".join(sorted(kept))} of {path}; new: '
                     f'{", ".join(sorted(trained & new.keys())) or "none"}.')
        run = run_folder.read_run(os.path.dirname(path), _OTHER)
        if run and FLAGS.validate_on not in ('test', run['settings'].get('validate_on')):
            console.line('Warning: that run did not hold out images. If it had the same ones, '
                         'validations of this run look better than they are.')
    if values:
        loader.assign({**values, **(session.run(new) if new else {})}, by_name, session)


def _values_to_load(variables):
    """The values with which variables start, {name: array}, without those that are initialised.

    For errors, see `checkpoints.values_for` and `_initial`.
    """
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, report=False)
    if latest:
        return checkpoints.values_for(
            latest, {variable.op.name: variable for variable in variables},
            'Choose another --train_dir, or start over with --restart')
    return _initial(variables) if FLAGS.initial_checkpoint else {}


def initial_checkpoint(report=False):
    """Path of `--initial_checkpoint`, or of the latest one in that folder, None without the flag;
    raises `app.UsageError` if there is none, or `--restart` would remove it."""
    given, run = FLAGS.initial_checkpoint, os.path.realpath(FLAGS.train_dir)
    found = given and (checkpoints.named(given) or checkpoints.latest(given, report))
    if given and found is None:
        raise app.UsageError(f'No checkpoint in --initial_checkpoint={given}; expected the folder '
                             'of another run: choose one')
    if given and FLAGS.restart and os.path.dirname(os.path.realpath(found)) in (
            run, os.path.join(run, names.BEST)):
        raise app.UsageError(f'--restart would remove --initial_checkpoint={given}: choose another '
                             '--train_dir')
    return found


def _initial(variables):
    """The values of `--initial_checkpoint` that fit these variables, {name: array}.

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
    for variable in variables:
        base = variable.op.name.removesuffix(names.AVERAGE)
        given, layer = stored.get(base + names.AVERAGE, stored.get(base)), base.rpartition('/')[0]
        is_state = layer == '' or layer in trained
        if not is_state and layer != new_layer and given is not None and (
                list(given.shape) == variable.shape.as_list()):
            found[variable.op.name] = given.astype(variable.dtype.base_dtype.as_numpy_dtype)
    if not trained.keys() & found.keys():
        averages = {name + names.AVERAGE: variable for name, variable in trained.items()}
        checkpoints.values_for(
            path, trained if stored.keys() & trained.keys() else averages,
            f'--net={FLAGS.net} expects these for {len(classes)} classes: {_OTHER}')
    return found
