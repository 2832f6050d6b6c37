import os
import re
import tempfile

import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import app
from absl.testing import flagsaver

from cifar10_lib.program import devices


def test_session_config():
    with flagsaver.flagsaver(device='cpu'):
        config = devices.session_config()
        assert dict(config.device_count) == {'GPU': 0}
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


@pytest.mark.parametrize('dtype, has_instructions, words', [
    (tf.float32, False, ''), (tf.bfloat16, True, ''),
    (tf.float32, True, ' --use_bf16 is faster on this processor.'),
    (tf.bfloat16, False, ' --use_bf16 is slower than float32 on a CPU without amx_bf16 or '
     'avx512_bf16 in /proc/cpuinfo.'),
    (tf.float16, True, ' --use_fp16 is many times slower than float32 on a CPU.')])
def test_half_precision_on_a_cpu(monkeypatch, dtype, has_instructions, words):
    monkeypatch.setattr('cifar10_lib.program.cores.multiply_bfloat16', lambda: has_instructions)
    with flagsaver.flagsaver(device='cpu'):
        assert devices.line(dtype=dtype) == 'Training on the CPU.' + words


def test_a_tower_without_a_gpu_of_its_own_shares_the_first_device():
    """What the line says of GPUs, with two logical CPUs: soft placement chooses the first."""
    with tf.device('/cpu:3'):
        value = tf.random_normal([])
    config = devices.session_config()
    config.device_count['CPU'] = 2
    metadata = tf.RunMetadata()
    with tf.Session(config=config) as session:
        session.run(value, options=tf.RunOptions(output_partition_graphs=True),
                    run_metadata=metadata)
    devices_ = {node.device for graph in metadata.partition_graphs for node in graph.node}
    assert devices_ == {'/job:localhost/replica:0/task:0/device:CPU:0'}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A folder of device files, with a file for a GPU; `nvidia-smi` reports a driver."""
    _nvidia_smi(tmp_path, monkeypatch, 'echo 570.86.10')
    (tmp_path / 'dev').mkdir()
    (tmp_path / 'dev' / 'nvidia0').touch()
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    return tmp_path / 'dev'


def _nvidia_smi(tmp_path, monkeypatch, command):
    folder = tmp_path / 'bin'
    folder.mkdir(exist_ok=True)
    (folder / 'nvidia-smi').write_text(f'#!/bin/sh\n{command}\n')
    (folder / 'nvidia-smi').chmod(0o755)
    monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')


def test_a_machine_without_a_gpu_gets_no_reason(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    (tmp_path / 'nvidia-modeset').touch()  # A device file, but not a GPU's.
    assert devices.why_unseen(str(tmp_path)) is None


@pytest.mark.parametrize('value', ['', '-1'])
def test_hidden_gpus(gpu, monkeypatch, value):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', value)
    assert devices.why_unseen(str(gpu)) == (
        f'CUDA_VISIBLE_DEVICES="{value}" hides all GPUs: unset it')


@pytest.mark.skipif(os.getuid() != 0, reason='switches to another user')
def test_a_device_file_that_others_own():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(f'{folder}/nvidia0', 'w') as stream:
            os.fchmod(stream.fileno(), 0o600)
        done = spawn.run(['-c', 'import os, sys; from cifar10_lib.program import devices; '
                          'os.setuid(65534); '
                          'print(devices.why_unseen(sys.argv[1]))', folder], capture_output=True,
                         cwd=spawn.ROOT)
    assert done.stdout == (f'this user may not read and write {folder}/nvidia0: join the group '
                           'that owns it\n'), done.stderr


@pytest.mark.parametrize('command, reason', [
    ('echo 470.256.02',
     'the NVIDIA driver is 470.256.02; expected 525.60.13 or later: update it'),
    ('echo 525.60.11',
     'the NVIDIA driver is 525.60.11; expected 525.60.13 or later: update it'),
    ("echo 'NVIDIA-SMI has failed.'; exit 9",
     'nvidia-smi fails ("NVIDIA-SMI has failed."): install the NVIDIA driver, or restart the '
     'machine')])
def test_driver_problems(gpu, tmp_path, monkeypatch, command, reason):
    _nvidia_smi(tmp_path, monkeypatch, command)
    assert devices.why_unseen(str(gpu)) == reason


def test_a_driver_library_that_is_missing(gpu):
    """As in a container that was started without its GPUs."""
    if devices._load('libcuda.so.1'):
        pytest.skip('this machine has an NVIDIA driver')
    assert devices.why_unseen(str(gpu)).startswith("libcuda.so.1, the driver's library, was not")


def test_the_reason_is_in_the_first_line_and_in_the_error(tmp_path, monkeypatch):
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    _nvidia_smi(tmp_path, monkeypatch, 'echo 470.256.02')
    reason = 'the NVIDIA driver is 470.256.02; expected 525.60.13 or later: update it'
    assert devices.line(2) == (
        f'Training 2 towers on the CPU; TensorFlow does not see the GPU: {reason}.')
    with flagsaver.flagsaver(device='gpu'), pytest.raises(app.UsageError, match=re.escape(reason)):
        devices.line()
    with flagsaver.flagsaver(device='cpu'):
        assert devices.line().startswith('Training on the CPU.')
