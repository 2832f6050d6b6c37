"""What all trainers share: the flags of a run, its folder, and the session with its hooks.

A training script builds its graph and then runs

    with training.session(loss, examples_per_step) as session:
        while not session.should_stop():
            session.run(train_op)
"""
import contextlib
import os
import signal

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

import cifar10
from cifar10_lib import settings as settings_
from cifar10_lib.evaluation import validation
from cifar10_lib.program import console
from cifar10_lib.program import files
from cifar10_lib.program import paths
from cifar10_lib import recipes
from cifar10_lib.runs import checkpoints
from cifar10_lib.runs import folder as run_folder
from cifar10_lib.runs import names
from cifar10_lib.runs import parameters
from cifar10_lib.training import hooks
from cifar10_lib.training import pace as pace_
from cifar10_lib.training import signals
from cifar10_lib.training import solo

_MAX_STEPS = 10**9

paths.define('train_dir', '/tmp/cifar10_train', 'Folder for checkpoints and event files.')
flags.DEFINE_integer('max_steps', 100000, 'Total number of steps, including those before a resume.',
                     lower_bound=0, upper_bound=_MAX_STEPS)
flags.DEFINE_float('epochs', None, 'Total number of epochs, instead of --max_steps; may have a '
                   'fraction.', lower_bound=0.0, upper_bound=1e6)
flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
flags.DEFINE_integer('log_frequency', 10, 'Number of steps between printed lines.', lower_bound=1,
                     upper_bound=10**9)
flags.DEFINE_integer('save_checkpoint_secs', 600, 'Seconds between checkpoints.',
                     lower_bound=1, upper_bound=10**9)
flags.DEFINE_integer('save_checkpoint_steps', None,
                     'Steps between checkpoints, instead of --save_checkpoint_secs.',
                     lower_bound=1, upper_bound=10**9)
flags.DEFINE_integer('validate_every', None, 'Number of epochs between validations on the images '
                     'of --validate_on; 0, the default, means never.',
                     lower_bound=0, upper_bound=10**9)
flags.DEFINE_integer('profile', None, 'Trace this step: writes timeline-STEP.json into --train_dir '
                     "for chrome://tracing, and adds the trace to TensorBoard's graph.",
                     lower_bound=0, upper_bound=10**9)
flags.DEFINE_integer('seed', None, 'Seed of the random numbers: the same command then starts with '
                     'the same variables. Batches may still differ, because threads and towers '
                     'race for them. A resumed run draws new numbers.',
                     lower_bound=0, upper_bound=2**63 - 1)
flags.DEFINE_boolean('restart', False,
                     "Remove an earlier run's files from --train_dir and start over.")

FLAGS = flags.FLAGS

CHECKPOINTS_KEPT = 5

for _name in ('batch_size', 'epochs', 'validate_every', 'linear_scaling'):
    recipes.describe_defaults(_name)


@flags.multi_flags_validator(['epochs', 'max_steps'], 'both set the length of the training; '
                             'expected only one of them: remove the other')
def _check_length(values):
    return values['epochs'] is None or FLAGS['max_steps'].using_default_value


@contextlib.contextmanager
def session(loss, examples_per_step, summary_op=None, team=solo.ALONE):
    """A session that trains in `--train_dir` until `--max_steps`, resuming if it can.

    Prints the tutorial's console line, and writes summaries and checkpoints. After SIGINT (Ctrl-C),
    SIGTERM or SIGHUP the running step ends and a checkpoint is saved; then KeyboardInterrupt or
    SystemExit (128 + signal number) is raised.

    Args:
        loss: float [], the total loss; printed, and checked to be finite.
        examples_per_step: number of images per step, over all towers and workers.
        summary_op: string [], merged summaries; by default all of the graph's.
        team: a `solo.Solo` or `team.Team`. Only worker 0 writes to `--train_dir` and prints, and
            all workers stop after the same step.

    Yields:
        A `MonitoredSession`; `should_stop()` is true after the last step.

    Raises:
        app.UsageError: `--train_dir` holds a run with a different network or data set, another
            trainer uses it, or all of its checkpoints are damaged.
        OSError: `--train_dir` cannot be written, the disk is full, or the folder is not safe: see
            `ownership.check`.
        errors.DataError: a record file was replaced by a damaged one.
        FloatingPointError: the loss or a variable is not finite.
    """
    variables = tf.global_variables()
    loader = checkpoints.Loader(variables)
    # This process initialises all variables. Reports of those that are not initialised, which the
    # scaffold would add, are an eighth of the graph.
    none = tf.constant([], tf.string)
    scaffold = tf.train.Scaffold(
        ready_op=none, ready_for_local_init_op=none,
        saver=tf.train.Saver(variables, max_to_keep=CHECKPOINTS_KEPT, save_relative_paths=True),
        summary_op=summary_op if summary_op is not None else tf.summary.merge_all(),
        init_fn=lambda scaffold, session: (
            _resume(session, scaffold.saver, loader, variables) if team.leads else None))
    with files.explain_full_disk(FLAGS.train_dir), (
            run_folder.held(FLAGS.train_dir) if team.leads else contextlib.nullcontext()):
        if team.leads:
            _prepare_folder(examples_per_step)
        try:
            with cifar10.source().damage_reported(), signals.caught() as caught:
                with _monitored_session(
                        loss, examples_per_step, scaffold, variables, caught, team) as monitored:
                    yield monitored
                team.end()  # Still within `caught`: a signal now must not interrupt the save.
        finally:
            tf.summary.FileWriterCache.clear()  # Closes the event file, also after an error.
    caught = caught or team.signals
    if caught:
        raise KeyboardInterrupt if caught[0] == signal.SIGINT else SystemExit(128 + caught[0])


def _monitored_session(loss, examples_per_step, scaffold, variables, caught, team):
    """The session of one worker, with its hooks in the order in which they see a step."""
    source = cifar10.source()
    pace = pace_.Pace(examples_per_step, source.num_examples(), FLAGS.max_steps,
                      FLAGS.validate_every or 0)
    steps = hooks.StepCounter()
    all_hooks = [
        *team.hooks(caught),  # First: worker 0 broadcasts the global step to the counters.
        steps,
        hooks.StopHook(lambda: steps.made >= FLAGS.max_steps),
        hooks.DataHook(steps, source.data_set, source.folder),
        *(_leaders_hooks(steps, pace, loss, scaffold, variables, caught) if team.leads else []),
        *team.hooks_after(steps, pace)]
    return team.session(scaffold, all_hooks)


def _leaders_hooks(steps, pace, loss, scaffold, variables, caught):
    """Hooks that print, validate and write."""
    folder = FLAGS.train_dir
    rate = next(iter(tf.get_collection('learning_rate')), None)
    error = _mean_error()
    metrics = hooks.MetricsHook(steps, pace, loss, error, rate, folder)
    timer = hooks.CheckpointTimer(FLAGS.save_checkpoint_secs, FLAGS.save_checkpoint_steps)
    found = [
        hooks.LossHook(steps, loss, pace.examples_per_step, FLAGS.log_frequency, folder),
        hooks.SummaryHook(steps, scaffold, folder),
        tf.train.StepCounterHook(hooks.SUMMARY_STEPS, output_dir=folder)]
    if console.shows_progress():
        found.append(hooks.ProgressHook(steps, pace, loss))
    if pace.validate_every:
        found.append(hooks.ValidationHook(
            steps, pace, error,
            validation.Validation(folder, variables, FLAGS.validate_on, caught), metrics))
    found += [
        metrics,
        hooks.CheckpointHook(steps, variables, scaffold.saver, timer, metrics, folder),
        hooks.ParametersHook(variables, folder)]
    if FLAGS.profile is not None:
        found.append(hooks.ProfileHook(steps, FLAGS.profile, FLAGS.max_steps, folder))
    return found


def _mean_error():
    """Fraction of wrong predictions over all towers, float []; None without `cifar10.loss`."""
    errors = tf.get_collection('errors')
    with tf.name_scope('mean_error'):
        return tf.add_n(errors) / len(errors) if errors else None


def use_recipe(batches_per_step=1):
    """Sets flags that the user did not give to the defaults of `--net`, and prints changes.

    `--max_steps` becomes the number of steps in `--epochs`, or else in the recipe's epochs.

    Args:
        batches_per_step: number of batches of `--batch_size` in one step.

    Raises:
        FileNotFoundError: a record file is missing.
        app.UsageError: there are too many steps in `--epochs`.
    """
    recipe = recipes.chosen()
    replaced = []

    def replace(name, value):
        if FLAGS[name].using_default_value and FLAGS[name].value != value:
            FLAGS.set_default(name, value)
            replaced.append(f'--{name}={value}')

    replace('batch_size', recipe.batch_size)
    if FLAGS.epochs is not None:
        FLAGS.set_default('max_steps', _steps_in(FLAGS.epochs, batches_per_step))
    elif recipe.epochs is not None:
        replace('max_steps', _steps_in(recipe.epochs, batches_per_step))
    if FLAGS.validate_every is None:
        FLAGS.set_default('validate_every', recipe.validate_every)
    if replaced:
        console.line(f'Defaults for --net={recipe.name}: {" ".join(replaced)}')
    if FLAGS.epochs is not None:
        console.line(f'--epochs={FLAGS.epochs:g}: {FLAGS.max_steps} steps of '
                     f'{cifar10.source().examples_per_step(batches_per_step)} images.')


def counts_epochs():
    """Whether `--max_steps` follows from `--epochs` or the recipe's epochs; see `use_recipe`."""
    return FLAGS['max_steps'].using_default_value and (
        FLAGS.epochs is not None or recipes.chosen().epochs is not None)


def _steps_in(epochs, batches_per_step):
    steps = pace_.steps_in(epochs, cifar10.source().steps_per_epoch(batches_per_step))
    if steps > _MAX_STEPS:
        raise app.UsageError(f'--epochs={epochs:g} is {steps} steps; expected at most '
                             f'{_MAX_STEPS}: lower --epochs')
    return steps


def use_seed(rank=0, step=None):
    """Seeds the random numbers of the default graph by `--seed`, if given; call it first.

    The numbers also depend on the step, so that a resumed run does not repeat the first ones.

    Args:
        rank: number of this worker; each worker draws its own numbers.
        step: worker 0's `first_step`; by default this process's own.
    """
    if FLAGS.seed is not None:
        step = first_step() if step is None else step
        entropy = np.random.SeedSequence([FLAGS.seed, step, rank])
        tf.set_random_seed(int(entropy.generate_state(1)[0]))


def first_step():
    """The step at which this start begins: that of the latest checkpoint in `--train_dir`, or 0."""
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, report=False)
    return checkpoints.step(latest) if latest else 0


def steps_left():
    """Whether the run in `--train_dir` has steps left; prints a line if not.

    Raises:
        app.UsageError: `--train_dir` cannot hold this run. Better now than after a download.
    """
    run_folder.check_path(FLAGS.train_dir)
    if FLAGS.restart:
        return True
    _check_same_run()
    latest = checkpoints.latest(FLAGS.train_dir, report=False)
    step = checkpoints.step(latest) if latest else 0
    if latest is None or step < FLAGS.max_steps:
        return True
    if parameters.step(os.path.join(FLAGS.train_dir, names.PARAMETERS)) != step:
        return True  # The last start ended before it wrote its last file.
    length = (f'--max_steps={FLAGS.max_steps}' if FLAGS.epochs is None else
              f'--epochs={FLAGS.epochs:g} ({FLAGS.max_steps} steps)')
    console.line(f'Nothing to do: {latest} has reached {length}.')
    return False


def _prepare_folder(examples_per_step):
    """Checks that `--train_dir` holds this run or nothing, and writes `run.json`."""
    if FLAGS.restart:
        run_folder.remove_own_files(FLAGS.train_dir)
    earlier = _check_same_run()
    run_folder.remove_unfinished(FLAGS.train_dir)
    scales = settings_.scales_linearly(recipes.chosen())
    rate = {'learning_rate': FLAGS.learning_rate,
            'warmup_epochs': FLAGS.warmup_epochs if scales else None}  # None: not scaled.
    _report_changes(earlier or {}, examples_per_step, rate)
    data_set = cifar10.source().data_set
    run_folder.write_run(FLAGS.train_dir, {
        'dataset': data_set.name, 'classes': data_set.classes, 'net': FLAGS.net,
        'settings': {
            'batch_size': FLAGS.batch_size, 'examples_per_step': examples_per_step,
            'max_steps': FLAGS.max_steps, **rate, 'linear_scaling': scales,
            'use_fp16': FLAGS.use_fp16, 'use_bf16': FLAGS.use_bf16,
            'min_fraction_of_examples_in_queue': FLAGS.min_fraction_of_examples_in_queue,
            'validate_on': FLAGS.validate_on, 'data_dir': FLAGS.data_dir, 'seed': FLAGS.seed,
            'tensorflow': tf.version.VERSION}})


def _report_changes(earlier, examples_per_step, rate):
    """Prints which settings of the schedule differ from those of an earlier start."""
    if earlier.get('examples_per_step') not in (None, examples_per_step):
        scaled = None not in (earlier.get('warmup_epochs'), rate['warmup_epochs'])
        warm_up = '; --linear_scaling does not warm up again' if scaled else ''
        console.line(f'Resuming with {examples_per_step} images per step (was '
                     f'{earlier["examples_per_step"]}); the schedule treats earlier steps as '
                     f'{examples_per_step}-image steps{warm_up}.')
    for name, describe in (('learning_rate', _rate), ('warmup_epochs', _scaling)):
        if earlier.get(name, rate[name]) != rate[name]:
            console.line(f'Resuming with {describe(rate[name])} (was {describe(earlier[name])}); '
                         'the schedule continues at the same step.')


def _rate(value):
    return 'the default learning rate' if value is None else f'--learning_rate={value}'


def _scaling(epochs):
    return '--linear_scaling=false' if epochs is None else (
        f'--linear_scaling --warmup_epochs={epochs}')


def _check_same_run():
    """The settings of the run in `--train_dir`, None without `run.json`.

    Raises:
        app.UsageError: the flags describe another run.
    """
    advice = 'choose another --train_dir, or start over with --restart'
    settings = run_folder.check_run(FLAGS.train_dir, FLAGS.net, cifar10.source().data_set, advice)
    earlier = settings and settings.get('validate_on', 'test')
    if earlier not in (None, FLAGS.validate_on):
        raise app.UsageError(
            f'{FLAGS.train_dir} holds a run with --validate_on={earlier}, which trains on other '
            f'images than --validate_on={FLAGS.validate_on}: {advice}')
    return settings


def _resume(session_, saver, loader, variables):
    """Loads the latest checkpoint, if any, and gives the saver the list of older ones."""
    latest = checkpoints.latest(FLAGS.train_dir)
    if latest:
        console.line(f'Resuming from {latest}.')
        by_name = {variable.op.name: variable for variable in variables}
        values = checkpoints.values_for(
            latest, by_name, 'Choose another --train_dir, or start over with --restart')
        loader.assign(values, by_name, session_)
        older = checkpoints.candidates(FLAGS.train_dir)  # Damaged ones precede the latest.
        saver.recover_last_checkpoints(older[older.index(latest):][::-1])
