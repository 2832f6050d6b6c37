"""What all trainers share: the flags of a run, its folder, and the session with its hooks.

A training script builds its graph and then reads

    with training.session(loss, examples_per_step) as session:
        while not session.should_stop():
            session.run(train_op)
"""
import contextlib
import datetime
import json
import os
import re
import signal
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

import cifar10
from runtime import checkpoints
from runtime import startup

flags.DEFINE_string('train_dir', '/tmp/cifar10_train', 'Folder for checkpoints and event files.')
flags.DEFINE_integer('max_steps', 100000, 'Number of steps to make, over all starts.',
                     lower_bound=0)
flags.DEFINE_boolean('log_device_placement', False, 'Print the device of every operation.')
flags.DEFINE_integer('log_frequency', 10, 'Print a line every so many steps.', lower_bound=1)
flags.DEFINE_integer('save_checkpoint_secs', 600, 'Save a checkpoint every so many seconds.',
                     lower_bound=1)
flags.DEFINE_integer('save_checkpoint_steps', None,
                     'Save a checkpoint every so many steps, instead of by time.', lower_bound=1)
flags.DEFINE_boolean('restart', False,
                     'Remove what an earlier run left in --train_dir and start over.')

FLAGS = flags.FLAGS

NET = 'tutorial'
SUMMARY_STEPS = 100
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a machine's end, a terminal's.
CHECKPOINTS_KEPT = 5

# What a run writes into its folder; --restart removes this and nothing else.
_OWN_FILES = re.compile(
    r'checkpoint(\.tmp.*)?|model\.ckpt-\d+\..*|events\.out\.tfevents\..*|graph\.pbtxt'
    r'|run\.json(\.part)?')


@contextlib.contextmanager
def session(loss, examples_per_step, summary_op=None):
    """A session that trains in `--train_dir` until `--max_steps`: made anew, or resumed.

    Prints the tutorial's console line, writes summaries and checkpoints. Ctrl-C, SIGTERM and SIGHUP
    let the running step end and save a checkpoint; then they raise KeyboardInterrupt or SystemExit
    (128 + the signal's number).

    Args:
        loss: float [], the total loss; shown, and watched for NaN.
        examples_per_step: number of images that a step takes, over all replicas.
        summary_op: string [], merged summaries; by default all of the graph's.

    Yields:
        A `MonitoredSession` whose `should_stop()` tells when to end.

    Raises:
        app.UsageError: `--train_dir` holds a run with other data or another network.
        FloatingPointError: the loss or a variable is not finite any more.
    """
    _prepare_folder(examples_per_step)
    variables = cifar10.variables_to_save()
    scaffold = tf.train.Scaffold(
        saver=tf.train.Saver(variables, max_to_keep=CHECKPOINTS_KEPT),
        summary_op=summary_op if summary_op is not None else tf.summary.merge_all(),
        init_fn=lambda scaffold, session: _resume(session, scaffold.saver, variables))
    caught = []
    hooks = [
        _StopHook(FLAGS.max_steps, caught),
        _LossHook(loss, examples_per_step),
        _SummaryHook(scaffold),
        tf.train.StepCounterHook(SUMMARY_STEPS, output_dir=FLAGS.train_dir),
        tf.train.CheckpointSaverHook(
            FLAGS.train_dir, saver=scaffold.saver,
            save_secs=None if FLAGS.save_checkpoint_steps else FLAGS.save_checkpoint_secs,
            save_steps=FLAGS.save_checkpoint_steps,
            listeners=[_SaveListener(variables)]),
    ]
    try:
        # The hooks do what MonitoredTrainingSession would do by itself, on exact steps.
        with _signals_caught(caught), tf.train.MonitoredTrainingSession(
                scaffold=scaffold, hooks=hooks,
                config=startup.session_config(FLAGS.log_device_placement)) as monitored:
            yield monitored
    finally:
        tf.summary.FileWriterCache.clear()  # Closes the event file: what ended the run is in it.
    if caught:
        raise KeyboardInterrupt if caught[0] == signal.SIGINT else SystemExit(128 + caught[0])


def steps_left():
    """Whether the run in `--train_dir` has steps to make; if not, says so in one line."""
    if FLAGS.restart:
        return True
    _check_same_run(_run_path())
    latest = tf.train.latest_checkpoint(FLAGS.train_dir)
    if latest is None or checkpoints.step(latest) < FLAGS.max_steps:
        return True
    print(f'Nothing to do: {latest} has made --max_steps={FLAGS.max_steps} already.')
    return False


def _run_path():
    return os.path.join(FLAGS.train_dir, 'run.json')


def _prepare_folder(examples_per_step):
    """Makes `--train_dir`, or checks that it holds this run, and notes the run in `run.json`."""
    os.makedirs(FLAGS.train_dir, exist_ok=True)
    if FLAGS.restart:
        _remove_own_files(FLAGS.train_dir)
    path = _run_path()
    earlier = _check_same_run(path)
    if earlier and earlier.get('examples_per_step') not in (None, examples_per_step):
        print(f'Steps were of {earlier["examples_per_step"]} images and are of {examples_per_step} '
              'now; the schedule counts all of them as the latter.', flush=True)
    run = {'dataset': FLAGS.dataset, 'net': NET, 'settings': {
        'batch_size': FLAGS.batch_size, 'examples_per_step': examples_per_step,
        'max_steps': FLAGS.max_steps, 'use_fp16': FLAGS.use_fp16,
        'min_fraction_of_examples_in_queue': FLAGS.min_fraction_of_examples_in_queue,
        'data_dir': FLAGS.data_dir, 'tensorflow': tf.version.VERSION}}
    with open(path + '.part', 'w') as stream:
        json.dump(run, stream, indent=2, sort_keys=True)
        stream.write('\n')
    os.replace(path + '.part', path)


def _check_same_run(path):
    """The settings of the run noted in a file, or None if there is no file.

    Raises:
        app.UsageError: that run has other data or another network.
    """
    if not os.path.exists(path):
        return None
    try:
        with open(path) as stream:
            run = json.load(stream)
        earlier, settings = (run['net'], run['dataset']), dict(run['settings'])
    except (ValueError, TypeError, KeyError) as error:
        raise app.UsageError(f'{path} is damaged ({error!r}): remove it to go on, or start over '
                             'with --restart') from error
    if earlier != (NET, FLAGS.dataset):
        raise app.UsageError(
            f'{FLAGS.train_dir} holds a run of the net "{earlier[0]}" with --dataset={earlier[1]}, '
            f'not of "{NET}" with --dataset={FLAGS.dataset}: name another --train_dir, or start '
            'over with --restart')
    return settings


def _remove_own_files(folder):
    for entry in os.scandir(folder):
        if _OWN_FILES.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
            os.remove(entry.path)


def _resume(session_, saver, variables):
    """Loads the latest checkpoint, if there is one, and goes on counting those to keep."""
    state = tf.train.get_checkpoint_state(FLAGS.train_dir)
    latest = tf.train.latest_checkpoint(FLAGS.train_dir)
    if latest:
        print(f'Resuming from {latest}.', flush=True)
        checkpoints.load(latest, {variable.op.name: variable for variable in variables}, session_,
                         'Name another --train_dir, or start over with --restart')
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)


def _diverged(session_, step, what):
    """The exception to raise when training has left the finite numbers at a step."""
    rate = session_.run(tf.get_collection('learning_rate')[0])
    return FloatingPointError(
        f'Training diverged at step {step}: {what}, at learning rate {rate:g}. '
        f'The last good checkpoint is {tf.train.latest_checkpoint(FLAGS.train_dir)}')


@contextlib.contextmanager
def _signals_caught(caught):
    """Appends the first signal to stop to the list `caught`; a second ends the process at once.

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
            if caught:
                os._exit(128 + number[0])
            caught.append(number[0])
            os.write(2, b'\nStopping after this step; once more stops at once.\n')


class _StepHook(tf.train.SessionRunHook):
    """Counts steps: `step` is the number of the one that runs, from 0 over all starts.

    Every run of the session is a step; what else is to run, `run_step_fn` runs past the hooks.
    """

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.step = int(session.run(self._global_step))

    def after_run(self, run_context, run_values):
        self.step += 1


class _StopHook(_StepHook):
    """Stops when so many steps are made, also if they were made already, or when a signal came."""

    def __init__(self, max_steps, caught):
        self._max_steps = max_steps
        self._caught = caught

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if self.step >= self._max_steps:
            coord.request_stop()

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self.step >= self._max_steps or self._caught:
            run_context.request_stop()


class _LossHook(_StepHook):
    """Prints the loss and the speed, and stops training when the loss is not finite.

    The speed is that of all steps since the line before. A session's first step, which also sets
    everything up, counts only where its own line shows it.
    """

    def __init__(self, loss, examples_per_step):
        self._loss = loss
        self._examples_per_step = examples_per_step

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._first_step = self.step
        self._mark()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        loss = run_values.results
        if not np.isfinite(loss):
            raise _diverged(run_context.session, self.step, f'the loss is {loss}')
        shown = self.step
        super().after_run(run_context, run_values)
        if shown % FLAGS.log_frequency == 0:
            seconds = (time.perf_counter() - self._marked_time) / (self.step - self._marked_step)
            print(f'{datetime.datetime.now()}: step {shown}, loss = {loss:.2f} '
                  f'({self._examples_per_step / seconds:.1f} examples/sec; '
                  f'{seconds:.3f} sec/batch)', flush=True)
        if shown % FLAGS.log_frequency == 0 or shown == self._first_step:
            self._mark()

    def _mark(self):
        """The next line's interval begins now, with the step that comes next."""
        self._marked_step = self.step
        self._marked_time = time.perf_counter()


class _SummaryHook(_StepHook):
    """Writes the summaries of every hundredth step, counted over all starts."""

    def __init__(self, scaffold):
        self._scaffold = scaffold

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._writer = tf.summary.FileWriterCache.get(FLAGS.train_dir)
        # TensorBoard then drops what a run that was killed wrote beyond its last checkpoint.
        self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), self.step)

    def before_run(self, run_context):
        if self.step % SUMMARY_STEPS == 0:
            return tf.train.SessionRunArgs(self._scaffold.summary_op)
        return None

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self._writer.add_summary(run_values.results, self.step)
            self._writer.flush()  # TensorBoard shows it at once, and a kill does not lose it.
        super().after_run(run_context, run_values)


class _SaveListener(tf.train.CheckpointSaverListener):
    """Refuses to save variables that are not finite: the latest checkpoint stays good. Tells of the
    last."""

    def __init__(self, variables):
        self._variables = variables

    def before_save(self, session, global_step_value):
        for variable, value in zip(self._variables, session.run(self._variables)):
            if not np.all(np.isfinite(value)):
                raise _diverged(session, global_step_value, f'{variable.op.name} is not finite')

    def end(self, session, global_step_value):
        print(f'Saved step {global_step_value} in {FLAGS.train_dir}.', flush=True)
