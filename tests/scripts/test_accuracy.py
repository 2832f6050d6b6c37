import os
import pathlib

import numpy as np
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

from cifar10_lib.datasets import table
from cifar10_lib.evaluation import accuracy
from cifar10_lib.program import errors

FLAGS = flags.FLAGS


@pytest.fixture
def noisy(tmp_path):
    """Flags for a CIFAR-10 folder of noise: six files of 130 records."""
    folder = record_files.write_noise(tmp_path / 'data', count=130)
    with flagsaver.flagsaver(data_dir=str(tmp_path / 'data'), batch_size=128):
        yield pathlib.Path(folder)


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
        noisy, tmp_path, eval_data, use_moving_averages):
    """130 or 650 records in batches of 128; each counts once."""
    values = plain.save_checkpoint(tmp_path / 'train')[use_moving_averages]
    names = table.CIFAR10.test_files if eval_data == 'test' else table.CIFAR10.train_files
    labels, predictions = plain_predictions([noisy / name for name in names], values)
    expected = np.zeros([10, 10], np.int64)  # Labels in rows.
    np.add.at(expected, (labels, predictions), 1)
    assert (expected != expected.T).any()
    with flagsaver.flagsaver(validate_on='held_out'):  # Has no effect here.
        current = accuracy.Accuracy(eval_data, use_moving_averages)
    result = current.run(str(tmp_path / 'train' / 'model.ckpt-123'))
    assert result.total == current.total == len(labels) == (130 if eval_data == 'test' else 650)
    assert result.confusion.dtype == np.int64
    np.testing.assert_array_equal(result.confusion, expected)
    assert result.correct == np.trace(expected) > 0
    assert result.precision == np.trace(expected) / len(labels)
    assert result.step == 123
    again = current.run(str(tmp_path / 'train' / 'model.ckpt-123'))
    np.testing.assert_array_equal(again.confusion, result.confusion)
    assert again._replace(confusion=None) == result._replace(confusion=None)


@pytest.mark.parametrize('num_examples, total', [(1, 1), (129, 129), (10000, 130)])
def test_num_examples(noisy, tmp_path, num_examples, total):
    raw, _ = plain.save_checkpoint(tmp_path / 'train')
    correct = np.equal(*plain_predictions([noisy / 'test_batch.bin'], raw))[:total]
    result = accuracy.Accuracy('test', False, num_examples).run(
        str(tmp_path / 'train' / 'model.ckpt-123'))
    assert (result.correct, result.total) == (correct.sum(), total)


def test_a_tie_counts_as_one_prediction(noisy, tmp_path):
    """All logits are equal: only one class is predicted."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in plain.SHAPES.items()}
    path = plain.save(tmp_path / 'model.ckpt', {**zeros, 'global_step': 0})
    labels = np.fromfile(noisy / 'test_batch.bin', np.uint8).reshape(-1, 3073)[:, 0]
    result = accuracy.Accuracy(use_moving_averages=False).run(path)
    assert result.correct == (labels == 0).sum()


def test_a_checkpoint_that_does_not_fit_names_the_variables(noisy, tmp_path):
    zeros = {name: np.zeros(shape, np.float32)
             for name, shape in {**plain.SHAPES, 'conv2/biases': [3]}.items()}
    path = plain.save(tmp_path / 'model.ckpt', {**zeros, 'global_step': 0})
    with pytest.raises(app.UsageError) as error:
        accuracy.Accuracy(use_moving_averages=False).run(path)
    assert 'network: conv2/biases has shape [3]; expected [64]. Pass' in str(error.value)
    with pytest.raises(app.UsageError) as error:
        accuracy.Accuracy().run(path)
    assert str(error.value).count('ExponentialMovingAverage is missing') == 10
    assert '--use_moving_averages=false' in str(error.value)


def test_a_checkpoint_for_another_image_size_names_the_cause(noisy, tmp_path):
    """32 x 32 pixels are 8 x 8 after two poolings, times 64 channels: 4,096."""
    sizes = {**plain.SHAPES, 'local3/weights': [4096, 384]}
    path = plain.save(tmp_path / 'model.ckpt-1', {
        name: np.zeros(shape, np.float32) for name, shape in sizes.items()})
    with pytest.raises(app.UsageError, match=r'local3/weights has shape \[4096, 384\]; expected '
                       r'\[2304, 384\]. Its images had another size: restore IMAGE_SIZE in'):
        accuracy.Accuracy(use_moving_averages=False).run(path)


def with_label_10(path):
    with open(path, 'r+b') as stream:
        stream.seek(3073 * 77)
        stream.write(b'\x0a')


@pytest.mark.parametrize('change, error, words', [
    (os.remove, tf.errors.NotFoundError, 'test_batch.bin'),
    (lambda path: os.truncate(path, 3073 * 100), errors.DataError,
     'had at least 130 images .* has 100 now'),
    (with_label_10, errors.DataError,
     r'^FOLDER/test_batch.bin has label 10 in record 77 \(counted from 0\); expected 0 to 9')])
def test_a_file_that_changes_after_the_check(noisy, tmp_path, change, error, words):
    plain.save_checkpoint(tmp_path / 'train')
    current = accuracy.Accuracy()
    change(noisy / 'test_batch.bin')
    with pytest.raises(error, match=words.replace('FOLDER', str(noisy))):
        current.run(str(tmp_path / 'train' / 'model.ckpt-123'))


def test_a_signal_ends_counting(noisy, tmp_path):
    plain.save_checkpoint(tmp_path / 'train')
    values = tf.train.load_checkpoint(str(tmp_path / 'train' / 'model.ckpt-123'))
    values = {name: values.get_tensor(name) for name in values.get_variable_to_shape_map()}
    current = accuracy.Accuracy()
    assert current.count(values, False).total == 130
    assert current.count(values, False, caught=[15]) is None
