import json
import pathlib

import numpy as np
import placement
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_input
import cifar10_eval
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib.nets import summaries, variables
from cifar10_lib.program import devices

FLAGS = flags.FLAGS


def test_average_gradients_by_hand():
    v, w, x = (tf.get_variable(name, [2]) for name in 'vwx')
    towers = [[(tf.constant([1.0, 2.0]), v), (None, w), (tf.constant([0.0, -3.0]), x)],
              [(tf.constant([3.0, 4.0]), v), (None, w), (tf.constant([3.0, 0.0]), x)],
              [(tf.constant([5.0, 0.0]), v), (None, w), (tf.constant([0.0, 0.0]), x)]]
    averages = cifar10_multi_gpu_train.average_gradients(towers)
    assert [variable for _, variable in averages] == [v, x]
    with tf.Session() as session:
        got = session.run([gradient for gradient, _ in averages])
    np.testing.assert_allclose(got, [[3, 2], [1, -1]])


def test_a_gradient_that_some_towers_lack_is_an_error():
    v = tf.get_variable('layer/v', [2])
    with pytest.raises(ValueError, match='1 of 2 towers have a gradient for layer/v'):
        cifar10_multi_gpu_train.average_gradients([[(tf.constant([1.0, 2.0]), v)], [(None, v)]])


@pytest.fixture
def two_towers(half_bright):
    """The graph of two towers."""
    with flagsaver.flagsaver(num_gpus=2), tf.device('/cpu:0'):
        queue = cifar10_input.distorted_batches(cifar10.source(), capacity=4)
        gradients, losses = cifar10_multi_gpu_train.build_towers(queue)
        cifar10.train(losses[0]['total_loss'], tf.train.get_or_create_global_step(),
                      grads=cifar10_multi_gpu_train.average_gradients(gradients),
                      loss_averages_op=tf.no_op(), batches_per_step=2)
        yield tf.get_default_graph(), losses, gradients


def run(fetches):
    """Runs part of the default graph, with its queues, on the available devices."""
    creator = tf.train.ChiefSessionCreator(config=devices.session_config())
    with tf.train.MonitoredSession(creator) as session:
        return session.run(fetches)


def test_a_tower_sums_its_own_losses(two_towers):
    """Each tower has the same weight decay; its total does not include the other's."""
    _, losses, _ = two_towers
    assert [list(tower) for tower in losses] == 2 * [
        ['local3/weight_loss', 'local4/weight_loss', 'cross_entropy', 'total_loss']]
    values = run(losses)
    for tower in values:
        parts = [value for name, value in tower.items() if name != 'total_loss']
        np.testing.assert_allclose(tower['total_loss'], sum(parts), rtol=1e-6)
    assert values[0]['local3/weight_loss'] == values[1]['local3/weight_loss']


def test_two_towers_take_the_step_of_one_with_both_batches():
    """Two towers with 8 images each have the gradients of one network with all 16."""
    random = np.random.RandomState(0)
    images = tf.constant(random.normal(size=[16, 24, 24, 3]).astype(np.float32))
    labels = tf.constant(random.randint(0, 10, 16).astype(np.int32))
    queue = tf.FIFOQueue(2, [tf.float32, tf.int32], [[8, 24, 24, 3], [8]])
    fill = queue.enqueue_many([tf.reshape(images, [2, 8, 24, 24, 3]), tf.reshape(labels, [2, 8])])
    with flagsaver.flagsaver(num_gpus=2):
        gradients, losses = cifar10_multi_gpu_train.build_towers(queue)
    averages = cifar10_multi_gpu_train.average_gradients(gradients)
    mean = cifar10_multi_gpu_train.mean_losses(losses)['total_loss']
    with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.name_scope('both') as scope:
        total = cifar10_multi_gpu_train.tower_loss(scope, images, labels)
        of_both = variables.compute_gradients(total)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(tf.global_variables_initializer())
        session.run(fill)
        got, got_loss = session.run([[gradient for gradient, _ in averages], mean])
        expected, expected_loss = session.run([[gradient for gradient, _ in of_both], total])
    np.testing.assert_allclose(got_loss, expected_loss, rtol=1e-6)
    for ours, theirs in zip(got, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * abs(theirs).max())


def test_summary_tags_do_not_contain_towers(two_towers):
    summaries.losses(cifar10_multi_gpu_train.mean_losses(two_towers[1]))
    found = summaries.of_first_tower(tf.get_collection(tf.GraphKeys.SUMMARIES), cifar10.TOWER_NAME)
    summary = tf.Summary.FromString(run(tf.summary.merge(found)))
    tags = [value.tag for value in summary.value]
    assert len(tags) == len(set(tags))
    assert not any('tower' in tag or tag.endswith('_1') for tag in tags), tags
    assert {'conv1/activations', 'total_loss', 'total_loss (raw)', 'conv1/weights/gradients',
            'learning_rate', 'images/image/0'} <= set(tags)


@pytest.mark.slow
def test_trains_and_is_evaluated_and_resumed_by_the_others(half_bright, capsys):
    with flagsaver.flagsaver(num_gpus=2, max_steps=30):
        cifar10_multi_gpu_train.train()
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.evaluate()
    assert 'precision @ 1 = 1.000' in capsys.readouterr().out
    latest = tf.train.latest_checkpoint(FLAGS.train_dir)
    by_towers = tf.train.list_variables(latest)
    assert tf.train.load_variable(latest, 'global_step') == 30
    with flagsaver.flagsaver(max_steps=31):
        cifar10_train.train()
    latest = tf.train.latest_checkpoint(FLAGS.train_dir)
    assert latest.endswith('model.ckpt-31')
    assert tf.train.list_variables(latest) == by_towers


def test_speed_and_update_are_of_all_towers(half_bright, capsys):
    """Images per second times seconds per step: the batches of both towers."""
    with flagsaver.flagsaver(num_gpus=2, max_steps=1):
        cifar10_multi_gpu_train.train()
    line = [line for line in capsys.readouterr().out.splitlines() if ': step 0' in line][0]
    rate, seconds = (float(word.split()[0]) for word in line.split('(')[1].split('; '))
    np.testing.assert_allclose(rate, 16 / seconds, rtol=0.02, atol=0.06)  # Both are rounded.

    tf.train.import_meta_graph(f'{FLAGS.train_dir}/model.ckpt-1.meta')
    update, *_ = (op for op in tf.get_default_graph().get_operations()
                  if op.type == 'ResourceApplyGradientDescent')
    assert {'tower_0', 'tower_1'} <= {name.split('/')[0] for name in placement.inputs_of(update)}


@pytest.mark.slow
def test_the_script_as_a_user_runs_it(half_bright):
    done = spawn.run_script(
        'cifar10_multi_gpu_train.py', '--num_gpus=2', '--max_steps=2', '-b', '4', '-c=cpu',
        '-n', 'tutorial', '-l', '0.02', '--linear_scaling', '-e', '2.5',
        f'--data_dir={FLAGS.data_dir}', f'--train_dir={FLAGS.train_dir}')
    assert done.returncode == 0, done.stderr
    assert done.stderr == ''
    lines = done.stdout.splitlines()
    assert lines[0].startswith('Training 2 towers on the CPU.')
    assert lines[-1] == f'Saved step 2 in {FLAGS.train_dir}.'
    run = json.loads(pathlib.Path(FLAGS.train_dir, 'run.json').read_text())
    assert run['net'] == 'tutorial'
    assert [run['settings'][name] for name in (
        'batch_size', 'images_per_step', 'learning_rate', 'warmup_epochs')] == [
            4, [[0, 8]], 0.02, 2.5]
