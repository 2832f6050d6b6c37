import json
import os
import select
import signal
import subprocess
import sys

import numpy as np
import placement
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from benchmarks import children, distributed, floor, tutorial
import cifar10
from cifar10_lib import recipes
from cifar10_lib.program import cores, devices


def test_the_yardstick_computes_the_same_function():
    """Logits, loss and the variables after a step, on the same weights."""
    random = np.random.RandomState(0)
    images = random.normal(size=[5, 24, 24, 3]).astype(np.float32)
    labels = random.randint(0, 10, 5).astype(np.int32)
    values = plain.weights(seed=1, scale=2.0)
    results = []
    for module in (cifar10, tutorial):
        with tf.Graph().as_default(), tf.Session() as session:
            logits = module.inference(tf.constant(images))
            loss = module.loss(logits, tf.constant(labels))
            train_op = module.train(loss, tf.train.get_or_create_global_step())
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            saved = {v.op.name: v for v in tf.global_variables() if not v.op.name.endswith('/avg')}
            for name, value in values.items():
                saved[name].load(value, session)
            before = session.run([logits, loss])
            session.run(train_op)
            results.append((before, saved.keys(), session.run({name: saved[name]
                                                               for name in values})))
    (ours, names, variables), (theirs, their_names, expected) = results
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-4)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-5)
    assert names == their_names
    for name in expected:
        np.testing.assert_allclose(variables[name], expected[name], atol=1e-4, err_msg=name)


def waits_for(name, kind):
    """Whether an operation runs after one of a type, by data or by control."""
    find = tf.get_default_graph().get_operation_by_name
    return any(kind in find(each).type for each in placement.inputs_of(find(name)))


def test_the_yardstick_is_as_published(tmp_path):
    images, labels = tutorial.distorted_inputs(str(tmp_path), 8)
    loss = tutorial.loss(tutorial.inference(images), labels)
    tutorial.train(loss, tf.train.get_or_create_global_step())
    types = {op.type for op in tf.get_default_graph().get_operations()}
    assert {'ReaderReadV2', 'LRN', 'VariableV2'} <= types
    assert waits_for('gradients/conv1/Conv2D_grad/Conv2DBackpropFilter', 'AssignSub')
    assert not waits_for('ExponentialMovingAverage/AssignMovingAvg', 'ApplyGradientDescent')
    shuffling, = [runner for runner in tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
                  if runner.queue.queue_ref.op.type == 'RandomShuffleQueueV2']
    assert len(shuffling.enqueue_ops) == 16


def test_the_floor_runs_all_products_one_after_another():
    result = floor.operation(tutorial.inference, [2, 24, 24, 3])
    assert [op.type for op in tf.get_default_graph().get_operations()].count('MatMul') == 9
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert np.isfinite(session.run(result))


@pytest.mark.parametrize('net', ['tutorial', 'resnet23'])
def test_the_floor_has_the_shapes_of_the_net(net):
    """Kernels and input sizes of every convolution, forward and backward, as the net has them."""
    def convolutions(graph):
        return sorted(
            (op.type, op.outputs[0].shape.as_list(), [each.shape.as_list() for each in op.inputs
                                                      if each.shape.rank == 4])
            for op in graph.get_operations() if op.type.startswith('Conv2D')
            and op.outputs[0].shape[-1] != 3)  # The images' gradient, which is never run.

    shape = [2, 24, 24, 3] if net == 'tutorial' else [2, 32, 32, 3]

    def inference(images):
        return recipes.chosen(training=True).inference(images)

    with tf.Graph().as_default() as expected:
        tf.gradients(inference(tf.zeros(shape)), tf.trainable_variables())
    with tf.Graph().as_default() as got:
        floor.operation(tutorial.inference if net == 'tutorial' else inference, shape)
    assert convolutions(got) == convolutions(expected)


def test_the_input_reads_and_distorts_512_records_at_a_time(half_bright):
    """The tutorial's input is slower because it takes one at a time."""
    with flagsaver.flagsaver(batch_size=128):
        cifar10.distorted_inputs()
    operations = tf.get_default_graph().get_operations()
    reader, = [op for op in operations if op.type == 'ReaderReadUpToV2']
    assert tf.get_static_value(reader.inputs[2]) == 512
    distorted, = [op for op in operations if op.type == 'QueueDequeueManyV2']
    assert tf.get_static_value(distorted.inputs[1]) == 512


def test_the_table_of_two_workers(capsys):
    """Medians of the ratios in each turn; the second worker of the third turn was slow."""
    runs = {'1 worker': [(100, 200), (100, 200), (100, 200)],
            '2 runs that share nothing': [(200, 200), (160, 250), (200, 200)],
            '2 workers': [(180, 210), (160, 260), (100, 240)]}
    distributed._print_table({row: [{'rate': rate, 'busy': busy} for rate, busy in figures]
                              for row, figures in runs.items()})
    *_, last = capsys.readouterr().out.splitlines()
    assert last == ('| 2 workers | 160 | 1.60 (1.30 to 1.70) | 0.90 (0.70 to 0.95) | 3 | 240.0 | '
                    '10.0 (10.0 to 25.0) |')


def test_figures_are_quartiles():
    """Of 1, 2, 3, 4 and 10: 2, 3 and 4, whatever the last value."""
    assert children.figure([10, 2, 1, 4, 3]) == '3.00 (2.00 to 4.00)'
    assert children.figure([1234.5]) == '1234 (1234 to 1234)'


def test_sides_run_in_turn(capsys):
    order = []
    found = children.in_turn(2, **{name: lambda name=name: order.append(name) or len(order)
                                   for name in 'abc'})
    assert order == list('abcabc')
    assert found == {'a': [1, 4], 'b': [2, 5], 'c': [3, 6]}
    assert '2 of 2: c' in capsys.readouterr().err


def test_speed_between_two_steps():
    """Eight steps in four seconds, with 0.8 seconds of processor time."""
    first, last = children.Mark(2, 10.0, 1.0, 100.0), children.Mark(10, 14.0, 1.8, 100.0)
    assert children.speed(first, last, 64) == {'rate': 128, 'busy': pytest.approx(100)}
    assert children.speed(last, last, 64) == {}


_HANGS = """
import subprocess, sys
print('{"row": 1}')
below = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])
print(below.pid)
below.wait()
"""


def test_a_process_that_hangs_is_ended_with_its_children_and_its_rows_are_kept():
    """The second process keeps the pipe open: without its end, the first would wait for it."""
    rows, running = [], []
    with pytest.raises(children.Failed, match='ended after 2 seconds'):
        for line, process in children.lines(['-S', '-c', _HANGS], limit=2):
            rows.append(line)
            running.append(os.pidfd_open(int(line) if len(rows) == 2 else process.pid))
    assert rows[0] == '{"row": 1}' and len(rows) == 2
    for process in running:
        assert select.select([process], [], [], spawn.PATIENCE)[0]  # It has ended.
        os.close(process)


def test_a_process_that_fails_shows_its_last_lines():
    with pytest.raises(children.Failed, match='exit code 3\nwhy$'):
        list(children.lines(['-S', '-c', 'import sys; print("why"); sys.exit(3)']))


def test_nothing_keeps_running_when_a_benchmark_is_killed():
    program = (f'import sys; sys.path.insert(0, {str(spawn.ROOT)!r})\n'
               'from benchmarks import children\n'
               f'for line, _ in children.lines(["-S", "-c", {_HANGS!r}]): print(line, flush=True)')
    with subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE,
                          text=True) as benchmark:
        assert json.loads(benchmark.stdout.readline()) == {'row': 1}
        below = os.pidfd_open(int(benchmark.stdout.readline()))
        assert not select.select([below], [], [], 0)[0]
        benchmark.send_signal(signal.SIGKILL)
    assert select.select([below], [], [], spawn.PATIENCE)[0]  # It has ended.
    os.close(below)


@pytest.fixture
def command(tmp_path):
    """A function that runs a benchmark on small files: its output, and its rows."""
    record_files.write_noise(tmp_path)

    def run(module, *options):
        path = tmp_path / 'rows.json'
        done = subprocess.run(
            [sys.executable, '-m', module, f'--data_dir={tmp_path}', '--batch_size=16',
             f'--json={path}', '--commit=abc', *options],
            capture_output=True, text=True, check=False, cwd=spawn.ROOT, env=spawn.environment())
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout, list(map(json.loads, path.read_text().splitlines()))
    return run


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='requires two cores')
def test_two_workers(command):
    out, rows = command('benchmarks.distributed', '--starts=1', '--turns=1', '--seconds=0.5',
                        '--cases=default')
    assert [row['what'] for row in rows] == ['1 worker', '2 runs that share nothing', '2 workers']
    for row in rows:
        assert row['what'] in out
        assert row['runs'][0]['rate'] > 0 and row['runs'][0]['busy'] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_table(command):
    """The command of the documentation, on small files and batches, with few steps."""
    out, rows = command('benchmarks', '--turns=1', '--steps=10', '--seconds=0.1')
    assert 'TensorFlow ' in out.splitlines()[0]
    for row in rows:
        assert row['what'] in out
        assert row['ours'] and row['other'], row
        assert (row['batch_size'], row['dataset'], row['net'], row['commit']) == (
            16, 'cifar10', 'tutorial', 'abc')
        assert row['machine'] == children.heading()
    found = {row['what'] for row in rows}
    assert {'input alone', 'step on a fixed batch', 'step, beside the floor',
            'training, end to end', 'start to step 0, beside two workers'} < found
    if not devices.visible_gpus():
        assert ('step in bfloat16, beside float32' in found) == cores.multiply_bfloat16()
