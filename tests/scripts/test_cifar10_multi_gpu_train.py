import json
import pathlib

import numpy as np
import placement
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_multi_gpu_train
import cifar10_train
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


def towers(images, labels):
    """Two towers, one per batch: their lists of (gradient, variable)."""
    optimizer, gradients = tf.train.GradientDescentOptimizer(0.1), []
    for i in range(2):
        with tf.name_scope(f'tower_{i}') as scope, \
                tf.variable_scope(tf.get_variable_scope(), reuse=i > 0):
            loss = cifar10_multi_gpu_train.tower_loss(scope, images[i], labels[i])
            gradients.append(optimizer.compute_gradients(loss))
    return gradients


@pytest.fixture
def batches():
    """Two batches of eight images, float32 [2, 8, 24, 24, 3], and their labels, int32 [2, 8]."""
    random = np.random.RandomState(0)
    return (tf.constant(random.normal(size=[2, 8, 24, 24, 3]).astype(np.float32)),
            tf.constant(random.randint(0, 10, [2, 8]).astype(np.int32)))


def test_two_towers_take_the_step_of_one_with_both_batches(batches):
    """Two towers with 8 images each have the gradients of one network with all 16."""
    images, labels = batches
    averages = cifar10_multi_gpu_train.average_gradients(towers(images, labels))
    mean = cifar10_multi_gpu_train.average_losses(2)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.name_scope('both') as scope:
        total = cifar10_multi_gpu_train.tower_loss(
            scope, tf.reshape(images, [16, 24, 24, 3]), tf.reshape(labels, [16]))
        of_both = tf.train.GradientDescentOptimizer(0.1).compute_gradients(total)
    assert [variable for _, variable in averages] == [variable for _, variable in of_both]
    with tf.Session(config=devices.session_config()) as session:
        session.run(tf.global_variables_initializer())
        got, got_loss = session.run([[gradient for gradient, _ in averages], mean])
        expected, expected_loss = session.run([[gradient for gradient, _ in of_both], total])
    np.testing.assert_allclose(got_loss, expected_loss, rtol=1e-6)
    for ours, theirs in zip(got, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * abs(theirs).max())


def test_summary_tags_do_not_contain_towers(half_bright, tmp_path):
    """They are those of one device."""
    tags = []
    for script in (cifar10_train, cifar10_multi_gpu_train):
        folder = tmp_path / script.__name__
        with flagsaver.flagsaver(num_gpus=2, max_steps=1, train_dir=str(folder)):
            script.main()
        path, = folder.glob('events.out.tfevents.*')
        tags.append({value.tag for event in tf.train.summary_iterator(str(path))
                     for value in event.summary.value})
    assert tags[0] == tags[1]
    assert not any('tower' in tag for tag in tags[1])
    assert {'conv1/conv1/activations', 'cross_entropy_1', 'total_loss_1', 'total_loss__raw_',
            'conv1/weights/gradients', 'learning_rate', 'input/images/image/0'} <= tags[1]


def test_speed_and_update_are_of_all_towers(half_bright, capsys):
    """Images per second times seconds per step: the batches of both towers."""
    with flagsaver.flagsaver(num_gpus=2, max_steps=1):
        cifar10_multi_gpu_train.main()
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
