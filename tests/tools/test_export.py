"""SavedModels: what they hold. docs/test_usage.py uses them in other programs."""
import os

from cifar10_lib import errors
from classification_lib import data_sets, evaluate

import numpy as np
import plain
import pytest
import random_runs
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_export

FLAGS = flags.FLAGS


def check_like_checkpoint(folder, checkpoint_dir):
    """Compares a SavedModel with the checkpoint, on five images."""
    pixels = np.stack([image for _, image in record_files.noise(5, seed=3)])
    trained = evaluate.find(str(checkpoint_dir))
    network = evaluate.Classifier(trained.recipe, len(trained.classes))
    with network.restored(trained.checkpoint) as session:
        logits, probabilities = session.run(
            [network.logits, network.probabilities], {network.pixels: pixels})
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, ['serve'], str(folder))
        signature = model.signature_def['serving_default']
        found = session.run({name: output.name for name, output in signature.outputs.items()},
                            {signature.inputs['images'].name: pixels})
        check_that_other_sizes_are_refused(session, model)
    assert sorted(found) == ['classes', 'logits', 'probabilities']
    np.testing.assert_allclose(found['logits'], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found['probabilities'], probabilities, rtol=1e-4, atol=1e-6)
    assert found['classes'].tolist() == logits.argmax(axis=1).tolist()
    assert found['classes'].dtype == np.int64


def check_that_other_sizes_are_refused(session, model):
    """In TensorFlow 2, nothing compares the input with the signature: as for this placeholder."""
    images = tf.placeholder(tf.uint8)
    inputs, outputs = (getattr(model.signature_def['serving_default'], name)
                       for name in ('inputs', 'outputs'))
    classes, = tf.import_graph_def(model.graph_def, {inputs['images'].name: images},
                                   [outputs['classes'].name])
    assert session.run(classes, {images: np.zeros([4, 32, 32, 3], np.uint8)}).shape == (4,)
    for size in ([28, 28, 3], [40, 40, 3], [64, 64, 3], [32, 64, 3], [32, 32, 1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match='expected_images_of_32_x_32'):
            session.run(classes, {images: np.zeros([4, *size], np.uint8)})


def test_a_run_of_the_tutorial(tmp_path):
    """Its averages differ from its raw weights. A second model does not replace the first."""
    plain.save_checkpoint(tmp_path / 'train')
    exported = tmp_path / 'model' / '1'
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'train'), export_dir=str(exported)):
        cifar10_export.export()
        with pytest.raises(errors.UserError, match='model/1 exists and is not an empty folder'):
            cifar10_export.export()
    check_like_checkpoint(exported, tmp_path / 'train')
    assert sorted(os.listdir(exported)) == ['assets.extra', 'saved_model.pb', 'variables']
    labels = (exported / 'assets.extra' / 'labels.txt').read_text()
    assert labels.split('\n') == [*data_sets.CIFAR10.classes, '']


@pytest.mark.parametrize('net', ['resnet23', 'airbench94'])
def test_a_run_of_classification(tmp_path, net, capsys):
    """Of a user's own classes; of its best checkpoint."""
    random_runs.save(tmp_path / 'train' / 'best', net, ['Katze', 'grüner Hund'])
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'train'), best=True,
                             export_dir=str(tmp_path / 'model')):
        cifar10_export.export()
    assert capsys.readouterr().out == (
        f'{tmp_path}/model holds {tmp_path}/train/best/model.ckpt-7 as a SavedModel.\n')
    check_like_checkpoint(tmp_path / 'model', tmp_path / 'train' / 'best')
    assert (tmp_path / 'model' / 'assets.extra' / 'labels.txt').read_text('utf-8') == (
        'Katze\ngrüner Hund\n')


@pytest.mark.parametrize('options, words', [
    ({'export_dir': None}, '--export_dir is missing: choose a new folder'),
    ({'checkpoint_dir': '/nonexistent'}, 'No checkpoint in /nonexistent: train first'),
    ({'best': True}, 'train/best: choose another run, train with classification.py '
     '--validate_every=1, or leave out --best')])
def test_mistakes(tmp_path, options, words):
    plain.save_checkpoint(tmp_path / 'train')
    given = {'checkpoint_dir': str(tmp_path / 'train'), 'export_dir': str(tmp_path / 'model' / '1')}
    with flagsaver.flagsaver(**{**given, **options}), pytest.raises(errors.UserError, match=words):
        cifar10_export.export()
    assert not (tmp_path / 'model').exists()
