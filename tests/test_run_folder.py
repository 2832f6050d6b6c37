import os
import subprocess
import sys

import pytest
import spawn
from absl import app

from program import files
from runs import folder as run_folder


def test_one_trainer_at_a_time_which_is_named(tmp_path):
    program = ('import sys; from runs import folder as run_folder\n'
               'with run_folder.held(sys.argv[1]): print("held", flush=True); sys.stdin.read()')
    with subprocess.Popen([sys.executable, '-c', program, tmp_path / 'run'], cwd=spawn.ROOT,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == 'held\n'
        with pytest.raises(app.UsageError, match=f'in use: process {first.pid} trains there'):
            with run_folder.held(tmp_path / 'run'):
                pass
        for other in (b'\xff\xfe', b'1\n2', b'\x1b[2J'):
            (tmp_path / 'run' / '.lock').write_bytes(other)
            with pytest.raises(app.UsageError, match='in use: process unknown trains there'):
                with run_folder.held(tmp_path / 'run'):
                    pass
        first.kill()  # Nobody gives the lock back.
        first.wait()
        for _ in range(2):
            with run_folder.held(tmp_path / 'run'):
                assert (tmp_path / 'run' / '.lock').read_text() == f'{os.getpid()}\n'


@pytest.mark.parametrize('name', ['file', 'file/run'])
def test_what_is_no_folder(tmp_path, name):
    (tmp_path / 'file').write_text('x')
    with pytest.raises(app.UsageError, match=f'{name} is, or lies below, something that is no'):
        with run_folder.held(tmp_path / name):
            pass


def test_a_folder_best_that_others_can_change_is_refused_at_the_start(tmp_path):
    (tmp_path / 'best').mkdir()
    (tmp_path / 'best').chmod(0o777)
    with pytest.raises(PermissionError, match='best can be changed by everybody'):
        with run_folder.held(tmp_path):
            pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / 'precious').write_text('x')
    (tmp_path / '.lock').symlink_to(tmp_path / 'precious')
    with pytest.raises(OSError):
        with run_folder.held(tmp_path):
            pass
    assert (tmp_path / 'precious').read_text() == 'x'


def test_a_folder_that_reads_as_a_pattern_is_refused(tmp_path):
    """TensorFlow would remove the checkpoints of `run1` for those of `run[1]`."""
    with pytest.raises(app.UsageError, match=r'run\[1\] holds one of .*name another --train_dir'):
        with run_folder.held(str(tmp_path / 'run[1]')):
            pass
    assert os.listdir(tmp_path) == []


# Names that TensorFlow and ours give to what is being written, as a kill leaves them.
UNFINISHED = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'graph.pbtxt.tmp' + 32 * '0',
    'model.ckpt-7.meta.tmp' + 32 * 'f', 'model.ckpt-7.index.tempstate123',
    'model.ckpt-7.data-00000-of-00001.tempstate456', 'run.json.0123456789abcdef.part',
    'metrics.csv.0123456789abcdef.part', 'params.h5.0123456789abcdef.part',
    'timeline-3.json.0123456789abcdef.part'}
UNFINISHED_BEST = {
    'checkpoint.tmp0123456789abcdef0123456789abcdef', 'model.ckpt-7.index.tempstate123',
    'params.h5.0123456789abcdef.part', 'error.json.0123456789abcdef.part'}


@pytest.mark.parametrize('remove', [run_folder.remove_half_written, run_folder.remove_own_files])
def test_what_was_not_finished_is_removed(tmp_path, remove):
    (tmp_path / 'best').mkdir()
    kept = {'checkpoint.tmp', 'run.json.bak', 'run.json.1.part', 'notes.0123456789abcdef.part'}
    for folder, names in ((tmp_path, UNFINISHED | kept), (tmp_path / 'best', UNFINISHED_BEST)):
        for name in names:
            (folder / name).write_text('x')
    remove(tmp_path)
    assert set(os.listdir(tmp_path)) == kept | {'best'}
    assert os.listdir(tmp_path / 'best') == []


def test_the_names_of_our_unfinished_files_are_known(tmp_path):
    seen = set()
    with run_folder.held(tmp_path):
        for name in ('run.json', 'metrics.csv', 'params.h5', 'timeline-7.json'):
            with files.new_file(tmp_path / name):
                seen.update(name for name in os.listdir(tmp_path) if name.endswith('.part'))
        for name in seen:
            (tmp_path / name).touch()
        run_folder.remove_half_written(tmp_path)
    assert len(seen) == 4
    assert seen.isdisjoint(os.listdir(tmp_path))


def test_only_what_a_run_wrote_is_removed(tmp_path, capsys):
    """Links go, what they lead to stays; what is no run's stays, and all is told."""
    outside = tmp_path / 'outside'
    outside.mkdir()
    for name in ('model.ckpt-1.index', 'keep'):
        (outside / name).write_text('x')
    run = tmp_path / 'run'
    (run / 'best').mkdir(parents=True)
    for name in ('checkpoint', 'model.ckpt-7.index', 'model.ckpt-7.data-00000-of-00001',
                 'metrics.csv', 'run.json', 'timeline-3.json', '.lock', 'best/error.json',
                 'notes.txt', 'best/mine', 'my.ckpt-1.index'):
        (run / name).write_text('x')
    (run / 'model.ckpt-8.index').symlink_to(outside / 'keep')
    (run / 'model.ckpt-9.index').mkdir()
    run_folder.remove_own_files(run)
    assert sorted(os.listdir(run)) == [
        '.lock', 'best', 'model.ckpt-9.index', 'my.ckpt-1.index', 'notes.txt']
    assert os.listdir(run / 'best') == ['mine']
    assert (outside / 'keep').read_text() == 'x'
    assert capsys.readouterr().out == (
        f'--restart leaves in {run} what no run wrote: best/mine, model.ckpt-9.index, '
        'my.ckpt-1.index, notes.txt. It removes best/error.json, checkpoint, metrics.csv, '
        'model.ckpt-7.data-00000-of-00001, model.ckpt-7.index, model.ckpt-8.index, run.json, '
        'timeline-3.json.\n')


def test_a_folder_best_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / 'outside').mkdir()
    (tmp_path / 'outside' / 'checkpoint').write_text('x')
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'best').symlink_to(tmp_path / 'outside')
    run_folder.remove_own_files(tmp_path / 'run')
    assert os.listdir(tmp_path / 'outside') == ['checkpoint']
