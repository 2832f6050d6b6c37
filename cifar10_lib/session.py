"""The training session of both programs: it resumes, and saves before it ends."""
import contextlib
import errno
import os
import re
import signal
import sys
import threading
import time

from cifar10_lib import checkpoints, errors, files

import numpy as np
import tensorflow.compat.v1 as tf

# SIGUSR1: Open MPI and Slurm pass it on, and let the processes live. SIGBREAK is Windows'.
_SIGNALS = [getattr(signal, name) for name in (
    'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGBREAK') if hasattr(signal, name)]
_TOGETHER = 0.25  # Seconds within which signals count as one: `timeout`, for one, sends two.

# Files of a run, unfinished ones included, that `restart` removes from the folder and its `best/`.
_OWN_FILES = re.compile(
    r'(checkpoint|graph\.pbtxt|run\.json|metrics\.csv|params\.h5|error\.json'
    r'|events\.out\.tfevents\..*|model\.ckpt-\d+(\.index|\.meta|\.data-\d{5}-of-\d{5})?)'
    rf'({files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+)?')
_LOSS_AVERAGE = '/avg'  # Ends the name of a loss's moving average. Old checkpoints lack some.


class SignalHook(tf.train.SessionRunHook):
    """Ends the session after the step in which a signal arrives.

    Python runs signal handlers after `session.run`. A subclass in the list of hooks replaces it.
    """

    caught = None  # The number of the signal.
    is_finished = False  # Whether no steps are left.
    coord = None
    is_stepping = False  # Whether a step is running, or has failed.

    def after_create_session(self, session, coord):
        self.coord = coord
        if self.caught or self.is_finished:
            coord.request_stop()

    def before_run(self, run_context):
        self.is_stepping = True

    def after_run(self, run_context, run_values):
        self.is_stepping = False
        if self.caught:
            run_context.request_stop()


@contextlib.contextmanager
def training_session(
        master='', is_chief=True, checkpoint_dir=None, scaffold=None, hooks=None,
        chief_only_hooks=None, save_checkpoint_secs=600, save_summaries_steps=100,
        save_summaries_secs=None, config=None, stop_grace_period_secs=120,
        log_step_count_steps=100, max_wait_secs=7200, save_checkpoint_steps=None,
        summary_dir=None, save_graph_def=True, restart=False):
    """A session that trains in `checkpoint_dir`, from the newest intact checkpoint on.

    Its parameters are those of `tf.train.MonitoredTrainingSession`, and `restart`: whether to
    remove the files of an earlier run from `checkpoint_dir` first, and nothing else. Only the chief
    uses that folder; without it, nothing is written. `save_checkpoint_steps` and
    `save_summaries_secs` replace their counterparts.

    After SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1, the running step ends and a checkpoint is
    saved; then KeyboardInterrupt or SystemExit (128 + signal number) is raised. A second signal
    ends the process at once. After an error between two steps, a checkpoint is saved, too.

    Yields a `tf.train.SingularMonitoredSession`.
    Raises:
        errors.UserError: the folder is in use, or its checkpoint does not fit the graph.
        OSError: the folder cannot be written, or the disk is full.
        FloatingPointError: the loss or a variable is not finite; it was not saved.
    """
    del max_wait_secs  # Only workers that are not the chief would wait.
    hooks = list(hooks or [])
    signals = next((hook for hook in hooks if isinstance(hook, SignalHook)), SignalHook())
    hooks = [signals, *(hook for hook in hooks if hook is not signals)]  # First to see a step end.
    scaffold = scaffold or tf.train.Scaffold()
    with contextlib.ExitStack() as stack:
        saving = None
        if is_chief and checkpoint_dir:
            checkpoint_dir = os.fspath(checkpoint_dir)
            summary_dir = summary_dir or checkpoint_dir
            stack.enter_context(files.explain_full_disk(checkpoint_dir))
            stack.enter_context(_locked(checkpoint_dir))
            if restart:
                _remove_run(checkpoint_dir)
            found = checkpoints.newest(checkpoint_dir)
            scaffold = _restored(found, scaffold, checkpoint_dir)
            signals.is_finished = _is_finished(found, hooks)
            if signals.is_finished:
                print(f'Nothing to do: {found.path} has reached the last step.', flush=True)
                hooks, chief_only_hooks = [signals], []
            else:
                if found:
                    print(f'Resuming from {found.path}.', flush=True)
                saving = _Saving(checkpoint_dir)
                # If another hook fails at the end, the last step has been saved.
                hooks[1:1] = _hooks_of_the_chief(
                    checkpoint_dir, scaffold, saving, save_checkpoint_secs, save_checkpoint_steps,
                    summary_dir, save_summaries_steps, save_summaries_secs, log_step_count_steps,
                    save_graph_def)
                # Closing it would let a session that begins in the same second replace its file.
                stack.callback(tf.summary.FileWriterCache.get(summary_dir).flush)
        if is_chief:
            hooks += chief_only_hooks or []
        stack.enter_context(_signals_caught(signals, is_chief))
        # MonitoredTrainingSession's own type would take the error of a lost disk or worker for a
        # preemption, and start again from the latest checkpoint.
        with tf.train.SingularMonitoredSession(
                hooks, scaffold, master, config,
                stop_grace_period_secs=stop_grace_period_secs) as session:
            try:
                yield session
            except BaseException as error:
                _after_error(error, session, signals, hooks, saving)
                raise
    if signals.caught == signal.SIGINT:
        raise KeyboardInterrupt
    if signals.caught:
        raise SystemExit(128 + signals.caught)


def _hooks_of_the_chief(folder, scaffold, saving, save_secs, save_steps, summary_dir,
                        summary_steps, summary_secs, log_steps, save_graph_def):
    """The hooks that MonitoredTrainingSession adds, too."""
    found = []
    if log_steps:
        found.append(tf.train.StepCounterHook(log_steps, output_dir=summary_dir))
    if summary_steps or summary_secs:
        found.append(tf.train.SummarySaverHook(
            None if summary_secs else summary_steps, summary_secs, summary_dir, scaffold=scaffold))
    if save_secs or save_steps:
        found.append(tf.train.CheckpointSaverHook(
            folder, None if save_steps else save_secs, save_steps, scaffold.saver,
            listeners=[saving], save_graph_def=save_graph_def))
    return found


@contextlib.contextmanager
def _locked(folder):
    """Creates a run's folder if necessary, and locks it against other trainers."""
    if not checkpoints.PATTERN_CHARACTERS.isdisjoint(folder):
        raise errors.UserError(f'{folder} contains one of * ? [ \\: TensorFlow would read it as a '
                                "pattern and remove other runs' checkpoints. Choose another folder")
    os.makedirs(folder, exist_ok=True)
    try:
        with files.locked(os.path.join(folder, '.lock')):
            yield
    except files.InUseError as error:
        raise errors.UserError(f'{folder} is in use: another process trains there. Stop that '
                                'process, or choose another folder') from error


def _remove_run(folder):
    """Removes the files of a run; files of others stay."""
    tf.summary.FileWriterCache.clear()  # Of an earlier session of this process.
    for place in (folder, os.path.join(folder, 'best')):
        if os.path.isdir(place):
            for entry in list(os.scandir(place)):
                if _OWN_FILES.fullmatch(entry.name) and not entry.is_dir():
                    os.remove(entry.path)


def _is_finished(found, hooks):
    """Whether a run, from its checkpoint or None, is at the last step of a `StopAtStepHook`.

    The hook itself would run one more step.
    """
    last_steps = [hook._last_step for hook in hooks
                  if isinstance(hook, tf.train.StopAtStepHook) and hook._last_step is not None]
    return found is not None and checkpoints.step(found) >= min(last_steps, default=np.inf)


def _restored(found, scaffold, folder):
    """A copy of a scaffold whose session starts from a checkpoint, `checkpoints.Found` or None.

    Raises `errors.UserError` if the checkpoint does not fit the graph.
    """
    saver = scaffold.saver or tf.train.Saver(max_to_keep=5, save_relative_paths=True)
    if found is None:
        return tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
    found = checkpoints.Found(
        found.path, {**found.values, 'global_step': np.array(checkpoints.step(found))})
    restored = {each.op.name: each for each in tf.global_variables()
                if each.op.name in found.values or not each.op.name.endswith(_LOSS_AVERAGE)}
    checkpoints.check_fit(found, restored, 'Choose another folder, or start over with --restart')
    older = checkpoints.candidates(folder)  # Damaged ones precede `found`.
    saver.recover_last_checkpoints(older[older.index(found.path):][::-1])
    # Not by `saver`: the original stored the step as a float, or halves with --use_fp16.
    with tf.device('/cpu:0'), tf.name_scope('restore'):
        feeds = {each: tf.placeholder(each.dtype.base_dtype, each.shape)
                 for each in restored.values()}
        new = [each for each in tf.global_variables() if each.op.name not in restored]
        init_op = tf.group(tf.variables_initializer(new), *[
            variable.assign(feed, read_value=False) for variable, feed in feeds.items()])
    return tf.train.Scaffold(
        copy_from_scaffold=scaffold, saver=saver, init_op=init_op,
        init_fn=lambda *_: None,  # The scaffold's own would replace what was learned.
        init_feed_dict={feed: found.values[each.op.name] for each, feed in feeds.items()})


class _Saving(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite, so that the latest checkpoint stays good.

    `tf.train.NanTensorHook` is not enough: the loss of a step is that of the weights before it.
    """

    def __init__(self, folder):
        self._folder = folder
        with tf.device('/cpu:0'), tf.name_scope('finite'):
            self._check = tf.group(*[
                tf.debugging.check_numerics(each, each.op.name)
                for each in tf.global_variables() if each.dtype.base_dtype.is_floating])

    def before_save(self, session, global_step_value):
        try:
            session.run(self._check)
        except tf.errors.InvalidArgumentError as error:
            raise self.diverged(errors.one_line(error)) from error

    def diverged(self, reason):
        """The error of a run whose numbers are not finite."""
        return FloatingPointError(f'Training diverged: {reason}. The checkpoints in {self._folder} '
                                  'are from before')

    def end(self, session, global_step_value):
        try:
            print(f'Saved step {global_step_value} in {self._folder}.', flush=True)
        except OSError as error:  # Ctrl-C ends `| tee`, too. Other hooks have something to save.
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.


def _after_error(error, session, signals, hooks, saving):
    """Saves the steps that an error would lose, or raises one that explains it."""
    if isinstance(error, tf.train.NanLossDuringTrainingError) and saving:
        saving.before_save(session.raw_session(), None)  # Names a variable that is not finite.
        raise saving.diverged('the loss is NaN') from error
    # If a step failed, the variables may be half updated; not if it waited for input that failed.
    is_half_updated = (signals.is_stepping and isinstance(error, tf.errors.OpError)
                       and not signals.coord.should_stop())
    if saving and not (is_half_updated or isinstance(error, FloatingPointError)):
        for hook in hooks:
            if isinstance(hook, tf.train.CheckpointSaverHook):
                with contextlib.suppress(Exception):  # The first error matters.
                    hook.end(session.raw_session())


@contextlib.contextmanager
def _signals_caught(hook, is_chief):
    """Gives the first signal to a `SignalHook`; a second one ends the process.

    A second SIGHUP does not: the system and the shell both send it. Signals that are ignored, as
    with `nohup`, stay ignored. Python allows handlers only in the main thread.
    """
    first_time = 0.0

    def catch(number, _):
        nonlocal first_time
        if hook.caught is None:
            hook.caught = number
            first_time = time.monotonic()
            if is_chief:
                # The terminal may be gone, or the note interrupts another one.
                with contextlib.suppress(OSError, RuntimeError):
                    errors.note('stopping after this step; interrupt again to stop without saving')
        elif number != getattr(signal, 'SIGHUP', None) and (
                time.monotonic() - first_time > _TOGETHER):
            os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.signal(number, catch) for number in _SIGNALS
               if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
