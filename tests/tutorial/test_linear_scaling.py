import json
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_multi_gpu_train
from cifar10_lib import recipes, settings
from cifar10_lib.runs import epochs, metrics

FLAGS = flags.FLAGS


def rates(net, replicas, steps, max_steps=0):
    """The learning rates of some steps of a new run of `max_steps`, by step."""
    recipe = recipes.chosen(net)
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    counter = epochs.EpochCounter(
        0, [[0, source.batch_size * replicas]], source.num_examples(), max_steps)
    step = tf.placeholder(tf.int64, [])
    rate = recipe.learning_rate(step, source, counter)
    assert (rate.dtype, rate.shape.as_list()) == (tf.float32, [])
    with tf.Session() as session:
        return {at: session.run(rate, {step: at}) for at in steps}


@pytest.mark.parametrize('net', ['tutorial', 'tutorial_fast', 'airbench94'])
def test_a_schedule_counts_images(net):
    """80 steps of 40 images are 40 of 80: half of the run, in either size."""
    def rate(first_step, changes, max_steps):
        counter = epochs.EpochCounter(first_step, changes, 80, max_steps)
        return recipes.chosen(net).learning_rate(
            tf.constant(first_step, tf.int64), cifar10.default_source(), counter)

    with flagsaver.flagsaver(data_dir='/nonexistent'), tf.Session() as session:
        changed, unchanged, start = session.run([
            rate(80, [[0, 40], [80, 80]], 120), rate(40, [[0, 80]], 80), rate(0, [[0, 80]], 80)])
    np.testing.assert_allclose(changed, unchanged, rtol=1e-6)
    assert (net == 'tutorial') == (changed == start)


@pytest.mark.parametrize('replicas, expected', [
    (1, {0: 0.1, 400: 0.1, 800: 0.1, 139999: 0.1, 140000: 0.01, 280000: 0.001}),
    (2, {0: 0.1, 100: 0.125, 200: 0.15, 399: 0.19975, 400: 0.2, 69999: 0.2, 70000: 0.02}),
    (4, {0: 0.1, 50: 0.175, 100: 0.25, 199: 0.3985, 200: 0.4, 34999: 0.4, 35000: 0.04})])
def test_the_tutorials_rate_with_the_rule(replicas, expected):
    """50,000 images in batches of 125, 400 / replicas steps per epoch: 2 epochs of warm-up, and a
    tenth of the rate after 350 epochs."""
    with flagsaver.flagsaver(linear_scaling=True, warmup_epochs=2.0, batch_size=125,
                             data_dir='/nonexistent'):
        found = rates('tutorial', replicas, expected)
    for step, rate in expected.items():
        np.testing.assert_allclose(found[step], rate, rtol=1e-5, err_msg=str(step))


@pytest.mark.parametrize('given, peak', [({}, 0.06), ({'learning_rate': 0.3}, 0.3)])
def test_one_cycle_ends_with_the_run(given, peak):
    """20 steps: the rate rises during the first three; after k of the other 17, it is (1 + cos(k pi
    / 17)) / 2 of the peak."""
    expected = {0: 0.5 / 3, 2: 2.5 / 3, 3: 0.99786, 11: 0.5, 19: 0.00213, 20: 0}
    with flagsaver.flagsaver(data_dir='/nonexistent', **given):
        found = rates('tutorial_fast', 1, expected, max_steps=20)
    for step, part in expected.items():
        np.testing.assert_allclose(found[step], part * peak, atol=1e-5, err_msg=str(step))


@pytest.mark.parametrize('batch_size, replicas, rate', [
    (128, 1, 0.1), (128, 2, 0.2), (256, 1, 0.2), (256, 2, 0.4), (64, 2, 0.2), (192, 1, 0.1)])
def test_without_a_warm_up_the_first_step_has_the_full_rate(batch_size, replicas, rate):
    with flagsaver.flagsaver(linear_scaling=True, warmup_epochs=0.0, batch_size=batch_size,
                             data_dir='/nonexistent'):
        np.testing.assert_allclose(rates('tutorial', replicas, [0])[0], rate, rtol=1e-6)


@pytest.mark.parametrize('net, given, scaled', [
    ('tutorial', None, False), ('resnet23', None, True),
    ('tutorial', True, True), ('resnet23', False, False)])
def test_the_flag_takes_precedence_over_the_recipe(net, given, scaled):
    """Three replicas long after the warm-up."""
    with flagsaver.flagsaver(linear_scaling=given, data_dir='/nonexistent'):
        expected = (0.001 if net == 'resnet23' else 0.1) * (3 if scaled else 1)
        np.testing.assert_allclose(rates(net, 3, [10000])[10000], expected, rtol=1e-6)


@pytest.mark.parametrize('given, expected', [
    (None, [1e-3, 1.5e-3, 2e-3]), (0.004, [0.004, 0.006, 0.008])])
def test_resnet23s_rate_is_the_users_but_not_the_data_sets(tmp_path, given, expected):
    """Two workers: the rate doubles over 5 epochs of 10,000 / 128 steps, 390.625 in all."""
    with flagsaver.flagsaver(dataset='synthetic', data_dir=str(tmp_path), batch_size=64,
                             learning_rate=given):
        found = rates('resnet23', 2, (0, 195, 400))
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-3)


def test_towers_warm_up_and_a_resumed_run_reports_the_change(trained, capsys):
    """10 steps of 8 are one epoch of 80 images, a quarter of the warm-up of four, so the rate is a
    quarter of the way from 0.03 to 0.06."""
    with flagsaver.flagsaver(num_gpus=2, max_steps=11, linear_scaling=True, warmup_epochs=4.0):
        cifar10_multi_gpu_train.main()
    row = metrics.read(pathlib.Path(FLAGS.train_dir, 'metrics.csv'))[-1]
    np.testing.assert_allclose([row['step'], row['learning_rate']], [11, 0.0375], rtol=1e-6)
    settings = json.loads(pathlib.Path(FLAGS.train_dir, 'run.json').read_text())['settings']
    assert (settings['linear_scaling'], settings['warmup_epochs']) == (True, 4)
    assert [line for line in capsys.readouterr().out.splitlines() if 'scaling' in line] == [
        'Resuming with --linear_scaling=true (was false).']
