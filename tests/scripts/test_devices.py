import ctypes.util
import glob
import os
import re
import subprocess
import sys

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app
from absl.testing import flagsaver

from cifar10_lib.program import cores, devices


def test_session_config():
    with flagsaver.flagsaver(device='cpu'):
        config = devices.session_config()
        assert dict(config.device_count) == {'GPU': 0}
        assert config.graph_options.rewrite_options.meta_optimizer_iterations == 1
        assert devices.visible_gpus() == 0
        assert devices.line().startswith('Training on the CPU.')
    assert 'GPU' not in devices.session_config().device_count
    assert config.allow_soft_placement
    assert config.gpu_options.allow_growth


@pytest.mark.parametrize('towers, names, unseen, line', [
    (1, ['A100'], None, 'Training on GPU 0: A100 (CUDA 12.5, cuDNN 9).'),
    (2, ['A100', 'L4', 'L4', 'L4'], None,
     'Training 2 towers on GPU 0: A100, GPU 1: L4 (CUDA 12.5, cuDNN 9).'),
    (3, ['L4'], None, 'Training 3 towers on GPU 0: L4 (CUDA 12.5, cuDNN 9); found only 1 GPU, so '
     'towers share GPU 0.'),
    (4, ['L4', 'L4'], None, 'Training 4 towers on GPU 0: L4, GPU 1: L4 (CUDA 12.5, cuDNN 9); found '
     'only 2 GPUs, so towers share GPU 0.'),
    (1, [], None, 'Training on the CPU.'),
    (2, [], None, 'Training 2 towers on the CPU.'),
    (2, [], 'the driver is old: update it', 'Training 2 towers on the CPU; TensorFlow does not see '
     'the GPU: the driver is old: update it.')])
def test_the_line_about_devices(towers, names, unseen, line):
    build = tf.sysconfig.get_build_info()
    if (build.get('cuda_version', '')[:5], build.get('cudnn_version')) != ('12.5.', '9'):
        pytest.skip('expects the Linux package of TensorFlow 2.21')
    assert devices.describe(towers, names, unseen) == line


_HALF = cores.multiply_bfloat16()


@pytest.mark.parametrize('dtype, words', [
    (tf.float32, ' --use_bf16 is faster on this processor.' * _HALF),
    (tf.bfloat16, ' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
     '/proc/cpuinfo.' * (not _HALF)),
    (tf.float16, ' --use_fp16 is many times slower than float32 on a CPU.')])
def test_half_precision_on_a_cpu(dtype, words):
    with flagsaver.flagsaver(device='cpu'):
        assert devices.line(dtype=dtype) == 'Training on the CPU.' + words


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """`nvidia-smi` suffices to count as a machine with a GPU."""
    (tmp_path / 'nvidia-smi').touch(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)


def test_a_machine_without_a_gpu_gets_no_reason(tmp_path, monkeypatch):
    if glob.glob('/dev/nvidia*'):
        pytest.skip('this machine has a GPU')
    monkeypatch.setenv('PATH', str(tmp_path))
    assert devices.why_unseen() is None


@pytest.mark.parametrize('value', ['', '-1'])
def test_hidden_gpus(gpu, monkeypatch, value):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', value)
    assert devices.why_unseen() == f'CUDA_VISIBLE_DEVICES="{value}" hides all GPUs: unset it'


def test_a_device_file_that_others_own():
    program = ('import os; from cifar10_lib.program import devices; os.setuid(65534); '
               'print(devices.why_unseen())')
    mount = ('mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3 && '
             'touch /dev/nvidia-modeset /dev/nvidia0 && chmod 600 /dev/nvidia0')
    if subprocess.run(['unshare', '--mount', 'sh', '-c', mount], check=False).returncode:
        pytest.skip('cannot create namespaces')
    done = subprocess.run(
        ['unshare', '--mount', 'sh', '-c', f'{mount} && exec "$@"', 'sh', sys.executable, '-c',
         program], cwd=spawn.ROOT, env=spawn.environment(), capture_output=True, text=True)
    assert done.stdout == ('this user may not read and write /dev/nvidia0: join the group that '
                           'owns it\n'), done.stderr


def test_a_driver_library_that_is_missing(gpu):
    """As in a container that was started without its GPUs. Also in the first line and the error."""
    if ctypes.util.find_library('cuda'):
        pytest.skip('this machine has an NVIDIA driver')
    reason = ("libcuda.so.1, the driver's library, was not found: install the NVIDIA driver, or "
              'start the container with its GPUs (docker run --gpus all)')
    assert devices.why_unseen() == reason
    assert devices.line(2).startswith(
        f'Training 2 towers on the CPU; TensorFlow does not see the GPU: {reason}.')
    with flagsaver.flagsaver(device='gpu'), pytest.raises(app.UsageError, match=re.escape(reason)):
        devices.line()
    with flagsaver.flagsaver(device='cpu'):
        assert devices.line().startswith('Training on the CPU.')
