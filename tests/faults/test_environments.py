"""Deterministic operations, a read-only machine, and a CPU quota."""
import json
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
# Runs scripts one after another in forked processes, so that TensorFlow is imported once.
_RUN_ALL = f'''
import json, os, runpy, sys
sys.path.insert(0, {str(spawn.ROOT)!r})
from cifar10_lib import quiet
import tensorflow
for sys.argv in json.loads(sys.argv[1]):
    if not os.fork():
        runpy.run_path(os.path.join({str(spawn.ROOT)!r}, sys.argv[0]), run_name='__main__')
        sys.exit()
    if os.wait()[1]:
        sys.exit(f'failed: {{sys.argv}}')
'''


def run_all(*names):
    """Python's arguments for these `_COMMANDS`, up to the first one that fails."""
    return ['-c', _RUN_ALL, json.dumps([_COMMANDS[name] for name in names])]


@pytest.fixture
def folder(tmp_path):
    """A folder with `data`, CIFAR-10's files with ten records each."""
    record_files.write_noise(tmp_path / 'data', count=10)
    return tmp_path


def test_deterministic_operations(folder):
    """They require a seed for each random operation. The tutorial's training has none, and says so;
    where random numbers do not matter, there is one."""
    environment = spawn.environment(TF_DETERMINISTIC_OPS='1')
    done = spawn.run(run_all('train'), cwd=folder, env=environment)
    assert 'set a seed' in done.stderr and done.stderr.count('\n') == 2
    plain.save_checkpoint(folder / 'run')
    done = spawn.run(run_all('evaluate', 'predict', 'export', 'plot', 'confusion', 'classify'),
                     cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr


with_mounts = pytest.mark.skipif(
    not sys.platform.startswith('linux') or os.geteuid() != 0 or subprocess.run(
        ['unshare', '--mount', 'mount', '-o', 'remount,bind,ro', '/'], capture_output=True,
        check=False).returncode != 0,
    reason='mounts require root')


def _with_mounts(mounts, folder, *words, **variables):
    """Runs Python after the shell's commands `mounts`, which only it sees, in a folder: a
    `subprocess.CompletedProcess`."""
    return subprocess.run(
        ['unshare', '--mount', 'sh', '-c', f'{mounts} && cd "$0" && exec "$@"', folder,
         sys.executable, *words],
        env=spawn.environment(HOME='/proc/none', LC_ALL='C', **variables), text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=spawn.PATIENCE, check=False)


def _read_only(folder, *words):
    mounts = ('mount --bind "$0" "$0" && mount -t tmpfs -o ro tmpfs /dev/shm && '
              'mount -o remount,bind,ro /')
    return _with_mounts(mounts, folder, *words, TMPDIR=str(folder))


@with_mounts
def test_a_read_only_machine(folder):
    """As in `docker run --read-only`, with one folder that can be written."""
    done = _read_only(folder, *run_all('train', 'evaluate', 'predict', 'export', 'confusion'))
    assert done.returncode == 0, done.stderr
    script, *words = _COMMANDS['train']
    done = _read_only(folder, spawn.ROOT / script, *words, '--train_dir=/nowhere')
    spawn.expect_one_line(done, 'Read-only file system', '/nowhere')


@with_mounts
@pytest.mark.parametrize('quota, threads', [('50000 100000', '1'), ('max 100000', 'None')])
def test_a_cpu_quota(tmp_path, quota, threads):
    """As of `docker run --cpus=0.5`, where all cores stay visible."""
    (tmp_path / 'cpu.max').write_text(f'{quota}\n')
    (tmp_path / 'script.py').write_text(
        'import os\nfrom cifar10_lib import script\n'
        'script.run(lambda: print(os.environ.get("TF_NUM_INTRAOP_THREADS")))\n')
    done = _with_mounts('mount --bind "$0" /sys/fs/cgroup', tmp_path, 'script.py',
                        PYTHONPATH=str(spawn.ROOT))
    assert (done.stdout, done.stderr) == (f'{threads}\n', '')
