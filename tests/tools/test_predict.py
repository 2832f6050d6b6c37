"""Predictions: of which network, for which files, and how they are printed."""
import json
import os
import re

from cifar10_lib import errors
from classification_lib import data_sets

import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver
from PIL import Image

import cifar10_predict

IMAGES = [image for _, image in record_files.noise(7, seed=3)]
CLASSES = data_sets.CIFAR10.classes


@pytest.fixture
def network(tmp_path):
    """Sets the flags for a run of the tutorial with random weights; returns their averages."""
    averaged = plain.read(plain.save_checkpoint(tmp_path / 'train'))
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'train'), batch_size=3, json=True):
        yield averaged


@pytest.fixture
def pictures(tmp_path):
    """Paths of files with `IMAGES`, in a separate folder."""
    (tmp_path / 'pictures').mkdir()
    paths = [tmp_path / 'pictures' / f'{index}.png' for index in range(len(IMAGES))]
    for path, image in zip(paths, IMAGES):
        Image.fromarray(image).save(path)
    return [str(path) for path in paths]


def plain_probabilities(values):
    """float32 [images, 10] for `IMAGES`, from TensorFlow's own operations."""
    with tf.Graph().as_default(), tf.Session() as session:
        net = tf.image.per_image_standardization(
            tf.cast(np.stack(IMAGES)[:, 4:28, 4:28], tf.float32))
        return session.run(tf.nn.softmax(plain.logits(
            net, {name: tf.constant(value) for name, value in values.items()})))


def predicted(capsys):
    """The printed lines of JSON."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_probabilities_are_those_of_the_averaged_weights(network, pictures, capsys):
    """Seven images in batches of three."""
    assert cifar10_predict.predict(pictures) == 0
    found = predicted(capsys)
    assert [line['image'] for line in found] == pictures
    for line, probabilities in zip(found, plain_probabilities(network), strict=True):
        best = np.argsort(-probabilities)[:3].tolist()
        assert [each['label'] for each in line['predictions']] == best
        assert [each['class'] for each in line['predictions']] == [CLASSES[k] for k in best]
        np.testing.assert_allclose([each['probability'] for each in line['predictions']],
                                   probabilities[best], atol=1e-5)


def test_folders_and_patterns(network, pictures, tmp_path, capsys):
    """`**` stands for folders of all levels."""
    folder = tmp_path / 'pictures'
    (folder / 'notes.txt').write_text('none')
    (folder / 'deep' / 'deeper').mkdir(parents=True)
    name, deep = str(folder / 'Näme with [brackets].png'), str(folder / 'deep' / 'deeper' / '6.png')
    for path in (name, deep):
        Image.fromarray(IMAGES[0]).save(path)
    words = [str(folder), f'{folder}/[12].png', name, *2 * [pictures[3]], f'{folder}/**/6.png']
    assert cifar10_predict.predict(words) == 0
    assert [line['image'] for line in predicted(capsys)] == [
        *pictures, name, *pictures[1:3], name, *2 * [pictures[3]], pictures[6], deep]


@pytest.mark.parametrize('word', ['', '*.png'])
def test_a_folder_or_a_pattern_without_images(network, tmp_path, word):
    (tmp_path / 'notes.txt').touch()
    with pytest.raises(errors.UserError, match='No image in .*: give images, '):
        cifar10_predict.predict([os.path.join(tmp_path, word)])


def test_unreadable_images_are_reported_and_skipped(network, pictures, capsys):
    for index in (1, 3, 4, 5):  # Including a whole batch.
        with open(pictures[index], 'wb') as stream:
            stream.write(b'text')
    pipe = os.path.join(os.path.dirname(pictures[0]), '9.png')
    os.mkfifo(pipe)  # Without a writer.
    assert cifar10_predict.predict([*pictures, pipe, '/nonexistent.png']) == 1
    out, error = capsys.readouterr()
    assert [json.loads(line)['image'] for line in out.splitlines()] == [
        pictures[0], pictures[2], pictures[6]]
    # What is missing is reported before the network is built.
    assert re.findall(': (.*) cannot be read', error) == [
        '/nonexistent.png', pictures[1], *pictures[3:6], pipe]
    spawn.expect_one_line(spawn.fork_script('cifar10_predict.py', '/nonexistent.png'),
                          '/nonexistent.png cannot be read')


def test_the_table(network, pictures, capsys):
    with flagsaver.flagsaver(json=False, top_k=2):
        assert cifar10_predict.predict(pictures[:1]) == 0
    probabilities = plain_probabilities(network)[0]
    first, second = np.argsort(-probabilities)[:2]
    width = len(pictures[0])
    assert capsys.readouterr().out.splitlines() == [
        f'{"image":{width}}  probability  class',
        f'{pictures[0]}       {probabilities[first]:.4f}  {CLASSES[first]}',
        f'{"":{width}}       {probabilities[second]:.4f}  {CLASSES[second]}']


def test_the_shipped_weights_without_any_flag(pictures, tmp_path, capsys):
    """They do not stand in for a run that was asked for."""
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'nothing'), json=True, top_k=10):
        assert cifar10_predict.predict(pictures[:1]) == 0
        with flagsaver.flagsaver(best=True), pytest.raises(
                errors.UserError, match='No checkpoint in .*nothing/best'):
            cifar10_predict.predict(pictures)
    out, error = capsys.readouterr()
    assert f'no run in {tmp_path}/nothing: using the weights in ' in error
    assert error.rstrip().endswith('models/airbench94')
    predictions = json.loads(out)['predictions']
    assert sorted(each['class'] for each in predictions) == sorted(CLASSES)
    assert sum(each['probability'] for each in predictions) == pytest.approx(1, abs=1e-4)
