"""Networks in the tutorial's own style, which accept batches of one size only."""
import json

from cifar10_lib import errors

import numpy as np
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import cifar10
import cifar10_export
import cifar10_plot
import cifar10_predict
import classification

FLAGS = flags.FLAGS


@pytest.fixture
def paths(half_bright, tmp_path):
    """Five image files: two batches of two, and one image. The run has random weights."""
    plain.save_checkpoint(tmp_path / 'train')
    found = [str(tmp_path / f'{k}.png') for k in range(5)]
    for path, (_, image) in zip(found, record_files.noise(5, seed=3)):
        Image.fromarray(image).save(path)
    with flagsaver.flagsaver(batch_size=2, json=True, top_k=10, runs=[FLAGS.train_dir]):
        yield found


def outcomes(paths, capsys):
    """What the scripts find: probabilities, a picture and a table per class."""
    capsys.readouterr()
    assert cifar10_predict.predict(paths) == 0
    lines = [json.loads(line)['predictions'] for line in capsys.readouterr().out.splitlines()]
    probabilities = [[each['probability'] for each in sorted(line, key=lambda each: each['label'])]
                     for line in lines]
    with flagsaver.flagsaver(picture='predictions', output=paths[0] + '.out'):
        cifar10_plot.plot()
    capsys.readouterr()
    with flagsaver.flagsaver(evaluate=True, per_class=True):
        classification.main()
    table = capsys.readouterr().out.partition('precision @ 1')[2]
    return np.array(probabilities), np.asarray(Image.open(paths[0] + '.out')), table


@pytest.mark.parametrize('batch_size', [
    lambda images: FLAGS.batch_size, lambda images: images.shape.as_list()[0]])
def test_they_classify_as_others_do_and_are_not_exported(
        paths, tmp_path, monkeypatch, capsys, batch_size):
    expected = outcomes(paths, capsys)
    inference = cifar10.inference
    monkeypatch.setattr(cifar10, 'inference', lambda images, **options: inference(
        tf.reshape(images, [batch_size(images), 24, 24, 3]), **options))
    found = outcomes(paths, capsys)
    with flagsaver.flagsaver(export_dir=str(tmp_path / 'model')), pytest.raises(
            errors.UserError, match='accepts batches of 2 images only.*write -1'):
        cifar10_export.export()
    np.testing.assert_allclose(found[0], expected[0], atol=2e-6)
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[2] == expected[2] and 'recall' in found[2]
    assert not (tmp_path / 'model').exists()
