"""The session in which all trainers run their steps, and the hooks that they share."""
import contextlib
import re
import signal

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.evaluation import statistics, validation
from cifar10_lib.program import files
from cifar10_lib.runs import checkpoints, run_folder
from cifar10_lib.training import session_hooks, worker

# How TensorFlow refuses to make a histogram of values that are not finite.
_HISTOGRAM = re.compile('Nan in summary histogram|Infinity in Histogram')


def use_seed(start, rank=0):
    """Seeds the random numbers of the default graph by `--seed`, if given; call it first.

    The numbers also depend on the step, so that a resumed run does not repeat the first ones, and
    on the `rank` of the worker.
    """
    if start.run.seed is not None:
        entropy = np.random.SeedSequence([start.run.seed, start.step, rank])
        tf.set_random_seed(int(entropy.generate_state(1)[0]))


def shared_hooks(start, loss, summary_op=None, me=None):
    """The hooks that trainers share; they work once the session has begun.

    Args:
        start: the `Start` of the run.
        loss: float32 [], the total loss.
        summary_op: string [], the merged summaries; by default all of the graph.
        me: this `worker.Worker`; by default one that trains alone. Only worker 0 writes to the
            run's folder and prints.

    Returns a list for `session`.
    """
    me = me or worker.Worker()
    run, epochs = start.run, start.epochs
    if me.rank:
        return [session_hooks.ValidationHook(me, epochs)]
    variables = tf.global_variables()
    metrics_hook = session_hooks.MetricsHook(run.train_dir, loss, epochs)
    batch_norms = validator = None
    if any(not each.trainable for each in tf.moving_average_variables()):
        batch_norms = statistics.Statistics(  # Other workers wait for it.
            start.source, start.recipe, variables, start.step, me.caught, me.step_seconds / 3)
    if run.validate_every:
        validator = validation.Validation(
            run.train_dir, variables, start.source, start.recipe, run.validate_on, me.caught,
            batch_norms, resumes=start.found is not None)
    if summary_op is None:
        summary_op = tf.summary.merge_all()
    if summary_op is None:  # The graph has no summaries.
        summary_op = tf.constant('')
    found = [
        session_hooks.ProgressHook(loss, epochs),
        tf.train.StepCounterHook(session_hooks.SUMMARY_STEPS, output_dir=run.train_dir),
        tf.train.SummarySaverHook(
            session_hooks.SUMMARY_STEPS, output_dir=run.train_dir, summary_op=summary_op),
        metrics_hook,
        session_hooks.ValidationHook(me, epochs, validator, metrics_hook),
        session_hooks.SaverHook(start, variables, metrics_hook, batch_norms)]
    if run.profile:
        found.append(tf.train.ProfilerHook(run.profile, output_dir=run.train_dir))
    return found


@contextlib.contextmanager
def session(start, hooks, me=None):
    """A session that trains in `--train_dir`, from where the run was.

    In place of `MonitoredTrainingSession`. After SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1 the
    running step ends and a checkpoint is saved; then KeyboardInterrupt or SystemExit (128 + signal
    number) is raised.

    Args:
        start: the `Start` of the run.
        hooks: list of hooks, in which those that find NaN come before those that save; the last
            ones are those of `shared_hooks`.
        me: this `worker.Worker`; by default that of `shared_hooks`. All workers stop after the same
            step.

    Yields a `SingularMonitoredSession`; `should_stop()` is true after the last step.

    Raises:
        app.UsageError: `--train_dir` is in use, or its checkpoint does not fit the network.
        OSError: `--train_dir` cannot be written, belongs to another user, or the disk is full.
        errors.DataError: a record file was replaced by a damaged one.
        FloatingPointError: the loss is NaN, or a variable is not finite.
    """
    if me is None:
        me = next(each.worker for each in hooks if isinstance(each, session_hooks.ValidationHook))
    folder = start.run.train_dir
    variables = tf.global_variables()
    worker_hook = session_hooks.WorkerHook(me, start.step >= start.max_steps)
    with contextlib.ExitStack() as stack:
        stack.enter_context(files.explain_full_disk(folder))
        worker.raise_interrupt()  # The graph is built.
        values = {}
        if me.rank == 0:
            values = start.values_for(variables)  # Errors are raised before anything is changed.
            stack.enter_context(run_folder.locked(folder))
            start.check_unchanged()
            run_folder.remove_files(folder, also_finished=start.run.restart)
            start.report(variables, values)
            start.write()
            # One writer for all hooks. No other process writes here: the folder is locked.
            writer = tf.summary.FileWriterCache.get(folder)
            writer.reopen()  # After an earlier session of this process.
            stack.callback(writer.close)
        me.barrier('the folder')
        stack.enter_context(start.source.damage_reported())
        stack.enter_context(worker.signals_caught(me.caught))
        with me.session(_scaffold(variables, values), [worker_hook, *hooks],
                        start.run.log_device_placement) as monitored:
            try:
                yield monitored
            except Exception as error:
                _after_error(error, monitored, worker_hook, hooks)
                raise
        me.end()  # Signals are still caught: one now must not interrupt the save.
    if me.caught or worker_hook.is_stopped:
        number = signal.SIGTERM
        if me.caught:
            number = me.caught[0]
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _scaffold(variables, values):
    """The `tf.train.Scaffold` of a session that starts with these values, {name: array}."""
    loaded = {each.op.name: each for each in variables if each.op.name in values}
    init_fn = None
    if loaded:
        loader = checkpoints.Loader(list(loaded.values()))

        def init_fn(_, session):
            loader.assign(values, loaded, session)

    if not tf.get_collection(tf.GraphKeys.SAVERS):  # This worker does not save.
        tf.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver(variables))
    # The scaffold's checks that all variables are initialised would add an eighth to the graph.
    none = tf.constant([], tf.string)
    return tf.train.Scaffold(ready_op=none, ready_for_local_init_op=none, init_fn=init_fn,
                             summary_op=tf.constant(''))


def _after_error(error, monitored, worker_hook, hooks):
    """Saves the steps that an error would lose, or raises one that explains it."""
    savers = [each for each in hooks if isinstance(each, session_hooks.SaverHook)]
    if not savers:
        return
    saver_hook, = savers
    if isinstance(error, tf.train.NanLossDuringTrainingError):
        raise saver_hook.metrics_hook.diverged('the loss is nan') from error
    if isinstance(error, tf.errors.InvalidArgumentError) and _HISTOGRAM.search(str(error)):
        raise saver_hook.metrics_hook.diverged(
            'an activation, a weight or a gradient is not finite') from error
    # A hook's error, between two steps: nothing else would save the steps since the last
    # checkpoint. After an error in a step, the variables may be half updated.
    if not (worker_hook.in_step or isinstance(error, FloatingPointError)):
        with contextlib.suppress(Exception):  # The first error matters.
            saver_hook.save_after_error(monitored.raw_session())
