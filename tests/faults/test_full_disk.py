"""Fills the disk in the middle of writing, and checks what is left.

The disk is a small tmpfs, which only root can mount. Expected of training: one line that names the
folder, exit code 1, an intact latest checkpoint, and the same command resumes once there is room.
Of a download and an extraction: the same line, and the next attempt completes the folder. Of
everything else that writes: the line, and nothing half-written.
"""
import contextlib
import glob
import os
import subprocess

import downloads
import image_files
import pytest
import record_files
import running
import spawn

from cifar10_lib.datasets import download
from cifar10_lib.program import errors
from cifar10_lib.runs import checkpoints

_MB = 1 << 20
_RUN = ('--data_dir=OUT/data', '--checkpoint_dir=OUT/train')


@pytest.fixture
def disk(tmp_path):
    """A file system of 200 MB."""
    path = tmp_path / 'disk'
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={200 * _MB}', 'tmpfs', path],
                      capture_output=True, check=False).returncode:
        pytest.skip('this user cannot mount a small disk here')
    yield path
    subprocess.run(['umount', '-l', path], check=True)


def _resize(disk, size):
    subprocess.run(['mount', '-o', f'remount,size={size}', disk], check=True)


def _fill(disk, free):
    """Writes a file that leaves `free` bytes; returns its path."""
    path = disk / 'filler'
    with open(path, 'wb', buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(_MB))
    os.truncate(path, max(0, path.stat().st_size - free))
    return path


@pytest.mark.parametrize('what, flags, free', [
    ('a checkpoint', ['--max_steps=190', '--save_checkpoint_steps=20'], 4 * _MB),
    ('events', ['--max_steps=210'], 1 << 14),
    ('params.h5', ['--max_steps=200'], 12 * _MB),
    ('a validation', ['--max_steps=200', '--validate_every=1'], _MB),
    ('a profile', ['--max_steps=200', '--profile=60'], 0),
    ('a run of two workers', ['--max_steps=200', '--num_workers=2', '--step_timeout=300'],
     4 * _MB)])
def test_training(tmp_path, disk, what, flags, free):
    record_files.write_noise(tmp_path / 'data')
    script = 'cifar10_train.py'
    if 'workers' in what:
        script = 'cifar10_distributed_train.py'
    command = [script, f'--data_dir={tmp_path}/data', f'--train_dir={disk}/train',
               '--batch_size=8', '--log_frequency=1', *flags]
    with running.running(*command) as trainer:
        trainer.await_text('step 30, ')
        filler = _fill(disk, free)
        done = trainer.result()
    saved = checkpoints.latest(disk / 'train')
    running.expect_one_line(done, f'{disk}/train', 'make room')
    filler.unlink()
    again = spawn.run_script(*command)
    assert again.returncode == 0, again.stderr
    assert f'Resuming from {saved}' in again.stdout
    assert (disk / 'train' / 'params.h5').exists()
    assert not glob.glob(f'{disk}/train/*tempstate*')


@pytest.mark.parametrize('what, size', [
    ('a download', len(downloads.ARCHIVE) // 2),
    ('an extraction', len(downloads.ARCHIVE) + (1 << 16))])
def test_a_download(disk, monkeypatch, what, size):
    downloads.use_no_proxy(monkeypatch)
    _resize(disk, size)
    with downloads.Server().running() as server:
        row = downloads.row(server.url)
        with pytest.raises(errors.DataError) as error:
            download.maybe_download_and_extract(row, str(disk))
        line = str(error.value)
        assert '\n' not in line and str(disk) in line and 'No space left on device' in line
        assert not os.path.lexists(disk / 'small')
        _resize(disk, _MB)
        download.maybe_download_and_extract(row, str(disk))


@pytest.mark.parametrize('what, script, arguments', [
    ('synthetic images', 'cifar10_train.py', ['--dataset=synthetic', '--data_dir=DISK/data',
                                              '--max_steps=1', '--train_dir=OUT/again']),
    ('an evaluation', 'cifar10_eval.py', [*_RUN, '--run_once', '--eval_dir=DISK/eval']),
    ('an export', 'cifar10_export.py', [_RUN[1], '--export_dir=DISK/model']),
    ('a data set of images', 'cifar10_convert.py', ['OUT/images', 'DISK/set']),
    ('a picture', 'cifar10_plot.py', [
        '--picture=samples', _RUN[0], '--output=DISK/samples.png'])])
def test_another_script(tmp_path, disk, what, script, arguments):
    record_files.write_noise(tmp_path / 'data')
    image_files.write_sorted(tmp_path / 'images')
    if '--checkpoint_dir=OUT/train' in arguments:
        trained = spawn.run_script(
            'cifar10_train.py', f'--data_dir={tmp_path}/data', f'--train_dir={tmp_path}/train',
            '--batch_size=8', '--max_steps=1')
        assert trained.returncode == 0, trained.stderr
    arguments = [word.replace('DISK', str(disk)).replace('OUT', str(tmp_path))
                 for word in arguments]
    filler = _fill(disk, 1 << 13)
    before = set(disk.rglob('*'))
    full = spawn.run_script(script, *arguments)
    running.expect_one_line(full, str(disk), 'space')  # NumPy words its error differently.
    left = set(disk.rglob('*')) - before
    assert not [path for path in left if path.suffix == '.part' or path.is_file()
                and 'tfevents' not in path.name and path.suffix != '.lock'], left
    filler.unlink()
    again = spawn.run_script(script, *arguments)
    assert again.returncode == 0, again.stderr[-2000:]
