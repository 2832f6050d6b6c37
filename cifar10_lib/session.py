"""The training session of both programs: it resumes, and saves before it ends."""
import contextlib
import os
import re
import signal
import threading
import time
from typing import NamedTuple

from cifar10_lib import checkpoints, errors, files

import numpy as np
import tensorflow.compat.v1 as tf

# SIGUSR1: Open MPI and Slurm pass it on, and let the processes live. SIGBREAK is Windows'.
_SIGNALS = [getattr(signal, name) for name in (
    'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGBREAK') if hasattr(signal, name)]
_TOGETHER = 0.25  # Seconds within which signals count as one: `timeout`, for one, sends two.

# What TensorFlow writes while it trains; and what the name of an unfinished file ends with.
_FILES = (r'checkpoint|graph\.pbtxt|events\.out\.tfevents\..*'
          r'|model\.ckpt-(again-)?\d+(\.index|\.meta|\.data-\d{5}-of-\d{5})?')
_UNFINISHED = rf'{files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+'
_LOSS_AVERAGE = '/avg'  # Ends the name of a loss's moving average. Old checkpoints lack some.


class Run(NamedTuple):
    """A run's folder that this process has locked, and its newest intact checkpoint."""

    folder: str
    restart: bool  # Whether the run starts over, without the checkpoint.
    found: checkpoints.Found | None  # It was read once; None in a new run.
    step: int  # Number of steps of earlier starts.


class StopSignal:
    """The number of the signal that asked this process to stop; 0 so far."""

    number = 0


@contextlib.contextmanager
def opened(folder, restart=False):
    """Locks a run's folder, which is created if necessary, and yields the `Run`.

    To start over, pass `restart`, then call `remove_files`. Raises `errors.UserError` if another
    process trains there, or all checkpoints are damaged, and `OSError` if the folder cannot be
    written.
    """
    folder = os.fspath(folder)
    if checkpoints.named(folder) and not os.path.exists(folder):
        raise errors.UserError(f'{folder} is a checkpoint; expected a folder: its run resumes in '
                               f'{os.path.dirname(folder) or os.curdir}')
    with files.explain_full_disk(folder):
        os.makedirs(folder, exist_ok=True)
        with files.locked(os.path.join(folder, '.lock')):
            found, step = None, 0
            if not restart:
                found = checkpoints.newest(folder)
            if found:
                step = checkpoints.step(found)
            yield Run(folder, restart, found, step)


def remove_run(folder):
    """Removes the files of a run from its folder, to start over; other files stay.

    Raises `errors.UserError` if another process trains there, or it is a run of classification.py.
    """
    with opened(folder, restart=True) as run:
        checkpoints.refuse_other_program(run.folder, 'classification.py --restart')
        remove_files(run.folder)


def remove_files(folder, *names):
    """Removes checkpoints, event files and the graph from a folder, and the files of these names.

    Other files stay.
    """
    tf.summary.FileWriterCache.clear()  # Of an earlier session of this process.
    pattern = re.compile(f'({"|".join([_FILES, *map(re.escape, names)])})({_UNFINISHED})?')
    for entry in list(os.scandir(folder)):
        if pattern.fullmatch(entry.name) and not entry.is_dir():
            os.remove(entry.path)


@contextlib.contextmanager
def training_session(*, master='', is_chief=True, checkpoint_dir=None, scaffold=None, hooks=None,
                     save_checkpoint_secs=600, save_summaries_steps=100, config=None,
                     save_checkpoint_steps=None, stop=None):
    """A session that trains in `checkpoint_dir`, from the newest intact checkpoint on.

    Its parameters are those of `tf.train.MonitoredTrainingSession` that the programs need, but for
    two: `checkpoint_dir` may be a `Run` that the caller has opened, and `stop` is a `StopSignal`
    after which the caller ends its loop, then the process by `end_by`. Without it, the session does
    both. Only the chief uses the folder; without one, nothing is written. `save_checkpoint_steps`
    replaces `save_checkpoint_secs`.

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
    caught, is_over = stop or StopSignal(), False
    steps = _Steps(lambda: is_over or (stop is None and caught.number))
    hooks = list(hooks or [])
    scaffold = scaffold or tf.train.Scaffold()
    with contextlib.ExitStack() as stack:
        saver = None
        if is_chief and checkpoint_dir:
            run = checkpoint_dir
            if not isinstance(run, Run):
                run = stack.enter_context(opened(checkpoint_dir))
                checkpoints.refuse_other_program(run.folder, 'classification.py')
            scaffold = _restored(run, scaffold)
            last_step = _last_step(hooks)
            is_over = run.step >= last_step
            print(_progress(run, last_step), end='', flush=True)
            if is_over:
                hooks = []
            else:
                own, saver = _hooks_of_the_chief(
                    run.folder, scaffold, save_checkpoint_secs, save_checkpoint_steps,
                    save_summaries_steps)
                hooks = own + hooks  # If another hook fails at the end, the last step is saved.
                # Closing it would let a session that begins in the same second replace its file.
                stack.callback(tf.summary.FileWriterCache.get(run.folder).flush)
                stack.enter_context(_events_fail_once())
        stack.enter_context(_signals_caught(caught, is_chief))
        # `steps` is the first to see a step end, and by the last hook the last to see one begin.
        hooks = [steps, *hooks, tf.train.FeedFnHook(steps.begins)]
        # MonitoredTrainingSession's own type would take the error of a lost disk or worker for a
        # preemption, and start again from the latest checkpoint.
        with tf.train.SingularMonitoredSession(hooks, scaffold, master, config) as session:
            try:
                yield session
            except BaseException as error:
                _after_error(error, session, steps, saver)
                raise
    if stop is None and caught.number:
        end_by(caught.number)


def end_by(number):
    """Raises what ends a script after the signal of this number."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


class _Steps(tf.train.SessionRunHook):
    """Knows whether a step is running or has failed; ends the session if the function `is_over`
    says so.

    Python runs signal handlers after `session.run`.
    """

    are_running = False

    def __init__(self, is_over):
        self._is_over = is_over

    def after_create_session(self, session, coord):
        self.coord = coord
        if self._is_over():
            coord.request_stop()

    def begins(self):
        self.are_running = True

    def after_run(self, run_context, run_values):
        self.are_running = False
        if self._is_over():
            run_context.request_stop()


class _SaverHook(tf.train.CheckpointSaverHook):
    """Saves a step when the next one begins, unless a variable is not finite.

    What a loop does after a step, such as a validation, is then complete before the checkpoint from
    which a killed run resumes. `tf.train.NanTensorHook` does not keep the latest checkpoint good:
    the loss of a step is that of the weights before it.
    """

    _run_values = _saved = None  # Of the last step; the last step that was saved.

    def __init__(self, folder, save_secs, save_steps, saver):
        super().__init__(folder, save_secs, save_steps, saver)
        with tf.device('/cpu:0'), tf.name_scope('finite'):
            self._check = tf.group(*[
                tf.debugging.check_numerics(each, each.op.name)
                for each in tf.global_variables() if each.dtype.base_dtype.is_floating])

    def before_run(self, run_context):
        if self._run_values is not None:
            super().after_run(run_context, self._run_values)
        return super().before_run(run_context)

    def after_run(self, run_context, run_values):
        self._run_values = run_values

    def refuse_divergence(self, session, reason=None):
        """Raises an error that names a variable that is not finite, or with another reason."""
        try:
            session.run(self._check)
        except tf.errors.InvalidArgumentError as error:
            reason = errors.one_line(error)
        if reason:
            raise FloatingPointError(f'Training diverged: {reason}. The checkpoints in '
                                     f'{self._checkpoint_dir} are from before')

    def _save(self, session, step):
        self.refuse_divergence(session)
        super()._save(session, step)
        self._saved = step

    def end(self, session):
        step = session.run(self._global_step_tensor)
        if step != self._saved:
            self._save(session, step)
        with errors.reader_may_be_gone():
            print(f'Saved step {step} in {self._checkpoint_dir}.', flush=True)


def _last_step(hooks):
    """The step at which a `StopAtStepHook` ends the run; infinity without one."""
    # At this step or after it, the hook itself would run one more.
    return min((hook._last_step for hook in hooks if isinstance(hook, tf.train.StopAtStepHook)
                and hook._last_step is not None), default=np.inf)


def _hooks_of_the_chief(folder, scaffold, save_secs, save_steps, summary_steps):
    """The hooks that MonitoredTrainingSession adds, too; and the `_SaverHook` of them, or None."""
    found, saver = [tf.train.StepCounterHook(output_dir=folder)], None
    if summary_steps:
        found.append(tf.train.SummarySaverHook(summary_steps, None, folder, scaffold=scaffold))
    if save_steps:
        save_secs = None
    if save_secs or save_steps:
        saver = _SaverHook(folder, save_secs, save_steps, scaffold.saver)
        found.append(saver)
    return found, saver


def _progress(run, last_step):
    """The lines that say where a run resumes, and what changes; '' for a new one."""
    if run.step >= last_step:
        return (f'Nothing to do: {run.folder} has {run.step} steps, and the last step is '
                f'{last_step}. Raise --max_steps, or start over with --restart.\n')
    if run.found is None:
        return ''
    text = f'Resuming from {run.folder} at step {run.step}'
    if last_step < np.inf:
        text += f', until step {last_step}'
    collections = checkpoints.graph(run.found.path).collection_def
    was = list(collections['images_per_step'].int64_list.value)
    now = tf.get_collection('images_per_step')  # `cifar10.learning_rate` adds it.
    if was and now and was != now:
        text += (f'.\nResuming with {now[0]} images per step (was {was[0]}): the schedule treats '
                 f'all {run.step} steps as steps of {now[0]} images')
    return text + '.\n'


def _restored(run, scaffold):
    """A copy of a scaffold whose session starts from a run's checkpoint, if it has one.

    Raises `errors.UserError` if the checkpoint does not fit the graph.
    """
    saver = scaffold.saver
    if saver is None:
        # Built with the session: hooks may add variables in `begin`.
        saver = tf.train.Saver(max_to_keep=5, save_relative_paths=True, defer_build=True)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)  # Other hooks may look for it there.
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
    options = checkpoints.scaffold_options(
        {variable: found.values[name] for name, variable in restored.items()})

    def load(_, session):
        options['init_fn'](None, session)
        for each in tf.global_variables():  # Those that hooks have added since.
            name = each.op.name
            if name in found.values and name not in restored:
                each.load(found.values[name], session)

    return tf.train.Scaffold(copy_from_scaffold=scaffold, saver=saver, init_op=init_op,
                             init_feed_dict=options['init_feed_dict'], init_fn=load)


def _after_error(error, session, steps, saver):
    """Saves the steps that an error would lose, or raises one that explains it."""
    if saver is None:
        return
    if isinstance(error, tf.train.NanLossDuringTrainingError):
        saver.refuse_divergence(session.raw_session(), 'the loss is NaN')
    # If a step failed, the variables may be half updated; not if it waited for input that failed.
    is_half_updated = (steps.are_running and isinstance(error, tf.errors.OpError)
                       and not steps.coord.should_stop())
    if not (is_half_updated or isinstance(error, FloatingPointError)):
        with contextlib.suppress(Exception):  # The first error matters.
            saver.end(session.raw_session())


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
    with `nohup`, stay ignored, and a program's own handlers stay. Python allows handlers only in
    the main thread.
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
               if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
