"""SavedModels: what they hold. docs/test_usage.py uses them in other programs."""
import os

from cifar10_lib import errors
from classification_lib import data_sets, evaluate, trained

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
    found = trained.find(str(checkpoint_dir))
    network = evaluate.Classifier(found.recipe, len(found.classes))
    with network.restored(found.checkpoint) as session:
        logits, probabilities = session.run(
            [network.logits, network.probabilities], {network.pixels: pixels})
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, ['serve'], str(folder))
        signature = model.signature_def['serving_default']
        found = session.run({name: output.name for name, output in signature.outputs.items()},
                            {signature.inputs['images'].name: pixels})
    assert sorted(found) == ['classes', 'logits', 'probabilities']
    np.testing.assert_allclose(found['logits'], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found['probabilities'], probabilities, rtol=1e-4, atol=1e-6)
    assert found['classes'].tolist() == logits.argmax(axis=1).tolist()
    assert found['classes'].dtype == np.int64


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
    with pytest.raises(errors.UserError, match='--export_dir is missing: choose a new folder'):
        cifar10_export.export()


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
