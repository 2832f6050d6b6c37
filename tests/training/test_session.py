import contextlib
import fcntl
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import termios
import time

import h5py
import numpy as np
import outcomes
import pytest
import sessions
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints, events
from cifar10_lib.training import monitored, session_hooks

FLAGS = flags.FLAGS


def latest():
    return tf.train.latest_checkpoint(FLAGS.train_dir)


def all_events():
    """All (step, event) of the run, in the order of the event files."""
    paths = sorted(os.path.join(FLAGS.train_dir, name) for name in os.listdir(FLAGS.train_dir)
                   if name.startswith('events'))
    return [(event.step, event) for path in paths for event in tf.train.summary_iterator(path)]


@contextlib.contextmanager
def counting():
    """A session that can only count: yields it, and the operation that counts."""
    with tf.Graph().as_default():
        count = tf.train.get_or_create_global_step().assign_add(1)
        with sessions.session(sessions.start(), tf.constant(1.0)) as session:
            yield session, count


@pytest.mark.slow
def test_resumes_exactly_and_stops_exactly(half_bright, capsys):
    for max_steps, steps in [(10, '0 '), (10, ''), (9, ''), (12, '10 '), (21, '20 ')]:
        with flagsaver.flagsaver(max_steps=max_steps):
            sessions.train()
        out = capsys.readouterr().out
        assert [line.split('step ')[1].split(',')[0] + ' ' for line in out.splitlines()
                if ': step ' in line] == steps.split(',') * bool(steps), out
    assert checkpoints.step(latest()) == 21
    assert latest().endswith('model.ckpt-21')


def timed(wait, logger, **values):
    """Makes steps that only count, with pauses; returns the times before each and after it."""
    before, after = [], []
    with tf.Graph().as_default(), flagsaver.flagsaver(**values):
        count = tf.train.get_or_create_global_step().assign_add(1)
        with sessions.session(sessions.start(), tf.constant(1.0), logger) as session:
            while not session.should_stop():
                before.append(time.perf_counter())
                session.run(count)
                after.append(time.perf_counter())
                time.sleep(wait)
    return before, after


# That of cifar10_train.py, and that of the other trainers.
loggers = pytest.mark.parametrize('logger', [
    cifar10_train._LoggerHook,
    lambda loss, start: session_hooks.LoggerHook(loss, start.epochs, start.run.log_frequency)])


@loggers
def test_speed_is_of_whole_intervals_in_images(half_bright, capsys, logger):
    """Lines every three steps of 0.2 s with 8 images, of a run that resumes at step 1.

    The first interval leaves out the start. This test's clock says what the steps took.
    """
    for max_steps, wait in ((1, 0.0), (7, 0.2)):
        before, after = timed(wait, logger, log_frequency=3, max_steps=max_steps)
    lines = [line for line in capsys.readouterr().out.splitlines() if ': step ' in line]
    assert len(lines) == 3
    for line, step, steps in ((lines[1], 3, 2), (lines[2], 6, 3)):
        rate, seconds = (float(word) for word in outcomes.LINE.fullmatch(line).groups())
        first, last = step - steps - 1, step - 1  # `before` and `after` begin with step 1.
        least, most = before[last] - after[first], after[last] - before[first]
        assert least - 0.002 <= steps * seconds <= most + 0.002  # Printed to the millisecond.
        assert steps * 8 / most - 0.1 <= rate <= steps * 8 / least + 0.1


@pytest.mark.parametrize('file_time', [86400, time.time() + 20 * 365 * 86400],
                         ids=['of 1970', 'in the future'])
def test_five_checkpoints_are_kept_over_a_restart(half_bright, file_time):
    """Even if the clock was wrong when the run started."""
    with flagsaver.flagsaver(save_checkpoint_steps=2):
        sessions.train()
        for path in pathlib.Path(FLAGS.train_dir).iterdir():
            os.utime(path, 2 * (file_time,))
        with flagsaver.flagsaver(max_steps=14):
            sessions.train()
    kept = sorted(int(name.split('-')[1].split('.')[0]) for name in os.listdir(FLAGS.train_dir)
                  if name.endswith('.index'))
    assert kept == [6, 8, 10, 12, 14]


@pytest.mark.slow
def test_summaries_at_each_start_and_every_hundred_steps(half_bright, monkeypatch):
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.001)  # 0.1 is too high for one image.
    with flagsaver.flagsaver(batch_size=1, save_checkpoint_steps=60):
        for max_steps in (60, 162):
            with flagsaver.flagsaver(max_steps=max_steps):
                sessions.train()
    assert list(events.read_curves(FLAGS.train_dir).get('total_loss__raw_', {})) == [1, 61, 161]
    rates = events.read_curves(FLAGS.train_dir).get('learning_rate', {})
    np.testing.assert_allclose(rates[161], 0.001, rtol=1e-6)
    starts = [step for step, event in all_events()
              if event.session_log.status == tf.SessionLog.START]
    assert starts == [1, 61]
    assert any(event.graph_def for _, event in all_events())


def test_checkpoints_by_time(half_bright):
    """The first step, the last, and at least one after a second."""
    timed(0.6, cifar10_train._LoggerHook, save_checkpoint_secs=1, max_steps=4)
    assert len(list(pathlib.Path(FLAGS.train_dir).glob('model.ckpt-*.index'))) > 2


@pytest.mark.slow
@pytest.mark.parametrize('trainer', [cifar10_train, cifar10_multi_gpu_train])
def test_runs_with_the_same_seed_start_with_the_same_variables(half_bright, tmp_path, trainer):
    """Compares the variables before the first step: same seed, another seed."""
    begun = []
    for name, seed in [('a', 3), ('b', 3), ('c', 4)]:
        with flagsaver.flagsaver(train_dir=str(tmp_path / name), seed=seed, max_steps=1):
            trainer.main()
        begun.append(tf.train.load_variable(str(tmp_path / name / 'model.ckpt-0'), 'conv1/weights'))
    np.testing.assert_array_equal(begun[0], begun[1])
    assert (begun[0] != begun[2]).any()


def graphs_seed(rank=0):
    with tf.Graph().as_default() as graph:
        monitored.use_seed(sessions.start(), rank)
        return graph.seed


def test_a_resumed_run_draws_new_random_numbers(trained, tmp_path):
    with flagsaver.flagsaver(seed=3, train_dir=str(tmp_path / 'new')):
        first, of_worker_1 = graphs_seed(), graphs_seed(rank=1)
    with flagsaver.flagsaver(seed=3):
        assert graphs_seed() == graphs_seed() != first
        assert sessions.start().step == 10
        assert len({first, graphs_seed(), of_worker_1, graphs_seed(rank=1)}) == 4
        with flagsaver.flagsaver(restart=True):
            assert (graphs_seed(), graphs_seed(rank=1)) == (first, of_worker_1)
    assert graphs_seed() is None


def test_profile_traces_steps_and_restart_removes_the_traces(half_bright):
    with flagsaver.flagsaver(profile=4):
        sessions.train()
    paths = list(pathlib.Path(FLAGS.train_dir).glob('timeline-*.json'))
    assert all(json.loads(path.read_text())['traceEvents'] for path in paths)
    steps = sorted(int(path.stem.partition('-')[2]) for path in paths)
    # Of ten steps; TensorFlow's hook reads the global step before or after its update.
    assert 3 <= steps[0] <= 5 and len(steps) in (2, 3), steps
    assert [event.tagged_run_metadata.tag for _, event in all_events()
            if event.HasField('tagged_run_metadata')] == [f'step_{step}' for step in steps]
    with flagsaver.flagsaver(restart=True, max_steps=1):
        sessions.train()
    assert not [name for name in os.listdir(FLAGS.train_dir) if 'timeline' in name]


def test_the_number_of_checkpoints_to_keep(half_bright):
    """A resumed run counts those of before. It does not remove them all if the number is lower."""
    def kept(max_steps, count):
        with flagsaver.flagsaver(save_checkpoint_steps=1, max_steps=max_steps,
                                 keep_checkpoints=count):
            sessions.train()
        return [checkpoints.step(path) for path in checkpoints.candidates(FLAGS.train_dir)]

    assert kept(3, 2) == [3, 2]
    assert kept(5, 4) == [5, 4, 3, 2]
    assert kept(6, 1) == [6, 5, 4]


def test_nan_stops_and_the_last_good_checkpoint_stays(trained, monkeypatch):
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 1e30)
    with flagsaver.flagsaver(save_checkpoint_steps=1, max_steps=30), \
            pytest.raises(FloatingPointError, match='Training diverged at step') as error:
        sessions.train()
    good = checkpoints.step(latest())
    assert f'The last good checkpoint is {latest()}: run again with a lower ' in str(error.value)
    assert 10 <= good < 13
    for name, _ in tf.train.list_variables(latest()):
        assert np.all(np.isfinite(tf.train.load_variable(latest(), name))), name


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_histogram_that_is_not_finite_stops_the_run(half_bright, monkeypatch, value):
    """At step 2, the first summary after the value has appeared; the loss stays finite."""
    monkeypatch.setattr(session_hooks, 'SUMMARY_STEPS', 2)
    count = tf.train.get_or_create_global_step().assign_add(1)
    tf.add_to_collection('learning_rate', tf.constant(0.5))
    activation = tf.placeholder_with_default([1.0], [1])
    tf.summary.histogram('layer/activations', activation)
    with pytest.raises(FloatingPointError) as error:
        with sessions.session(sessions.start(), tf.constant(1.0)) as session:
            session.run(count)
            session.run(count, {activation: [value]})
            session.run(count, {activation: [value]})
    assert str(error.value) == (
        'Training diverged at step 2: an activation, a weight or a gradient is not finite, at '
        f'learning rate 0.5. The last good checkpoint is {FLAGS.train_dir}/model.ckpt-0: run again '
        'with a lower --learning_rate')
    assert checkpoints.step(latest()) == 0


def test_variables_that_are_not_finite_are_not_saved(half_bright):
    """The loss lags one step behind: it is still finite in the step that makes them infinite."""
    variable = tf.get_variable('w', [2], initializer=tf.ones_initializer(), use_resource=True)
    step = tf.train.get_or_create_global_step()
    tf.add_to_collection('learning_rate', tf.constant(0.1))
    spoil = tf.group(variable.assign([1.0, np.inf]), step.assign_add(1))
    with pytest.raises(FloatingPointError, match='step 1: w is not finite, at learning rate'):
        with sessions.session(sessions.start(), tf.constant(1.0)) as session:
            session.run(spoil)
    assert checkpoints.step(latest()) == 0


@pytest.mark.parametrize('change, kind, message', [
    (pathlib.Path.unlink, tf.errors.NotFoundError, 'data_batch_2.bin'),
    (lambda path: path.write_bytes(path.read_bytes()[1:]), errors.DataError,
     'data_batch_2.bin has 49167 bytes')])
def test_damage_during_training_raises_its_own_error(half_bright, change, kind, message):
    """The exception of the reading thread, instead of "queue is closed".

    Without its first byte, each label of a file would be a pixel.
    """
    with pytest.raises(kind, match=message), flagsaver.flagsaver(max_steps=1000):
        start = sessions.start()
        loss, train_op = sessions.graph(start)
        with sessions.session(start, loss) as session:
            session.run(train_op)
            change(half_bright / 'data_batch_2.bin')
            while not session.should_stop():
                session.run(train_op)
    assert checkpoints.step(latest()) > 0  # The steps until then are saved.


def test_a_lost_network_share_is_not_a_preemption(half_bright):
    """A `MonitoredTrainingSession` would lose the steps since the latest checkpoint."""
    failed = []

    def fail_once(step_context):
        if not failed:
            failed.append(True)
            raise tf.errors.AbortedError(None, None, 'Stale file handle')

    with pytest.raises(tf.errors.AbortedError, match='Stale file handle'):
        with counting() as (session, _):
            session.run_step_fn(fail_once)


class Reader(tf.train.QueueRunner):
    """A queue runner whose thread is the test."""

    def create_threads(self, sess, coord=None, **options):
        self.coordinator = coord
        return []


@pytest.mark.parametrize('waits', [True, False])
def test_a_network_share_lost_by_a_thread_leaves_the_steps(half_bright, waits):
    """While a step waits for the thread, and between two steps."""
    count = tf.train.get_or_create_global_step().assign_add(1)
    queue = tf.FIFOQueue(1, [tf.float32])
    closed, waiting, reader = queue.close(), queue.dequeue(), Reader(queue, [queue.enqueue(1.0)])
    tf.train.add_queue_runner(reader)
    with pytest.raises(tf.errors.AbortedError, match='Stale file handle'):
        with sessions.session(sessions.start(), tf.constant(1.0)) as session:
            session.run(count)
            session.run_step_fn(lambda step_context: step_context.session.run(closed))
            with reader.coordinator.stop_on_exception():
                raise tf.errors.AbortedError(None, None, 'Stale file handle')
            while waits or not session.should_stop():
                session.run(waiting)
    assert checkpoints.step(latest()) == 1


def test_an_error_between_two_steps_saves_them(half_bright):
    with pytest.raises(ZeroDivisionError), counting() as (session, count):
        for _ in range(3):
            session.run(count)
        raise ZeroDivisionError
    assert checkpoints.step(latest()) == 3
    with h5py.File(os.path.join(FLAGS.train_dir, 'params.h5')) as stream:
        assert stream.attrs['global_step'] == 3


def test_an_error_in_a_step_saves_nothing(half_bright):
    """The variables may be half updated. Here, step 3 raises after it was counted."""
    count = tf.train.get_or_create_global_step().assign_add(1)
    step = tf.debugging.assert_less(count, tf.constant(3, tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError), \
            sessions.session(sessions.start(), tf.constant(1.0)) as session:
        while not session.should_stop():
            session.run(step)
    assert checkpoints.step(latest()) == 0


def trainer(*arguments):
    """Python's arguments for a trainer that prints each step."""
    return [*spawn.gently('cifar10_train.py'), f'--data_dir={FLAGS.data_dir}',
            f'--train_dir={FLAGS.train_dir}', '--batch_size=4', '--log_frequency=1', *arguments]


def after_five_steps(process):
    for line in process.stdout:
        if 'step 5,' in line:
            return process
    raise AssertionError(process.stderr.read())


STOPPING = '\nStopping after this step; interrupt again to stop without saving.\n'


@pytest.mark.slow
@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_saves_and_stops(half_bright, number, code):
    process = after_five_steps(spawn.start(trainer()))
    process.send_signal(number)
    out, error = spawn.ended(process, code)
    assert error == STOPPING + 'cifar10_train.py: interrupted\n' * (number == signal.SIGINT)
    reached = int(out.split('Saved step ')[1].split()[0])
    assert f': step {reached - 1}, loss' in out and f': step {reached}, loss' not in out
    assert checkpoints.step(latest()) == reached >= 6


@pytest.mark.slow
@pytest.mark.parametrize('prefix, code, least', [
    (['env', '--default-signal=HUP'], 129, 6), (['nohup'], 0, 100)])
def test_without_a_reader_of_its_log_a_run_saves_and_stops_or_continues_under_nohup(
        half_bright, prefix, code, least):
    process = after_five_steps(spawn.until_the_end(subprocess.Popen(
        [*prefix, sys.executable, *trainer('--max_steps=100')], env=spawn.environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=spawn.PATIENCE) == code, error
    assert 'The console is gone: ' in error and (STOPPING in error) == (code == 129)
    assert checkpoints.step(latest()) >= least


def test_a_signal_before_the_first_step_stops_without_one(half_bright):
    def interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        return np.float32(1.0)

    value = tf.ensure_shape(tf.numpy_function(interrupt, [], tf.float32), [])
    tf.get_variable('w', initializer=value, use_resource=True)
    step = tf.train.get_or_create_global_step().assign_add(1)
    with pytest.raises(SystemExit) as ended, \
            sessions.session(sessions.start(), tf.constant(1.0)) as session:
        while not session.should_stop():
            session.run(step)
    assert ended.value.code == 143
    assert checkpoints.step(latest()) == 0


@pytest.mark.slow
def test_a_closed_terminal_saves_and_stops(half_bright):
    """SIGHUP comes from the system, and from the first line that cannot be printed."""
    def control():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    ours, theirs = pty.openpty()
    process = spawn.until_the_end(subprocess.Popen(
        [sys.executable, *trainer()], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=control, env=spawn.environment()))
    os.close(theirs)
    shown = b''
    while b'step 5,' not in shown:
        shown += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=spawn.PATIENCE) == 129
    assert checkpoints.step(latest()) >= 6
    with h5py.File(os.path.join(FLAGS.train_dir, 'params.h5')) as stream:
        assert stream.attrs['global_step'] == checkpoints.step(latest())


@pytest.mark.slow
def test_two_signals_at_once_count_as_one(half_bright):
    """As from `timeout`, which signals the process and then its group."""
    process = after_five_steps(spawn.start(trainer()))
    # The kernel delivers both when the process continues; it would merge two of the same number.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)
    spawn.ended(process, 130, 143)
    assert checkpoints.step(latest()) >= 6


@pytest.mark.slow
@pytest.mark.parametrize('script', [
    'cifar10_train.py', 'cifar10_multi_gpu_train.py', 'cifar10_distributed_train.py'])
def test_ctrl_c_while_the_graph_is_built(trained, script):
    """TensorFlow may swallow an exception there. The old run is still whole."""
    interrupt = ('import os, signal\ninference = cifar10.inference\n'
                 'def interrupted(*arguments):\n'
                 '    os.kill(os.getpid(), signal.SIGINT)\n'
                 '    return inference(*arguments)\n'
                 'cifar10.inference = interrupted')
    done = spawn.run([*spawn.gently(script, change=interrupt), f'--data_dir={FLAGS.data_dir}',
                      f'--train_dir={FLAGS.train_dir}', '--batch_size=4', '--max_steps=20',
                      '--restart'], capture_output=True)
    assert (done.returncode, done.stderr) == (130, f'{script}: interrupted\n')
    assert checkpoints.step(latest()) == 10


def test_a_second_ctrl_c_does_not_wait():
    done = spawn.run(['-c', 'import os, signal, time\nfrom cifar10_lib.training import worker\n'
                            'try:\n'
                            '    with worker.interrupts_deferred():\n'
                            '        os.kill(os.getpid(), signal.SIGINT); print("waits")\n'
                            '        os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n'
                            'except KeyboardInterrupt: print("interrupted")'],
                     cwd=spawn.ROOT, capture_output=True)
    assert (done.returncode, done.stdout) == (0, 'waits\ninterrupted\n')


def test_a_second_signal_ends_it_at_once():
    """Except SIGHUP, which often follows another."""
    process = spawn.start(['-c', 'import time\nfrom cifar10_lib.training import worker\n'
                                 'with worker.signals_caught([]):\n'
                                 '    print("ready", flush=True)\n'
                                 '    while True: time.sleep(0.01)'], cwd=spawn.ROOT)
    assert process.stdout.readline() == 'ready\n'
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process.send_signal(number)
        if number == signal.SIGTERM:
            assert process.stderr.readline() + process.stderr.readline() == STOPPING
        time.sleep(0.5)
    spawn.ended(process, 128 + signal.SIGINT)
