"""Fills the disk in the middle of writing, and checks what is left.

The disk is a small tmpfs, which only root can mount. Expected of training: one line that names the
folder, exit code 1, an intact latest checkpoint, and the same command resumes once there is room.
Of a download and an extraction: the same line, and the next attempt completes the folder.
"""
import contextlib
import os
import subprocess

from cifar10_lib import checkpoints, errors

import counting
import downloads
import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS
_MB = 1 << 20
_COUNTER = 'tests/helpers/counting.py'


@pytest.fixture
def disk(tmp_path):
    """A file system of 100 MB."""
    path = tmp_path / 'disk'
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={100 * _MB}', 'tmpfs', path],
                      capture_output=True, check=False).returncode:
        pytest.skip('this user cannot mount a small disk here')
    yield path
    subprocess.run(['umount', '-l', path], check=True)


def _fill(disk, free):
    """Writes a file that leaves `free` bytes; returns its path."""
    path = disk / 'filler'
    with open(path, 'wb', buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(_MB))
    os.truncate(path, max(0, path.stat().st_size - free))
    return path


@pytest.mark.parametrize('free', [0, 3 * _MB], ids=['no byte', 'three quarters of a checkpoint'])
def test_a_checkpoint(disk, free):
    """Of 4 MB, every ten steps and then at the end."""
    run, size = disk / 'run', f'"size": {_MB}, "save_checkpoint_steps": 10'
    trainer = spawn.start([spawn.ROOT / _COUNTER, run, f'{{{size}, "pause": 0.02}}'])
    spawn.read_until(trainer, 'step 25, ')
    filler = _fill(disk, free)
    out, error = spawn.ended(trainer, 1)
    assert f'No space left on device in {run}' in error and error.count('\n') == 1
    assert 'Saved step' not in out
    saved = counting.latest(run)
    assert saved >= 20
    filler.unlink()
    again = spawn.fork_script(_COUNTER, run, f'{{{size}, "last_step": {saved + 15}}}')
    assert (again.returncode, again.stderr) == (0, '')
    assert f'Resuming from {run} at step {saved}, until step {saved + 15}.\n' in again.stdout
    assert counting.latest(run) == saved + 15


def test_the_tutorials_events_and_last_checkpoint(half_bright, disk):
    """Every hundred steps there are summaries, and after the last step a checkpoint of 13 MB."""
    run = disk / 'run'
    command = [*spawn.gently('cifar10_train.py'), f'--data_dir={FLAGS.data_dir}', '--batch_size=4',
               f'--train_dir={run}', '--log_frequency=1', '--max_steps=120']
    process = spawn.start(command)
    spawn.read_until(process, 'step 5, ')
    filler = _fill(disk, 1 << 14)
    _, error = spawn.ended(process, 1)
    assert error.startswith(f'cifar10_train.py: No space left on device in {run}. ')
    assert error.count('\n') == 1
    assert checkpoints.step(checkpoints.newest(str(run))) == 0
    filler.unlink()
    again = spawn.fork(command)
    assert (again.returncode, again.stderr) == (0, '')
    assert checkpoints.step(checkpoints.newest(str(run))) == 120


@pytest.mark.parametrize('size', [
    len(downloads.ARCHIVE) // 2, len(downloads.ARCHIVE) + (1 << 16)],
    ids=['a download', 'an extraction'])
def test_a_download(disk, size):
    def resize(size):
        subprocess.run(['mount', '-o', f'remount,size={size}', disk], check=True)

    resize(size)
    with downloads.Server().running() as server:
        with pytest.raises(errors.UserError, match=f'^.*{disk}.*No space left on device.*$'):
            downloads.fetch(disk, server.url)
        assert not os.path.lexists(disk / 'small')
        resize(_MB)
        downloads.fetch(disk, server.url)
