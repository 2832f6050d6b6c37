"""What all trainers share: the flags of a run, its folder, and the session with its hooks."""
import contextlib
import os
import signal

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import recipes
from cifar10_lib.nets import summaries
from cifar10_lib.program import command_line, console, files
from cifar10_lib.runs import checkpoints, names, run_folder
from cifar10_lib.training import hooks, resume, worker

_COUNT = {'lower_bound': 1, 'upper_bound': 10**9}
command_line.define_path(
    'train_dir', '/tmp/cifar10_train', 'Folder for checkpoints and event files.')
flags.DEFINE_integer('max_steps', 100000, 'Total number of steps, including those before a resume.',
                     lower_bound=0, upper_bound=10**12)
flags.DEFINE_float('epochs', None, 'Total number of epochs, instead of --max_steps; may have a '
                   'fraction.', lower_bound=0.0, upper_bound=1e6)
flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
flags.DEFINE_integer('log_frequency', 10, 'Number of steps between printed lines.', **_COUNT)
flags.DEFINE_integer('save_checkpoint_secs', 600, 'Seconds between checkpoints.', **_COUNT)
flags.DEFINE_integer('save_checkpoint_steps', None,
                     'Steps between checkpoints, instead of --save_checkpoint_secs.', **_COUNT)
flags.DEFINE_integer('validate_every', None, 'Number of epochs between validations on the images '
                     'of --validate_on; 0 means never, the default except for resnet23 (1).',
                     lower_bound=0, upper_bound=10**9)
flags.DEFINE_float('stop_at', None, 'Stop when a validation reaches this precision @ 1 with the '
                   'averaged weights, such as 0.8.', lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_integer('profile', None, 'Trace one step every N steps: writes '
                     'timeline-STEP.json into --train_dir for chrome://tracing, and adds the trace '
                     "to TensorBoard's graph.", **_COUNT)
flags.DEFINE_integer('seed', None, 'Seed of the random numbers: the same command then starts with '
                     'the same variables. Batches may still differ, because threads and towers '
                     'race for them. A resumed run draws new numbers.',
                     lower_bound=0, upper_bound=2**63 - 1)
command_line.define_path(
    'initial_checkpoint', None, "Another run's folder or checkpoint, whose weights a new run "
    'starts with; layers that do not fit, such as the last one for other classes, start anew.')
flags.DEFINE_boolean('restart', False,
                     "Remove an earlier run's files from --train_dir and start over.")

FLAGS = flags.FLAGS

for _name, _other, _what in (
        ('epochs', 'max_steps', 'the length of the training'),
        ('save_checkpoint_steps', 'save_checkpoint_secs', 'when to save a checkpoint')):
    flags.register_multi_flags_validator(
        sorted([_name, _other]), lambda values, name=_name, other=_other: (
            values[name] is None or FLAGS[other].using_default_value),
        f'both set {_what}; expected only one of them: remove the other')


@contextlib.contextmanager
def session(loss, examples_per_step, me=worker.Worker()):  # noqa: B008, it has no state.
    """A session that trains in `--train_dir` until `--max_steps`, resuming if it can.

    In place of `MonitoredTrainingSession`, with hooks that docs/architecture.md lists. After SIGINT
    (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1 the running step ends and a checkpoint is saved; then
    KeyboardInterrupt or SystemExit (128 + signal number) is raised.

    Args:
        loss: float32 [], the total loss, which must not become NaN.
        examples_per_step: number of images per step, over all towers and workers.
        me: a `worker.Worker`. Only worker 0 writes to `--train_dir` and prints, and all workers
            stop after the same step.

    Yields a `SingularMonitoredSession`; `should_stop()` is true after the last step.

    Raises:
        app.UsageError: `--train_dir` holds another run, is in use, or its checkpoints are damaged.
        OSError: `--train_dir` cannot be written, belongs to another user, or the disk is full.
        errors.DataError: a record file was replaced by a damaged one.
        FloatingPointError: the loss is NaN, or a variable is not finite.
    """
    source = cifar10.source()
    averages = {}
    if any(each.op.name.endswith(names.STATISTICS) for each in tf.global_variables()):
        from cifar10_lib.evaluation import statistics  # Imported only for batch norm.
        averages = statistics.add_averages()
    variables = tf.global_variables()
    saver = tf.train.Saver(variables, max_to_keep=5, save_relative_paths=True,
                           keep_checkpoint_every_n_hours=1e9)
    # The summaries of later towers have the same tags as the first one's.
    summary_ops = summaries.of_first_tower(
        tf.get_collection(tf.GraphKeys.SUMMARIES), cifar10.TOWER_NAME)
    saver_hook, values = None, {}

    with contextlib.ExitStack() as stack:
        stack.enter_context(files.explain_full_disk(FLAGS.train_dir))
        if me.rank == 0:
            stack.enter_context(run_folder.locked(FLAGS.train_dir))
            epochs, values = resume.prepare_folder(examples_per_step, saver)
            me.barrier('the folder', value=(epochs.first_step, epochs.changes))
        else:
            epochs = resume.EpochCounter(*me.barrier('the folder'), source.num_examples(),
                                         FLAGS.max_steps, FLAGS.validate_every or 0)
        loaded = {each.op.name: each for each in variables if each.op.name in values}
        loader = checkpoints.Loader(list(loaded.values()))
        # The scaffold's checks that all variables are initialised would add an eighth to the graph.
        none = tf.constant([], tf.string)
        scaffold = tf.train.Scaffold(
            ready_op=none, ready_for_local_init_op=none, saver=saver,
            init_fn=(lambda _, session: loader.assign(values, loaded, session)) if values else None,
            summary_op=tf.summary.merge(summary_ops) if summary_ops else tf.constant(''))
        stack.enter_context(source.damage_reported())
        caught = stack.enter_context(worker.signals_caught())
        worker_hook = hooks.WorkerHook(me, caught, epochs.first_step >= FLAGS.max_steps)
        all_hooks = [worker_hook]
        if me.rank == 0:
            # One writer for all hooks. No other process writes here: the folder is locked.
            writer = tf.summary.FileWriterCache.get(FLAGS.train_dir)
            writer.reopen()  # After an earlier session of this process.
            stack.callback(writer.close)
            statistics_listener = validator = None
            if averages:  # At most a third of --step_timeout: other workers wait.
                statistics_listener = statistics.Statistics(
                    averages, variables, epochs.first_step, caught, me.step_seconds / 3)
            if FLAGS.validate_every:  # Imported only here: a plain run does not evaluate.
                from cifar10_lib.evaluation import validation
                validator = validation.Validation(
                    FLAGS.train_dir, variables, statistics_listener, FLAGS.validate_on, caught)
            metrics_hook = hooks.MetricsHook(FLAGS.train_dir, loss, epochs, writer)
            saver_hook = tf.train.CheckpointSaverHook(
                FLAGS.train_dir, scaffold=scaffold, save_steps=FLAGS.save_checkpoint_steps,
                save_secs=None if FLAGS.save_checkpoint_steps else FLAGS.save_checkpoint_secs,
                listeners=[
                    hooks.CheckpointListener(FLAGS.train_dir, variables, metrics_hook),
                    *([statistics_listener] if statistics_listener else [])])
            # In this order: NaN is found before a checkpoint is due. After an exception, no hook's
            # `end` runs.
            all_hooks += [
                tf.train.NanTensorHook(loss),
                hooks.LoggerHook(loss, epochs, FLAGS.log_frequency),
                tf.train.StepCounterHook(hooks.SUMMARY_STEPS, summary_writer=writer),
                tf.train.SummarySaverHook(
                    hooks.SUMMARY_STEPS, summary_writer=writer, scaffold=scaffold),
                metrics_hook,
                hooks.ValidationHook(me, epochs, validator, metrics_hook, FLAGS.stop_at),
                saver_hook]
            if FLAGS.profile:
                all_hooks.append(tf.train.ProfilerHook(FLAGS.profile, output_dir=FLAGS.train_dir))
        else:
            all_hooks.append(hooks.ValidationHook(me, epochs))
        all_hooks.append(tf.train.StopAtStepHook(last_step=FLAGS.max_steps))

        with me.session(scaffold, all_hooks) as monitored:
            try:
                yield monitored
            except tf.train.NanLossDuringTrainingError as error:
                raise metrics_hook.diverged('the loss is nan') from error
            except Exception as error:
                # A hook's error, between two steps: nothing else would save the steps since the
                # last checkpoint. After an error in a step, the variables may be half updated.
                if saver_hook and not (worker_hook.in_step or isinstance(error, ArithmeticError)):
                    with contextlib.suppress(Exception):  # The first error matters.
                        saver_hook._timer.reset()  # It counts a save that failed as done.
                        saver_hook.end(monitored.raw_session())
                raise
        me.end()  # Signals are still caught: one now must not interrupt the save.
    if caught or worker_hook.is_stopped:
        number = caught[0] if caught else signal.SIGTERM
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def apply_recipe_defaults(batches_per_step=1, leads=True):
    """Sets flags that the user did not give to the defaults of `--net`, and prints changes.

    `--max_steps` becomes the number of steps in `--epochs`, or in the recipe's if it has any. Only
    worker 0, which `leads`, can compute it from earlier starts. Raises `app.UsageError` for
    `--stop_at` without validations.
    """
    recipe = recipes.chosen()
    before = {'batch_size': FLAGS.batch_size, 'max_steps': FLAGS.max_steps}
    FLAGS.set_default('batch_size', recipe.batch_size)  # Without effect if the user gave it.
    FLAGS.set_default('validate_every', recipe.validate_every)
    epochs = recipe.epochs if FLAGS.epochs is None else FLAGS.epochs
    if epochs is not None and leads:
        source = cifar10.source()
        start = resume.start(source.batch_size * batches_per_step)
        FLAGS.set_default('max_steps', resume.EpochCounter(
            *start, source.num_examples()).last_step(epochs))
    if FLAGS.stop_at is not None and not FLAGS.validate_every:
        raise app.UsageError(f'--stop_at={FLAGS.stop_at:g} requires validations: add '
                             '--validate_every=1')
    replaced = [f'--{name}={FLAGS[name].value}' for name, value in before.items()
                if FLAGS[name].value != value and (name == 'batch_size' or FLAGS.epochs is None)]
    if replaced:
        console.line(f'Defaults for --net={recipe.name}: {" ".join(replaced)}')


def use_seed(rank=0, step=None):
    """Seeds the random numbers of the default graph by `--seed`, if given; call it first.

    The numbers also depend on the step, so that a resumed run does not repeat the first ones, and
    on the worker's rank. `step` is worker 0's `resume.first_step`; by default this process's own.
    """
    if FLAGS.seed is not None:
        step = resume.first_step() if step is None else step
        entropy = np.random.SeedSequence([FLAGS.seed, step, rank])
        tf.set_random_seed(int(entropy.generate_state(1)[0]))


def steps_left():
    """Whether training should go on: steps left, `--stop_at` not reached; prints a line if not.

    Raises `app.UsageError` if the folder cannot hold this run: better now than after a download.
    """
    run_folder.check_path(FLAGS.train_dir)
    if FLAGS.initial_checkpoint and (FLAGS.restart or not checkpoints.candidates(FLAGS.train_dir)):
        resume.initial_checkpoint(report=True)
    if FLAGS.restart:
        return True
    resume.check_same_run()
    step = resume.first_step()
    reached = checkpoints.latest(FLAGS.train_dir, report=False)
    if step >= FLAGS.max_steps:
        length = (f'--max_steps={FLAGS.max_steps}' if FLAGS.epochs is None else
                  f'--epochs={FLAGS.epochs:g} ({FLAGS.max_steps} steps)')
    elif FLAGS.stop_at is None:
        return True
    else:
        from cifar10_lib.runs import best  # Here, because --stop_at is rare.
        error, best_step = best.read(FLAGS.train_dir, FLAGS.validate_on)
        if not hooks.reaches(error, FLAGS.stop_at):
            return True
        length = f'--stop_at={FLAGS.stop_at:g}'
        reached = checkpoints.at_step(os.path.join(FLAGS.train_dir, names.BEST), best_step)
    parameters = os.path.join(FLAGS.train_dir, names.PARAMETERS)
    if step >= FLAGS.max_steps and checkpoints.parameters_step(parameters) != step:
        return True  # The last start ended before it wrote its last file.
    console.line(f'Nothing to do: {reached}{run_folder.owner(FLAGS.train_dir)} has reached '
                 f'{length}.')
    return False
