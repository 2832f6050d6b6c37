import dataclasses
import json
import pathlib

import numpy as np
import outcomes
import placement
import pytest
import record_files
import sessions
import tensorflow.compat.v1 as tf
import tiny
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_distributed_train
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.program import devices
from cifar10_lib.runs import metrics
from cifar10_lib.workers import cluster

FLAGS = flags.FLAGS


@pytest.fixture
def tiny_net(half_bright, monkeypatch):
    """Adding a row to the table is all that a new network needs."""
    monkeypatch.setitem(recipes.TABLE, 'tiny', tiny.RECIPE)
    with flagsaver.flagsaver(net='tiny'):
        for name in ('batch_size', 'max_steps', 'validate_every'):
            FLAGS[name].unparse()  # As on a command line without them.
        yield


def used(start):
    """The batch size, the number of steps and the epochs between validations of a `Start`."""
    return start.source.batch_size, start.max_steps, start.run.validate_every


def value(name):
    return tf.train.load_variable(tf.train.latest_checkpoint(FLAGS.train_dir), name)


def test_one_device(tiny_net):
    """80 images in batches of 16: 6 epochs are 30 steps."""
    cifar10_train.main()
    assert value('global_step') == 30
    for use_moving_averages in (True, False):
        assert outcomes.precision(FLAGS.train_dir, use_moving_averages=use_moving_averages) == 1.0
    rows = metrics.read(pathlib.Path(FLAGS.train_dir, 'metrics.csv'))
    assert [row['step'] for row in rows] == [5, 10, 15, 20, 25, 30]
    assert rows[-1]['validation_error'] == 0
    np.testing.assert_allclose(rows[0]['learning_rate'], 0.01, rtol=1e-6)
    assert 90 < value('bn/moving_mean').mean() < 110  # 104.5 (1 - 0.9^30) for these records.
    names = dict(tf.train.list_variables(tf.train.latest_checkpoint(FLAGS.train_dir)))
    assert 'linear/weights/Adam' in names and 'bn/moving_mean/Adam' not in names
    run = json.loads(pathlib.Path(FLAGS.train_dir, 'run.json').read_text())
    assert (run['net'], run['settings']['batch_size']) == ('tiny', 16)


def test_training_uses_all_parts_of_the_recipe(half_bright, monkeypatch):
    """Image size, distortion, loss, optimizer, initial values, and the schedule for the images and
    the number of steps of both towers."""
    seen = {}

    def inference(images, num_classes, training, dtype):
        seen.setdefault(training, images)  # Of the first graph.
        return tiny.inference(images, num_classes, training, dtype)

    def schedule(step, rate, epochs):
        seen['images'] = epochs.images_per_step
        return tf.constant(0.25)

    def loss(logits, labels):
        return cifar10.loss(logits * 0.0, labels)

    def optimizer(lr, max_steps):
        seen['steps'] = max_steps
        return tf.train.GradientDescentOptimizer(lr)

    monkeypatch.setitem(recipes.TABLE, 'tiny', dataclasses.replace(
        tiny.RECIPE, inference=inference, schedule=schedule, loss=loss, optimizer=optimizer,
        distort=lambda images: tiny.prepare(images) * 0 + 7,
        initial_values=lambda source: {
            'linear/weights': np.full([768, 10], source.num_classes, np.float32)}))
    with flagsaver.flagsaver(net='tiny', max_steps=1, validate_every=0, num_gpus=2):
        cifar10_multi_gpu_train.main()
        outcomes.precision(FLAGS.train_dir)
    assert (seen['images'], seen['steps']) == (16, 1)
    assert seen[True].shape.as_list() == [8, 16, 16, 3]
    assert seen[False].shape.as_list() == [8, 16, 16, 3]
    assert (value('linear/weights') == 10).all()  # The loss does not depend on them.
    np.testing.assert_allclose(value('bn/moving_mean'), [0.7] * 3, rtol=1e-6)  # 0.1 times 7.
    names = [name for name, _ in tf.train.list_variables(
        tf.train.latest_checkpoint(FLAGS.train_dir))]
    assert sorted(names) == ['bn/moving_mean', 'bn/moving_mean/ExponentialMovingAverage',
                             'cross_entropy/avg', 'global_step', 'linear/weights',
                             'linear/weights/ExponentialMovingAverage', 'total_loss/avg']


def test_the_moving_statistics_are_the_first_towers(half_bright, monkeypatch):
    """One tower gets a batch of ones, the other one of threes, in random order."""
    batches = []

    def inference(images, num_classes, training, dtype):
        batches.append(images)
        return tiny.inference(images, num_classes, training, dtype)

    monkeypatch.setitem(recipes.TABLE, 'tiny', dataclasses.replace(
        tiny.RECIPE, inference=inference))
    with flagsaver.flagsaver(net='tiny', num_gpus=2, batch_size=4):
        graph = placement.graph_of_towers()
    batches = [each for each in batches if each.graph is graph]
    fill, step = (graph.get_operation_by_name(name)
                  for name in ('prefetch_queue_enqueue', 'train'))
    with graph.as_default(), tf.Session(config=devices.session_config()) as session:
        session.run(tf.global_variables_initializer())
        mean, = (each for each in tf.global_variables() if each.op.name == 'bn/moving_mean')
        expected = 0
        for _ in range(10):
            for pixel in (1, 3):
                session.run(fill, dict(zip(
                    fill.inputs[1:], (np.full([4, 16, 16, 3], pixel), np.zeros(4)))))
            first, second = session.run([batches, step])[0]
            assert {first.mean(), second.mean()} == {1, 3}
            expected = 0.9 * expected + 0.1 * first.mean()
            np.testing.assert_allclose(session.run(mean), [expected] * 3, rtol=1e-5)


@pytest.mark.parametrize('given, expected', [
    ({}, (16, 30, 1)),
    ({'batch_size': 128}, (128, 4, 1)),  # 3.75 is rounded up,
    ({'batch_size': 200}, (200, 2, 1)),  # 2.4 down.
    ({'batch_size': 10000}, (10000, 1, 1)),  # At least one.
    ({'max_steps': 100000}, (16, 100000, 1)),
    ({'max_steps': 7, 'validate_every': 0}, (16, 7, 0)),
    ({'batch_size': 17, 'max_steps': 30, 'validate_every': 3}, (17, 30, 3))])
def test_flags_that_the_user_gives_are_kept(tiny_net, given, expected):
    """Even if the value equals the flag's default: 128, or 100000 steps."""
    for name, given_value in given.items():
        FLAGS[name].parse(given_value)
        FLAGS[name].using_default_value = False
    assert used(sessions.start()) == expected


@pytest.mark.parametrize('epochs, validate_on, batch_size, replicas, max_steps', [
    (3, 'test', 16, 1, 15), (3, 'test', 16, 2, 8),  # 7.5, rounded to the even number.
    (1.7, 'test', 8, 1, 17), (0.5, 'test', 8, 3, 2), (0.001, 'test', 8, 1, 1), (0, 'test', 8, 1, 0),
    (2, 'held_out', 16, 1, 9)])  # 8 images are held out: 2 epochs of 72 images.
def test_epochs_of_80_images(tiny_net, epochs, validate_on, batch_size, replicas, max_steps):
    with flagsaver.flagsaver(epochs=epochs, batch_size=batch_size, validate_on=validate_on):
        assert sessions.start(replicas).max_steps == max_steps


def test_each_trainer_counts_epochs_in_images_and_resumes(tiny_net, capsys):
    """80 images in batches of 16: one epoch is 5 steps; three more with two towers are 7.5, which
    makes 7; with one worker, 80 images are left of 4.8 epochs."""
    with flagsaver.flagsaver(batch_size=16, num_gpus=2, validate_every=0):
        for epochs, main, steps in (
                (1, cifar10_train.main, 5),
                (4, cifar10_multi_gpu_train.main, 12),  # 304 images.
                (4.8, lambda: cifar10_distributed_train.work(cluster.Cluster()), 17)):
            with flagsaver.flagsaver(epochs=epochs):
                main()
                assert value('global_step') == steps
                capsys.readouterr()
                main()
            assert f'has reached --epochs={epochs} ({steps} steps).' in capsys.readouterr().out


def test_a_resumed_run_continues_the_schedule_from_another_learning_rate(
        tiny_net, monkeypatch, capsys):
    """With the tutorial's schedule; here, the rate falls to a tenth every 2 epochs of 80 images.

    Before its last step, the third start has 168 images of 8 per step, and none of 16.
    """
    monkeypatch.setitem(recipes.TABLE, 'tiny', dataclasses.replace(
        tiny.RECIPE, schedule=recipes.TABLE['tutorial'].schedule))
    monkeypatch.setattr(cifar10, 'NUM_EPOCHS_PER_DECAY', 2.0)
    starts = [  # Trainer, its flags, and the rate of its last step.
        (cifar10_train.main, {'learning_rate': 0.02, 'max_steps': 20}, 0.02),
        (lambda: cifar10_distributed_train.work(cluster.Cluster()),
         {'learning_rate': 0.05, 'max_steps': 21}, 0.005),  # After 2 epochs.
        (cifar10_multi_gpu_train.main, {'num_gpus': 2, 'max_steps': 22}, 0.003)]  # After 2.1.
    for main, given, rate in starts:
        with flagsaver.flagsaver(batch_size=8, validate_every=0, **given):
            main()
        row = metrics.read(pathlib.Path(FLAGS.train_dir, 'metrics.csv'))[-1]
        assert row['step'] == given['max_steps']
        np.testing.assert_allclose(row['learning_rate'], rate, rtol=1e-6)
    assert [line for line in capsys.readouterr().out.splitlines() if 'learning' in line] == [
        'Resuming with --learning_rate=0.05 (was 0.02).',
        'Resuming with --learning_rate=the default (was 0.05).']


def test_the_fast_recipe_trains_the_tutorials_network(half_bright, capsys):
    """80 images in batches of 40: 80 epochs are 160 steps; a resume to 210 lifts the rate again.

    The last step is half a step before the end, and the rate falls for 85 % of them, as a cosine.
    """
    def last_rate(steps):
        return 0.01 * (1 - np.cos(0.5 * np.pi / (0.85 * steps))) / 2

    FLAGS['max_steps'].unparse()
    with flagsaver.flagsaver(net='tutorial_fast', batch_size=40, learning_rate=0.01):
        cifar10_train.main()
        assert value('global_step') == 160
        assert value('conv1/weights/Momentum').shape == (5, 5, 3, 64)
        rows = metrics.read(pathlib.Path(FLAGS.train_dir, 'metrics.csv'))
        np.testing.assert_allclose(rows[-1]['learning_rate'], last_rate(160), atol=1e-9)
        assert rows[-1]['training_loss'] > 1  # Smoothed cross entropy is 0.5 or more.
        assert outcomes.precision(FLAGS.train_dir) == 1.0
        capsys.readouterr()
        FLAGS.max_steps = 210
        cifar10_train.main()
    assert 'Resuming with --max_steps=210 (was 160).' in capsys.readouterr().out
    rows = metrics.read(pathlib.Path(FLAGS.train_dir, 'metrics.csv'))
    np.testing.assert_allclose(rows[-1]['learning_rate'], last_rate(210), atol=1e-9)


def test_the_fast_recipes_initial_values_and_losses(half_bright):
    """The variance of a weight is 2 / (number of inputs): 75, 1600, 2304, 384; softmax_linear keeps
    the tutorial's. The decay of weights that are 1 is half their number times 0.0005 or 0.001. With
    probabilities of 1/2 for the label 0 and 1/18 for the others, the cross entropy is 0.9 log 2 +
    0.1 (log 2 + 9 log 18) / 10."""
    with flagsaver.flagsaver(net='tutorial_fast'), tf.Graph().as_default(), tf.Session() as session:
        for tower in range(2):
            with tf.variable_scope(tf.get_variable_scope(), reuse=tower > 0):
                cifar10_multi_gpu_train.tower_loss(
                    f'tower_{tower}/', tf.zeros([2, 24, 24, 3]), tf.zeros([2], tf.int32))
        trained = {each.op.name: each for each in tf.trainable_variables()}
        weights = {name: each for name, each in trained.items() if name.endswith('weights')}
        session.run(tf.global_variables_initializer())
        spread = {name: value.std() for name, value in session.run(weights).items()}
        session.run([each.assign(tf.ones_like(each)) for each in weights.values()])
        session.run([trained['softmax_linear/weights'].assign(tf.zeros([192, 10])),
                     trained['softmax_linear/biases'].assign(np.log([9.0] + 9 * [1.0]))])
        losses = session.run({each.op.name: each for each in tf.get_collection('losses')})
    for layer, inputs in (('conv1', 75), ('conv2', 1600), ('local3', 2304), ('local4', 384)):
        np.testing.assert_allclose(spread[f'{layer}/weights'], (2 / inputs) ** 0.5, rtol=0.05)
    np.testing.assert_allclose(spread['softmax_linear/weights'], 0.88 / 192, rtol=0.1)
    expected = {'cross_entropy': 0.890897, 'conv1/weight_decay': 1.2, 'conv2/weight_decay': 25.6,
                'local3/weight_decay': 442.368, 'local4/weight_decay': 36.864}
    assert losses.keys() == {f'tower_{k}/{name}' for k in range(2) for name in expected}
    for name, value in losses.items():
        np.testing.assert_allclose(value, expected[name.partition('/')[2]], rtol=1e-5)


def test_the_fast_recipe_crops_within_three_pixels_of_the_centre():
    """Rows 0 and 31 are never part of a crop; rows 1 and 30 sometimes are."""
    images = np.full([2, 200, 32, 32, 3], 100, np.uint8)
    images[0, :, [0, 31]] = 0
    images[1, :, [1, 30]] = 0
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run([
            recipes.TABLE['tutorial_fast'].distort(tf.constant(each)) for each in images])
    assert found[0].shape == (200, 24, 24, 3)
    assert not found[0].any() and found[1].any()


def test_the_tutorials_recipe_equals_the_flag_defaults(tiny_net):
    with flagsaver.flagsaver(net='tutorial'):
        assert used(sessions.start()) == (128, 100000, 0)


@pytest.mark.parametrize('replicas, max_steps', [(1, 234375), (2, 117188), (3, 78125)])
def test_resnet23s_steps(tiny_net, tmp_path, replicas, max_steps):
    """300 epochs of 50,000 images in batches of 64; 117,187.5 are rounded to the even number."""
    with flagsaver.flagsaver(net='resnet23', data_dir=str(tmp_path / 'none')):
        assert used(sessions.start(replicas)) == (64, max_steps, 1)


@pytest.fixture
def hundred(tmp_path):
    """Flags for a CIFAR-100 folder: fine labels 0 and 99, whose coarse labels are 19 and 3."""
    folder = tmp_path / 'data' / 'cifar-100-binary'
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate([('train.bin', 64), ('test.bin', 8)]):
        with open(folder / name, 'wb') as stream:
            for k, image in record_files.half_bright(count, seed):
                stream.write(bytes([3, 99] if k else [19, 0]))
                stream.write(image.transpose(2, 0, 1).tobytes())
    with flagsaver.flagsaver(data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'train'),
                             batch_size=8, max_steps=30, seed=1, dataset='cifar100'):
        yield folder


def test_the_tutorials_net_learns_fine_labels(hundred, monkeypatch):
    """Only the biases of classes 0 and 99 grow, not those of their coarse labels."""
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.01)  # 0.1 is too high for batches of 8.
    cifar10_train.main()
    assert outcomes.precision(FLAGS.train_dir) == 1.0
    assert value('softmax_linear/weights').shape == (192, 100)
    assert {*np.argsort(value('softmax_linear/biases'))[-2:]} == {0, 99}
