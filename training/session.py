"""What all trainers share: the flags of a run, its folder, and the session with its hooks.

A training script builds its graph and then reads

    with training.session(loss, examples_per_step) as session:
        while not session.should_stop():
            session.run(train_op)
"""
import contextlib
import os
import signal
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

import cifar10
from evaluation import validation
from program import console
from program import files
from program import paths
from program import startup
import recipes
from runs import checkpoints
from runs import folder as run_folder
from runs import results
from training import hooks

paths.define('train_dir', '/tmp/cifar10_train', 'Folder for checkpoints and event files.')
flags.DEFINE_integer('max_steps', 100000, 'Number of steps to make, over all starts.',
                     lower_bound=0, upper_bound=10**9)
flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
flags.DEFINE_integer('log_frequency', 10, 'Print a line every so many steps.', lower_bound=1,
                     upper_bound=10**9)
flags.DEFINE_integer('save_checkpoint_secs', 600, 'Save a checkpoint every so many seconds.',
                     lower_bound=1, upper_bound=10**9)
flags.DEFINE_integer('save_checkpoint_steps', None,
                     'Save a checkpoint every so many steps, instead of by time.', lower_bound=1,
                     upper_bound=10**9)
flags.DEFINE_integer('validate_every', None, 'Measure the error every N epochs on the '
                     'images of --validate_on; 0 is never. The default is that of --net.',
                     lower_bound=0, upper_bound=10**9)
flags.DEFINE_integer('profile', None, 'Trace this step: timeline-STEP.json in --train_dir is for '
                     'chrome://tracing, and TensorBoard shows it on the graph.', lower_bound=0,
                     upper_bound=10**9)
flags.DEFINE_integer('seed', None, 'Begin with random numbers of this seed: the same command then '
                     'begins with the same variables, and most likely the same batches, but '
                     'threads and towers may exchange them. A run that goes on draws others.',
                     lower_bound=0, upper_bound=2**63 - 1)
flags.DEFINE_boolean('restart', False,
                     'Remove what an earlier run left in --train_dir and start over.')

FLAGS = flags.FLAGS

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a machine's end, a terminal's.
_TOGETHER = 0.25  # Seconds within which signals are one: `timeout`, for one, sends two.
CHECKPOINTS_KEPT = 5


@contextlib.contextmanager
def session(loss, examples_per_step, summary_op=None, team=None):
    """A session that trains in `--train_dir` until `--max_steps`: made anew, or resumed.

    Prints the tutorial's console line, writes summaries and checkpoints. Ctrl-C, SIGTERM and SIGHUP
    let the running step end and save a checkpoint; then they raise KeyboardInterrupt or SystemExit
    (128 + the signal's number).

    Args:
        loss: float [], the total loss; shown, and watched for NaN.
        examples_per_step: number of images that a step takes, over all replicas.
        summary_op: string [], merged summaries; by default all of the graph's.
        team: a `team.Team` where several workers train; only its leader then touches `--train_dir`
            and prints, and all stop after the same step, whichever of them got a signal.

    Yields:
        A `MonitoredSession` whose `should_stop()` tells when to end.

    Raises:
        app.UsageError: `--train_dir` holds a run with other data or another network, another
            trainer is at work there, or none of its checkpoints is whole.
        OSError: it cannot be written, the disk is full, or it is not safe: see `ownership.check`.
        errors.DataError: a record file was replaced by one that is not whole.
        FloatingPointError: the loss or a variable is not finite any more.
    """
    leads = team is None or team.leads
    variables = cifar10.variables_to_save()
    loader = checkpoints.Loader(variables)
    scaffold = tf.train.Scaffold(
        saver=tf.train.Saver(variables, max_to_keep=CHECKPOINTS_KEPT, save_relative_paths=True),
        summary_op=summary_op if summary_op is not None else tf.summary.merge_all(),
        init_fn=lambda scaffold, session: (
            _resume(session, scaffold.saver, loader, variables) if leads else None))
    caught = []
    with files.full_disk_told(FLAGS.train_dir), (
            run_folder.held(FLAGS.train_dir) if leads else contextlib.nullcontext()):
        if leads:
            _prepare_folder(examples_per_step)
        try:
            with _signals_caught(caught):
                with _monitored_session(
                        loss, examples_per_step, scaffold, variables, caught, team) as monitored:
                    yield monitored
                if team:
                    team.end()  # A signal to one of those who wait here must not cost the save.
        finally:
            tf.summary.FileWriterCache.clear()  # Closes the event file, with what ended the run.
    caught = caught or (team.signals if team else [])
    if caught:
        raise KeyboardInterrupt if caught[0] == signal.SIGINT else SystemExit(128 + caught[0])


def _monitored_session(loss, examples_per_step, scaffold, variables, caught, team):
    """The session alone or of a team, with its hooks."""
    if team is None:
        # The hooks do what MonitoredTrainingSession would do by itself, on exact steps.
        return tf.train.MonitoredTrainingSession(
            scaffold=scaffold,
            hooks=[hooks.StopHook(FLAGS.max_steps, caught),
                   hooks.DataHook(cifar10.data_set(), cifar10.data_folder()),
                   *_leaders_hooks(loss, examples_per_step, scaffold, variables, caught)],
            config=startup.session_config(FLAGS.log_device_placement))
    hooks_ = [
        *team.hooks(caught),  # First: the others read the step that comes with the broadcast.
        hooks.StopHook(FLAGS.max_steps, []),  # A signal here stops all workers, not this one.
        hooks.DataHook(cifar10.data_set(), cifar10.data_folder()),
        *(_leaders_hooks(loss, examples_per_step, scaffold, variables, caught)
          if team.leads else []),
        *team.hooks_after(examples_per_step, cifar10.num_examples(eval_data=False),
                          FLAGS.validate_every)]
    # MonitoredTrainingSession would take a lost worker for a preemption, and rebuild for ever.
    return tf.train.SingularMonitoredSession(
        scaffold=scaffold, hooks=hooks_, master=team.master, config=team.config)


def _leaders_hooks(loss, examples_per_step, scaffold, variables, caught):
    """Hooks that print and write, in the order in which they look at a step."""
    folder = FLAGS.train_dir
    metrics = hooks.MetricsHook(
        loss, _mean_error(), *tf.get_collection('learning_rate')[:1] or [None], examples_per_step,
        cifar10.num_examples(eval_data=False), FLAGS.max_steps, folder,
        validation.Validation(folder, variables, FLAGS.validate_every, FLAGS.validate_on, caught)
        if FLAGS.validate_every else None)
    return [
        hooks.LossHook(loss, examples_per_step, FLAGS.log_frequency, folder),
        hooks.SummaryHook(scaffold, folder),
        tf.train.StepCounterHook(hooks.SUMMARY_STEPS, output_dir=folder),
        metrics,
        tf.train.CheckpointSaverHook(
            folder, saver=scaffold.saver,
            save_secs=None if FLAGS.save_checkpoint_steps else FLAGS.save_checkpoint_secs,
            save_steps=FLAGS.save_checkpoint_steps,
            listeners=[hooks.SaveListener(variables, metrics, folder)]),
        hooks.ParametersHook(variables, folder),
        *([hooks.ProfileHook(FLAGS.profile, FLAGS.max_steps, folder)]
          if FLAGS.profile is not None else [])]


def _mean_error():
    """Share of wrong predictions over all towers, float []; None where `cifar10.loss` made none."""
    errors = tf.get_collection('errors')
    with tf.name_scope('mean_error'):
        return tf.add_n(errors) / len(errors) if errors else None


def use_recipe(replicas=1):
    """Lets the recipe of `--net` replace the flags' defaults, and says so where it does.

    Flags that the user gave stay as they are.

    Args:
        replicas: on how many batches of `--batch_size` a step works.
    """
    recipe = recipes.net()
    replaced = []

    def replace(name, value):
        if FLAGS[name].using_default_value and FLAGS[name].value != value:
            FLAGS.set_default(name, value)
            replaced.append(f'--{name}={value}')

    replace('batch_size', recipe.batch_size)
    if recipe.epochs is not None:
        replace('max_steps', max(1, round(recipe.epochs * cifar10.steps_per_epoch(replicas))))
    if FLAGS.validate_every is None:
        FLAGS.set_default('validate_every', recipe.validate_every)
    if replaced:
        console.line(f'{recipe.name} is trained with {" ".join(replaced)} where you give no other.')


def use_seed(rank=0, step=None):
    """Seeds the random numbers of the default graph by `--seed`, if it is given.

    Call it before the graph is built. The numbers depend on the step as well, so that a run that
    resumes does not draw those that it began with.

    Args:
        rank: which of several workers this is; each draws its own numbers.
        step: the `first_step`, where another worker knows it.
    """
    if FLAGS.seed is not None:
        step = first_step() if step is None else step
        entropy = np.random.SeedSequence([FLAGS.seed, step, rank])
        tf.set_random_seed(int(entropy.generate_state(1)[0]))


def first_step():
    """The step at which this start begins: that of the latest checkpoint in `--train_dir`, or 0."""
    latest = None if FLAGS.restart else checkpoints.latest(FLAGS.train_dir, tell=False)
    return checkpoints.step(latest) if latest else 0


def steps_left():
    """Whether the run in `--train_dir` has steps to make; if not, says so in one line."""
    if FLAGS.restart:
        return True
    _check_same_run()
    latest = checkpoints.latest(FLAGS.train_dir, tell=False)
    step = checkpoints.step(latest) if latest else 0
    if latest is None or step < FLAGS.max_steps:
        return True
    if results.parameters_step(os.path.join(FLAGS.train_dir, 'params.h5')) != step:
        return True  # What ended the last start came before the last of its files.
    console.line(f'Nothing to do: {latest} has made --max_steps={FLAGS.max_steps} already.')
    return False


def _prepare_folder(examples_per_step):
    """Checks that `--train_dir` holds this run, or nothing, and notes the run in `run.json`."""
    if FLAGS.restart:
        run_folder.remove_own_files(FLAGS.train_dir)
    earlier = _check_same_run()
    run_folder.remove_half_written(FLAGS.train_dir)
    if earlier and earlier.get('examples_per_step') not in (None, examples_per_step):
        console.line(f'Steps were of {earlier["examples_per_step"]} images and are of '
                     f'{examples_per_step} now; the schedule counts all of them as the latter.')
    data_set = cifar10.data_set()
    run = {'dataset': data_set.name, 'classes': data_set.classes, 'net': FLAGS.net, 'settings': {
        'batch_size': FLAGS.batch_size, 'examples_per_step': examples_per_step,
        'max_steps': FLAGS.max_steps, 'learning_rate': FLAGS.learning_rate,
        'use_fp16': FLAGS.use_fp16,
        'min_fraction_of_examples_in_queue': FLAGS.min_fraction_of_examples_in_queue,
        'validate_on': FLAGS.validate_on, 'data_dir': FLAGS.data_dir, 'seed': FLAGS.seed,
        'tensorflow': tf.version.VERSION}}
    checkpoints.write_run(FLAGS.train_dir, run)


def _check_same_run():
    """The settings of the run in `--train_dir`, None where nothing is noted there.

    Raises:
        app.UsageError: this run cannot continue it.
    """
    advice = 'name another --train_dir, or start over with --restart'
    settings = checkpoints.check_run(FLAGS.train_dir, FLAGS.net, cifar10.data_set(), advice)
    earlier = settings and settings.get('validate_on', 'test')
    if earlier not in (None, FLAGS.validate_on):
        raise app.UsageError(
            f'{FLAGS.train_dir} holds a run with --validate_on={earlier}, which trains on other '
            f'images than --validate_on={FLAGS.validate_on}: {advice}')
    return settings


def _resume(session_, saver, loader, variables):
    """Loads the latest checkpoint, if there is one, and goes on counting those to keep."""
    latest = checkpoints.latest(FLAGS.train_dir)
    if latest:
        console.line(f'Resuming from {latest}.')
        loader.load(latest, {variable.op.name: variable for variable in variables}, session_,
                    'Name another --train_dir, or start over with --restart')
        older = checkpoints.candidates(FLAGS.train_dir)  # And before it those that are damaged.
        saver.recover_last_checkpoints(older[older.index(latest):][::-1])


@contextlib.contextmanager
def _signals_caught(caught):
    """Appends the first signal to stop to the list `caught`; a later one ends the process at once,
    but for SIGHUP, which comes from the system, the shell and `console`.

    Python runs its handlers between bytecodes of the main thread, which may be deep in a step or in
    one that hangs. So the signal's number is written to a pipe, and a thread listens there.
    A signal that the process was started to ignore, as by `nohup` or in the background of a script,
    stays ignored. Outside of the main thread, which alone can change handlers, nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    threading.Thread(target=_listen, args=(read_end, caught), daemon=True).start()
    earlier = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS
               if signal.getsignal(number) is not signal.SIG_IGN}
    earlier_end = signal.set_wakeup_fd(write_end)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_end)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(write_end)  # Which ends the thread.


def _listen(read_end, caught):
    """Reads numbers of signals from a pipe until it is closed."""
    with open(read_end, 'rb', buffering=0) as pipe:
        while number := pipe.read(1):
            if number[0] not in _SIGNALS:
                continue
            if not caught:
                caught.append(number[0])
                first_time = time.monotonic()
                console.note('')
                console.note('Stopping after this step; once more stops at once.')
            elif number[0] != signal.SIGHUP and time.monotonic() - first_time > _TOGETHER:
                os._exit(128 + number[0])
