"""Towers: their gradients and their update by hand, and what the script builds, on CPUs."""
import re

import numpy as np
import outcomes
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_multi_gpu_train
import cifar10_train

FLAGS = flags.FLAGS


def test_average_gradients_by_hand():
    """Of a variable that only some towers use, the others have a gradient of 0."""
    v, w, x, y = (tf.get_variable(name, [2]) for name in 'vwxy')
    towers = [[(tf.constant([1.0, 2.0]), v), (None, w), (tf.constant([0.0, -3.0]), x), (None, y)],
              [(tf.constant([3.0, 4.0]), v), (None, w), (tf.constant([3.0, 0.0]), x), (None, y)],
              [(tf.constant([5.0, 0.0]), v), (None, w), (tf.constant([0.0, 0.0]), x),
               (tf.constant([6.0, 3.0]), y)]]
    averages = cifar10_multi_gpu_train.average_gradients(towers)
    assert [variable for _, variable in averages] == [v, x, y]
    with tf.Session() as session:
        got = session.run([gradient for gradient, _ in averages])
    np.testing.assert_allclose(got, [[3, 2], [1, -1], [2, 1]])


def test_two_towers_take_the_step_of_one_with_both_batches():
    """Two towers with 8 images each have the gradients of one network with all 16."""
    random = np.random.RandomState(0)
    images = tf.constant(random.normal(size=[2, 8, 24, 24, 3]).astype(np.float32))
    labels = tf.constant(random.randint(0, 10, [2, 8]).astype(np.int32))
    optimizer, towers = tf.train.GradientDescentOptimizer(0.1), []
    for i in range(2):
        with tf.name_scope(f'tower_{i}') as scope, \
                tf.variable_scope(tf.get_variable_scope(), reuse=i > 0):
            loss = cifar10_multi_gpu_train.tower_loss(scope, images[i], labels[i])
            towers.append(optimizer.compute_gradients(loss))
    averages = cifar10_multi_gpu_train.average_gradients(towers)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.name_scope('both') as scope:
        total = cifar10_multi_gpu_train.tower_loss(
            scope, tf.reshape(images, [16, 24, 24, 3]), tf.reshape(labels, [16]))
        of_both = optimizer.compute_gradients(total)
    assert [variable for _, variable in averages] == [variable for _, variable in of_both]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        got, expected = session.run([[gradient for gradient, _ in each]
                                     for each in (averages, of_both)])
    for ours, theirs in zip(got, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * abs(theirs).max())


@pytest.fixture
def towers(half_bright, capsys):
    """A run of one step on two towers in --train_dir: the lines that it printed. The default graph
    becomes the run's."""
    with flagsaver.flagsaver(num_gpus=2, max_steps=1):
        cifar10_multi_gpu_train.main(['script'])
    tf.train.import_meta_graph(f'{FLAGS.train_dir}/model.ckpt-1.meta')
    return capsys.readouterr().out.splitlines()


def test_a_run_on_two_towers(towers):
    """Images per second times seconds per step: the batches of both. A run on one device has the
    same variables, and averages of its losses; its summaries have the averages, too."""
    first, _, line, saved = towers
    assert first == 'Training 2 towers on the CPU.'
    assert saved == f'Saved step 1 in {FLAGS.train_dir}.'
    images, seconds = map(float, outcomes.LINE.fullmatch(line).groups()[1:])
    np.testing.assert_allclose(images, 16 / seconds, rtol=0.02, atol=0.06)  # Both are rounded.
    with flagsaver.flagsaver(max_steps=1, train_dir=FLAGS.train_dir + '1'), tf.Graph().as_default():
        cifar10_train.main()
        one = FLAGS.train_dir
    tags, names = ([{*outcomes.summaries(folder)[1]} for folder in (FLAGS.train_dir, one)],
                   [dict(tf.train.list_variables(folder)) for folder in (FLAGS.train_dir, one)])
    losses = {'cross_entropy', 'local3/weight_loss', 'local4/weight_loss', 'total_loss_1'}
    assert losses <= tags[0]
    assert tags[0] - losses == {
        tag for tag in tags[1] if not re.match('cross_entropy|local./weight_loss|total_loss', tag)}
    assert names[0] == {name: shape for name, shape in names[1].items()
                        if not name.endswith('/avg')}


def test_the_loss_of_a_step_is_the_mean_of_the_towers(towers):
    with tf.train.SingularMonitoredSession(
            config=tf.ConfigProto(allow_soft_placement=True)) as session:
        mean, *losses = session.run(
            ['mean_loss:0', 'tower_0/total_loss_1:0', 'tower_1/total_loss_1:0'])
    np.testing.assert_allclose(mean, sum(losses) / 2, rtol=1e-6)
    assert losses[0] != losses[1]


def test_where_the_operations_of_towers_are(towers):
    """Each tower asks for its GPU and dequeues its own batch. Variables, input and update are on
    the CPU."""
    own = ('Conv2D', 'MatMul', 'QueueDequeueV2', 'Relu')
    shared = ('VarHandleOp', 'FixedLengthRecordReaderV2', 'RandomShuffleQueueV2',
              'ResourceApplyGradientDescent')
    found = set()
    for op in tf.get_default_graph().get_operations():
        scope, device = op.name.split('/')[0], op.device.rpartition('device:')[2]
        if op.type in own and 'tower' in scope:
            found.add((scope, op.type, device))
        elif op.type in shared:
            found.add((op.type, device))
    assert found == {*((f'tower_{i}', kind, f'GPU:{i}') for i in range(2) for kind in own),
                     *((kind, 'CPU:0') for kind in shared)}


def test_the_schedule_counts_the_images_of_all_towers(towers):
    """80 images per epoch, 16 per step: a tenth of 0.03 after 350 epochs of 5 steps; constants of
    cifar10.py are 50,000, so after 1,093,750 steps."""
    graph = tf.get_default_graph()
    rate = graph.get_operation_by_name('learning_rate').inputs[1]
    step = tf.train.get_global_step(graph)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        found = []
        for value in (0, 1093749, 1093751):
            step.load(value, session)
            found.append(session.run(rate))
    np.testing.assert_allclose(found, [0.03, 0.03, 0.003], rtol=1e-5)
