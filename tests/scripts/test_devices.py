import json
import os
import re
import subprocess
import sys

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.program import devices

_HALF = devices.multiplies_bfloat16()

# Reads cases, a list of {name of a file in the folder: content}, and prints a value for each.
_WITH_FILES = '''
import json, os, pathlib, sys
from cifar10_lib.program import devices
found = []
for case in json.loads(sys.argv[2]):
    for name, text in case.items():
        pathlib.Path(sys.argv[1], name).write_text(text)
    found.append(eval(sys.argv[3]))
    for name in case:
        pathlib.Path(sys.argv[1], name).write_text('')
print(json.dumps(found))'''


def _with_files(source, target, cases, expression):
    """The values of an expression with other files, mounted over `target`, as in a container."""
    unshare = ['unshare', '--mount', 'sh', '-ec']
    mount = f'mount --bind {source} {target}'
    if subprocess.run([*unshare, mount], capture_output=True).returncode:
        pytest.skip('cannot create namespaces')
    return json.loads(subprocess.run(
        [*unshare, f'{mount}; exec "$@"', 'sh', sys.executable, '-c', _WITH_FILES, source,
         json.dumps(cases), expression], cwd=spawn.ROOT, text=True, stdout=subprocess.PIPE,
        check=True).stdout)


@pytest.mark.skipif(devices.visible_cores() < 2, reason='with one core, quotas change nothing')
def test_the_quota_of_a_container(tmp_path):
    """Both versions of control groups, for a process that sees two cores or more."""
    (tmp_path / 'cpu').mkdir()
    quota, period = 'cpu/cpu.cfs_quota_us', 'cpu/cpu.cfs_period_us'
    found = _with_files(tmp_path, '/sys/fs/cgroup', [
        {'cpu.max': '100000 100000'}, {'cpu.max': '50000 100000'}, {'cpu.max': '99999900 1000'},
        {'cpu.max': 'max 100000'}, {}, {quota: '100000\n', period: '100000'},
        {quota: '-1\n', period: '100000'}],
        'devices.cores_by_quota(), devices.session_config().intra_op_parallelism_threads')
    assert found == [[1, 1], [1, 1], [None, 0], [None, 0], [None, 0], [1, 1], [None, 0]]


def test_instructions_for_bfloat16(tmp_path):
    (tmp_path / 'cpuinfo').touch()
    found = _with_files(tmp_path / 'cpuinfo', '/proc/cpuinfo', [{'': text} for text in (
        'flags\t\t: fpu avx512f avx512_bf16 amx_tile\nbugs: spectre', 'flags\t\t: fpu amx_bf16',
        'Features\t: fp asimd bf16', 'flags\t\t: fpu avx512f avx512_bf161', '')],
        'devices.multiplies_bfloat16()')
    assert found == [True, True, True, False, False]


@pytest.mark.parametrize('dtype, words', [
    (tf.float32, ' --use_bf16 is faster on this processor.' * (
        _HALF and os.uname().machine == 'x86_64')),
    (tf.bfloat16, ' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
     '/proc/cpuinfo.' * (not _HALF)),
    (tf.float16, ' --use_fp16 is many times slower than float32 on a CPU.')])
def test_half_precision_on_a_cpu(dtype, words):
    if devices.visible_gpus():
        pytest.skip('this machine has a GPU')
    assert devices.line(dtype=dtype, device='cpu') == 'Training on the CPU.' + words


def test_a_gpu_that_tensorflow_does_not_see(tmp_path, monkeypatch):
    """`nvidia-smi` suffices to count as a machine with a GPU."""
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    (tmp_path / 'nvidia-smi').touch(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    assert devices.line(2).startswith('Training 2 towers on the CPU. TensorFlow does not see the '
                                      'GPU: TF_CPP_MIN_LOG_LEVEL=0 shows why.')
    assert 'GPU' not in devices.line(device='cpu')


def test_the_device_of_every_operation(half_bright):
    done = spawn.run_script(
        'cifar10_train.py', f'--data_dir={flags.FLAGS.data_dir}', '--max_steps=1', '--batch_size=8',
        f'--train_dir={flags.FLAGS.train_dir}', '--device=cpu', '--log_device_placement')
    assert re.search(r'conv1/Conv2D: \(Conv2D\): /job:localhost/.*CPU:0\n', done.stdout), done
