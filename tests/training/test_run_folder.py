import errno
import os
import shutil
import subprocess
import sys

import pytest
import spawn
from absl import app, flags
from absl.testing import flagsaver

import cifar10_train
from cifar10_lib.runs import checkpoints, run_folder

FLAGS = flags.FLAGS

# A program that holds the lock of a folder until its standard input ends.
HOLD = ('import sys; from cifar10_lib.runs import run_folder\n'
        'with run_folder.locked(sys.argv[1]): print("held", flush=True); sys.stdin.read()')


@pytest.mark.parametrize('restart', [False, True])
def test_a_second_trainer_is_refused_with_the_process_id_of_the_first(trained, restart):
    """And starts once the first was killed, without releasing the lock."""
    before = set(os.listdir(FLAGS.train_dir))
    first = spawn.start(['-c', HOLD, FLAGS.train_dir], cwd=spawn.ROOT, stdin=subprocess.PIPE)
    assert first.stdout.readline() == 'held\n'
    with flagsaver.flagsaver(restart=restart, max_steps=11):
        with pytest.raises(app.UsageError, match=f'in use: process {first.pid} trains there'):
            cifar10_train.main()
        assert before <= set(os.listdir(FLAGS.train_dir))
        first.kill()
        first.wait()
        cifar10_train.main()
    assert checkpoints.latest(FLAGS.train_dir).endswith('model.ckpt-11')


@pytest.mark.parametrize('name, words', [
    *((name, f'{name} or one of its parents is not a folder') for name in (
        'file', 'file/run', 'dangling/run')),
    # TensorFlow would remove the checkpoints of `run1` for those of `run[1]`.
    ('run[1]', r'run\[1\] contains one of .*Choose another --train')])
def test_a_path_that_cannot_be_a_runs_folder(tmp_path, name, words):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'nowhere')
    with pytest.raises(app.UsageError, match=words), run_folder.locked(tmp_path / name):
        pass
    assert sorted(os.listdir(tmp_path)) == ['dangling', 'file']


# Names of unfinished files, ours and TensorFlow's, as a kill leaves them.
UNFINISHED = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'graph.pbtxt.tmp' + 32 * '0',
    'model.ckpt-7.meta.tmp' + 32 * 'f', 'model.ckpt-7.index.tempstate123',
    'model.ckpt-7.data-00000-of-00001.tempstate456', 'run.json.0123456789abcdef.part',
    'metrics.csv.0123456789abcdef.part', 'params.h5.0123456789abcdef.part',
    'timeline-3.json.0123456789abcdef.part'}
UNFINISHED_BEST = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'model.ckpt-7.index.tempstate123',
    'params.h5.0123456789abcdef.part', 'error.json.0123456789abcdef.part',
    'run.json.0123456789abcdef.part'}


@pytest.mark.parametrize('also_finished', [False, True])
def test_unfinished_files_are_removed(tmp_path, also_finished):
    (tmp_path / 'best').mkdir()
    kept = {'checkpoint.tmp', 'run.json.bak', 'run.json.1.part', 'notes.0123456789abcdef.part'}
    for folder, names in ((tmp_path, UNFINISHED | kept), (tmp_path / 'best', UNFINISHED_BEST)):
        for name in names:
            (folder / name).write_text('x')
    run_folder.remove_files(tmp_path, also_finished)
    assert set(os.listdir(tmp_path)) == kept | {'best'}
    assert os.listdir(tmp_path / 'best') == []


def test_the_newest_checkpoint_is_the_last_to_go(tmp_path, monkeypatch):
    """An evaluation takes the newest one with an index: an older one would be evaluated again. The
    order in which a folder lists its files is not known; here, it is that of the names."""
    for step in (1, 2, 10):
        for ending in ('data-00000-of-00001', 'meta', 'index'):
            (tmp_path / f'model.ckpt-{step}.{ending}').write_text('x')
    (tmp_path / 'graph.pbtxt').symlink_to('nowhere')
    left, remove, scandir = [], os.remove, os.scandir

    def remove_one(path):
        remove(path)
        left.append([name for name in os.listdir(tmp_path) if name.endswith('.index')])

    monkeypatch.setattr(os, 'remove', remove_one)
    monkeypatch.setattr(os, 'scandir', lambda path: sorted(
        scandir(path), key=lambda entry: entry.name))
    run_folder.remove_files(tmp_path, also_finished=True)
    assert len(left) == 10 and not any(name.startswith(('model', 'graph'))
                                       for name in os.listdir(tmp_path))
    assert all('model.ckpt-10.index' in names for names in left if names)


@pytest.mark.parametrize('text, words', [
    ('', 'is not JSON'), ('[]', r'holds \[\]; expected a JSON object')])
def test_a_damaged_run_json(tmp_path, text, words):
    path = tmp_path / 'run.json'
    path.write_text(text)
    with pytest.raises(app.UsageError, match=f'{path} .*{words}.*Remove it.*, or go away') as error:
        run_folder.read_run(tmp_path, 'go away')
    assert '\n' not in str(error.value)


def test_a_run_json_that_is_removed_while_it_is_read(tmp_path):
    """A link to nothing is listed, but cannot be read."""
    (tmp_path / 'run.json').symlink_to('nowhere')
    assert run_folder.read_run(tmp_path, '') is None


@pytest.mark.skipif(not shutil.which('cc'), reason='requires a C compiler')
@pytest.mark.parametrize('error', ['ENOLCK', 'ENOSYS'])
def test_a_file_system_without_locks(tmp_path, error):
    """`flock` fails on NFS without its lock daemon, and on Lustre without the option. Training
    continues with a warning."""
    (tmp_path / 'flock.c').write_text(
        f'#include <errno.h>\nint flock(int f, int o) {{ errno = {error}; return -1; }}\n')
    library = tmp_path / 'flock.so'
    subprocess.run(['cc', '-shared', '-fPIC', '-o', library, tmp_path / 'flock.c'], check=True)
    done = subprocess.run([sys.executable, '-c', HOLD, tmp_path / 'run'], cwd=spawn.ROOT,
                          stdin=subprocess.DEVNULL, text=True, capture_output=True,
                          env={**os.environ, 'LD_PRELOAD': str(library)})
    reason = os.strerror(getattr(errno, error))
    assert done.stdout.splitlines() == [
        f'Warning: {tmp_path}/run cannot be locked ({reason}): make sure that no other process '
        'uses it.', 'held'], done.stderr
