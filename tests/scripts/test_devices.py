import os

import pytest
import tensorflow.compat.v1 as tf
from absl import app
from absl.testing import flagsaver

from cifar10_lib.program import cores, devices


_HALF = cores.multiply_bfloat16()


@pytest.mark.parametrize('dtype, words', [
    (tf.float32, ' --use_bf16 is faster on this processor.' * _HALF),
    (tf.bfloat16, ' --use_bf16 is slower than float32 on a CPU without amx_bf16 or avx512_bf16 in '
     '/proc/cpuinfo.' * (not _HALF)),
    (tf.float16, ' --use_fp16 is many times slower than float32 on a CPU.')])
def test_half_precision_on_a_cpu(dtype, words):
    with flagsaver.flagsaver(device='cpu'):
        assert devices.line(dtype=dtype) == 'Training on the CPU.' + words


def test_a_gpu_that_tensorflow_does_not_see(tmp_path, monkeypatch):
    """`nvidia-smi` suffices to count as a machine with a GPU."""
    if tf.config.list_physical_devices('GPU'):
        pytest.skip('this machine has a GPU')
    (tmp_path / 'nvidia-smi').touch(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    assert devices.line(2).startswith('Training 2 towers on the CPU. TensorFlow does not see the '
                                      'GPU: TF_CPP_MIN_LOG_LEVEL=0 shows why.')
    with flagsaver.flagsaver(device='cpu'):
        assert 'GPU' not in devices.line()
    with flagsaver.flagsaver(device='gpu'), pytest.raises(
            app.UsageError, match='TensorFlow sees no GPU: set TF_CPP_MIN_LOG_LEVEL=0 to see why'):
        devices.line()
