import fcntl
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import outcomes
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

import cifar10
import cifar10_eval
import cifar10_export
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib.datasets import custom
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints, events, metrics, run_folder
from cifar10_lib.training import hooks, resume, session as training

FLAGS = flags.FLAGS


def latest():
    return tf.train.latest_checkpoint(FLAGS.train_dir)


def all_events():
    """All (step, event) of the run, in the order of the event files."""
    paths = sorted(os.path.join(FLAGS.train_dir, name) for name in os.listdir(FLAGS.train_dir)
                   if name.startswith('events'))
    return [(event.step, event) for path in paths for event in tf.train.summary_iterator(path)]


@pytest.mark.slow
def test_resumes_exactly_and_stops_exactly(half_bright, capsys):
    for max_steps, steps in [(10, '0 '), (10, ''), (9, ''), (12, '10 '), (21, '20 ')]:
        with flagsaver.flagsaver(max_steps=max_steps):
            cifar10_train.train()
        out = capsys.readouterr().out
        assert [line.split('step ')[1].split(',')[0] + ' ' for line in out.splitlines()
                if ': step ' in line] == steps.split(',') * bool(steps), out
    assert checkpoints.step(latest()) == 21
    assert latest().endswith('model.ckpt-21')


@pytest.mark.parametrize('max_steps', [10, 4])
def test_a_finished_run_prints_one_line(trained, capsys, max_steps):
    before = {path: path.stat().st_mtime_ns for path in pathlib.Path(FLAGS.train_dir).iterdir()}
    capsys.readouterr()
    with flagsaver.flagsaver(max_steps=max_steps):
        cifar10_train.main()
    assert capsys.readouterr().out == (
        f'Nothing to do: {latest()} has reached --max_steps={max_steps}.\n')
    assert before == {
        path: path.stat().st_mtime_ns for path in pathlib.Path(FLAGS.train_dir).iterdir()}


def counted(examples_per_step=8, **values):
    """Makes steps that only count, until the session stops, with flags; yields before each step and
    after it."""
    with tf.Graph().as_default(), flagsaver.flagsaver(**values):
        count = tf.train.get_or_create_global_step().assign_add(1)
        with training.session(tf.constant(1.0), examples_per_step) as session:
            while not session.should_stop():
                yield
                session.run(count)
                yield


def timed(wait, **values):
    """Makes steps that only count, with pauses; returns the times before each and after it."""
    times = []
    for _ in counted(**values):
        times.append(time.perf_counter())
        time.sleep(wait * (len(times) % 2 == 0))
    return times[::2], times[1::2]


def test_speed_is_of_whole_intervals_in_images(half_bright, capsys):
    """Lines every two steps of 0.2 s with 8 images; this test's clock says what they took."""
    before, after = timed(0.2, log_frequency=2, max_steps=5)
    lines = [line for line in capsys.readouterr().out.splitlines() if ': step ' in line]
    assert len(lines) == 3
    for line, step in zip(lines[1:], (2, 4)):
        rate, seconds = (float(word) for word in outcomes.LINE.fullmatch(line).groups())
        least, most = before[step] - after[step - 2], after[step] - before[step - 2]
        assert least - 0.002 <= 2 * seconds <= most + 0.002  # Printed to the millisecond.
        assert 2 * 8 / most - 0.1 <= rate <= 2 * 8 / least + 0.1


def test_the_first_line_after_a_resume_leaves_out_the_start(half_bright, capsys):
    """Resumed at step 3, with a line at step 6: the time is the mean of steps 4 to 6."""
    for max_steps, wait in ((3, 0.0), (7, 0.2)):
        before, after = timed(wait, log_frequency=6, max_steps=max_steps)
    line = [line for line in capsys.readouterr().out.splitlines() if ': step 6,' in line][0]
    seconds = float(outcomes.LINE.fullmatch(line).group(2))
    assert before[3] - after[0] - 0.002 <= 3 * seconds <= after[3] - before[0] + 0.002


def test_resuming_with_another_batch_size_prints_a_line(trained, capsys):
    again = '; --linear_scaling does not warm up again'
    for max_steps, batch_size, words in ((11, 4, ''), (12, 8, again)):  # The run did not scale.
        with flagsaver.flagsaver(batch_size=batch_size, max_steps=max_steps, linear_scaling=True):
            cifar10_train.train()
        assert (f'Resuming with {batch_size} images per step (was {12 - batch_size}); the schedule '
                f'treats earlier steps as {batch_size}-image steps{words}.\n'
                ) in capsys.readouterr().out


@pytest.mark.parametrize('name, value, line', [
    ('use_fp16', True, '--use_fp16=true (was false)'),
    ('use_bf16', True, '--use_bf16=true (was false)'),
    ('variables', 'gpu', '--variables=gpu (was cpu)')])
def test_resuming_with_other_types_or_devices_prints_a_line(half_bright, capsys, name, value, line):
    list(counted(max_steps=1))
    capsys.readouterr()
    for max_steps in (2, 3):
        list(counted(**{name: value, 'max_steps': max_steps}))
    assert capsys.readouterr().out.count(f'Resuming with {line}.\n') == 1


def test_epochs_are_images_seen_over_all_starts(half_bright, capsys):
    """With 8, 16 and 4 of 80 images per step, and a start without a step; then with 40 after a
    fall back to step 5, which the first start reached."""
    for examples_per_step, max_steps in ((8, 5), (16, 10), (160, 10), (4, 20), (40, 7)):
        if examples_per_step == 40:
            for path in pathlib.Path(FLAGS.train_dir).glob('model.ckpt-[12]*.index'):
                path.unlink()
        list(counted(examples_per_step, max_steps=max_steps))
        rows = metrics.read(os.path.join(FLAGS.train_dir, 'metrics.csv'))
        assert [(row['step'], row['epoch']) for row in rows] == {
            5: [(5, 0.5)], 10: [(5, 0.5), (10, 1.5)], 20: [(5, 0.5), (10, 1.5), (20, 2)],
            7: [(5, 0.5), (7, 1.5)]}[max_steps]
    assert '\n7 steps are 1.5 epochs of 80 images.\n' in capsys.readouterr().out


@pytest.mark.parametrize('file_time', [0, 86400, time.time() + 20 * 365 * 86400],
                         ids=['now', 'of 1970', 'in the future'])
def test_five_checkpoints_are_kept_over_a_restart(half_bright, file_time):
    """Also if the clock was wrong when the run started."""
    with flagsaver.flagsaver(save_checkpoint_steps=2):
        cifar10_train.train()
        for path in pathlib.Path(FLAGS.train_dir).iterdir():
            os.utime(path, 2 * (file_time,) if file_time else None)
        with flagsaver.flagsaver(max_steps=14):
            cifar10_train.train()
    kept = sorted(int(name.split('-')[1].split('.')[0]) for name in os.listdir(FLAGS.train_dir)
                  if name.endswith('.index'))
    assert kept == [6, 8, 10, 12, 14]


@pytest.mark.slow
def test_summaries_at_each_start_and_every_hundred_steps(half_bright, monkeypatch):
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.001)  # 0.1 is too high for one image.
    with flagsaver.flagsaver(batch_size=1, save_checkpoint_steps=60):
        for max_steps in (60, 162):
            with flagsaver.flagsaver(max_steps=max_steps):
                cifar10_train.train()
    assert list(events.read_scalars(FLAGS.train_dir, 'total_loss (raw)')) == [1, 61, 161]
    rates = events.read_scalars(FLAGS.train_dir, 'learning_rate')
    np.testing.assert_allclose(rates[161], 0.001, rtol=1e-6)
    starts = [step for step, event in all_events()
              if event.session_log.status == tf.SessionLog.START]
    assert starts == [1, 61]
    assert any(event.graph_def for _, event in all_events())


def test_checkpoints_by_time(half_bright):
    """The first step, the last, and at least one after a second."""
    timed(0.6, save_checkpoint_secs=1, max_steps=4)
    assert len(list(pathlib.Path(FLAGS.train_dir).glob('model.ckpt-*.index'))) > 2


@pytest.mark.parametrize('classes', [['cat', 'dog'], ['rose', 'tulip']])
def test_a_data_set_is_known_by_its_classes(half_bright, tmp_path, capsys, classes):
    """The same images in another folder continue the run; other flowers in a folder of the same
    name do not."""
    for folder, names in (('flowers', ['rose', 'tulip']), ('others', classes)):
        (tmp_path / folder / 'data').mkdir(parents=True)
        labels = np.arange(80) % 2
        images = np.zeros([80, 32, 32, 3], np.uint8) + 100 * labels[:, None, None, None]
        custom.write(tmp_path / folder / 'data', 'data', names, (images.astype(np.uint8), labels),
                     (images[:10].astype(np.uint8), labels[:10]))
    with flagsaver.flagsaver(dataset=str(tmp_path / 'flowers' / 'data'), max_steps=1):
        cifar10_train.train()
    with flagsaver.flagsaver(dataset=str(tmp_path / 'others' / 'data'), max_steps=2):
        if classes == ['rose', 'tulip']:
            cifar10_train.train()
            assert f'(was {tmp_path}/flowers/data)' in capsys.readouterr().out
        else:
            before = sorted(os.listdir(FLAGS.train_dir))
            FLAGS.max_steps = 1  # Even if no steps are left.
            for start in (training.steps_left, cifar10_train.train):
                with pytest.raises(app.UsageError, match=(
                        r'classes \(rose, tulip\) .* \(cat, dog\): .* --restart')):
                    start()
            assert sorted(os.listdir(FLAGS.train_dir)) == before


@pytest.mark.slow
@pytest.mark.parametrize('train', [cifar10_train.train, cifar10_multi_gpu_train.train])
def test_runs_with_the_same_seed_start_with_the_same_variables(half_bright, tmp_path, train):
    """Compares the variables before the first step: same seed, another seed, no seed."""
    begun = []
    for name, seed in [('a', 3), ('b', 3), ('c', 4), ('d', None), ('e', None)]:
        with flagsaver.flagsaver(train_dir=str(tmp_path / name), seed=seed, max_steps=1):
            train()
        begun.append(tf.train.load_variable(str(tmp_path / name / 'model.ckpt-0'), 'conv1/weights'))
    np.testing.assert_array_equal(begun[0], begun[1])
    assert all((begun[i] != begun[j]).any() for i in range(2, 5) for j in range(i))


def graphs_seed(rank=0, step=None):
    with tf.Graph().as_default() as graph:
        training.use_seed(rank, step)
        return graph.seed


def test_a_resumed_run_draws_new_random_numbers(trained, tmp_path):
    with flagsaver.flagsaver(seed=3, train_dir=str(tmp_path / 'new')):
        first, of_worker_1 = graphs_seed(), graphs_seed(1, 0)
    with flagsaver.flagsaver(seed=3):
        assert graphs_seed() == graphs_seed() != first
        assert graphs_seed(1, 0) == of_worker_1  # It gets the step from worker 0.
        assert resume.first_step() == 10
        assert len({first, graphs_seed(), of_worker_1, graphs_seed(1, 10)}) == 4
        with flagsaver.flagsaver(restart=True):
            assert graphs_seed() == first
    assert graphs_seed() is None


def test_profile_traces_steps_and_restart_removes_the_traces(half_bright):
    with flagsaver.flagsaver(profile=4):
        cifar10_train.train()
    paths = list(pathlib.Path(FLAGS.train_dir).glob('timeline-*.json'))
    assert all(json.loads(path.read_text())['traceEvents'] for path in paths)
    steps = sorted(int(path.stem.partition('-')[2]) for path in paths)
    # Of ten steps; TensorFlow's hook reads the global step before or after its update.
    assert 3 <= steps[0] <= 5 and len(steps) in (2, 3), steps
    assert [event.tagged_run_metadata.tag for _, event in all_events()
            if event.HasField('tagged_run_metadata')] == [f'step_{step}' for step in steps]
    with flagsaver.flagsaver(restart=True, max_steps=1):
        cifar10_train.train()
    assert not [name for name in os.listdir(FLAGS.train_dir) if 'timeline' in name]


def test_restart_removes_only_a_runs_own_files(trained, tmp_path):
    precious = tmp_path / 'precious'
    precious.write_text('mine')
    folder = tmp_path / 'train'
    (folder / 'notes.txt').write_text('mine')
    (folder / 'model.ckpt-best').write_text('mine')
    (folder / 'events.out.tfevents.1.x').symlink_to(precious)
    (folder / 'model.ckpt-7.d').mkdir()
    (folder / 'best').mkdir()
    (folder / 'best' / 'mine').touch()
    (folder / 'best' / 'error.json').touch()
    with flagsaver.flagsaver(restart=True, max_steps=3):
        cifar10_train.train()
    names = os.listdir(folder)
    assert {'notes.txt', 'model.ckpt-best', 'model.ckpt-7.d', 'model.ckpt-3.index'} <= set(names)
    assert 'model.ckpt-10.index' not in names
    assert os.listdir(folder / 'best') == ['mine']
    assert precious.read_text() == 'mine'
    assert checkpoints.step(latest()) == 3


def test_nan_stops_and_the_last_good_checkpoint_stays(trained, monkeypatch):
    """With summaries at each step: histograms of NaN must not raise their own error first."""
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 1e30)
    monkeypatch.setattr(hooks, 'SUMMARY_STEPS', 1)
    with flagsaver.flagsaver(save_checkpoint_steps=1, max_steps=30), \
            pytest.raises(FloatingPointError) as error:
        cifar10_train.train()
    message = str(error.value)
    good = checkpoints.step(latest())
    assert 'Training diverged at step' in message and 'learning rate 1e+30' in message
    assert f'The last good checkpoint is {latest()}' in message
    assert 10 <= good < 13
    for name, _ in tf.train.list_variables(latest()):
        assert np.all(np.isfinite(tf.train.load_variable(latest(), name))), name


def test_variables_that_are_not_finite_are_not_saved(half_bright):
    """The loss lags one step behind: it is still finite in the step that makes them infinite."""
    with tf.Graph().as_default():
        variable = tf.get_variable('w', [2], initializer=tf.ones_initializer(), use_resource=True)
        step = tf.train.get_or_create_global_step()
        tf.add_to_collection('learning_rate', tf.constant(0.1))
        spoil = tf.group(variable.assign([1.0, np.inf]), step.assign_add(1))
        with pytest.raises(FloatingPointError, match='step 1: w is not finite, at learning rate'):
            with training.session(tf.constant(1.0), 8) as session:
                session.run(spoil)
    assert checkpoints.step(latest()) == 0


@pytest.mark.parametrize('name', ['global_step', 'Variable'])
def test_a_checkpoint_of_the_original(trained, capsys, name):
    """The multi-GPU script has a float32 global step; the first single-GPU script does not name it.

    Both have averages of losses.
    """
    values = checkpoints.read(latest())
    del values['global_step']
    plain.save(latest(), {**values, name: 10.0, 'cross_entropy/avg': 2.3})
    os.remove(os.path.join(FLAGS.train_dir, 'run.json'))
    with flagsaver.flagsaver(max_steps=12):
        cifar10_train.train()
    assert 'has no run.json: resuming with --net=tutorial --dataset=' in capsys.readouterr().out
    assert tf.train.load_variable(latest(), 'global_step') == 12
    assert tf.train.load_variable(latest(), 'global_step').dtype == np.int64
    assert 'cross_entropy/avg' not in dict(tf.train.list_variables(latest()))


@pytest.mark.parametrize('change, kind, message', [
    (pathlib.Path.unlink, tf.errors.NotFoundError, 'data_batch_2.bin'),
    (lambda path: path.write_bytes(path.read_bytes()[1:]), errors.DataError,
     'data_batch_2.bin has 49167 bytes')])
def test_damage_during_training_raises_its_own_error(half_bright, change, kind, message):
    """The exception of the reading thread, instead of "queue is closed".

    Without its first byte, each label of a file would be a pixel.
    """
    with pytest.raises(kind, match=message):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            images, labels = cifar10.distorted_inputs()
            loss = cifar10.loss(cifar10.inference(images), labels)
            train_op = cifar10.train(loss, step)
            with flagsaver.flagsaver(max_steps=1000), training.session(loss, 8) as session:
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
        with tf.Graph().as_default():
            tf.train.get_or_create_global_step()
            with training.session(tf.constant(1.0), 8) as session:
                session.run_step_fn(fail_once)


@pytest.mark.parametrize('waits', [True, False])
def test_a_network_share_lost_by_a_thread_leaves_the_steps(half_bright, waits):
    """While a step waits for the thread, and between two steps."""
    with pytest.raises(tf.errors.AbortedError, match='Stale file handle'):
        with tf.Graph().as_default():
            count = tf.train.get_or_create_global_step().assign_add(1)
            queue = tf.FIFOQueue(1, [tf.float32])
            closed, waiting = queue.close(), queue.dequeue()
            with training.session(tf.constant(1.0), 8) as session:
                session.run(count)
                session.run_step_fn(lambda step_context: step_context.session.run(closed))
                try:
                    raise tf.errors.AbortedError(None, None, 'Stale file handle')
                except tf.errors.AbortedError as error:  # As in the thread of a queue runner.
                    session._coordinated_creator.coord.request_stop(error)
                while waits or not session.should_stop():
                    session.run(waiting)
    assert checkpoints.step(latest()) == 1


def test_a_missing_params_h5_is_written_by_the_next_start(trained, capsys):
    """A start that was killed between its last checkpoint and params.h5 is not complete."""
    path = os.path.join(FLAGS.train_dir, 'params.h5')
    assert not training.steps_left()
    os.remove(path)
    assert training.steps_left()
    cifar10_train.train()
    assert checkpoints.parameters_step(path) == 10
    assert checkpoints.step(latest()) == 10
    assert not training.steps_left()


@pytest.mark.parametrize('restart', [False, True])
def test_a_folder_in_use_is_left_alone(trained, restart):
    before = set(os.listdir(FLAGS.train_dir))
    with run_folder.locked(FLAGS.train_dir), flagsaver.flagsaver(restart=restart, max_steps=20):
        with pytest.raises(app.UsageError, match=f'is in use: process {os.getpid()} trains there'):
            cifar10_train.train()
    assert before <= set(os.listdir(FLAGS.train_dir))


def test_all_use_the_newest_intact_checkpoint(trained, tmp_path, capsys):
    index = pathlib.Path(latest() + '.index')
    before = set(os.listdir(FLAGS.train_dir))
    index.write_bytes(index.read_bytes()[:20])
    for use, words in ((cifar10_eval.evaluate, '/model.ckpt-0 (step 0, averaged weights) on 130'),
                       (cifar10_export.export, '/model.ckpt-0 as a SavedModel'),
                       (cifar10_train.train, 'Resuming from ')):
        with flagsaver.flagsaver(run_once=True, export_dir=str(tmp_path / 'model'), max_steps=1):
            use()
        out = capsys.readouterr().out
        assert 'model.ckpt-10 is damaged (' in out and 'using model.ckpt-0.' in out and words in out
    assert before <= set(os.listdir(FLAGS.train_dir))


def test_a_moved_run_resumes_and_a_copied_one_is_left_alone(trained, tmp_path):
    """TensorFlow removes old checkpoints by the paths that it remembers."""
    first = pathlib.Path(FLAGS.train_dir)
    before = sorted(path.name for path in first.iterdir())
    assert str(first) not in (first / 'checkpoint').read_text()
    shutil.copytree(first, tmp_path / 'second')
    with flagsaver.flagsaver(train_dir=str(tmp_path / 'second'), max_steps=20,
                             save_checkpoint_steps=1):
        cifar10_train.train()
        assert checkpoints.step(latest()) == 20
    assert sorted(path.name for path in first.iterdir()) == before


def started(*arguments, **options):
    """A trainer in a process of its own, after five steps."""
    process = spawn.start([
        *spawn.gently('cifar10_train.py'), f'--data_dir={FLAGS.data_dir}',
        f'--train_dir={FLAGS.train_dir}', '--batch_size=4', '--log_frequency=1', *arguments],
        **options)
    for line in process.stdout:
        if 'step 5,' in line:
            return process
    raise AssertionError(process.stderr.read())


STOPPING = '\nStopping after this step; interrupt again to stop without saving.\n'


@pytest.mark.slow
@pytest.mark.parametrize('number, code', [
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_stops(half_bright, number, code):
    process = started()
    process.send_signal(number)
    out, error = spawn.ended(process, code)
    assert error == STOPPING + 'cifar10_train.py: interrupted\n' * (number == signal.SIGINT)
    reached = int(out.split('Saved step ')[1].split()[0])
    assert reached >= 6
    assert checkpoints.step(latest()) == reached
    with flagsaver.flagsaver(max_steps=reached + 1, batch_size=4):
        cifar10_train.train()
    assert checkpoints.step(latest()) == reached + 1


@pytest.mark.slow
@pytest.mark.parametrize('ignore, code', [([], 129), ([signal.SIGHUP], 0)])
def test_without_a_reader_of_its_log_a_run_saves_and_stops_or_continues_under_nohup(
        half_bright, ignore, code):
    process = started(*(['--max_steps=200'] if ignore else []), ignore=ignore)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=spawn.PATIENCE) == code, error
    assert error == '\nThe console is gone: Broken pipe.\n' + (STOPPING if code else '')
    assert checkpoints.step(latest()) == 200 if ignore else checkpoints.step(latest()) >= 6


def test_an_error_in_a_step_saves_nothing(half_bright):
    """The variables may be half updated. Here, step 3 raises after it was counted."""
    with tf.Graph().as_default():
        count = tf.train.get_or_create_global_step().assign_add(1)
        step = tf.debugging.assert_less(count, tf.constant(3, tf.int64))
        with pytest.raises(tf.errors.InvalidArgumentError), \
                training.session(tf.constant(1.0), 8) as session:
            while not session.should_stop():
                session.run(step)
    assert checkpoints.step(latest()) == 0


def test_a_signal_before_the_first_step_stops_without_one(half_bright):
    def interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        return np.float32(1.0)

    with tf.Graph().as_default():
        value = tf.ensure_shape(tf.numpy_function(interrupt, [], tf.float32), [])
        tf.get_variable('w', initializer=value, use_resource=True)
        step = tf.train.get_or_create_global_step().assign_add(1)
        with pytest.raises(SystemExit) as ended, training.session(tf.constant(1.0), 8) as session:
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
    process = subprocess.Popen(
        [sys.executable, *spawn.gently('cifar10_train.py'), f'--data_dir={FLAGS.data_dir}',
         f'--train_dir={FLAGS.train_dir}', '--batch_size=4', '--log_frequency=1'],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=control,
        env=spawn.environment())
    os.close(theirs)
    shown = b''
    while b'step 5,' not in shown:
        shown += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=spawn.PATIENCE) == 129
    assert checkpoints.step(latest()) >= 6
    path = os.path.join(FLAGS.train_dir, 'params.h5')
    assert checkpoints.parameters_step(path) == checkpoints.step(latest())


@pytest.mark.slow
def test_two_signals_at_once_count_as_one(half_bright):
    """As from `timeout`, which signals the process and then its group."""
    process = started()
    # The kernel delivers both when the process continues; it would merge two of the same number.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        process.send_signal(number)
    spawn.ended(process, 130, 143)
    assert checkpoints.step(latest()) >= 6


def test_a_second_signal_ends_it_at_once():
    """Except SIGHUP, which often follows another."""
    process = spawn.start(['-c', 'import time\nfrom cifar10_lib.training import worker\n'
                                 'with worker.signals_caught():\n    print("ready", flush=True)\n'
                                 '    while True: time.sleep(0.01)'], cwd=spawn.ROOT)
    assert process.stdout.readline() == 'ready\n'
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process.send_signal(number)
        if number == signal.SIGTERM:
            assert process.stderr.readline() + process.stderr.readline() == STOPPING
        time.sleep(0.5)
    spawn.ended(process, 128 + signal.SIGINT)
