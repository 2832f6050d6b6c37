"""Folders that others also use, and paths that are not what they should be.

Two trainers in one folder; an evaluation whose checkpoints are removed while it reads; files from
the future; something else in place of a folder; folders without permission, as a user who is not
root; folders that others can write to, and links there.
"""
import glob
import grp
import os
import signal
import time

import pytest
import record_files

from drills import helpers

drill = pytest.mark.drill('Interference', short=5)


@pytest.fixture
def folder(tmp_path):
    record_files.write_noise(tmp_path / 'data')
    return tmp_path


@pytest.mark.slow
@drill
@pytest.mark.parametrize('script, flags', [
    ('cifar10_train.py', ()), ('cifar10_multi_gpu_train.py', ()),
    ('cifar10_distributed_train.py', ('--num_workers=2',)), ('cifar10_train.py', ('--restart',))])
def test_a_second_trainer(folder, tally, script, flags):
    with helpers.running('cifar10_train.py', *helpers.train_flags(folder)) as first:
        first.await_text('step 10, ')
        files = set(os.listdir(folder / 'train'))
        second = helpers.run_script(script, *helpers.train_flags(folder), *flags)
        helpers.expect_one_line(second, f'{folder}/train', f'process {first.process.pid}')
        assert files <= set(os.listdir(folder / 'train'))
        assert not first.has_ended()
        first.process.send_signal(signal.SIGTERM)
        assert first.result().returncode == 143
    tally("refused in one line with the first one's process ID")


@pytest.mark.slow
@drill
def test_checkpoints_removed_during_an_evaluation(folder, tally):
    with helpers.running('cifar10_train.py', *helpers.train_flags(folder),
                         '--save_checkpoint_steps=10') as trainer, \
            helpers.running('cifar10_eval.py', f'--data_dir={folder}/data',
                            f'--checkpoint_dir={folder}/train', f'--eval_dir={folder}/eval',
                            '--eval_interval_secs=1') as evaluation:
        evaluation.await_text('precision @ 1')
        end = time.monotonic() + 8
        while time.monotonic() < end:
            _remove_checkpoints(folder / 'train')
            time.sleep(0.05)
        assert not evaluation.has_ended(), evaluation.error()
        assert not trainer.has_ended(), trainer.error()
        count = evaluation.out().count('precision @ 1')
        evaluation.await_text('precision @ 1', count=count + 1)
        assert 'Traceback' not in evaluation.error()
    tally('waited, and continued')


def _remove_checkpoints(train_dir):
    for path in glob.glob(f'{train_dir}/*.index') + glob.glob(f'{train_dir}/*-of-00001'):
        try:
            os.remove(path)
        except FileNotFoundError:  # The trainer removes old ones, too.
            continue


@pytest.mark.slow
@drill
@pytest.mark.parametrize('offset', [365 * 86400, 1 - int(time.time() // 86400) * 86400],
                         ids=['in the future', 'of 1970'])
def test_other_file_times(folder, tally, offset):
    """Training resumes, keeps the last five checkpoints, and is evaluated."""
    for last in (40, 60):
        done = helpers.train(folder, f'--max_steps={last}', '--save_checkpoint_steps=10')
        assert done.returncode == 0, done.stderr
        assert last == 40 or 'model.ckpt-40.' in done.stdout
        for path in helpers.contents(folder):
            os.utime(path, 2 * (time.time() + offset,))
    steps = sorted(int(path.split('-')[-1].split('.')[0])
                   for path in glob.glob(f'{folder}/train/*.index'))
    assert steps == [20, 30, 40, 50, 60]
    done = helpers.run_script('cifar10_eval.py', f'--data_dir={folder}/data', '--run_once',
                              f'--checkpoint_dir={folder}/train', f'--eval_dir={folder}/eval')
    assert done.returncode == 0, done.stderr
    tally('continued as usual')


@pytest.mark.slow
@drill
@pytest.mark.parametrize('kind', ['a file', 'a pipe', 'a link to nothing'])
@pytest.mark.parametrize('place', ['train', 'data'])
def test_something_else_in_place_of_a_folder(tmp_path, tally, place, kind):
    path = tmp_path / place
    if kind == 'a file':
        path.write_text('mine')
    elif kind == 'a pipe':
        os.mkfifo(path)
    else:
        path.symlink_to(path / 'nothing')
    if place != 'data':
        record_files.write_noise(tmp_path / 'data')
    before = helpers.contents(tmp_path)
    helpers.expect_one_line(helpers.train(tmp_path, '--max_steps=1'), str(path))
    assert helpers.contents(tmp_path) == before
    tally('refused in one line')


@pytest.mark.slow
@drill
@pytest.mark.parametrize('kind', ['no permission', 'no permission above', 'read only'])
def test_without_permission(folder, tally, kind):
    above, train_dir = folder / 'above', folder / 'above' / 'train'
    train_dir.mkdir(parents=True)
    (above if kind == 'no permission above' else train_dir).chmod(
        0o555 if kind == 'read only' else 0)
    try:
        done = helpers.train(folder, f'--train_dir={train_dir}', '--max_steps=1',
                             prefix=helpers.UNPRIVILEGED)
    finally:
        above.chmod(0o755)
        train_dir.chmod(0o755)
    helpers.expect_one_line(done, str(train_dir))
    assert os.listdir(train_dir) == []
    tally('refused in one line')


@pytest.mark.slow
@drill
@pytest.mark.parametrize('kind, mode', [
    ('a link in a shared folder', 0o1777), ('a folder that everybody can write to', 0o777),
    ('a folder that a group can write to', 0o775)])
def test_a_folder_that_others_can_write_to(folder, tally, kind, mode):
    shared, real = folder / 'shared', folder / 'real'
    real.mkdir()
    shared.mkdir()
    if 'a group' in kind:
        if os.geteuid() != 0:
            pytest.skip('only root can give a folder to a group that it is not in')
        os.chown(shared, -1, grp.getgrnam('daemon').gr_gid)
    shared.chmod(mode)
    if kind.startswith('a link'):
        (shared / 'train').symlink_to(real)
    else:
        (shared / 'train').mkdir()
    done = helpers.train(folder, f'--train_dir={shared}/train', '--max_steps=1')
    helpers.expect_one_line(done, str(shared))
    assert os.listdir(real) == os.listdir(shared / 'train') == []
    tally('refused in one line')
