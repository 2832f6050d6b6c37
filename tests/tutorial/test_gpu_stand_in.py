"""The scripts on stand-ins for GPUs, which compute zeros: all but the GPU's arithmetic is real."""
import json
import re

import pytest
import stand_in_gpu
from PIL import Image

pytestmark = pytest.mark.slow


def _train(folder, *words, script='cifar10_train.py', **settings):
    done = stand_in_gpu.run(
        script, '--dataset=synthetic', '--batch_size=8', '--validate_every=0',
        f'--train_dir={folder}', f'--data_dir={folder}/data', *words, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_evaluate_export_predict(tmp_path):
    """Summaries and checkpoints included; a network whose logits are zeros chooses class 0. Export
    and prediction compute in float32."""
    run, exported, image = tmp_path / 'run', tmp_path / 'exported', tmp_path / 'image.png'
    out = _train(run, '--use_fp16', '--max_steps=3')
    assert out.startswith('Training on GPU 0: Stand-in GPU (CUDA ')
    assert f'Saved step 3 in {run}.' in out
    done = stand_in_gpu.run(
        'cifar10_eval.py', '--dataset=synthetic', '--run_once', f'--checkpoint_dir={run}',
        f'--data_dir={run}/data', f'--eval_dir={tmp_path}/eval', '--use_fp16', '--device=gpu')
    assert 'precision @ 1 = 0.100' in done.stdout, done.stderr
    source = ['--dataset=synthetic', f'--checkpoint_dir={run}']
    done = stand_in_gpu.run('cifar10_export.py', *source, f'--export_dir={exported}')
    assert done.returncode == 0, done.stderr
    Image.new('RGB', (32, 32)).save(image)
    for model in (source, [f'--saved_model={exported}']):
        done = stand_in_gpu.run('cifar10_predict.py', image, '--json', *model)
        top = json.loads(done.stdout)['predictions'][0]
        assert top['probability'] == 0, done.stderr  # The softmax computes nothing, either.


def test_two_towers(tmp_path):
    out = _train(tmp_path, '--num_gpus=2', '--max_steps=3', '--use_bf16', '--variables=gpu',
                 '--net=resnet23', script='cifar10_multi_gpu_train.py', gpus=2)
    assert out.startswith('Training 2 towers on GPU 0: Stand-in GPU, GPU 1: Stand-in GPU (CUDA ')


def test_two_workers(tmp_path):
    """NCCL averages their gradients, since each has a GPU of its own."""
    out = _train(tmp_path, '--num_workers=2', '--max_steps=3', '--step_timeout=300', gpus=2,
                 script='cifar10_distributed_train.py')
    assert 'Training on GPU 0: Stand-in GPU (CUDA ' in out
    assert 'Saved step 3' in out


def test_a_gpu_without_enough_memory_is_reported_in_one_line(tmp_path):
    done = stand_in_gpu.run(
        'cifar10_train.py', '--dataset=synthetic', '--batch_size=512', '--max_steps=2',
        '--device=gpu', f'--train_dir={tmp_path}', f'--data_dir={tmp_path}/data', mb=200)
    assert done.returncode == 1
    assert re.fullmatch('cifar10_train.py: .*: use a smaller --batch_size.*\n', done.stderr), (
        done.stderr)
