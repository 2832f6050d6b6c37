"""Short versions of the drills, each with its own real processes; and that they find what is
broken."""
import argparse
import os
import subprocess
import sys
import tarfile

import pytest
import spawn

from datasets import download
from drills import archives
from drills import downloads
from drills import kills
from drills import records as damaged_records
from drills import small_data
from drills import trial

OPTIONS = argparse.Namespace(sample=None, seed=1, verbose=True)


def drill(*arguments, timeout=600):
    """Runs a drill as a user does; its last line."""
    done = subprocess.run([sys.executable, '-m', *arguments], cwd=spawn.ROOT, text=True,
                          capture_output=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ''
    return done.stdout.splitlines()[-1]


def _can_mount(folder):
    done = subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', folder], capture_output=True)
    if done.returncode == 0:
        subprocess.run(['umount', folder], check=True)
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('module, count', [
    ('archives', 27), ('downloads', 45), ('damage', 4), ('full_disk', 4), ('records', 8),
    ('folders', 5), ('flags', 60)])
def test_a_drill_in_short(tmp_path, module, count):
    if module == 'full_disk' and not _can_mount(tmp_path):
        pytest.skip('this user cannot mount a small disk here')
    last = drill(f'drills.{module}', f'--sample={count}')
    assert f': {count} tried: ' in last
    assert last.endswith(' 0 failed.')


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('count, options', [
    (6, ['--signal=KILL']), (6, ['--signal=TERM']), (2, ['--signal=INT']),
    (2, ['--script=cifar10_multi_gpu_train.py', '--flags=--num_gpus=2']),
    (2, ['--script=cifar10_distributed_train.py',
         '--flags=--num_workers=2 --step_timeout=20 --start_timeout=60'])])
def test_kills_in_short(tmp_path, count, options):
    small_data.write(tmp_path)
    last = drill('drills.kills', str(count), *options, f'--data_dir={tmp_path}')
    assert f': {count} tried: ' in last
    assert last.endswith(' 0 failed.')


@pytest.mark.slow
@pytest.mark.parametrize('kind', [
    'records', 'checkpoints', 'images', 'events', 'run', 'dataset', 'metrics', 'mat'])
def test_fuzz_in_short(kind):
    assert f'Fuzz, {kind}: 200 tried: ' in drill('drills.fuzz', kind, '--sample=200')


@pytest.mark.slow
def test_the_long_run_in_short(tmp_path):
    """It goes on where it was, and ends when all steps are made."""
    small_data.write(tmp_path / 'data')
    for steps in ('30', '60'):
        last = drill('drills.long_run', f'{tmp_path}/run', f'--data_dir={tmp_path}/data',
                     f'--max_steps={steps}', '--eval_interval_secs=1')
    assert '| 60 | 0.' in last or 'open files' in last
    log = (tmp_path / 'run' / 'train.log').read_text()
    assert 'model.ckpt-30.' in log
    assert 'Saved step 60' in log
    assert 'time,start,step,who,rss_mb,open_files,threads' in (
        tmp_path / 'run' / 'usage.csv').read_text()


def test_a_fault_is_told_and_counted(capsys):
    def case(folder):
        assert os.listdir(folder) == []
        print('what it says itself is not shown')
        return 'well'

    def broken(folder):
        raise trial.Fault('it broke')

    assert trial.run('Some', [('a', case), ('b', broken), ('c', lambda _: {}['x'])], OPTIONS) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == 'Some: 3 tried: 2 FAILED, 1 well. 2 failed.'
    assert 'Some, b: it broke' in out
    assert "KeyError: 'x'" in out
    assert 'not shown' not in out
    assert trial.run('Some', [('a', case)], OPTIONS) == 0


def test_a_sample_is_drawn(capsys):
    cases = [(str(k), lambda _: 'well') for k in range(100)]
    options = argparse.Namespace(sample=7, seed=1, verbose=False)
    assert trial.run('Some', cases, options) == 0
    assert capsys.readouterr().out == 'Some: 7 tried: 7 well. 0 failed.\n'


@pytest.mark.parametrize('code, error', [
    (0, 'x: /a\n'), (1, ''), (1, 'x: /b\n'), (1, 'x: /a\nTraceback\n'), (-11, 'x: /a\n')])
def test_what_is_not_one_line_is_a_fault(code, error):
    with pytest.raises(trial.Fault):
        trial.wanted_one_line(subprocess.CompletedProcess([], code, '', error), '/a')
    trial.wanted_one_line(subprocess.CompletedProcess([], 1, '', 'x: /a\n'), '/a')


def test_an_extraction_that_takes_any_member_is_found(tmp_path, monkeypatch):
    """As the original's `extractall` would: a name with .. gets out of the folder."""
    def extract_all(archive, data_dir):
        with tarfile.open(archive) as tar:
            tar.extractall(data_dir, filter='fully_trusted')

    monkeypatch.setattr(archives, '_in_a_process', lambda archive, data_dir: (
        extract_all(archive, data_dir) or 0, '', 0.0))
    archive, is_good = archives.archives()['a name with ..']
    with pytest.raises(trial.Fault, match='written outside the data folder'):
        archives._unpack(archive, is_good, str(tmp_path))


def test_a_download_that_verifies_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(download, '_verify', lambda path, data_set: None)
    with pytest.raises(trial.Fault):
        downloads._download('other_bytes', 0, b'', False, str(tmp_path))


@pytest.mark.slow
def test_damage_that_is_trained_on_is_found(tmp_path):
    """Here the damage is none: training begins, where the drill wants a refusal."""
    folder = small_data.write(tmp_path / 'data')
    with pytest.raises(trial.Fault, match='wanted exit code 1'):
        damaged_records._refused(str(tmp_path), os.path.join(folder, 'data_batch_1.bin'))


@pytest.mark.parametrize('before, after, steps, faults', [
    (20, 40, [20, 30, 41], 0), (20, 40, [0, 41], 1), (20, 0, [], 1), (20, 40, [20, 61], 1),
    (20, 20, [], 0)])
def test_what_a_kill_may_not_do(before, after, steps, faults):
    """Before and after: steps saved; steps: those printed. At most 20 are made again."""
    assert len(kills._faults(before, True, after, steps)) == faults
    assert len(kills._faults(before, False, after, steps)) == faults + 1


@pytest.mark.parametrize('rows, saved, faults', [
    ([20, 40], 40, 0), ([20, 40, 41], 40, 0), ([20, 40, 40], 40, 1), ([20], 40, 1),
    ([20, 60], 60, 1)])
def test_gaps_and_doubles_in_metrics_are_found(tmp_path, rows, saved, faults):
    lines = ['step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
             'images_per_second', *(f'{step},1,1,1,1,1,,1' for step in rows)]
    (tmp_path / 'metrics.csv').write_text('\n'.join(lines) + '\n')
    assert len(kills._faults_of_metrics(str(tmp_path), saved)) == faults


def test_a_signal_must_end_a_run_in_five_seconds_with_all_saved():
    assert kills._faults_of_signal(143, 'TERM', 4.9, 7, [5, 6]) == []
    assert kills._faults_of_signal(130, 'INT', 4.9, 7, [5, 6]) == []
    assert len(kills._faults_of_signal(1, 'TERM', 5.1, 6, [5, 6])) == 3
