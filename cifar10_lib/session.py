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

# Files of a run, unfinished ones included, that `remove_run` removes from the folder and its best/.
_OWN_FILES = re.compile(
    r'(checkpoint|graph\.pbtxt|run\.json|metrics\.csv|params\.h5|error\.json'
    r'|events\.out\.tfevents\..*|model\.ckpt-(again-)?\d+(\.index|\.meta|\.data-\d{5}-of-\d{5})?)'
    rf'({files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+)?')
_LOSS_AVERAGE = '/avg'  # Ends the name of a loss's moving average. Old checkpoints lack some.


class Run:
    """A run's folder that this process has locked, and its newest intact checkpoint.

    Attributes:
        folder: str.
        found: the `checkpoints.Found`, which was read once; None in a new run.
        step: the number of steps of earlier starts.
    """

    def __init__(self, folder, found):
        self.folder, self.found, self.step = folder, found, 0
        if found:
            self.step = checkpoints.step(found)


class StopSignal:
    """The number of the signal that asked this process to stop; 0 so far."""

    number = 0


@contextlib.contextmanager
def opened(folder, restart=False):
    """Locks a run's folder, which is created if necessary, and reads its newest checkpoint.

    Yields the `Run`; with `restart`, one without a checkpoint: the caller will remove its files.
    Raises `errors.UserError` if another process trains there, or all checkpoints
    are damaged, and `OSError` if the folder cannot be written.
    """
    folder = os.fspath(folder)
    with files.explain_full_disk(folder), _locked(folder):
        found = None
        if not restart:
            found = checkpoints.newest(folder)
        yield Run(folder, found)


def remove_run(folder):
    """Removes the files of a run from its folder, to start over; files of others stay.

    `folder` is a path, or the `Run` that the caller has opened. Raises `errors.UserError` if
    another process trains there.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(folder, Run):
            folder = folder.folder
        else:
            folder = os.fspath(folder)
            stack.enter_context(_locked(folder))
        tf.summary.FileWriterCache.clear()  # Of an earlier session of this process.
        for place in (folder, os.path.join(folder, 'best')):
            if os.path.isdir(place):
                for entry in list(os.scandir(place)):
                    if _OWN_FILES.fullmatch(entry.name) and not entry.is_dir():
                        os.remove(entry.path)


@contextlib.contextmanager
def training_session(*, master='', is_chief=True, checkpoint_dir=None, scaffold=None, hooks=None,
                     save_checkpoint_secs=600, save_summaries_steps=100, config=None,
                     save_checkpoint_steps=None, stop=None):
    """A session that trains in `checkpoint_dir`, from the newest intact checkpoint on.

    Its parameters are those of `tf.train.MonitoredTrainingSession`, but for two: `checkpoint_dir`
    may be a `Run` that the caller has opened, and `stop` is a `StopSignal` after which the caller
    ends its loop, then the process by `end_by`. Without it, the session does both. Only the
    chief uses the folder; without one, nothing is written. `save_checkpoint_steps` replaces
    `save_checkpoint_secs`.

    After SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1, the running step ends and a checkpoint is
    saved; then KeyboardInterrupt or SystemExit (128 + signal number) is raised. A second signal
    ends the process at once. After an error between two steps, a checkpoint is saved, too.

    Yields a `tf.train.SingularMonitoredSession`.
    Raises:
        errors.UserError: the folder is in use or of another program, or its checkpoint does not fit
            the graph.
        OSError: the folder cannot be written, or the disk is full.
        FloatingPointError: the loss or a variable is not finite; it was not saved.
    """
    steps = _Steps(stop)
    hooks = [steps, *(hooks or [])]  # The first one to see a step end.
    scaffold = scaffold or tf.train.Scaffold()
    with contextlib.ExitStack() as stack:
        saving = None
        if is_chief and checkpoint_dir:
            run = checkpoint_dir
            if not isinstance(run, Run):
                run = stack.enter_context(opened(checkpoint_dir))
                checkpoints.refuse_other_program(run.folder, 'classification.py')
            scaffold = _restored(run, scaffold)
            last_step = _last_step(hooks)
            if run.found and run.step >= last_step:
                print(f'Nothing to do: {run.folder} has {run.step} steps, and the last step is '
                      f'{last_step}. Raise --max_steps, or start over with --restart.', flush=True)
                steps.are_over = True
                hooks = [steps]
            else:
                if run.found:
                    print(_resuming(run, last_step), flush=True)
                saving = _Saving(run.folder)
                # If another hook fails at the end, the last step has been saved.
                hooks[1:1] = _hooks_of_the_chief(
                    run.folder, scaffold, saving, save_checkpoint_secs, save_checkpoint_steps,
                    save_summaries_steps)
                # Closing it would let a session that begins in the same second replace its file.
                stack.callback(tf.summary.FileWriterCache.get(run.folder).flush)
                stack.enter_context(_events_fail_once())
        stack.enter_context(_signals_caught(steps.stop, is_chief))
        # MonitoredTrainingSession's own type would take the error of a lost disk or worker for a
        # preemption, and start again from the latest checkpoint.
        with tf.train.SingularMonitoredSession(hooks, scaffold, master, config) as session:
            try:
                yield session
            except BaseException as error:
                _after_error(error, session, steps, hooks, saving)
                raise
    if stop is None:
        end_by(steps.stop.number)


def end_by(number):
    """Raises what ends a script after a signal, if its number is not 0."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number:
        raise SystemExit(128 + number)


class _Steps(tf.train.SessionRunHook):
    """Knows whether a step is running or has failed; ends the session after a signal.

    Python runs signal handlers after `session.run`.
    """

    are_over = False  # Whether no steps are left.
    are_running = False  # Whether a step is running, or has failed.

    def __init__(self, stop):
        self._stops_itself = stop is None
        self.stop = stop or StopSignal()

    def after_create_session(self, session, coord):
        self.coord = coord
        if self.are_over or self._is_stopped():
            coord.request_stop()

    def before_run(self, run_context):
        self.are_running = True

    def after_run(self, run_context, run_values):
        self.are_running = False
        if self._is_stopped():
            run_context.request_stop()

    def _is_stopped(self):
        return self._stops_itself and self.stop.number


class _CheckpointSaverHook(tf.train.CheckpointSaverHook):
    """Saves a step when the next one begins.

    What a loop does after a step, such as a validation, is then complete before the checkpoint from
    which a killed run resumes.
    """

    _run_values = None  # Of the last step.

    def before_run(self, run_context):
        if self._run_values is not None:
            super().after_run(run_context, self._run_values)
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        self._run_values = run_values


def _hooks_of_the_chief(folder, scaffold, saving, save_secs, save_steps, summary_steps):
    """The hooks that MonitoredTrainingSession adds, too."""
    found = [tf.train.StepCounterHook(output_dir=folder)]
    if summary_steps:
        found.append(tf.train.SummarySaverHook(summary_steps, None, folder, scaffold=scaffold))
    if save_steps:
        save_secs = None
    if save_secs or save_steps:
        found.append(_CheckpointSaverHook(
            folder, save_secs, save_steps, scaffold.saver, listeners=[saving]))
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


def _last_step(hooks):
    """The step at which a `StopAtStepHook` ends the run; infinity without one."""
    # At this step or after it, the hook itself would run one more.
    return min((hook._last_step for hook in hooks if isinstance(hook, tf.train.StopAtStepHook)
                and hook._last_step is not None), default=np.inf)


def _resuming(run, last_step):
    """The lines that say where a run resumes, and what changes."""
    text = f'Resuming from {run.folder} at step {run.step}'
    if last_step < np.inf:
        text += f', until step {last_step}'
    collections = checkpoints.graph(run.found.path).collection_def
    was = list(collections['images_per_step'].int64_list.value)
    now = tf.get_collection('images_per_step')  # `cifar10.learning_rate` adds it.
    if was and now and was != now:
        text += (f'.\nResuming with {now[0]} images per step (was {was[0]}): the schedule treats '
                 f'all {run.step} steps as steps of {now[0]} images')
    return text + '.'


def _restored(run, scaffold):
    """A copy of a scaffold whose session starts from a run's checkpoint, if it has one.

    Raises `errors.UserError` if the checkpoint does not fit the graph.
    """
    saver = scaffold.saver or tf.train.Saver(max_to_keep=5, save_relative_paths=True)
    if run.found is None:
        return tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver)
    found = checkpoints.Found(
        run.found.path, {**run.found.values, 'global_step': np.array(run.step)})
    restored = {each.op.name: each for each in tf.global_variables()
                if each.op.name in found.values or not each.op.name.endswith(_LOSS_AVERAGE)}
    checkpoints.check_fit(found, restored, 'Choose another folder, or start over with --restart')
    older = checkpoints.candidates(run.folder)  # Damaged ones precede `found`.
    saver.recover_last_checkpoints(older[older.index(found.path):][::-1])
    init_op = None
    if scaffold.init_op is not None:  # It would replace what was learned, as `init_fn` would.
        init_op = tf.global_variables_initializer()
    # Not by `saver`: the original stored the step as a float, or halves with --use_fp16.
    return tf.train.Scaffold(
        copy_from_scaffold=scaffold, saver=saver, init_op=init_op, **checkpoints.initial_values(
            {variable: found.values[name] for name, variable in restored.items()}))


class _Saving(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite, so that the latest checkpoint stays good.

    `tf.train.NanTensorHook` is not enough: the loss of a step is that of the weights before it.
    """

    _saved = None  # The last step that was saved.

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

    def after_save(self, session, global_step_value):
        self._saved = global_step_value

    def end(self, session, global_step_value):
        if self._saved != global_step_value:  # The disk is full.
            return
        try:
            print(f'Saved step {global_step_value} in {self._folder}.', flush=True)
        except OSError as error:  # Ctrl-C ends `| tee`, too. Other hooks have something to save.
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.


def _after_error(error, session, steps, hooks, saving):
    """Saves the steps that an error would lose, or raises one that explains it."""
    if isinstance(error, tf.train.NanLossDuringTrainingError) and saving:
        saving.before_save(session.raw_session(), None)  # Names a variable that is not finite.
        raise saving.diverged('the loss is NaN') from error
    # If a step failed, the variables may be half updated; not if it waited for input that failed.
    is_half_updated = (steps.are_running and isinstance(error, tf.errors.OpError)
                       and not steps.coord.should_stop())
    if saving and not (is_half_updated or isinstance(error, FloatingPointError)):
        for hook in hooks:
            if isinstance(hook, tf.train.CheckpointSaverHook):
                with contextlib.suppress(Exception):  # The first error matters.
                    hook.end(session.raw_session())


@contextlib.contextmanager
def _events_fail_once():
    """The thread that writes events prints no traceback: its error is raised by the next event."""
    earlier = threading.excepthook

    def hook(arguments):
        if arguments.thread is None or arguments.thread.name != 'EventLoggerThread':
            earlier(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = earlier


@contextlib.contextmanager
def _signals_caught(stop, is_chief):
    """Gives the first signal to a `StopSignal`; a second one ends the process.

    A second SIGHUP does not: the system and the shell both send it. Signals that are ignored, as
    with `nohup`, stay ignored. Python allows handlers only in the main thread.
    """
    first_time = 0.0

    def catch(number, _):
        nonlocal first_time
        if not stop.number:
            stop.number = number
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
