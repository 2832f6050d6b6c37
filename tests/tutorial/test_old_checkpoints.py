"""Checkpoints of the original tutorial, and of this project before it had two programs, load."""
import os

from cifar10_lib import checkpoints

import numpy as np
import outcomes
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import cifar10_eval
import cifar10_multi_gpu_train
import cifar10_predict
import cifar10_train

FLAGS = flags.FLAGS
LOSSES = ('cross_entropy', 'local3/weight_loss', 'local4/weight_loss', 'total_loss')


def values_of(name):
    """What programs saved, {name of a variable: value}, at step 20."""
    raw, averaged = plain.weights(seed=1), plain.weights(seed=2)
    averaged = {key + plain.AVERAGE: value for key, value in averaged.items()}
    losses = {key + '/avg': np.float32(0.5) for key in LOSSES}
    if name == 'this project, one device':
        return {**raw, **averaged, **losses, 'global_step': np.int64(20)}
    if name == 'original, one device':  # The biases decayed, too, with a factor of 0.
        return {**raw, **averaged, **losses, 'conv1/weight_loss/avg': np.float32(0.0),
                'global_step': np.int64(20)}
    if name == 'original, towers':
        losses = {f'tower_0/{key}/avg': value for key, value in losses.items()}
        return {**raw, **averaged, **losses, 'global_step': np.float32(20)}
    assert name == 'original, --use_fp16'
    halves = {key: value.astype(np.float16) for key, value in {**raw, **averaged}.items()}
    return {**halves, 'global_step': np.float32(20)}


@pytest.mark.parametrize('name, trainer', [
    ('this project, one device', cifar10_multi_gpu_train), ('original, one device', cifar10_train),
    ('original, towers', cifar10_train), ('original, --use_fp16', cifar10_multi_gpu_train)])
def test_training_resumes(half_bright, capsys, monkeypatch, name, trainer):
    """At step 20, from the saved values: with a rate of nearly 0, they stay. What is saved has
    today's names and types; towers have no averages of losses."""
    monkeypatch.setattr('cifar10.INITIAL_LEARNING_RATE', 1e-9)
    saved = values_of(name)
    plain.save(os.path.join(FLAGS.train_dir, 'model.ckpt-20'), saved)
    with flagsaver.flagsaver(max_steps=21, log_frequency=1):
        trainer.main()
    assert [match[1] for match in outcomes.LINE.finditer(capsys.readouterr().out)] == ['20']
    found = checkpoints.newest(FLAGS.train_dir).values
    expected = values_of('this project, one device').keys()
    if trainer is cifar10_multi_gpu_train:
        expected = {key for key in expected if not key.endswith('/avg')}
    assert found.keys() == expected
    assert (found['global_step'], found['global_step'].dtype) == (21, np.int64)
    for key in plain.SHAPES:
        assert found[key].dtype == np.float32
        np.testing.assert_allclose(found[key], saved[key], atol=1e-6)


@pytest.mark.parametrize('name', [
    'original, one device', 'original, towers', 'original, --use_fp16'])
def test_evaluation_and_prediction(half_bright, tmp_path, capsys, name):
    """With the averages, which differ from the variables. Evaluation does not read halves: the
    trainer, which resumes from them, saves floats."""
    saved = values_of(name)
    path = plain.save(os.path.join(FLAGS.train_dir, 'model.ckpt-20'), saved)
    record = np.random.RandomState(0).randint(0, 256, [1, 3073]).astype(np.uint8)
    Image.fromarray(record_files.unpacked(record)[0][0]).save(tmp_path / 'a.png')
    averages = {key: value.astype(np.float32) for key, value in plain.read(path).items()}
    with tf.Session() as session:
        expected, = session.run(tf.nn.softmax(plain.logits(plain.centres(record), averages)))
    with flagsaver.flagsaver(top_k=1):
        cifar10_predict.predict([f'{tmp_path}/a.png'])
    _, probability, _ = capsys.readouterr().out.splitlines()[-1].split()
    np.testing.assert_allclose(float(probability), expected.max(), atol=1e-4)
    if name != 'original, --use_fp16':
        with flagsaver.flagsaver(run_once=True), tf.Graph().as_default():
            cifar10_eval.main()
        assert 'precision @ 1 = ' in capsys.readouterr().out
        assert list(outcomes.summaries(FLAGS.eval_dir)) == [20]
