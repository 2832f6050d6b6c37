"""The GPU report on a machine without a GPU, and what `trace` counts."""
import argparse
import json
import subprocess
import sys

import pytest
import spawn
import tensorflow.compat.v1 as tf

from benchmarks import children
from benchmarks import gpu
from benchmarks import trace


def _report(tmp_path, *words):
    """Runs the report: the completed process, and the rows by part."""
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu', f'--json={tmp_path}/gpu.json',
         f'--data_dir={tmp_path}', *words], capture_output=True, text=True, check=False,
        cwd=spawn.ROOT, env={**spawn.environment(), 'PATH': f'{tmp_path}:/usr/bin:/bin'})
    found = {}
    for line in (tmp_path / 'gpu.json').read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row['part'], []).append(row['row'])
    return done, found


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path):
    done, found = _report(tmp_path, '--steps=11', '--batches', '4', '--batch_size=8',
                          '--seconds=0.1')
    assert done.returncode == 0, done.stdout
    assert 'No GPU: everything runs on the CPU.' in done.stdout
    assert list(found) == list(gpu._PARTS)
    left_out = {part for part, rows in found.items() for row in rows if 'left out' in row}
    assert left_out == {'agreement', 'precisions', 'settings', 'several', 'to_a_precision'}
    assert [row['threads'] for row in found['input']] == [1, 2]
    assert {row['flags'] for row in found['variables'] if row.get('net') == 'resnet23'} == {
        '--batch_size=4 --variables=cpu', '--batch_size=4 --variables=gpu'}
    assert 0 <= found['training'][1]['precision @ 1'] <= 1


def test_stops_if_only_nvidia_smi_sees_a_gpu(tmp_path):
    """TensorFlow's own reason is shown, and no other part runs. The program looks for the driver
    before it finds that this one is too old, or that there isn't one."""
    fake = tmp_path / 'nvidia-smi'
    fake.write_text('#!/bin/sh\n[ "$1" = dmon ] && exec sleep 600\n'
                    'echo "NVIDIA Test GPU, 470.256.02, 8192 MiB"\n')
    fake.chmod(0o755)
    done, found = _report(tmp_path)
    assert done.stderr == 'benchmarks.gpu: failed: machine\n'
    assert done.returncode == 1
    assert list(found) == ['machine']
    assert found['machine'][1] == {'GPU': 'NVIDIA Test GPU, 470.256.02, 8192 MiB'}
    reason = found['machine'][-1]['FAILED']
    assert reason.startswith('nvidia-smi sees a GPU, but TensorFlow does not:')
    assert 'cuda' in reason.lower()


def test_a_part_that_hangs_keeps_its_rows_and_the_others_run(tmp_path):
    options = argparse.Namespace(json=str(tmp_path / 'gpu.json'), batch_size=8, net='tutorial',
                                 dataset='synthetic', commit='abc')
    report = gpu.Report(options)
    program = 'import time; print(\'{"ms": 1.5}\', flush=True); time.sleep(600)'
    report.run({'hangs': lambda _: children.results(['-S', '-c', program], limit=1),
                'runs': lambda _: [{'ms': 2.5}]})
    rows = [json.loads(line) for line in (tmp_path / 'gpu.json').read_text().splitlines()]
    assert [row['row'] for row in rows if 'FAILED' not in row['row']] == [{'ms': 1.5}, {'ms': 2.5}]
    assert 'ended after 1 seconds' in rows[1]['row']['FAILED']
    assert report.failed == ['hangs']


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
