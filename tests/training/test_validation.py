import dataclasses
import json
import os
import pathlib
import re
import signal
import time

import h5py
import numpy as np
import outcomes
import pytest
import record_files
import sessions
import tensorflow.compat.v1 as tf
import tiny
from absl import app, flags
from absl.testing import flagsaver

import cifar10
import cifar10_distributed_train
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.runs import events, metrics

FLAGS = flags.FLAGS


@pytest.fixture
def tiny_net(half_bright, monkeypatch):
    """The network `tiny` on the half-bright images: 10 steps per epoch."""
    monkeypatch.setitem(recipes.TABLE, 'tiny', tiny.RECIPE)
    with flagsaver.flagsaver(net='tiny', validate_every=1, max_steps=25):
        yield


def folder(*names):
    return pathlib.Path(FLAGS.train_dir, *names)


def rows():
    """(step, validation error) of each row of the metrics."""
    return [(row['step'], row['validation_error']) for row in metrics.read(folder('metrics.csv'))]


def scalars(tag):
    return events.read_curves(FLAGS.train_dir).get(tag, {})


def errors(step):
    """Errors of the checkpoint at a step, by a separate evaluation."""
    path = str(folder(f'model.ckpt-{step}'))
    found = [outcomes.counts(path, use_moving_averages) for use_moving_averages in (False, True)]
    return [(counts.total - counts.correct) / counts.total for counts in found]


@pytest.mark.slow
def test_the_errors_are_those_of_the_checkpoints(half_bright, monkeypatch):
    """The tutorial's network at a low rate; one label in ten does not occur in training."""
    images = [image for _, image in record_files.half_bright(130, seed=0)]
    record_files.write(half_bright / 'test_batch.bin',
                       [(5 if k % 10 == 0 else k % 2, image) for k, image in enumerate(images)])
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.002)
    with flagsaver.flagsaver(validate_every=1, max_steps=25, save_checkpoint_steps=5,
                             log_frequency=1):
        cifar10_train.main()
    expected = {step: errors(step) for step in (10, 20, 25)}
    assert all(0.1 <= error < 1 for error, _ in expected.values())
    np.testing.assert_allclose(
        [(scalars('validation/error')[step], scalars('validation/error_averaged')[step])
         for step in expected], list(expected.values()), rtol=1e-6)
    assert list(scalars('validation/error')) == list(scalars('training/error')) == [10, 20, 25]
    # Rows at validations and before checkpoints.
    assert [step for step, _ in rows()] == [5, 10, 15, 20, 25]
    np.testing.assert_allclose([error for _, error in rows() if error is not None],
                               [raw for raw, _ in expected.values()], rtol=1e-6)
    lowest = min(expected, key=lambda step: expected[step][1])
    assert json.loads(folder('best', 'error.json').read_text()) == {
        'step': lowest, 'error': expected[lowest][0], 'averaged_error': expected[lowest][1],
        'validated_on': 'test', 'checkpoint': f'model.ckpt-{lowest}'}
    with h5py.File(folder('params.h5')) as stream:
        assert stream.attrs['global_step'] == 25
        np.testing.assert_array_equal(
            stream['weights/conv1/weights'],
            tf.train.load_variable(str(folder('model.ckpt-25')), 'conv1/weights'))


def test_the_training_error_is_the_mean_of_the_epochs_batches(tiny_net, capsys):
    """In step k, counted from 0, the errors of two towers are k / 100 and 2 k / 100."""
    for max_steps in (15, 25):
        with flagsaver.flagsaver(max_steps=max_steps), tf.Graph().as_default():
            start = sessions.start()
            made = tf.cast(tf.train.get_or_create_global_step().read_value(), tf.float32)
            with tf.control_dependencies([made]):
                loss, train_op = sessions.graph(start)
            tf.get_collection_ref('errors')[:] = [made / 100, 2 * made / 100]
            with sessions.session(start, loss) as session:
                while not session.should_stop():
                    session.run(train_op)
    printed = re.findall(r': step (\d+), training error = (0\.\d{4}), validation error = 0\.\d{4} '
                         r'\(0\.\d{4} averaged\)\n', capsys.readouterr().out)
    assert printed == [
        ('10', '0.0675'),  # 0.015 times the mean of 0 to 9, 4.5,
        ('15', '0.1800'),  # of 10 to 14,
        ('20', '0.2550'),  # of 15 to 19, since the run resumed at 15,
        ('25', '0.3300')]  # and of 20 to 24.


@pytest.mark.parametrize('restart', [True, False])
def test_a_new_run_has_a_best_checkpoint_of_its_own(tiny_net, capsys, restart):
    """Although its error is not lower than that of the run before, whose checkpoints were removed
    by --restart, or by hand. It does not say that it resumes."""
    cifar10_train.main()
    assert json.loads(folder('best', 'error.json').read_text())['averaged_error'] == 0
    if not restart:
        for path in [folder('checkpoint'), *folder().glob('model.ckpt-*')]:
            path.unlink()
    capsys.readouterr()
    with flagsaver.flagsaver(restart=restart, learning_rate=1e-9, max_steps=3):
        cifar10_train.main()
    assert json.loads(folder('best', 'error.json').read_text())['step'] == 3
    assert 'Resuming' not in capsys.readouterr().out


def test_a_run_does_not_hold_out_what_it_trained_on(tiny_net, half_bright):
    """As it would if the data set had grown since: which tenth is held out would change."""
    with flagsaver.flagsaver(validate_on='held_out', max_steps=3):
        cifar10_train.main()
        path = min(half_bright.glob('data_*'))
        path.write_bytes(path.read_bytes() + path.read_bytes()[:3073])
        with pytest.raises(app.UsageError, match='held out a tenth of 80 images. Of 81, it would '
                           'hold out others, which it has trained on: choose another --train_dir'):
            cifar10_train.main()
        FLAGS.restart = True
        cifar10_train.main()


def test_a_validation_that_cannot_run_does_not_end_the_training(tiny_net, half_bright, capsys):
    start = sessions.start()
    loss, train_op = sessions.graph(start)
    with sessions.session(start, loss) as session:
        (half_bright / 'test_batch.bin').unlink()
        while not session.should_stop():
            session.run(train_op)
    assert re.search(r'No validation at step 10: .*test_batch\.bin.*No such file',
                     capsys.readouterr().out)
    assert rows() == [(10, None), (20, None), (25, None)]


def test_a_best_checkpoint_that_cannot_be_written_ends_the_run(tiny_net, capsys):
    folder().mkdir()
    folder('best').write_text('')
    with pytest.raises(OSError):
        cifar10_train.main()
    out = capsys.readouterr().out
    assert ': step 10, training error = ' in out and 'Saved step 10 in ' in out
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith('model.ckpt-10')


def test_a_signal_skips_the_validation_and_saves(tiny_net, capfd):
    """The signal comes during step 10, which ends an epoch."""
    err = ''
    with flagsaver.flagsaver(max_steps=20):
        start = sessions.start()
        loss, train_op = sessions.graph(start)
        step = tf.train.get_global_step()
        with pytest.raises(SystemExit), sessions.session(start, loss) as session:
            while not session.should_stop():
                if session.run_step_fn(lambda step_context: step_context.session.run(step)) == 9:
                    os.kill(os.getpid(), signal.SIGTERM)
                    while 'Stopping after this step' not in err:
                        time.sleep(0.01)
                        err += capfd.readouterr().err
                session.run(train_op)
    out = capfd.readouterr().out
    assert 'Skipped the validation at step 10.' in out
    assert 'Saved step 10' in out
    assert rows() == [(10, None)]


def test_training_figures_are_means_since_the_last_row(half_bright):
    """Losses 0, 1, 2 and so on, learning rates of a tenth; rows at steps 4, 8 and 10."""
    step = tf.train.get_or_create_global_step()
    made = tf.cast(step.read_value(), tf.float32)
    tf.add_to_collection('errors', made / 16)
    tf.add_to_collection('errors', 3 * made / 16)  # The mean of the two towers is step / 8.
    tf.add_to_collection('learning_rate', made / 10)
    with tf.control_dependencies([made]):
        count = step.assign_add(1)
    with flagsaver.flagsaver(save_checkpoint_steps=4, validate_every=0), \
            sessions.session(sessions.start(batches_per_step=2), made) as session:
        while not session.should_stop():
            session.run(count)
    found = metrics.read(folder('metrics.csv'))
    assert [row['step'] for row in found] == [4, 8, 10]
    assert [row['epoch'] for row in found] == [0.8, 1.6, 2]  # 16 of 80 images.
    assert [row['training_loss'] for row in found] == [1.5, 5.5, 8.5]
    assert [row['training_error'] for row in found] == [0.1875, 0.6875, 1.0625]
    np.testing.assert_allclose([row['learning_rate'] for row in found], [0.3, 0.7, 0.9], rtol=1e-6)
    assert all(row['images_per_second'] > 0 for row in found)
    assert [row['validation_error'] for row in found] == 3 * [None]
    assert not folder('best').exists()


@pytest.mark.parametrize('trainer', [
    cifar10_train, cifar10_multi_gpu_train, cifar10_distributed_train])
def test_held_out_images_are_not_trained_on(half_bright, monkeypatch, trainer):
    """8 of 80 images are held out: white, class 5. An epoch of the others has 9 steps of 8."""
    for index, path in enumerate(sorted(half_bright.glob('data_*'))):
        records = np.fromfile(path, np.uint8).reshape(16, 3073)
        records[-16 * index % 11::11] = [5] + 3072 * [255]  # Records 0, 11, 22 and so on of all.
        records.tofile(path)

    monkeypatch.setitem(recipes.TABLE, 'tiny', dataclasses.replace(
        tiny.RECIPE,
        distort=lambda images: tiny.prepare(images) / (255 - tiny.prepare(images))))  # White: inf.
    with flagsaver.flagsaver(net='tiny', validate_on='held_out', max_steps=9, validate_every=1):
        trainer.main()
    row, = metrics.read(folder('metrics.csv'))
    assert (row['step'], row['epoch'], row['validation_error']) == (9, 1, 1)
    assert json.loads(folder('best', 'error.json').read_text())['validated_on'] == 'held_out'
