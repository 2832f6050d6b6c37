"""The GPU report without a GPU and on stand-ins for one, and what `trace` counts."""
import argparse
import itertools
import json
import subprocess
import sys

import pytest
import record_files
import spawn
import stand_in_gpu
import tensorflow.compat.v1 as tf

from benchmarks import children, gpu, trace


def _rows(path):
    """The rows of a report's file: {part: list}."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {part: [line['row'] for line in group]
            for part, group in itertools.groupby(lines, lambda line: line['part'])}


@pytest.fixture
def report(tmp_path):
    """A function that runs the report with small steps: the completed process, and its rows."""
    def run(*words, **environment):
        done = subprocess.run(
            [sys.executable, '-m', 'benchmarks.gpu', f'--json={tmp_path}/gpu.json',
             f'--data_dir={tmp_path}', '--steps=4', '--batches', '8', '--batch_size=8',
             '--seconds=0.1', *words], capture_output=True, text=True, check=False,
            cwd=spawn.ROOT, env={**spawn.environment(), **environment})
        return done, _rows(tmp_path / 'gpu.json')
    return run


@pytest.mark.slow
def test_every_part_without_a_gpu(report):
    done, found = report(PATH='/usr/bin:/bin')
    assert done.returncode == 0, done.stdout
    assert 'No GPU: everything runs on the CPU.' in done.stdout
    assert list(found) == list(gpu._PARTS)
    left_out = {part for part, rows in found.items() for row in rows if 'left out' in row}
    assert left_out == {'agreement', 'precisions', 'settings', 'several', 'to_a_precision',
                        'placement'}
    assert [row['threads'] for row in found['input']] == [1, 2]
    assert {row['flags'] for row in found['variables'] if row.get('net') == 'resnet23'} == {
        '--batch_size=8 --variables=cpu', '--batch_size=8 --variables=gpu'}
    assert 0 <= found['training'][1]['precision @ 1'] <= 1


def test_stops_if_only_nvidia_smi_sees_a_gpu(tmp_path, report):
    """TensorFlow's own reason is shown, and no other part runs. The program looks for the driver
    before it finds that this one is too old, or that there isn't one."""
    fake = tmp_path / 'nvidia-smi'
    fake.write_text('#!/bin/sh\n[ "$1" = dmon ] && exec sleep 600\n'
                    'echo "NVIDIA Test GPU, 470.256.02, 8192 MiB"\n')
    fake.chmod(0o755)
    done, found = report(PATH=f'{tmp_path}:/usr/bin:/bin')
    assert done.stderr == 'benchmarks.gpu: failed: machine\n'
    assert done.returncode == 1
    assert list(found) == ['machine']
    assert found['machine'][1] == {'GPU': 'NVIDIA Test GPU, 470.256.02, 8192 MiB'}
    reason = found['machine'][-1]['FAILED']
    assert reason.startswith('nvidia-smi sees a GPU, but TensorFlow does not:')
    assert 'cuda' in reason.lower()


@pytest.mark.slow
def test_stops_when_the_numbers_differ(report):
    """A stand-in computes zeros, so nothing after the comparison is measured."""
    done, found = report(**stand_in_gpu.environment())
    assert done.stderr == 'benchmarks.gpu: failed: agreement\n'
    assert list(found) == ['machine', 'agreement']
    assert any(row.get('GPUs') == 1 for row in found['machine'])
    libraries, = [row['libraries'] for row in found['machine'] if 'libraries' in row]
    assert any('libcuda' in path for path in libraries)
    assert 'differences above' in found['agreement'][-1]['FAILED']


@pytest.mark.slow
def test_variants_and_placement(report):
    """ResNet-23 stays in one layout."""
    done, found = report('--parts', 'settings', 'placement', **stand_in_gpu.environment())
    assert done.returncode == 0, done.stdout
    rows = {(row['net'], row['precision'], row['flags'].partition('gpu ')[2].strip()): row
            for row in found['settings']}
    assert rows['tutorial', 'TF32', '']['transposes'] == 11
    assert rows['tutorial', 'TF32', '--layout_pass=false']['transposes'] == 0
    assert rows['resnet23', 'TF32', '']['transposes'] == 2
    assert {('resnet23', 'bfloat16', '--fetch_loss=1 --use_bf16'),
            ('tutorial', 'TF32', '--tf_lrn --layout_pass=false')} < set(rows)
    on_cpu, on_gpu, *_ = found['placement']
    assert on_gpu['operations']['GPU:0'] > 100
    assert on_gpu['tensors between devices'] < 10 < on_cpu['tensors between devices']


def _part_of_a_report(tmp_path, part, **options):
    """The rows of a function that yields rows, and what failed."""
    options = argparse.Namespace(
        json=str(tmp_path / 'gpu.json'), batch_size=8, net='tutorial', dataset='cifar10',
        data_dir=str(tmp_path), commit='abc', **options)
    result = gpu.Report(options)
    result.run({'first': part, 'second': lambda _: [{'ms': 2.5}]})
    return _rows(tmp_path / 'gpu.json'), result.failed


def test_a_part_that_hangs_keeps_its_rows_and_the_others_run(tmp_path):
    program = 'import time; print(\'{"ms": 1.5}\'); print("why", flush=True); time.sleep(600)'
    rows, failed = _part_of_a_report(
        tmp_path, lambda _: children.results(['-S', '-c', program], limit=2))
    assert rows['first'][0] == {'ms': 1.5}
    assert rows['first'][1]['FAILED'].endswith('ended after 2 seconds\n{"ms": 1.5}\nwhy')
    assert rows['second'] == [{'ms': 2.5}]
    assert failed == ['first']


@pytest.mark.slow
def test_steps_to_a_precision(tmp_path):
    """Two epochs of 100 images are 25 steps of 8. The first validation reaches a precision of 0,
    but counts only from half of the steps."""
    record_files.write_noise(tmp_path, count=20)
    rows, failed = _part_of_a_report(tmp_path, gpu.to_a_precision, steps=1, precision=0.0)
    assert failed == []
    assert [row['step'] for row in rows['first']] == [25, 50]
    assert all(0 <= row['precision @ 1'] <= 1 for row in rows['first'])
    assert 0 < rows['first'][0]['seconds'] < rows['first'][1]['seconds']


def test_a_traced_step():
    """Two kernels that overlap, from 0 to 30 and from 20 to 40, and a copy from 50 to 60, in a step
    that the host begins at 0 and ends at 100: the GPU is busy for half of it."""
    metadata = tf.RunMetadata()
    graph = metadata.partition_graphs.add()
    for device, op in (('GPU:0', 'Conv2D'), ('GPU:0', 'Transpose'), ('CPU:0', '_Send')):
        node = graph.node.add(op=op, device=f'/job:localhost/replica:0/task:0/device:{device}')
        if op == '_Send':
            node.attr['send_device'].s, node.attr['recv_device'].s = b'CPU:0', b'GPU:0'
    for name, events in (('/device:GPU:0/stream:all', [
            ('conv', 0, 30), ('relu', 20, 20), ('MEMCPYHtoD', 50, 10)]),
                         ('CPU:0', [('s', 0, 100)])):
        stats = metadata.step_stats.dev_stats.add(device=name)
        for label, start, length in events:
            stats.node_stats.add(timeline_label=label, all_start_micros=start,
                                 all_end_rel_micros=length).memory.add(
                allocator_name='GPU_0_bfc', allocator_bytes_in_use=1000000 * (1 + start))
    assert trace.summary(metadata) == {
        'operations': {'GPU:0': 2, 'CPU:0': 1}, 'tensors between devices': 1, 'transposes': 1,
        'kernels': 2, 'copies': 1, 'busy, %': 50.0, 'peak MB': 51}
