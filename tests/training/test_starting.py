import dataclasses
import json
import os
import pathlib
import re
import shutil

import numpy as np
import plain
import pytest
import sessions
import spawn
import tensorflow.compat.v1 as tf
import tiny
from absl import app, flags
from absl.testing import flagsaver

import cifar10_eval
import cifar10_export
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.datasets import custom
from cifar10_lib.runs import checkpoints, metrics

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'


def latest():
    return tf.train.latest_checkpoint(FLAGS.train_dir)


def count(batches_per_step=1, **values):
    """Makes steps that only count, with flags."""
    with tf.Graph().as_default(), flagsaver.flagsaver(**values):
        step = tf.train.get_or_create_global_step().assign_add(1)
        start = sessions.start(batches_per_step)
        with sessions.session(start, tf.constant(1.0)) as session:
            while not session.should_stop():
                session.run(step)


@pytest.mark.parametrize('max_steps', [10, 4])
def test_a_finished_run_prints_one_line(trained, capsys, max_steps):
    before = {path: path.stat().st_mtime_ns for path in pathlib.Path(FLAGS.train_dir).iterdir()}
    capsys.readouterr()
    with flagsaver.flagsaver(max_steps=max_steps):
        cifar10_train.main()
    assert capsys.readouterr().out == (
        f'Nothing to do: {latest()} has reached --max_steps={max_steps}.\n')
    assert before == {
        path: path.stat().st_mtime_ns for path in pathlib.Path(FLAGS.train_dir).iterdir()}


def test_a_missing_params_h5_is_written_by_the_next_start(trained):
    """A start that was killed between its last checkpoint and params.h5 is not complete."""
    path = os.path.join(FLAGS.train_dir, 'params.h5')
    assert not sessions.start().steps_left()
    os.remove(path)
    assert sessions.start().steps_left()
    cifar10_train.main()
    assert os.path.exists(path)
    assert checkpoints.step(latest()) == 10
    assert not sessions.start().steps_left()
    with tf.Graph().as_default(), flagsaver.flagsaver(max_steps=11):
        tf.train.get_or_create_global_step()
        with sessions.session(sessions.start(), tf.constant(1.0)):
            assert not os.path.exists(path)  # A kill after step 11 would leave it.


def test_a_folder_without_checkpoints_has_steps_left(trained):
    """Even of a run of no steps, whose params.h5 is there."""
    with flagsaver.flagsaver(max_steps=0, restart=True):
        cifar10_train.main()
    for path in pathlib.Path(FLAGS.train_dir).glob('*ck*p*t*'):
        path.unlink()
    with flagsaver.flagsaver(max_steps=0):
        assert sessions.start().steps_left()


def test_resuming_with_other_settings_prints_a_line_for_each(half_bright, capsys):
    """Once: the next start compares with the last one. At the end, there is one more image."""
    starts = [
        ({}, set()),
        ({'use_fp16': True}, {'--use_fp16=true (was false)'}),
        ({'use_bf16': True}, {'--use_fp16=false (was true)', '--use_bf16=true (was false)'}),
        ({'use_bf16': True}, set()),
        ({'learning_rate': 0.5}, {'--use_bf16=false (was true)',
                                  '--learning_rate=0.5 (was the default)'}),
        ({'variables': 'gpu'}, {'--learning_rate=the default (was 0.5)',
                                '--variables=gpu (was cpu)'}),
        ({'batch_size': 4}, {'--variables=cpu (was gpu)', '4 images per step (was 8)'}),
        ({'linear_scaling': True}, {'8 images per step (was 4)',
                                    '--linear_scaling=true (was false)'}),
        ({}, {'--linear_scaling=false (was true)', '81 training images (was 80)'}),
        ({}, set())]
    for steps, (given, changed) in enumerate(starts, 1):
        if '81 training images (was 80)' in changed:
            with open(half_bright / 'data_batch_2.bin', 'ab') as stream:
                stream.write(bytes(3073))
        count(max_steps=steps, **given)
        lines = re.findall(r'^Resuming with (.*)\.$', capsys.readouterr().out, re.MULTILINE)
        assert (len(lines), {*lines}) == (len(changed), changed)


def test_epochs_are_images_seen_over_all_starts(half_bright, capsys):
    """With 8, 16 and 4 of 80 images per step, and a start without a step; then with 40 after a
    fall back to step 5, which the first start reached."""
    for batches, max_steps in ((2, 5), (4, 10), (40, 10), (1, 20), (10, 7)):
        if batches == 10:
            for path in pathlib.Path(FLAGS.train_dir).glob('model.ckpt-[12]*.index'):
                path.unlink()
        count(batches, batch_size=4, max_steps=max_steps)
        rows = metrics.read(os.path.join(FLAGS.train_dir, 'metrics.csv'))
        assert [(row['step'], row['epoch']) for row in rows] == {
            5: [(5, 0.5)], 10: [(5, 0.5), (10, 1.5)], 20: [(5, 0.5), (10, 1.5), (20, 2)],
            7: [(5, 0.5), (7, 1.5)]}[max_steps]
    assert '\n7 steps are 1.5 epochs of 80 images.\n' in capsys.readouterr().out


def flowers(folder, names):
    """Writes a data set with these classes of 30 black images; returns its path."""
    folder.mkdir(parents=True)
    both = np.zeros([30, 32, 32, 3], np.uint8), np.arange(30) % len(names)
    custom.write(folder, folder.name, names, both, both)
    return str(folder)


def test_a_data_set_is_known_by_its_classes(half_bright, tmp_path, capsys):
    """The same flowers in another folder continue the run."""
    for steps, name in ((1, 'bed'), (2, 'vase')):
        count(max_steps=steps, dataset=flowers(tmp_path / name, ['rose', 'tulip']))
    assert (f'Resuming with --dataset={tmp_path}/vase (was {tmp_path}/bed).\n'
            ) in capsys.readouterr().out


@pytest.mark.parametrize('names, given, words', [
    (['cat', 'dog'], {}, r'--dataset=bed \(class 0: rose, not cat\): .* --restart'),
    (['tulip', 'rose'], {}, r'\(class 0: rose, not tulip\): '),
    (['rose', 'tulip', 'lily'], {}, r'\(class 2: missing, not lily\): '),
    (['rose', 'tulip'], {'net': 'resnet23'}, '--net=tutorial, not with --net=resnet23: '),
    (['rose', 'tulip'], {'validate_on': 'held_out'}, 'with --validate_on=test, which trains')])
def test_another_run_is_not_resumed(half_bright, tmp_path, names, given, words):
    """Even if no steps are left, and if the folder of the data set has the same name."""
    count(max_steps=1, dataset=flowers(tmp_path / 'first' / 'bed', ['rose', 'tulip']))
    before = sorted(os.listdir(FLAGS.train_dir))
    dataset = flowers(tmp_path / 'second' / 'bed', names)
    with flagsaver.flagsaver(max_steps=1, dataset=dataset, **given), \
            pytest.raises(app.UsageError, match=words):
        sessions.start()
    assert sorted(os.listdir(FLAGS.train_dir)) == before


def test_restart_removes_only_a_runs_own_files(trained, tmp_path):
    precious = tmp_path / 'precious'
    precious.write_text('mine')
    folder = tmp_path / 'train'
    (folder / 'notes.txt').write_text('mine')
    (folder / 'model.ckpt-best').write_text('mine')
    (folder / 'events.out.tfevents.1.x').symlink_to(precious)
    (folder / 'model.ckpt-7.d').mkdir()
    (folder / 'best').mkdir()
    (folder / 'best' / 'mine').touch()
    (folder / 'best' / 'error.json').touch()
    with flagsaver.flagsaver(restart=True, max_steps=3):
        cifar10_train.main()
    names = os.listdir(folder)
    assert {'notes.txt', 'model.ckpt-best', 'model.ckpt-7.d', 'model.ckpt-3.index'} <= set(names)
    assert 'model.ckpt-10.index' not in names
    assert os.listdir(folder / 'best') == ['mine']
    assert precious.read_text() == 'mine'
    assert checkpoints.step(latest()) == 3


@pytest.mark.parametrize('is_new', [False, True])
def test_a_folder_that_was_used_since_it_was_read_is_left_alone(half_bright, is_new):
    """As if two trainers start together, and the second one downloads the data longer."""
    if not is_new:
        count(max_steps=2)
    late = sessions.start()
    count(max_steps=4)
    before = {path: path.read_bytes() for path in pathlib.Path(FLAGS.train_dir).iterdir()}
    step = tf.train.get_or_create_global_step().assign_add(1)
    with pytest.raises(app.UsageError, match='has just been used by another trainer: run the same'):
        with sessions.session(late, tf.constant(1.0)) as session:
            session.run(step)
    assert before == {
        path: path.read_bytes() for path in pathlib.Path(FLAGS.train_dir).iterdir()}


def test_all_use_the_newest_intact_checkpoint(trained, tmp_path, capfd):
    index = pathlib.Path(latest() + '.index')
    before = set(os.listdir(FLAGS.train_dir))
    index.write_bytes(index.read_bytes()[:20])
    for use, words in ((cifar10_eval.main, '/model.ckpt-0 (step 0, averaged weights) on 130'),
                       (cifar10_export.export, '/model.ckpt-0 as a SavedModel'),
                       (cifar10_train.main, 'Resuming from ')):
        with flagsaver.flagsaver(run_once=True, export_dir=str(tmp_path / 'model'), max_steps=1):
            use()
        out, error = capfd.readouterr()
        assert words in out
        assert re.search(r'model.ckpt-10 is damaged \(.*\): using model.ckpt-0\n', error)
    assert before <= set(os.listdir(FLAGS.train_dir))


def test_all_checkpoints_damaged(trained):
    for path in pathlib.Path(FLAGS.train_dir).glob('model.ckpt-*.index'):
        path.write_bytes(path.read_bytes()[:20])
    with flagsaver.flagsaver(max_steps=12):
        with pytest.raises(app.UsageError, match=(
                r'^.*/train/model.ckpt-10 is damaged \(.*\); so is model.ckpt-0: all check')):
            cifar10_train.main()
        FLAGS.restart = True
        cifar10_train.main()
        assert checkpoints.step(latest()) == 12


def test_a_moved_run_resumes_and_a_copied_one_is_left_alone(trained, tmp_path):
    """TensorFlow removes old checkpoints by the paths that it remembers."""
    first = pathlib.Path(FLAGS.train_dir)
    before = sorted(path.name for path in first.iterdir())
    assert str(first) not in (first / 'checkpoint').read_text()
    shutil.copytree(first, tmp_path / 'second')
    with flagsaver.flagsaver(train_dir=str(tmp_path / 'second'), max_steps=20,
                             save_checkpoint_steps=1):
        cifar10_train.main()
        assert checkpoints.step(latest()) == 20
    assert sorted(path.name for path in first.iterdir()) == before


def loss_of_step_11():
    """Resumes a run at step 10, and returns the total loss of the next step."""
    with flagsaver.flagsaver(max_steps=11):
        cifar10_train.main()
    row = metrics.read(os.path.join(FLAGS.train_dir, 'metrics.csv'))[-1]
    assert row['step'] == 11
    return row['training_loss']


def test_a_finished_run_of_the_original_needs_no_data(trained, capsys):
    """It has no params.h5."""
    for name in ('run.json', 'metrics.csv', 'params.h5'):
        os.remove(os.path.join(FLAGS.train_dir, name))
    with flagsaver.flagsaver(data_dir='/nonexistent'):
        cifar10_train.main()
    assert capsys.readouterr().out.endswith(
        f'Nothing to do: {latest()} has reached --max_steps=10.\n')


@pytest.mark.parametrize('name', ['global_step', 'Variable'])
def test_a_checkpoint_of_the_original(trained, capsys, name):
    """The multi-GPU script has a float32 global step; the first single-GPU script does not name it.

    Both have averages of losses, of which 0.9 remain after each step.
    """
    values = checkpoints.read(latest())
    del values['global_step']
    plain.save(latest(), {**values, name: 10.0, 'total_loss/avg': 5.0, 'conv1/weight_loss/avg': 2.})
    os.remove(os.path.join(FLAGS.train_dir, 'run.json'))
    loss = loss_of_step_11()
    assert 'has no run.json: resuming with --net=tutorial --dataset=' in capsys.readouterr().out
    resumed = checkpoints.read(latest())
    assert resumed['global_step'] == 11 and resumed['global_step'].dtype == np.int64
    np.testing.assert_allclose(resumed['total_loss/avg'], 0.9 * 5 + 0.1 * loss, rtol=1e-5)
    assert 'conv1/weight_loss/avg' not in resumed


def test_a_checkpoint_without_averages_of_losses(trained):
    """This project left them out for some time. They start at 0, and all else is resumed."""
    values = checkpoints.read(latest())
    averages = {name for name in values if name.endswith('/avg')}
    assert averages == {'cross_entropy/avg', 'local3/weight_loss/avg', 'local4/weight_loss/avg',
                        'total_loss/avg'}
    plain.save(latest(), {name: value for name, value in values.items() if name not in averages})
    sessions.train()  # Without a step: the checkpoint is written again.
    for name, value in checkpoints.read(latest()).items():
        np.testing.assert_array_equal(value, 0 if name in averages else values[name])
    loss = loss_of_step_11()
    np.testing.assert_allclose(
        checkpoints.read(latest())['total_loss/avg'], 0.1 * loss, rtol=1e-5)


def frozen_inference(images, num_classes, training, dtype=tf.float32):
    """Frozen scales and shifts of the images, and two layers that learn."""
    del training, dtype
    scale, shift = (tf.get_variable(name, [3], initializer=tf.ones_initializer(), trainable=False)
                    for name in ('input/scale', 'input/shift'))
    hidden = tf.get_variable('hidden/weights', [tiny.SIZE ** 2 * 3, 4])
    weights = tf.get_variable('linear/weights', [4, num_classes])
    net = tf.reshape(images / 255 * scale + shift, [-1, tiny.SIZE ** 2 * 3])
    return tf.matmul(tf.matmul(net, hidden), weights)


def test_an_initial_checkpoint_gives_weights_but_no_state(
        half_bright, monkeypatch, tmp_path, capsys):
    """Layers and frozen weights start with its averages; the step, Adam and the averages of losses
    start anew. The row's own initial values remain where the checkpoint has none."""
    shape = [tiny.SIZE ** 2 * 3, 4]
    theirs = {
        'input/scale': [5, 6, 7], 'hidden/weights': np.full(shape, 2),
        'hidden/weights' + AVERAGE: np.full(shape, 0.5), 'hidden/weights/Adam': np.full(shape, 3),
        'beta1_power': 0.25, 'cross_entropy/avg': 9, 'total_loss/avg': 9, 'global_step': 7}
    path = plain.save(tmp_path / 'theirs', {
        name: np.array(value, np.float32) for name, value in theirs.items()})
    monkeypatch.setitem(recipes.TABLE, 'frozen', dataclasses.replace(
        tiny.RECIPE, inference=frozen_inference,
        initial_values=lambda source: {'input/scale': [1, 2, 3], 'input/shift': [8, 9, 10]}))
    with flagsaver.flagsaver(net='frozen', initial_checkpoint=path, max_steps=0):
        sessions.train()
    assert f'Starting with hidden of {path}; new: linear/weights.\n' in capsys.readouterr().out
    ours = checkpoints.read(latest())
    assert (ours['input/scale'].tolist(), ours['input/shift'].tolist()) == ([5, 6, 7], [8, 9, 10])
    for name, value in (('hidden/weights', 0.5), ('hidden/weights' + AVERAGE, 0.5),
                        ('hidden/weights/Adam', 0), ('cross_entropy/avg', 0),
                        ('total_loss/avg', 0), ('global_step', 0)):
        assert (ours[name] == value).all(), name
    np.testing.assert_allclose(ours['beta1_power'], 0.9)


@pytest.mark.slow
@pytest.mark.parametrize('more, most', [([], 1), (['--validate_every=1'], 2)])
def test_a_resume_reads_its_checkpoint_once(trained, more, most):
    """With validations, also the best one."""
    report = ('import sys\nsys.setprofile(lambda frame, event, _: event == "call" and '
              'frame.f_code.co_name == "load_checkpoint" and print("reads a checkpoint"))')
    arguments = [*spawn.gently('cifar10_train.py', change=report), f'--data_dir={FLAGS.data_dir}',
                 f'--train_dir={FLAGS.train_dir}', '--batch_size=8', *more]
    for max_steps in (11, 12):
        done = spawn.run([*arguments, f'--max_steps={max_steps}'], capture_output=True)
        assert done.returncode == 0, done.stderr
    assert 1 <= done.stdout.count('reads a checkpoint') <= most, done.stdout
    assert checkpoints.step(latest()) == 12


def test_run_json(half_bright):
    """What the next start, an evaluation and a reader need."""
    count(batches_per_step=3, max_steps=2, seed=7)
    run = json.loads(pathlib.Path(FLAGS.train_dir, 'run.json').read_text())
    settings = run.pop('settings')
    assert run.pop('classes')[:2] == ['airplane', 'automobile']
    assert run == {'dataset': 'cifar10', 'net': 'tutorial'}
    assert settings.pop('started').startswith('20')
    assert settings == {
        'batch_size': 8, 'data_dir': FLAGS.data_dir, 'dataset': 'cifar10', 'first_step': 0,
        'images_per_step': [[0, 24]], 'learning_rate': None, 'linear_scaling': False,
        'max_steps': 2, 'min_fraction_of_examples_in_queue': None, 'records': 80, 'seed': 7,
        'tensorflow': tf.version.VERSION, 'training_images': 80, 'use_bf16': False,
        'use_fp16': False, 'validate_on': 'test', 'variables': 'cpu'}
