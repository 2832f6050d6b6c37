"""Signals to trainers in processes of their own, and consoles that go away."""
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

from cifar10_lib import checkpoints
from classification_lib import run

import counting
import psutil
import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS
STOPPING = 'stopping after this step; interrupt again to stop without saving\n'


def counter(folder, options='{"pause": 0.05}'):
    """Python's arguments for a trainer that counts."""
    return [str(spawn.HELPERS / 'counting.py'), str(folder), options]


@pytest.mark.parametrize('number, code', [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_trainer_after_its_step(half_bright, number, code):
    process = spawn.start([
        *spawn.gently('cifar10_train.py'), f'--data_dir={FLAGS.data_dir}', '--log_frequency=1',
        f'--train_dir={FLAGS.train_dir}', '--batch_size=4'])
    spawn.read_until(process, 'step 5,')
    process.send_signal(number)
    out, error = spawn.ended(process, code)
    interrupted = 'cifar10_train.py: interrupted\n' * (number == signal.SIGINT)
    assert error == f'cifar10_train.py: {STOPPING}{interrupted}'
    step = checkpoints.step(checkpoints.newest(FLAGS.train_dir))
    assert out.endswith(f'Saved step {step} in {FLAGS.train_dir}.\n')
    assert f': step {step - 1}, loss' in out and f': step {step}, loss' not in out
    assert step >= 6


@pytest.mark.usefixtures('hangup')
@pytest.mark.parametrize('first, second', [
    (signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)])
def test_a_second_signal_ends_it_at_once(tmp_path, first, second):
    """Here, a step takes longer than the test would wait."""
    process = spawn.start(counter(tmp_path, f'{{"pause": {10 * spawn.PATIENCE}}}'))
    assert 'step 0,' in process.stdout.readline()
    process.send_signal(first)
    assert process.stderr.readline() == f'counting.py: {STOPPING}'
    time.sleep(0.5)  # Signals within 0.25 s count as one.
    process.send_signal(second)
    spawn.ended(process, 128 + second)
    assert counting.steps(tmp_path) == [0]


def test_a_closed_terminal_saves(tmp_path):
    """SIGHUP comes from the system, and nothing can be printed any more."""
    def control():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    ours, theirs = pty.openpty()
    process = spawn.until_the_end(subprocess.Popen(
        [sys.executable, *counter(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=control, env=spawn.environment()))
    os.close(theirs)
    shown = b''
    while b'step 5,' not in shown:
        shown += os.read(ours, 65536)
    os.close(ours)
    process.wait(timeout=spawn.PATIENCE)
    assert counting.latest(tmp_path) >= 6


def test_ctrl_c_ends_the_reader_too(half_bright):
    """As in `classification.py | tee log`: the last row of the figures is not lost."""
    process = spawn.start([
        *spawn.gently('classification.py'), '-n', 'tutorial', f'--data_dir={FLAGS.data_dir}',
        f'--train_dir={FLAGS.train_dir}', '-b', '4', '--validate_every=0', '--log_frequency=200',
        '--max_steps=100000'])
    spawn.read_until(process, 'step 200,')
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=spawn.PATIENCE)
    assert process.returncode == 130
    step = checkpoints.step(checkpoints.newest(FLAGS.train_dir))
    assert run.read_metrics(FLAGS.train_dir)[-1]['step'] == step


def test_a_reader_that_goes_away(tmp_path):
    """As in `cifar10_train.py | head`."""
    process = spawn.start(counter(tmp_path))
    spawn.read_until(process, 'step 5,')
    process.stdout.close()
    assert process.stderr.read() == ''
    assert process.wait(timeout=spawn.PATIENCE) == 1
    assert counting.latest(tmp_path) >= 6


def test_in_the_background_neither_ctrl_c_nor_a_closed_terminal_matters(tmp_path):
    """`nohup` ignores SIGHUP; a shell that is not a terminal ignores SIGINT in `command &`."""
    process = spawn.until_the_end(subprocess.Popen(
        ['sh', '-c', 'nohup "$@" & wait', 'sh', sys.executable,
         *counter(tmp_path, '{"last_step": 40, "pause": 0.05}')],
        env=spawn.environment(), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE))
    spawn.read_until(process, 'step 5,')
    child, = psutil.Process(process.pid).children()
    for number in (signal.SIGHUP, signal.SIGINT):
        child.send_signal(number)
    spawn.ended(process, 0)
    assert counting.latest(tmp_path) == 40
