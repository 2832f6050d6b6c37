import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import outcomes
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

import cifar10_export
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.datasets import table

FLAGS = flags.FLAGS

# A user's program, without this project: evaluates a SavedModel, converts it to TensorFlow Lite and
# compares the two. Arguments: a SavedModel and a record file.
PROGRAM = '''
import json, os, sys
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import numpy as np
import tensorflow as tf

assert not any('cifar10' in path or os.path.exists(os.path.join(path, 'cifar10.py'))
               for path in sys.path)
records = np.fromfile(sys.argv[2], np.uint8).reshape(-1, 3073)
labels, images = records[:, 0], records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
model = tf.saved_model.load(sys.argv[1])
outputs = model.signatures['serving_default'](images=tf.constant(images))
outputs = {name: value.numpy() for name, value in outputs.items()}
lite = tf.lite.Interpreter(
    model_content=tf.lite.TFLiteConverter.from_saved_model(sys.argv[1]).convert())
lite = lite.get_signature_runner('serving_default')
one, several = lite(images=images[:1]), lite(images=images[:7])
print(json.dumps({
    'correct': int((outputs['classes'] == labels).sum()),
    'types': {name: [str(value.dtype), list(value.shape)] for name, value in outputs.items()},
    'softmax': float(abs(
        tf.nn.softmax(outputs['logits']).numpy() - outputs['probabilities']).max()),
    'lite': [float(abs(got[name] - outputs[name][:len(got[name])]).max())
             for got in (one, several) for name in ('classes', 'probabilities')]}))
'''


@pytest.fixture
def noisy(tmp_path):
    """Sets the flags for a CIFAR-10 folder of noise and a checkpoint of the tutorial's network."""
    folder = record_files.write_noise(tmp_path / 'data', count=130)
    plain.save_checkpoint(tmp_path / 'train')
    with flagsaver.flagsaver(
            data_dir=str(tmp_path / 'data'), checkpoint_dir=str(tmp_path / 'train'),
            export_dir=str(tmp_path / 'model' / '1')):
        yield pathlib.Path(folder)


def use_elsewhere(model, path, tmp_path):
    """Runs `PROGRAM` in a process that cannot import this project; returns its results."""
    done = subprocess.run(
        [sys.executable, '-I', '-c', PROGRAM, str(model), str(path)], capture_output=True,
        text=True, cwd=tmp_path, timeout=spawn.PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize('net', ['tutorial', 'resnet23'])
def test_other_programs_get_the_results_of_the_evaluation(noisy, tmp_path, net):
    """130 images; also in TensorFlow Lite, with built-in operations, for any batch size."""
    run = FLAGS.checkpoint_dir
    if net != 'tutorial':  # Its averages already differ from the raw weights.
        run = str(tmp_path / net)
        with flagsaver.flagsaver(net=net, batch_size=8, max_steps=2, validate_every=0,
                                 train_dir=run):
            cifar10_train.main()
    with flagsaver.flagsaver(checkpoint_dir=run):
        cifar10_export.export()
    expected = outcomes.counts(tf.train.latest_checkpoint(run))
    found = use_elsewhere(tmp_path / 'model' / '1', noisy / 'test_batch.bin', tmp_path)
    assert found['correct'] == expected.correct > 0
    assert found['types'] == {'logits': ['float32', [130, 10]], 'classes': ['int64', [130]],
                              'probabilities': ['float32', [130, 10]]}
    assert found['softmax'] < 1e-5
    assert found['lite'][0] == found['lite'][2] == 0
    assert max(found['lite']) < 1e-5


def test_the_content_of_a_saved_model(noisy, tmp_path, capsys):
    cifar10_export.export()
    folder = tmp_path / 'model' / '1'
    assert capsys.readouterr().out == (
        f'{folder} holds {tmp_path}/train/model.ckpt-123 as a SavedModel.\n')
    assert sorted(os.listdir(folder)) == ['assets.extra', 'saved_model.pb', 'variables']
    assert (folder / 'assets.extra' / 'labels.txt').read_text().split('\n') == [
        *table.CIFAR10.classes, '']
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ['serve'], str(folder))
    signature = loaded.signature_def['serving_default']
    assert list(signature.inputs) == ['images']
    assert sorted(signature.outputs) == ['classes', 'logits', 'probabilities']
    assert signature.outputs['logits'].name == 'softmax_linear/softmax_linear:0'


def test_preprocessed_images_as_input(noisy, tmp_path):
    """They give the same results as the pixels, and integer quantisation can convert that part."""
    cifar10_export.export()
    pixels = np.stack([image for _, image in record_files.noise(5, seed=3)])
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.load(
            session, ['serve'], str(tmp_path / 'model' / '1')).signature_def
        standardised = session.run(tf.image.per_image_standardization(
            tf.cast(pixels[:, 4:28, 4:28], tf.float32)))
        found = [session.run(signatures[name].outputs['logits'].name,
                             {signatures[name].inputs['images'].name: images})
                 for name, images in (('serving_default', pixels), ('preprocessed', standardised))]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    shape = signatures['preprocessed'].inputs['images'].tensor_shape
    assert [dimension.size for dimension in shape.dim] == [-1, 24, 24, 3]


def test_a_checkpoint_that_does_not_fit_leaves_nothing(noisy, tmp_path):
    with flagsaver.flagsaver(dataset='cifar100'), pytest.raises(
            app.UsageError, match='softmax_linear.* --net and --dataset'):
        cifar10_export.export()
    assert os.listdir(tmp_path / 'model') == []


def use_inference(monkeypatch, inference):
    """Puts a function from images to logits into the row of --net=tutorial."""
    monkeypatch.setitem(recipes.TABLE, 'tutorial', dataclasses.replace(
        recipes.TABLE['tutorial'],
        inference=lambda images, num_classes, training, dtype: inference(images)))


def layer(net):
    """One layer: logits of ten classes."""
    weights = tf.get_variable('weights', [net.shape.as_list()[1], 10])
    return tf.matmul(net, weights)


@pytest.mark.parametrize('size', [
    lambda images: [FLAGS.batch_size, 1728], lambda images: [FLAGS.batch_size, -1],
    lambda images: [images.get_shape().as_list()[0], -1]])
def test_a_network_of_a_fixed_batch_size_is_refused(noisy, tmp_path, monkeypatch, size):
    """However it flattens the images, 24 x 24 x 3 numbers: as the tutorial did in 2015, 2017 and
    2018."""
    use_inference(monkeypatch, lambda images: layer(tf.reshape(images, size(images))))
    with pytest.raises(app.UsageError, match='^inference requires a fixed batch size; expected any '
                       r'number of images: flatten by tf.reshape\(net, \[-1, UNITS\]\), not by'):
        cifar10_export.export()
    assert os.listdir(tmp_path / 'model') == []


@pytest.mark.parametrize('bug, error', [
    (lambda images: layer(tf.reshape(images, [-1, 1728]) + tf.zeros([7])), ValueError),
    (lambda images: layer(images + 'text'), TypeError), (layer, ValueError)])
def test_a_bug_of_a_network_is_not_a_fixed_batch_size(noisy, monkeypatch, bug, error):
    """Such as one in what is built only for evaluation. It keeps its traceback."""
    use_inference(monkeypatch, bug)
    with pytest.raises(error):  # `app.UsageError` is neither.
        cifar10_export.export()


@pytest.mark.parametrize('flags_, words', [
    ({'export_dir': None}, '--export_dir is missing: choose a new folder'),
    ({'checkpoint_dir': '/nonexistent'}, 'No checkpoint in /nonexistent: train first'),
    ({'best': True}, 'train/best: train with --validate_every, or leave out --best')])
def test_mistakes(noisy, tmp_path, flags_, words):
    with flagsaver.flagsaver(**flags_), pytest.raises(app.UsageError, match=words):
        cifar10_export.export()
    assert not (tmp_path / 'model').exists()
