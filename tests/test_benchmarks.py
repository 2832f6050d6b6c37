import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf

from benchmarks import __main__ as benchmarks_main
from benchmarks import children
from benchmarks import floor
from benchmarks import tutorial
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
    for module in (cifar10, tutorial):
        with tf.Graph().as_default(), tf.Session() as session:
            logits = module.inference(tf.constant(images))
            loss = module.loss(logits, tf.constant(labels))
            train_op = module.train(loss, tf.train.get_or_create_global_step())
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            saved = {v.op.name: v for v in tf.global_variables() if not v.op.name.endswith('/avg')}
            for name, value in values.items():
                saved[name].load(value, session)
                saved[name + '/ExponentialMovingAverage'].load(value, session)
            before = session.run([logits, loss])
            session.run(train_op)
            results.append((before, session.run(saved)))
    (ours, variables), (theirs, wanted) = results
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-4)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-5)
    assert variables.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_allclose(variables[name], wanted[name], atol=1e-4, err_msg=name)


def test_the_yardsticks_evaluation_input_is_the_same(half_bright):
    ours, labels = cifar10.inputs(eval_data=True)
    theirs, their_labels = tutorial.inputs(str(half_bright), 8)
    with tf.train.MonitoredSession() as session:
        got = session.run([ours, labels])
        wanted = session.run([theirs, their_labels])
    assert got[0].shape == wanted[0].shape == (8, 24, 24, 3)
    assert set(got[1]) == set(wanted[1]) == {0, 1}
    for label in (0, 1):  # 16 threads mix the order; the two classes do not look alike.
        np.testing.assert_allclose(got[0][got[1] == label].mean(axis=(0, 3)),
                                   wanted[0][wanted[1] == label].mean(axis=(0, 3)), atol=0.5)


def test_the_floor_runs_all_products_one_after_another():
    result = floor.operation(batch_size=2)
    counts = {}
    for op in tf.get_default_graph().get_operations():
        counts[op.type] = counts.get(op.type, 0) + 1
    assert counts['Conv2D'] == 2
    assert counts['Conv2DBackpropFilter'] == 2
    assert counts['Conv2DBackpropInput'] == 1
    assert counts['MatMul'] == 9
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
            and op.outputs[0].shape[-1] != 3)  # The images' own gradient: built, but never run.

    with tf.Graph().as_default() as wanted:
        side = {'tutorial': 24, 'resnet23': 32}[net]
        images = tf.zeros([2, side, side, 3])
        logits = recipes.TABLE[net].inference(images, training=True)
        tf.gradients(logits, tf.trainable_variables())
    with tf.Graph().as_default() as got:
        floor.operation(batch_size=2, net=net)
    assert convolutions(got) == convolutions(wanted)


@pytest.mark.slow
def test_input_is_four_times_as_fast_and_starts_within_half_a_second(tmp_path):
    """On files of CIFAR-10's size, full of noise; and checking all of them takes half a second."""
    folder = tmp_path / table.CIFAR10.folder
    folder.mkdir()
    for index, (name, count) in enumerate(table.CIFAR10.files.items()):
        data = np.random.RandomState(index).randint(0, 256, [count, 3073], np.uint8)
        data[:, 0] %= 10
        data.tofile(folder / name)
    start = time.process_time()
    table.CIFAR10.check(folder)
    assert time.process_time() - start < 0.5
    options = argparse.Namespace(
        data_dir=tmp_path, dataset='cifar10', net='tutorial', batch_size=128, turns=2)
    found = children.in_turn('input', options, seconds=2)
    ours, theirs = (statistics.median(run['images_per_second'] for run in found[side])
                    for side in ('ours', 'tutorial'))
    assert ours > 4 * theirs
    assert min(run['first_batch_seconds'] for run in found['ours']) < 0.5


def test_the_start_of_every_net_is_measured():
    assert set(benchmarks_main._NETS) == set(recipes.TABLE)


@pytest.mark.slow
@pytest.mark.timeout(2100)
def test_the_table(tmp_path):
    """The command of the documentation, on small files and with few steps."""
    folder = tmp_path / table.CIFAR10.folder
    folder.mkdir()
    for seed, name in enumerate(table.CIFAR10.files):
        synthetic.draw(200, 10, seed, 1).tofile(folder / name)
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks', f'--data_dir={tmp_path}', '--turns=1',
         '--steps=40', f'--json={tmp_path}/figures.json'],
        capture_output=True, text=True, cwd=spawn.ROOT, timeout=2000)
    assert done.returncode == 0, done.stderr
    assert 'TensorFlow ' in done.stdout.splitlines()[0]
    figures = json.loads((tmp_path / 'figures.json').read_text())
    whats = [row['what'] for row in figures['rows']]
    for what in ('input alone', 'step on a fixed batch', 'step, beside the floor',
                 'training, end to end', 'evaluation of the test set',
                 'start to step 0, resnet23, beside two workers'):
        assert what in whats
        assert what in done.stdout
    for row in figures['rows']:
        assert row['ours'] and row['tutorial'], row
