"""The scripts on stand-ins for GPUs, which compute zeros: all but the GPU's arithmetic is real."""
import json
import re

import pytest
import spawn
import stand_in_gpu
from PIL import Image

pytestmark = pytest.mark.slow

_COPIES = {  # A step with 128 images: the table in docs/gpu.md, and the loss for the console.
    ('tutorial', 'cpu'): {'to the GPU': (12, 5_158_440), 'from the GPU': (14 + 1, 4_273_212)},
    ('tutorial', 'gpu'): {'to the GPU': (4, 885_260), 'from the GPU': (4 + 1, 20)},
    ('resnet23', 'cpu'): {'to the GPU': (70, 1_963_304), 'from the GPU': (114, 397_616)},
}
# What plain `tensorflow` lacks on a machine with a driver.
_CUDA = ['libcudart.so.12', 'libcublas.so.12', 'libcublasLt.so.12', 'libcufft.so.11',
         'libcusolver.so.11', 'libcusparse.so.12', 'libcudnn.so.9']


def _train(folder, *words, script='cifar10_train.py', **settings):
    done = stand_in_gpu.run(
        script, '--dataset=synthetic', '--batch_size=8', '--validate_every=0',
        f'--train_dir={folder}', *words, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize('net, words', [('tutorial', []), ('resnet23', ['--use_bf16']),
                                        ('tutorial', ['--use_fp16'])])
def test_train_evaluate_export_predict(tmp_path, net, words):
    """Summaries and checkpoints included; a network whose logits are zeros chooses class 0."""
    run, exported, image = tmp_path / 'run', tmp_path / 'exported', tmp_path / 'image.png'
    words = [f'--net={net}', *words]
    out = _train(run, *words, '--max_steps=3')
    assert out.startswith('Training on GPU 0: Stand-in GPU (CUDA ')
    assert f'Saved step 3 in {run}.' in out
    done = stand_in_gpu.run(
        'cifar10_eval.py', '--dataset=synthetic', '--run_once', f'--checkpoint_dir={run}',
        f'--eval_dir={tmp_path}/eval', *words, '--device=gpu')
    assert 'precision @ 1 = 0.100' in done.stdout, done.stderr
    source = ['--dataset=synthetic', f'--net={net}', f'--checkpoint_dir={run}']
    done = stand_in_gpu.run('cifar10_export.py', *source, f'--export_dir={exported}')
    assert done.returncode == 0, done.stderr
    Image.new('RGB', (32, 32)).save(image)
    for model in (source, [f'--saved_model={exported}']):
        done = stand_in_gpu.run('cifar10_predict.py', image, '--json', *model)
        top = json.loads(done.stdout)['predictions'][0]
        assert top['probability'] == 0, done.stderr  # The softmax computes nothing, either.


@pytest.mark.parametrize('net, variables', _COPIES)
def test_copies_of_a_step(tmp_path, net, variables):
    """Exactly what docs/gpu.md says: none is added by TensorFlow's optimiser or a hook."""
    found = {}
    for steps in (2, 4):  # Only step 0 writes summaries.
        _train(tmp_path / str(steps), f'--net={net}', f'--variables={variables}',
               '--batch_size=128', '--num_gpus=1', f'--max_steps={steps}',
               script='cifar10_multi_gpu_train.py', counts=tmp_path / 'counts.json')
        found[steps] = json.loads((tmp_path / 'counts.json').read_text())
    assert found[4]['kernels'] > found[2]['kernels'] > 0
    copies = {path: tuple((found[4][path][what] - found[2][path][what]) / 2
                          for what in ('copies', 'bytes'))
              for path in ('to the GPU', 'from the GPU')}
    assert copies == _COPIES[net, variables]


@pytest.mark.parametrize('words', [['--use_bf16'], ['--variables=gpu'],
                                   ['--net=resnet23']])
def test_two_towers(tmp_path, words):
    out = _train(tmp_path, '--num_gpus=2', '--max_steps=3', *words,
                 script='cifar10_multi_gpu_train.py', gpus=2)
    assert out.startswith('Training 2 towers on GPU 0: Stand-in GPU, GPU 1: Stand-in GPU (CUDA ')


def test_two_workers(tmp_path):
    """NCCL averages their gradients, since each has a GPU of its own."""
    out = _train(tmp_path, '--num_workers=2', '--max_steps=3', gpus=2,
                 script='cifar10_distributed_train.py')
    assert 'Training on GPU 0: Stand-in GPU (CUDA ' in out
    assert 'Saved step 3' in out


@pytest.mark.parametrize('settings, line', [
    ({'fail': 'cuDevicePrimaryCtxRetain=2'},
     'CUDA_ERROR_OUT_OF_MEMORY: out of memory: use a smaller --batch_size, or end other programs'),
    ({'fail': 'cuDevicePrimaryCtxRetain=46'},
     r'CUDA_ERROR_DEVICE_UNAVAILABLE: .*: end the other programs on the GPU'),
    ({'mb': 200},
     '(OOM when allocating tensor .*|failed to allocate memory): use a smaller --batch_size'),
    ({'cudnn': 90100}, 'No DNN in stream executor: cuDNN or cuBLAS did not start'),
    ({'fail': 'cublasCreate_v2=1'}, 'No BLAS for stream: cuDNN or cuBLAS did not start'),
    ({'fail': 'cuMemcpyHtoDAsync_v2=700'},
     'CUDA error: : CUDA_ERROR_ILLEGAL_ADDRESS: .*: see nvidia-smi')])
def test_failures_are_one_line(tmp_path, settings, line):
    done = stand_in_gpu.run('cifar10_train.py', '--dataset=synthetic', '--batch_size=512',
                            f'--train_dir={tmp_path}', '--max_steps=2', **settings)
    assert done.returncode == 1
    assert re.fullmatch(f'cifar10_train.py: {line}.*\n', done.stderr), done.stderr


@pytest.mark.parametrize('without, settings, reason', [
    ([], {'fail': 'cuInit=803'},
     'the NVIDIA driver answers "system has unsupported display driver / cuda driver combination" '
     '(CUDA error 803): restart the machine, or reinstall the driver'),
    ([], {'driver': 11040, 'fail': 'cuInit=999'},
     'the NVIDIA driver supports CUDA 11.4; expected 12.0 or later: update it'),
    (['libnvidia-ml.so.1'], {}, 'libnvidia-ml.so.1 was not found: install the NVIDIA driver '
     'completely, or start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility'),
    (_CUDA, {}, "TensorFlow probably does not find CUDA's libraries: run pip install -r "
     'requirements-gpu.txt; its messages, shown with TF_CPP_MIN_LOG_LEVEL=0, name those that are '
     'missing')])
def test_why_a_gpu_is_not_seen(without, settings, reason):
    program = ('from cifar10_lib.program import devices; import tensorflow as tf; '
               'print(tf.config.list_physical_devices("GPU"), devices.why_unseen())')
    done = spawn.run(['-c', program], capture_output=True, cwd=spawn.ROOT,
                     env=stand_in_gpu.environment(without=without, **settings))
    assert done.stdout == f'[] {reason}\n', done.stderr
