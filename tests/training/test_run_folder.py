import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
import spawn
from absl import app

from cifar10_lib.datasets import table
from cifar10_lib.program import files
from cifar10_lib.runs import folder as run_folder


def test_a_second_trainer_is_refused_with_the_process_id_of_the_first(tmp_path):
    program = ('import sys; from cifar10_lib.runs import folder as run_folder\n'
               'with run_folder.locked(sys.argv[1]): print("held", flush=True); sys.stdin.read()')
    with subprocess.Popen([sys.executable, '-c', program, tmp_path / 'run'], cwd=spawn.ROOT,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == 'held\n'
        with pytest.raises(app.UsageError, match=f'in use: process {first.pid} trains there'):
            with run_folder.locked(tmp_path / 'run'):
                pass
        for other in (b'\xff\xfe', b'1\n2', b'\x1b[2J'):
            (tmp_path / 'run' / '.lock').write_bytes(other)
            with pytest.raises(app.UsageError, match='in use: process unknown trains there'):
                with run_folder.locked(tmp_path / 'run'):
                    pass
        first.kill()  # Without releasing the lock.
        first.wait()
        for _ in range(2):
            with run_folder.locked(tmp_path / 'run'):
                assert (tmp_path / 'run' / '.lock').read_text() == f'{os.getpid()}\n'


@pytest.mark.parametrize('name', ['file', 'file/run', 'dangling/run', 'pipe'])
def test_a_path_that_is_not_a_folder(tmp_path, name):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'nowhere')
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(app.UsageError, match=f'{name} or one of its parents is not a folder'):
        with run_folder.locked(tmp_path / name):
            pass


def test_a_folder_that_reads_as_a_pattern_is_refused(tmp_path):
    """TensorFlow would remove the checkpoints of `run1` for those of `run[1]`."""
    with pytest.raises(app.UsageError, match=r'run\[1\] contains one of .*Choose another --train'):
        with run_folder.locked(str(tmp_path / 'run[1]')):
            pass
    assert os.listdir(tmp_path) == []


# Names of unfinished files, ours and TensorFlow's, as a kill leaves them.
UNFINISHED = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'graph.pbtxt.tmp' + 32 * '0',
    'model.ckpt-7.meta.tmp' + 32 * 'f', 'model.ckpt-7.index.tempstate123',
    'model.ckpt-7.data-00000-of-00001.tempstate456', 'run.json.0123456789abcdef.part',
    'metrics.csv.0123456789abcdef.part', 'params.h5.0123456789abcdef.part',
    'timeline-3.json.0123456789abcdef.part'}
UNFINISHED_BEST = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'model.ckpt-7.index.tempstate123',
    'params.h5.0123456789abcdef.part', 'error.json.0123456789abcdef.part'}


@pytest.mark.parametrize('remove', [run_folder.remove_unfinished, run_folder.remove_own_files])
def test_unfinished_files_are_removed(tmp_path, remove):
    (tmp_path / 'best').mkdir()
    kept = {'checkpoint.tmp', 'run.json.bak', 'run.json.1.part', 'notes.0123456789abcdef.part'}
    for folder, names in ((tmp_path, UNFINISHED | kept), (tmp_path / 'best', UNFINISHED_BEST)):
        for name in names:
            (folder / name).write_text('x')
    remove(tmp_path)
    assert set(os.listdir(tmp_path)) == kept | {'best'}
    assert os.listdir(tmp_path / 'best') == []


def test_unfinished_files_of_all_writers_are_recognised(tmp_path):
    seen = set()
    with run_folder.locked(tmp_path):
        for name in ('run.json', 'metrics.csv', 'params.h5', 'timeline-7.json'):
            with files.new_file(tmp_path / name):
                seen.update(name for name in os.listdir(tmp_path) if name.endswith('.part'))
        for name in seen:
            (tmp_path / name).touch()
        run_folder.remove_unfinished(tmp_path)
    assert len(seen) == 4
    assert seen.isdisjoint(os.listdir(tmp_path))


def test_only_files_of_a_run_are_removed(tmp_path, capsys):
    """Removes links but not their targets, keeps other files, and reports both."""
    outside = tmp_path / 'outside'
    outside.mkdir()
    for name in ('model.ckpt-1.index', 'keep'):
        (outside / name).write_text('x')
    run = tmp_path / 'run'
    (run / 'best').mkdir(parents=True)
    for name in ('checkpoint', 'model.ckpt-7.index', 'model.ckpt-7.data-00000-of-00001',
                 'metrics.csv', 'run.json', 'timeline-3.json', '.lock', 'best/error.json',
                 'notes.txt', 'best/mine', 'my.ckpt-1.index', 'model.ckpt-7.tar.gz'):
        (run / name).write_text('x')
    (run / 'model.ckpt-8.index').symlink_to(outside / 'keep')
    (run / 'model.ckpt-9.index').mkdir()
    run_folder.remove_own_files(run)
    assert sorted(os.listdir(run)) == [
        '.lock', 'best', 'model.ckpt-7.tar.gz', 'model.ckpt-9.index', 'my.ckpt-1.index',
        'notes.txt']
    assert os.listdir(run / 'best') == ['mine']
    assert (outside / 'keep').read_text() == 'x'
    assert capsys.readouterr().out == (
        f'--restart keeps these files in {run}, which no run wrote: best/mine, '
        'model.ckpt-7.tar.gz, model.ckpt-9.index, my.ckpt-1.index, notes.txt. It removes '
        'best/error.json, checkpoint, metrics.csv, model.ckpt-7.data-00000-of-00001, '
        'model.ckpt-7.index, model.ckpt-8.index, run.json, timeline-3.json.\n')


def test_a_folder_best_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / 'outside').mkdir()
    (tmp_path / 'outside' / 'checkpoint').write_text('x')
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'best').symlink_to(tmp_path / 'outside')
    run_folder.remove_own_files(tmp_path / 'run')
    assert os.listdir(tmp_path / 'outside') == ['checkpoint']


@pytest.mark.parametrize('text, words', [
    ('[]', r'holds \[\]; expected a JSON object'),
    ('{}', '"net" is null; expected the name of a network'),
    ({'net': []}, r'"net" is \[\]'), ({'net': 'a\x1b[2J'}, r'"net" is "a\\u001b\[2J"'),
    ({'net': 1000 * 'a'}, '"net" is "a'), ({'dataset': {}}, '"dataset" is {}'),
    ({'settings': []}, r'"settings" is \[\]; expected an object'),
    ({'settings': {'examples_per_step': 'x\ny'}}, '"settings" is '),
    ({'settings': {'examples_per_step': 1e999}}, '"settings" is '),
    ({'dataset_folder': 'pets'}, '"dataset_folder" is "pets"; expected an absolute path'),
    ({'dataset_folder': 7}, '"dataset_folder" is 7'),
    ({'settings': {'images_before': '7'}}, '"settings" is '),
    ({'classes': 'cat'}, '"classes" is "cat"; expected a list of names'),
    ({'classes': [['cat']]}, '"classes" is')])
def test_a_damaged_run_json(tmp_path, text, words):
    path = tmp_path / 'run.json'
    if isinstance(text, dict):
        text = json.dumps({'net': 'tutorial', 'dataset': 'cifar10', 'settings': {}, **text})
    path.write_text(text)
    with pytest.raises(app.UsageError, match=f'{path} .*{words}.*Remove it.*, or go away') as error:
        run_folder.check_run(tmp_path, 'tutorial', table.CIFAR10, 'go away')
    assert '\n' not in str(error.value) and len(str(error.value)) < 400


def test_no_run_json(tmp_path):
    (tmp_path / 'file').write_text('')
    for folder in (tmp_path, tmp_path / 'missing', tmp_path / 'file'):
        assert run_folder.check_run(folder, 'tutorial', table.CIFAR10, '') is None
        assert run_folder.net_and_dataset(folder, '') is None


@pytest.mark.parametrize('recorded, dataset', [
    ({'dataset_folder': '/sets/pets'}, '/sets/pets'), ({'dataset_folder': None}, 'pets'),
    ({}, 'pets')])
def test_net_and_dataset_of_a_run(tmp_path, recorded, dataset):
    run_folder.write_run(tmp_path, {'net': 'local', 'dataset': 'pets', 'settings': {}, **recorded})
    assert run_folder.net_and_dataset(tmp_path, '') == ('local', dataset)


def test_a_run_json_that_is_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / 'run.json')  # Without a writer.
    with pytest.raises(OSError, match='not a regular file'):
        run_folder.check_run(str(tmp_path), 'tutorial', table.CIFAR10, 'go away')


LOCKING = '''
import os, sys
from cifar10_lib.program import startup
from cifar10_lib.runs import folder as run_folder
def hold():
    os.setuid(int(sys.argv[2]))
    with run_folder.locked(sys.argv[1]):
        print('held')
startup.run(lambda *_: hold(), positional='WORD...')
'''


@pytest.mark.skipif(not shutil.which('cc'), reason='requires a C compiler')
def test_a_file_system_without_locks(tmp_path):
    """NFS without its lock daemon: `flock` fails with ENOLCK. Training continues with a warning."""
    (tmp_path / 'flock.c').write_text(
        '#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n')
    library = tmp_path / 'flock.so'
    subprocess.run(['cc', '-shared', '-fPIC', '-o', library, tmp_path / 'flock.c'], check=True)
    done = subprocess.run([sys.executable, '-c', LOCKING, tmp_path / 'run', str(os.geteuid())],
                          cwd=spawn.ROOT, text=True, capture_output=True,
                          env={**os.environ, 'LD_PRELOAD': str(library)})
    assert done.stdout.splitlines() == [
        f'Warning: {tmp_path}/run cannot be locked (No locks available): make sure that no other '
        'process uses it.', 'held'], done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason='requires root')
@pytest.mark.parametrize('mode', [0o755, 0o700])
def test_a_folder_that_cannot_be_written_is_one_line(mode):
    with tempfile.TemporaryDirectory() as folder:  # Other users may enter the folder above.
        os.chmod(folder, mode)
        done = subprocess.run([sys.executable, '-c', LOCKING, folder, '65534'], cwd=spawn.ROOT,
                              text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (1, '')
    assert folder in done.stderr and done.stderr.count('\n') == 1
    assert ('cannot be written (Permission denied): choose another --train_dir' if mode == 0o755
            else 'Permission denied') in done.stderr
