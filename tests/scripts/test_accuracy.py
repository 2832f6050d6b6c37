import os
import pathlib
import re

import numpy as np
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

import cifar10
import cifar10_eval
from cifar10_lib.datasets import table
from cifar10_lib.evaluation import accuracy, model
from cifar10_lib.program import errors
from cifar10_lib.runs import events

FLAGS = flags.FLAGS


@pytest.fixture
def noisy(tmp_path):
    """Flags for a CIFAR-10 folder of noise, six files of 130 records, and for a run."""
    folder = record_files.write_noise(tmp_path / 'data', count=130)
    with flagsaver.flagsaver(
            data_dir=str(tmp_path / 'data'), batch_size=128, run_once=True, per_class=True,
            checkpoint_dir=str(tmp_path / 'train'), eval_dir=str(tmp_path / 'eval')):
        yield pathlib.Path(folder)


def evaluate(capsys, **options):
    """Evaluates; returns the printed confusion matrix, int [10, 10], and all printed text."""
    with flagsaver.flagsaver(**options):
        cifar10_eval.main()
    out = capsys.readouterr().out
    assert 'recall  precision' in out
    _, matrix = out.split('Confusion matrix: labels in rows, predictions in columns.\n')
    _, *rows = matrix.splitlines()
    return np.array([row.split()[2:] for row in rows], np.int64), out


def plain_predictions(paths, values):
    """(labels, predictions) of the plain network for the files' records, both int [count]."""
    data = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    images = data[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[:, 4:28, 4:28]
    with tf.Graph().as_default(), tf.Session() as session:
        net = tf.image.per_image_standardization(tf.cast(images, tf.float32))
        logits = session.run(plain.logits(net, {k: tf.constant(v) for k, v in values.items()}))
    return data[:, 0], logits.argmax(axis=1)


@pytest.mark.parametrize('use_moving_averages', [True, False])
@pytest.mark.parametrize('eval_data', ['test', 'train_eval'])
def test_a_plain_tf1_checkpoint_to_the_exact_fraction(
        noisy, tmp_path, capsys, eval_data, use_moving_averages):
    """130 or 650 records in batches of 128; each counts once."""
    values = plain.save_checkpoint(tmp_path / 'train')[use_moving_averages]
    names = table.CIFAR10.test_files if eval_data == 'test' else table.CIFAR10.train_files
    labels, predictions = plain_predictions([noisy / name for name in names], values)
    expected = np.zeros([10, 10], np.int64)  # Labels in rows.
    np.add.at(expected, (labels, predictions), 1)
    assert (expected != expected.T).any() and np.trace(expected) > 0
    count, weights = len(labels), 'averaged' if use_moving_averages else 'raw'
    assert count == (130 if eval_data == 'test' else 650)
    for _ in range(2):
        matrix, out = evaluate(
            capsys, eval_data=eval_data, use_moving_averages=use_moving_averages,
            validate_on='held_out')  # That has no effect here.
        np.testing.assert_array_equal(matrix, expected)
        assert f'model.ckpt-123 (step 123, {weights} weights) on {count} images.\n' in out
    kinds = ['training images'] * (eval_data != 'test') + ['raw weights'] * (weights == 'raw')
    tag = 'Precision @ 1'
    if kinds:
        tag += f' ({", ".join(kinds)})'
    assert events.read_curves(FLAGS.eval_dir).get(tag, {}) == {
        123: np.float32(np.trace(expected) / count)}


@pytest.mark.parametrize('num_examples, total', [(1, 1), (129, 129), (10000, 130)])
def test_num_examples(noisy, tmp_path, capsys, num_examples, total):
    raw, _ = plain.save_checkpoint(tmp_path / 'train')
    correct = np.equal(*plain_predictions([noisy / 'test_batch.bin'], raw))[:total]
    matrix, out = evaluate(capsys, use_moving_averages=False, num_examples=num_examples)
    assert (np.trace(matrix), matrix.sum()) == (correct.sum(), total)
    line = f'Evaluating the first {total} of 130 images; see --num_examples.\n'
    assert (line in out) == (total < 130)


def save(folder, **shapes):
    """Saves a checkpoint of zeros, without averages, of the plain network or other shapes."""
    folder.mkdir()
    shapes = {**plain.SHAPES, **shapes}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return plain.save(folder / 'model.ckpt-1', {**zeros, 'global_step': 1})


def test_a_tie_counts_as_one_prediction(noisy, tmp_path, capsys):
    """All logits are equal: only one class is predicted."""
    save(tmp_path / 'train')
    labels = np.fromfile(noisy / 'test_batch.bin', np.uint8).reshape(-1, 3073)[:, 0]
    matrix, _ = evaluate(capsys, use_moving_averages=False)
    np.testing.assert_array_equal(matrix[:, 0], np.bincount(labels, minlength=10))
    assert not matrix[:, 1:].any()


def test_a_checkpoint_that_does_not_fit_names_the_variables(noisy, tmp_path):
    save(tmp_path / 'train', **{'conv2/biases': [3]})
    with flagsaver.flagsaver(use_moving_averages=False), pytest.raises(app.UsageError) as error:
        cifar10_eval.main()
    assert 'network: conv2/biases has shape [3]; expected [64]. Pass' in str(error.value)
    with pytest.raises(app.UsageError) as error:
        cifar10_eval.main()
    assert str(error.value).count('ExponentialMovingAverage is missing') == 10
    assert '--use_moving_averages=false' in str(error.value)


def test_a_checkpoint_for_another_image_size_names_the_cause(noisy, tmp_path):
    """32 x 32 pixels are 8 x 8 after two poolings, times 64 channels: 4,096."""
    save(tmp_path / 'train', **{'local3/weights': [4096, 384]})
    with flagsaver.flagsaver(use_moving_averages=False), pytest.raises(
            app.UsageError, match=r'local3/weights has shape \[4096, 384\]; expected '
            r'\[2304, 384\]. Its images had another size: restore IMAGE_SIZE in'):
        cifar10_eval.main()


def with_label_10(path):
    with open(path, 'r+b') as stream:
        stream.seek(3073 * 77)
        stream.write(b'\x0a')


@pytest.mark.parametrize('change, error, words', [
    (os.remove, tf.errors.NotFoundError, 'test_batch.bin'),
    (with_label_10, errors.DataError,
     r'^FOLDER/test_batch.bin has label 10 in record 77 \(counted from 0\); expected 0 to 9')])
def test_a_file_that_changes_after_the_check(noisy, tmp_path, change, error, words):
    """After the graph was built: an evaluation may run for days."""
    plain.save_checkpoint(tmp_path / 'train')
    source = cifar10.default_source(eval_data=True)
    images, labels = cifar10.inputs(True, source)
    top_k_op = [labels, accuracy.predictions(cifar10.inference(images))]
    saver = tf.train.Saver(model.variables_to_restore(use_moving_averages=True))
    summary_op = tf.summary.merge_all()
    change(noisy / 'test_batch.bin')
    with pytest.raises(error, match=words.replace('FOLDER', re.escape(str(noisy)))):
        cifar10_eval.eval_once(saver, None, top_k_op, summary_op,
                               str(tmp_path / 'train' / 'model.ckpt-123'),
                               cifar10_eval.Images(source, 130, table.CIFAR10.classes, 'averaged',
                                                   []))
