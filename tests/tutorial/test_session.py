"""What `training_session` promises, on graphs that a test builds itself and in this process.

Kills, full disks and the trainer's own process are in tests/faults.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import threading
import time

from cifar10_lib import checkpoints, errors, session

import counting
import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_train

FLAGS = flags.FLAGS


@contextlib.contextmanager
def counter(folder, *hooks, **options):
    """A session that can only count: yields it, and the operation of a step."""
    op = counting.step_op()
    with session.training_session(
            checkpoint_dir=folder, hooks=list(hooks), **options) as sess:
        yield sess, op


class At(tf.train.SessionRunHook):
    """Calls a function after the step that makes the given number of steps in this session."""

    def __init__(self, steps, call):
        self._steps, self._call, self._count = steps, call, 0

    def after_run(self, run_context, run_values):
        self._count += 1
        if self._count == self._steps:
            self._call()


def fail():
    raise ZeroDivisionError


def contents(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob('*') if path.is_file()}


# ---- Start, resume and stop


def test_resumes_exactly_and_stops_exactly(tmp_path, capsys):
    """And removes nothing, and does not touch a run that has finished."""
    run = tmp_path / 'run'
    nothing = (f'Nothing to do: {run} has 10 steps, and the last step is {{}}. Raise --max_steps, '
               'or start over with --restart.\n')
    for last_step, printed in [
            (10, f'Saved step 10 in {run}.\n'), (10, nothing.format(10)), (4, nothing.format(4)),
            (11, f'Resuming from {run} at step 10, until step 11.\nSaved step 11 in {run}.\n'),
            (30, f'Resuming from {run} at step 11, until step 30.\nSaved step 30 in {run}.\n')]:
        before = contents(run)
        counting.train(run, last_step)
        assert capsys.readouterr().out == printed
        assert counting.latest(run) == max(last_step, 10)
        after = contents(run)
        assert before.keys() <= after.keys()
        assert (after == before) == printed.startswith('Nothing')


def test_an_interrupted_run_equals_one_without_a_break(tmp_path):
    """With momentum and averages: all variables, those of the optimizer included, and two that
    share their initial value."""
    def train(folder, last_step):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            first = tf.ones([5])
            v, w = [tf.get_variable(name, initializer=first, use_resource=True) for name in 'vw']
            loss = tf.reduce_sum(tf.square(w - v * tf.cast(step, tf.float32)))
            average = tf.train.ExponentialMovingAverage(0.9)
            opt = tf.train.MomentumOptimizer(0.01, 0.5)
            with tf.control_dependencies([opt.minimize(loss, step)]):
                train_op = average.apply([w])
            with session.training_session(
                    checkpoint_dir=folder,
                    hooks=[tf.train.StopAtStepHook(last_step=last_step)]) as sess:
                while not sess.should_stop():
                    sess.run(train_op)
        return checkpoints.newest(folder).values

    whole = train(str(tmp_path / 'whole'), 9)
    for last_step in (4, 5, 9):
        resumed = train(str(tmp_path / 'resumed'), last_step)
    assert sorted(resumed) == sorted(whole) == [
        'global_step', 'v', 'v/Momentum', 'w', 'w/ExponentialMovingAverage', 'w/Momentum']
    assert (whole['v'] != whole['w']).all()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)


def test_checkpoints_by_steps_and_by_time(tmp_path):
    counting.train(tmp_path / 'steps', 6, save_checkpoint_steps=2)
    assert counting.steps(tmp_path / 'steps') == [6, 4, 2, 0]
    counting.train(tmp_path / 'often', 4, save_checkpoint_secs=1,
                   hooks=[At(2, lambda: time.sleep(1.1))])
    # On a busy machine, another step may take a second, too.
    assert {4, 2, 0} <= set(counting.steps(tmp_path / 'often'))
    counting.train(tmp_path / 'seldom', 4, save_checkpoint_secs=1000,
                   hooks=[At(2, lambda: time.sleep(1.1))])
    assert counting.steps(tmp_path / 'seldom') == [4, 0]


def test_a_variable_that_a_hook_adds(tmp_path):
    """It is saved and restored like any other."""
    class Counting(tf.train.SessionRunHook):
        def begin(self):
            self._add = tf.get_variable('mine', initializer=0, use_resource=True).assign_add(1)

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self._add)

    for last_step in (3, 5):
        counting.train(tmp_path, last_step, [Counting()])
        assert checkpoints.newest(str(tmp_path)).values['mine'] == last_step


# ---- Checkpoints that are damaged, or of something else


def test_a_damaged_newest_checkpoint(tmp_path, capfd):
    """Its files stay until a save replaces them."""
    counting.train(tmp_path, 6, save_checkpoint_steps=1)
    index = tmp_path / 'model.ckpt-6.index'
    index.write_bytes(index.read_bytes()[:20])
    before = index.read_bytes()
    with pytest.raises(ZeroDivisionError):
        counting.train(tmp_path, 8, save_checkpoint_secs=None, hooks=[At(2, fail)])
    out, error = capfd.readouterr()
    assert f'Resuming from {tmp_path} at step 5, until step 8.\n' in out
    assert f': {tmp_path}/model.ckpt-6 is damaged, or was just removed (' in error
    assert error.endswith('): using model.ckpt-5\n')
    assert index.read_bytes() == before
    counting.train(tmp_path, 9, save_checkpoint_steps=1)
    assert counting.latest(tmp_path) == 9
    assert counting.steps(tmp_path) == [9, 8, 7, 6, 5]


def test_a_checkpoint_that_does_not_fit(tmp_path):
    """As of an edited network: a line names what differs, and nothing changes."""
    path = plain.save(tmp_path / 'model.ckpt-3', {'w': np.zeros(4), 'global_step': 3})
    before = contents(tmp_path)
    tf.get_variable('v', [])
    with pytest.raises(errors.UserError, match=(
            rf'^{path} .* v is missing; w has shape \[4\]; expected \[3\]\. Choose another folder, '
            'or start over with --restart$')), counter(tmp_path):
        pytest.fail('the session must not start')
    del before[tmp_path / 'checkpoint']  # Unlike its time, its content is tested.
    assert {path: contents(tmp_path)[path] for path in before} == before
    assert {path.name for path in set(contents(tmp_path)) - set(before)} == {'.lock', 'checkpoint'}


def test_a_run_that_was_moved(tmp_path):
    """Old checkpoints are removed in the new folder, not where they were."""
    first, second = tmp_path / 'first', tmp_path / 'second'
    counting.train(first, 3, save_checkpoint_steps=1)
    state = (first / 'checkpoint').read_text()
    assert str(first) not in state
    (first / 'checkpoint').write_text(state.replace('"model', f'"{first}/model'))  # TF's default.
    shutil.copytree(first, second)
    before = contents(first)
    counting.train(second, 12, save_checkpoint_steps=1)
    assert contents(first) == before
    assert counting.steps(second) == [12, 11, 10, 9, 8]


# ---- Folders


@pytest.mark.parametrize('name', ['run[1]', 'run*', 'what?', 'a\\b'])
def test_a_folder_that_tensorflow_reads_as_a_pattern(tmp_path, name):
    """It would remove the checkpoints of all that match."""
    with pytest.raises(errors.UserError, match='contains one of .* choose another folder'):
        counting.train(tmp_path / name, 1)
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_in_place_of_a_folder(tmp_path):
    """It would be where each start resumes, and the steps of all but the last be lost."""
    counting.train(tmp_path, 2)
    with pytest.raises(errors.UserError, match=f'model.ckpt-2 is a checkpoint; .* in {tmp_path}$'):
        counting.train(tmp_path / 'model.ckpt-2', 4)
    (tmp_path / 'file').touch()
    with pytest.raises(FileExistsError):
        counting.train(tmp_path / 'file', 4)


def test_two_trainers_in_one_folder(tmp_path):
    """The second one, in this process or another, changes nothing; the first one continues."""
    with counter(tmp_path, save_checkpoint_steps=1) as (sess, op):
        sess.run(op)
        before = contents(tmp_path)
        for restart in (False, True):
            with pytest.raises(errors.UserError, match=f'^{tmp_path} is in use: '):
                counting.train(tmp_path, 5, restart=restart)
        done = spawn.fork([spawn.HELPERS / 'counting.py', tmp_path, '{"last_step": 5}'])
        assert (done.returncode, done.stdout) == (1, '')
        assert done.stderr.startswith(f'counting.py: {tmp_path} is in use: another process trains')
        assert {path: contents(tmp_path)[path] for path in before} == before
        sess.run(op)
    assert counting.latest(tmp_path) == 2


def test_a_run_of_the_other_program(tmp_path):
    """Its images may be others."""
    counting.train(tmp_path, 3)
    (tmp_path / 'run.json').write_text('{}')
    with pytest.raises(errors.UserError, match=(
            rf'^{tmp_path} holds a run of classification.py \(run.json\): use classification.py '
            rf'--train_dir={tmp_path}$')):
        counting.train(tmp_path, 5)
    with pytest.raises(errors.UserError, match=r'use classification.py --restart --train_dir=/'):
        counting.train(tmp_path, 5, restart=True)
    assert counting.latest(tmp_path) == 3


@pytest.mark.parametrize('before, after, lines', [(128, 256, 2), (128, 128, 1), (None, 128, 1)])
def test_another_number_of_images_per_step(tmp_path, capsys, before, after, lines):
    """The schedule counts images: the learning rate may jump."""
    for images, last_step in ((before, 3), (after, 5)):
        with tf.Graph().as_default():
            if images:
                cifar10.learning_rate(tf.train.get_or_create_global_step(), images)
            with counter(tmp_path, tf.train.StopAtStepHook(last_step=last_step)) as (sess, op):
                while not sess.should_stop():
                    sess.run(op)
    out = capsys.readouterr().out.splitlines()[1:-1]
    assert len(out) == lines and out[0].startswith(f'Resuming from {tmp_path} at step 3, until st')
    line = 'Resuming with 256 images per step (was 128): the schedule treats all 3 steps as steps '
    assert out[1:] == [f'{line}of 256 images.'][:lines - 1]


# ---- Restart


OTHERS = ['notes.txt', 'model.ckpt-best', 'my.events.out', 'best/mine', 'checkpoint.txt',
          'model.ckpt-3.h5', 'sub/model.ckpt-3.index', 'metrics.csv', 'graph.pbtxt.old']
OWN = ['events.out.tfevents.1.host.2', 'graph.pbtxt', 'model.ckpt-7', 'model.ckpt-77.meta',
       'model.ckpt-5.index.tempstate1234', 'checkpoint.tmp0123456789abcdef0123456789abcdef']


def test_restart_removes_the_runs_own_files_and_nothing_else(tmp_path):
    run, precious = tmp_path / 'run', tmp_path / 'precious'
    counting.train(run, 10)
    for name in [*OTHERS, *OWN]:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text('mine')
    precious.write_text('mine')
    (run / 'events.out.tfevents.1.link').symlink_to(precious)
    (run / 'model.ckpt-8').mkdir()
    (run / 'model.ckpt-8' / 'file').touch()
    counting.train(run, 3, restart=True, save_checkpoint_secs=None)
    left = {str(path.relative_to(run)) for path in run.rglob('*') if not path.is_dir()}
    assert left >= {*OTHERS, '.lock', 'model.ckpt-8/file'}
    # One, since the writer of the earlier session does not write to the removed file.
    events, = left - {*OTHERS, '.lock', 'model.ckpt-8/file'}
    assert events.startswith('events.out.tfevents.')
    assert precious.read_text() == 'mine'


@pytest.mark.parametrize('gone', ['model.ckpt-*', 'checkpoint', 'events*', '*'])
def test_without_restart_nothing_is_removed_or_emptied(tmp_path, gone):
    """Whatever is missing in the folder, as checkpoints that were deleted to save room."""
    counting.train(tmp_path, 4)
    for path in list(tmp_path.glob(gone)):
        path.unlink()
    (tmp_path / 'best').mkdir()
    for name in ('metrics.csv', 'best/model.ckpt-3.index', 'best/run.json', 'graph.pbtxt.mine'):
        (tmp_path / name).write_text('mine')
    before = contents(tmp_path)
    counting.train(tmp_path, 6)
    after = contents(tmp_path)
    assert set(before) <= set(after)
    assert {path.stem for path in before if not after[path].startswith(before[path])} <= {
        'checkpoint', 'graph', 'model.ckpt-4'}  # A start saves its first step again.


# ---- Signals


@pytest.mark.usefixtures('hangup')
@pytest.mark.parametrize('numbers, raised, code', [
    ([signal.SIGINT], KeyboardInterrupt, None), ([signal.SIGTERM], SystemExit, 143),
    ([signal.SIGHUP] * 2, SystemExit, 129), ([signal.SIGUSR1], SystemExit, 138),
    ([signal.SIGINT] * 2, KeyboardInterrupt, None),
    ([signal.SIGTERM, signal.SIGINT], SystemExit, 143)])
def test_a_signal_ends_after_the_running_step_and_saves(tmp_path, capsys, numbers, raised, code):
    """Signals at once count as one: `timeout` signals the process and then its group. So do two
    SIGHUP at any time: the system and the shell both send one."""
    def send():
        for number in numbers:
            os.kill(os.getpid(), number)
            if number == signal.SIGHUP:
                time.sleep(0.4)

    before = [signal.getsignal(each) for each in session._SIGNALS]
    with pytest.raises(raised) as ended:
        counting.train(tmp_path, 100, hooks=[At(3, send)])
    assert getattr(ended.value, 'code', None) == code
    assert counting.latest(tmp_path) in (3, 4)  # The handler runs within or after the step.
    assert capsys.readouterr().err.endswith(
        ': stopping after this step; interrupt again to stop without saving\n')
    assert [signal.getsignal(each) for each in session._SIGNALS] == before


def test_a_handler_of_ones_own_stays(tmp_path):
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
    try:
        with counter(tmp_path, tf.train.StopAtStepHook(last_step=3)) as (sess, op):
            os.kill(os.getpid(), signal.SIGUSR1)
            while not sess.should_stop():
                sess.run(op)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == [signal.SIGUSR1] and counting.latest(tmp_path) == 3


def test_in_another_thread(tmp_path):
    """Where Python allows no signal handlers."""
    thread = threading.Thread(target=counting.train, args=(tmp_path, 5))
    thread.start()
    thread.join()
    assert counting.latest(tmp_path) == 5


# ---- Numbers that are not finite


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_variables_that_are_not_finite_are_not_saved(tmp_path, value):
    """The loss lags one step behind: it is still finite in the step that spoils them."""
    counting.train(tmp_path, 5)
    w = tf.get_variable('w', [3], initializer=tf.zeros_initializer(), use_resource=True)
    step = tf.train.get_or_create_global_step()
    spoil = tf.group(w.assign([1.0, value, 1.0]), step.assign_add(1))
    with pytest.raises(FloatingPointError, match=(
            rf'^Training diverged: w : Tensor had (NaN|\+?Inf) values?\. The checkpoints in '
            f'{tmp_path} are from before$')):
        with session.training_session(checkpoint_dir=str(tmp_path)) as sess:
            sess.run(spoil)
    assert counting.latest(tmp_path) == 5


@pytest.mark.parametrize('save_steps', [1, 1000])
def test_nan_in_the_loss(tmp_path, save_steps):
    """The steps before it are saved."""
    loss = tf.placeholder_with_default(1.0, [])
    with pytest.raises(FloatingPointError, match='^Training diverged: the loss is NaN. The check'):
        with counter(tmp_path, tf.train.NanTensorHook(loss),
                     save_checkpoint_steps=save_steps) as (sess, op):
            sess.run(op)
            sess.run(op)
            sess.run(op, {loss: np.nan})
    assert counting.latest(tmp_path) == (2 if save_steps == 1 else 0)


def test_a_run_that_diverges(trained, monkeypatch):
    """The tutorial's network: huge weights, then NaN in its gradients, loss and averages."""
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 1e30)
    with flagsaver.flagsaver(max_steps=30), pytest.raises(
            (FloatingPointError, tf.errors.InvalidArgumentError)):
        cifar10_train.train()
    found = checkpoints.newest(FLAGS.train_dir)
    assert checkpoints.step(found) == 10
    assert all(np.isfinite(value).all() for value in found.values.values())


# ---- Errors


@pytest.mark.parametrize('when, error', [
    ('before_run', tf.errors.NotFoundError(None, None, 'no images')),  # As of an evaluation.
    ('the loop', ZeroDivisionError()), ('the loop', SystemExit(5)), ('end', ZeroDivisionError()),
    ('after_run', tf.errors.NotFoundError(None, None, 'no images'))])
def test_an_error_between_two_steps_saves_them(tmp_path, when, error):
    def fail(*_):
        if sess.raw_session().run(tf.train.get_global_step()) == 3:
            raise error

    hook = tf.train.SessionRunHook()
    setattr(hook, when, fail)
    with pytest.raises(type(error)), counter(tmp_path, hook) as (sess, op):
        for _ in range(3):
            sess.run(op)
        if when == 'before_run':
            sess.run(op)
        if when == 'the loop':
            fail()
    assert counting.latest(tmp_path) == 3


def test_an_error_in_a_step_saves_nothing(tmp_path):
    """The variables may be half updated. Here, step 3 raises after it was counted."""
    with pytest.raises(tf.errors.InvalidArgumentError):
        count = tf.train.get_or_create_global_step().assign_add(1)
        step = tf.debugging.assert_less(count, tf.constant(3, tf.int64))
        with counter(tmp_path) as (sess, _):
            for _ in range(3):
                sess.run(step)
    assert counting.steps(tmp_path) == [0]


def test_input_that_fails_saves_the_steps(half_bright, tmp_path):
    """A file that is gone while it is read: the reading thread's error, not "queue is closed"."""
    def remove():
        for path in half_bright.glob('data_batch_*.bin'):
            path.unlink()

    with tf.control_dependencies(cifar10.distorted_inputs()):
        op = counting.step_op()
    with pytest.raises(tf.errors.NotFoundError, match=r'data_batch_\d.bin; No such file'):
        with session.training_session(
                checkpoint_dir=str(tmp_path / 'run'), hooks=[At(2, remove)]) as sess:
            while not sess.should_stop():
                sess.run(op)
    assert counting.latest(tmp_path / 'run') > 2


def test_a_lost_network_share_is_not_a_preemption(tmp_path):
    """`MonitoredTrainingSession` would start again from the latest checkpoint, without end."""
    failed = []

    def fail_once(step_context):
        if not failed:
            failed.append(True)
            raise tf.errors.AbortedError(None, None, 'Stale file handle')

    with pytest.raises(tf.errors.AbortedError, match='Stale file handle'):
        with counter(tmp_path) as (sess, op):
            sess.run(op)
            sess.run_step_fn(fail_once)


def test_the_end_of_the_input_ends_the_run(tmp_path):
    """As in `MonitoredTrainingSession`: three elements are three steps."""
    element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    with tf.control_dependencies([element]):
        op = counting.step_op()
    with session.training_session(checkpoint_dir=str(tmp_path)) as sess:
        while not sess.should_stop():
            sess.run(op)
    assert counting.latest(tmp_path) == 3
