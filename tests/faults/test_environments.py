"""Deterministic operations, a read-only machine, and a CPU quota."""
import os
import subprocess
import sys

import plain
import pytest
import record_files
import spawn

_SMALL = ('--batch_size=16', '--data_dir=data')
# In the order in which one reads what another one wrote.
_COMMANDS = {
    'train': ['cifar10_train.py', *_SMALL, '--train_dir=run', '--max_steps=2'],
    'evaluate': ['cifar10_eval.py', *_SMALL, '--checkpoint_dir=run', '--eval_dir=eval',
                 '--run_once'],
    'predict': ['cifar10_predict.py', str(spawn.ROOT / 'docs' / 'hero.png'),
                '--checkpoint_dir=run'],
    'export': ['cifar10_export.py', '--checkpoint_dir=run', '--export_dir=exported'],
    'plot': ['cifar10_plot.py', *_SMALL, '--picture=distorted', '--runs=run'],
    'confusion': ['cifar10_plot.py', *_SMALL, '--picture=confusion', '--runs=run'],
    'classify': ['classification.py', *_SMALL, '--net=airbench94', '--train_dir=own',
                 '--max_steps=2']}


def run(name, folder, **options):
    """Runs one of `_COMMANDS` in a folder."""
    return spawn.fork_script(*_COMMANDS[name], cwd=folder, **options)


@pytest.fixture
def folder(tmp_path):
    """A folder with `data`, CIFAR-10's files with ten records each."""
    record_files.write_noise(tmp_path / 'data', count=10)
    return tmp_path


def test_deterministic_operations(folder):
    """They require a seed for each random operation. The tutorial's training has none, and says so;
    where random numbers do not matter, there is one."""
    done = run('train', folder, TF_DETERMINISTIC_OPS='1')
    spawn.expect_one_line(done, 'set a seed')
    plain.save_checkpoint(folder / 'run')
    for name in ('evaluate', 'predict', 'export', 'plot', 'confusion', 'classify'):
        done = run(name, folder, TF_DETERMINISTIC_OPS='1')
        assert done.returncode == 0, (name, done.stderr)


with_mounts = pytest.mark.skipif(
    not sys.platform.startswith('linux') or os.geteuid() != 0 or subprocess.run(
        ['unshare', '--mount', 'mount', '-o', 'remount,bind,ro', '/'], capture_output=True,
        check=False).returncode != 0,
    reason='mounts require root')


def _with_mounts(mounts, folder):
    """Words before a command that is to run after the shell's commands `mounts`, which only it
    sees, in a folder."""
    return ['unshare', '--mount', 'sh', '-c', f'{mounts} && cd "$0" && exec "$@"', folder]


@with_mounts
def test_a_read_only_machine(folder):
    """As in `docker run --read-only`, with one folder that can be written."""
    mounts = ('mount --bind "$0" "$0" && mount -t tmpfs -o ro tmpfs /dev/shm && '
              'mount -o remount,bind,ro /')
    variables = {'HOME': '/proc/none', 'LC_ALL': 'C', 'TMPDIR': str(folder)}
    with spawn.fork_server(*_with_mounts(mounts, folder), **variables) as server:
        done = spawn.fork_script(*_COMMANDS['train'], '--train_dir=/nowhere', cwd=folder,
                                 server=server, **variables)
        spawn.expect_one_line(done, 'Read-only file system', '/nowhere')
        for name in ('train', 'evaluate', 'predict', 'export', 'confusion'):
            done = run(name, folder, server=server, **variables)
            assert done.returncode == 0, (name, done.stderr)


@with_mounts
@pytest.mark.parametrize('quota, threads', [('50000 100000', '1'), ('max 100000', 'None')])
def test_a_cpu_quota(tmp_path, quota, threads):
    """As of `docker run --cpus=0.5`, where all cores stay visible."""
    (tmp_path / 'cpu.max').write_text(f'{quota}\n')
    (tmp_path / 'script.py').write_text(
        'import os\nfrom cifar10_lib import script\n'
        'script.run(lambda: print(os.environ.get("TF_NUM_INTRAOP_THREADS")))\n')
    done = subprocess.run(
        [*_with_mounts('mount --bind "$0" /sys/fs/cgroup', tmp_path), sys.executable, 'script.py'],
        env=spawn.environment(PYTHONPATH=str(spawn.ROOT)), text=True, capture_output=True,
        timeout=spawn.PATIENCE, check=False)
    assert (done.stdout, done.stderr) == (f'{threads}\n', '')
