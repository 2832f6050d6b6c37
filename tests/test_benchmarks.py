import collections
import functools
import json
import subprocess
import sys

import forks
import numpy as np
import plain
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from benchmarks import __main__ as benchmarks_main
from benchmarks import floor
from benchmarks import tutorial
from benchmarks import yardstick
import cifar10
from datasets import synthetic
from datasets import table
import recipes


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
    images, labels = tutorial.distorted_inputs(cifar10.data_folder(), 8, parts)
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
    """1 of the images, 7 x 3 others, whose inputs need gradients; one product of two gradients."""
    inference = recipes.TABLE['resnet23'].inference
    floor.operation(lambda images: inference(images, training=True), [2, 32, 32, 3])
    graph = tf.get_default_graph()
    counts = collections.Counter(op.type for op in graph.get_operations())
    assert counts['Conv2D'] == counts['Conv2DBackpropFilter'] == 22
    assert counts['Conv2DBackpropInput'] == 21
    assert counts['MatMul'] == 3
    sides = collections.Counter(op.outputs[0].shape.as_list()[1] for op in graph.get_operations()
                                if op.type == 'Conv2D')
    assert sides == {32: 7, 16: 6, 8: 6, 4: 3}


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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_table(tmp_path, monkeypatch, capsys):
    """The command of the documentation, on small files and batches, with few steps."""
    monkeypatch.setattr(subprocess, 'Popen', forks.Python)  # Its processes import nothing twice.
    folder = tmp_path / table.CIFAR10.folder
    folder.mkdir()
    for seed, name in enumerate(table.CIFAR10.files):
        synthetic.draw(200, 10, seed, 1).tofile(folder / name)
    monkeypatch.setattr(sys, 'argv', [
        'benchmarks', f'--data_dir={tmp_path}', '--turns=1', '--steps=10', '--batch_size=16',
        '--seconds=0.1', f'--json={tmp_path}/figures.json'])
    benchmarks_main.main()
    out = capsys.readouterr().out
    assert 'TensorFlow ' in out.splitlines()[0]
    figures = json.loads((tmp_path / 'figures.json').read_text())
    whats = [row['what'] for row in figures['rows']]
    for what in ('input alone', 'step on a fixed batch', 'step, beside the floor',
                 'training, end to end', 'evaluation of the test set',
                 'start to step 0, resnet23, beside two workers'):
        assert what in whats
        assert what in out
    for row in figures['rows']:
        assert row['ours'] and row['tutorial'], row
