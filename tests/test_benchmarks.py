import argparse
import collections
import functools
import json
import os
import re
import subprocess
import sys

import forks
import numpy as np
import plain
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver
from PIL import Image

from benchmarks import __main__ as benchmarks_main
from benchmarks import children
from benchmarks import distributed
from benchmarks import floor
from benchmarks import growth
from benchmarks import tutorial
from benchmarks import yardstick
import cifar10
from cifar10_lib.datasets import synthetic
from cifar10_lib.datasets import table
from cifar10_lib import recipes


def test_the_yardstick_computes_the_same_function():
    """Logits, loss and the variables and averages after a step, on the same weights."""
    random = np.random.RandomState(0)
    images = random.normal(size=[5, 24, 24, 3]).astype(np.float32)
    labels = random.randint(0, 10, 5).astype(np.int32)
    values = plain.weights(seed=1, scale=2.0)
    results = []
    # As published, the averages race with the update.
    ordered = functools.partial(tutorial.train, parts=tutorial.Parts(averages_beside=False))
    for module, train in ((cifar10, cifar10.train), (tutorial, ordered)):
        with tf.Graph().as_default(), tf.Session() as session:
            logits = module.inference(tf.constant(images))
            loss = module.loss(logits, tf.constant(labels))
            train_op = train(loss, tf.train.get_or_create_global_step())
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            saved = {v.op.name: v for v in tf.global_variables() if not v.op.name.endswith('/avg')}
            for name, value in values.items():
                saved[name].load(value, session)
                saved[name + '/ExponentialMovingAverage'].load(value, session)
            before = session.run([logits, loss])
            session.run(train_op)
            results.append((before, session.run(saved)))
    (ours, variables), (theirs, expected) = results
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-4)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-5)
    assert variables.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(variables[name], expected[name], atol=1e-4, err_msg=name)


def waits_for(name, kind):
    """Whether an operation runs after one of a type, by data or by control."""
    operation = tf.get_default_graph().get_operation_by_name(name)
    pending, seen = [operation], set()
    while pending:
        each = pending.pop()
        if each not in seen:
            seen.add(each)
            pending += [tensor.op for tensor in each.inputs] + each.control_inputs
    return any(kind in each.type for each in seen - {operation})


@pytest.mark.parametrize('published', [True, False])
def test_the_yardstick_is_as_published_unless_a_part_is_replaced(half_bright, published):
    parts = tutorial.Parts(**dict.fromkeys(yardstick.PARTS, published))
    images, labels = tutorial.distorted_inputs(cifar10.source().folder, 8, parts)
    tutorial.training(images, labels, parts)
    types = {op.type for op in tf.get_default_graph().get_operations()}
    suffix = '' if published else '/AssignSubVariableOp'
    layer = 'Conv2D' if published else 'conv1/Conv2D'
    assert {
        'input': 'ReaderReadV2' in types,
        'reader': 'StaticRegexReplace' not in types,  # Part of the check of the label.
        'layers': 'LRN' in types,
        'references': 'VariableV2' in types,
        'losses_first': waits_for(f'gradients/{layer}_grad/Conv2DBackpropFilter', 'AssignSub'),
        'averages_beside': not waits_for(
            f'ExponentialMovingAverage/AssignMovingAvg{suffix}', 'ApplyGradientDescent'),
    } == dict.fromkeys(yardstick.PARTS, published)
    shuffling, = [runner for runner in tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
                  if runner.queue.queue_ref.op.type == 'RandomShuffleQueueV2']
    assert (len(shuffling.enqueue_ops) == 16) == published


def test_the_yardsticks_evaluation_input_is_the_same(half_bright):
    ours, labels = cifar10.inputs(eval_data=True)
    theirs, their_labels = tutorial.inputs(str(half_bright), 8)
    with tf.train.MonitoredSession() as session:
        got = session.run([ours, labels])
        expected = session.run([theirs, their_labels])
    assert got[0].shape == expected[0].shape == (8, 24, 24, 3)
    assert set(got[1]) == set(expected[1]) == {0, 1}
    for label in (0, 1):  # 16 threads mix the order; the two classes do not look alike.
        np.testing.assert_allclose(got[0][got[1] == label].mean(axis=(0, 3)),
                                   expected[0][expected[1] == label].mean(axis=(0, 3)), atol=0.5)


def test_the_floor_runs_all_products_one_after_another():
    result = floor.operation(tutorial.inference, [2, 24, 24, 3])
    counts = collections.Counter(op.type for op in tf.get_default_graph().get_operations())
    assert counts['Conv2D'] == 2
    assert counts['Conv2DBackpropFilter'] == 2
    assert counts['Conv2DBackpropInput'] == 1
    assert counts['MatMul'] == 9
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert np.isfinite(session.run(result))


def test_the_floor_of_resnet23_has_its_convolutions():
    """One of the images, and seven units: one 3x3 convolution and two products in each.

    All inputs but the images need gradients. The last layer is one more product.
    """
    inference = recipes.TABLE['resnet23'].inference
    floor.operation(lambda images: inference(images, training=True), [2, 32, 32, 3])
    graph = tf.get_default_graph()
    counts = collections.Counter(op.type for op in graph.get_operations())
    assert counts['Conv2D'] == counts['Conv2DBackpropFilter'] == 1 + 7
    assert counts['Conv2DBackpropInput'] == 7
    assert counts['MatMul'] == 3 * (7 * 2 + 1)
    sides = collections.Counter(op.outputs[0].shape.as_list()[1] for op in graph.get_operations()
                                if op.type == 'Conv2D')
    assert sides == {32: 3, 16: 2, 8: 2, 4: 1}
    rows = collections.Counter(  # Of the products' first operand, batch x height x width.
        op.inputs[0].shape.as_list()[0] for op in graph.get_operations()
        if op.type == 'MatMul' and not op.get_attr('transpose_a'))
    assert rows == {2 * 32 ** 2: 8, 2 * 16 ** 2: 8, 2 * 8 ** 2: 8, 2 * 4 ** 2: 4, 2: 2}


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
        return recipes.TABLE[net].inference(images, training=True)

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


def test_the_start_of_every_net_is_measured():
    assert set(benchmarks_main._NETS) == set(recipes.TABLE)


def test_points_of_growth_are_shared_between_tables():
    options = argparse.Namespace(batch_size=128, batches=[64, 128], towers=[1, 2])
    tables = growth.points_of(options, cores=2)
    assert tables == {
        'batch': {64: (64, 2, None), 128: (128, 2, None)},
        'cores': {1: (128, 1, None), 2: (128, 2, None)},
        'towers': {1: (128, 2, 1), 2: (128, 2, 2)}}


def test_progress_of_growth_names_the_point(capsys):
    children.in_turn({growth.Point(16, 2, None): int, growth.Point(128, 1, 4): int}, turns=1)
    lines = [line.strip() for line in capsys.readouterr().err.split('\r')]
    assert lines[1:3] == ['1 of 1: batch size 16, cores: 2',
                          '1 of 1: batch size 128, cores: 1, towers: 4']


def cases(*names, net='tutorial', bucket_mb=()):
    return argparse.Namespace(cases=names, net=net, bucket_mb=bucket_mb)


def test_two_workers_are_compared_with_runs_of_the_same_program(monkeypatch, capsys):
    assert distributed._groups(cases('bf16', bucket_mb=[0.5])) == [{
        '1 worker': {}, '2 runs that share nothing': {'runs': 2},
        '2 workers, --compress=bf16': {'size': 2, 'compress': 'bf16'},
        '2 workers, --bucket_mb=0.5': {'size': 2, 'bucket_mb': 0.5}}]
    monkeypatch.setitem(sys.modules, 'torch', None)
    assert distributed._groups(cases('ddp')) == []
    assert capsys.readouterr().out == 'PyTorch is not installed; its rows are left out\n'


def test_the_table_of_two_workers(capsys):
    """Medians of the ratios in each turn; the second worker of the third turn was slow."""
    runs = {'1 worker': [(100, 0.20), (100, 0.20), (100, 0.20)],
            '2 runs that share nothing': [(200, 0.20), (160, 0.25), (200, 0.20)],
            '2 workers': [(180, 0.21), (160, 0.26), (100, 0.24)]}
    found = {row: [{'rate': rate, 'used': used, 'sent': 4.27e6} for rate, used in figures]
             for row, figures in runs.items()}
    distributed._print_table([dict.fromkeys(runs)], found)
    *_, last = capsys.readouterr().out.splitlines()
    assert last == ('| 2 workers | 160 | 1.60 (1.30 to 1.70) | 0.90 (0.70 to 0.95) | 3 | 240.0 | '
                    '10.0 (10.0 to 25.0) | 4.27 |')


def test_figures_are_quartiles():
    """Of 1, 2, 3, 4 and 10: 2, 3 and 4, whatever the last value."""
    assert children.quartiles([10, 2, 1, 4, 3]) == [2, 3, 4]
    assert children.figure([10, 2, 1, 4, 3]) == '3.00 (2.00-4.00)'
    assert children.figure([1234.5]) == '1234 (1234-1234)'


def test_speed_after_warming_up():
    """Ten steps: the first two are left out, the others take half a second each."""
    times = [0.0, 9.0] + [10.0 + 0.5 * step for step in range(8)]
    run = {'ended': times, 'processor': [2 * each for each in times], 'images_per_step': 64}
    assert children.rate(run) == 128
    assert children.processor_ms(run) == 1000


def records(folder):
    """A data folder with 200 synthetic images in each file of CIFAR-10."""
    files = folder / table.CIFAR10.folder
    files.mkdir()
    for seed, name in enumerate(table.CIFAR10.files):
        synthetic.draw(200, 10, seed, 1).tofile(files / name)
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function that runs a benchmark's `main` with options, on small files: what it prints."""
    monkeypatch.setattr(subprocess, 'Popen', forks.Python)  # Its processes import nothing twice.
    data_dir = records(tmp_path)

    def run(module, *options):
        monkeypatch.setattr(sys, 'argv', [
            'benchmarks', f'--data_dir={data_dir}', '--batch_size=16', *options])
        module.main()
        return capsys.readouterr()
    return run


def test_sides_run_in_turn(capsys):
    order = []
    found = children.in_turn({name: lambda name=name: order.append(name) or len(order)
                              for name in 'abc'}, turns=2)
    assert order == list('abcabc')
    assert found == {'a': [1, 4], 'b': [2, 5], 'c': [3, 6]}
    assert '2 of 2: c' in capsys.readouterr().err


@pytest.mark.slow
def test_growth(command, tmp_path):
    """One point as batch 16 and as one core, another as a tower; the picture fits a page."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:1])
    try:
        out, _ = command(growth, '--turns=1', '--images=1', '--batches', '16', '--towers', '1',
                         f'--png={tmp_path}/growth.png')
        assert os.sched_getaffinity(0) == set(sorted(before)[:1])
    finally:
        os.sched_setaffinity(0, before)
    rows = [line.split(' | ') for line in out.splitlines() if re.match(r'\| \d', line)]
    assert len(rows) == 3
    assert rows[0][1:] == rows[1][1:] != rows[2][1:]  # Shared; a run of its own.
    assert Image.open(tmp_path / 'growth.png').size == (800, 600)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='requires two cores')
@pytest.mark.parametrize('case, thread', [('default', 'collective_ops'), ('ddp', 'gloo')])
def test_two_workers(command, case, thread):
    """Only two workers send their gradients: 4 bytes for each of the 1,068,298 parameters."""
    if case == 'ddp':
        pytest.importorskip('torch')
    before = os.sched_getaffinity(0)
    out, _ = command(distributed, '--starts=1', '--turns=1', '--seconds=0.5', f'--cases={case}',
                     '--threads')
    assert os.sched_getaffinity(0) == before
    rows = [line.strip('| ').split(' | ') for line in out.splitlines()
            if re.match(r'\| (\d|PyTorch)', line)]
    assert all(int(rate) > 0 and count == '1' for _, rate, _, _, count, *_ in rows)
    *_, sent = [float(row[-1]) for row in rows]
    assert sent > 0.8 * 4.27  # The last step of a turn may be counted in part.
    assert [thread in line for line in out.splitlines()[-3:]] == [False, False, True]


@pytest.mark.slow
def test_the_yardsticks_parts_are_measured(command):
    """The table has a row for each side, with positive figures."""
    out, _ = command(yardstick, '--turns=1', '--steps=5', '--parts', 'references')
    rows = [line.strip('| ').split(' | ') for line in out.splitlines()[5:]]
    assert [row[0] for row in rows] == ['published', 'without references', 'this project']
    assert all(float(figure.split()[0]) > 0 for row in rows for figure in row[1:])


@pytest.mark.slow
def test_the_rows_of_keras(command, tmp_path, monkeypatch):
    """Its first steps have the loss of the tutorial's first lines: ln 10 and the weight decay."""
    monkeypatch.delitem(benchmarks_main._KERAS, 'Keras')  # XLA compiles for ten seconds.
    results, keras_fit = [], children.keras_fit
    monkeypatch.setattr(children, 'keras_fit', lambda *args, **flags: results.append(
        keras_fit(*args, **flags)) or results[-1])
    out, _ = command(benchmarks_main, '--turns=1', '--steps=5', '--only', 'keras')
    assert len(re.findall(r'beside Keras without XLA, (?:images/s|ms) +\d', out)) == 2
    assert len(results[0]['ended']) == 5
    assert 4.4 < results[0]['loss'] < 5.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_table(command, tmp_path, monkeypatch):
    """The command of the documentation, on small files and batches, with few steps."""
    monkeypatch.setattr(benchmarks_main, '_NETS', ('tutorial', 'local'))  # ResNet-23 is slow.
    out, _ = command(
        benchmarks_main, '--turns=1', '--steps=10', '--seconds=0.1', '--only', 'input', 'step',
        'train', 'start', 'towers', 'evaluate', f'--json={tmp_path}/figures.json')
    assert 'TensorFlow ' in out.splitlines()[0]
    figures = json.loads((tmp_path / 'figures.json').read_text())
    whats = [row['what'] for row in figures['rows']]
    for what in ('input alone', 'step on a fixed batch', 'step, beside the floor',
                 'step in bfloat16, beside float32', 'training, end to end',
                 'evaluation of the test set', 'start to step 0, tutorial, beside two workers',
                 'start to step 0, local, beside two workers'):
        assert what in whats
        assert what in out
    for row in figures['rows']:
        assert row['ours'] and row['tutorial'], row
