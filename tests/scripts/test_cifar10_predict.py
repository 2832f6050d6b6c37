import json
import os
import re

import image_files
import numpy as np
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

import cifar10
import cifar10_export
import cifar10_predict

FLAGS = flags.FLAGS
IMAGES = [image for _, image in record_files.noise(7, seed=3)]


@pytest.fixture
def network(tmp_path):
    """Sets the flags for a checkpoint with random weights; returns them, raw and averaged."""
    values = plain.save_checkpoint(tmp_path / 'train')
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'train'), batch_size=3, json=True):
        yield values


@pytest.fixture
def pictures_(tmp_path):
    """Paths of files with `IMAGES`, in a separate folder."""
    (tmp_path / 'pictures').mkdir()
    paths = [tmp_path / 'pictures' / f'{index}.png' for index in range(len(IMAGES))]
    for path, image in zip(paths, IMAGES):
        image_files.png(path, image)
    return [str(path) for path in paths]


def plain_probabilities(values):
    """float32 [images, 10] for `IMAGES`, from TensorFlow's own operations."""
    with tf.Graph().as_default(), tf.Session() as session:
        net = tf.image.per_image_standardization(
            tf.cast(np.stack(IMAGES)[:, 4:28, 4:28], tf.float32))
        return session.run(tf.nn.softmax(plain.logits(
            net, {name: tf.constant(value) for name, value in values.items()})))


def check(out, paths, expected, top_k=3):
    """Compares lines of JSON with probabilities, float [images, 10]."""
    found = [json.loads(line) for line in out.splitlines()]
    assert [line['image'] for line in found] == paths
    for line, probabilities in zip(found, expected):
        order = np.argsort(-probabilities)[:top_k].tolist()
        assert [one['label'] for one in line['predictions']] == order
        assert [one['class'] for one in line['predictions']] == [CLASSES[label] for label in order]
        np.testing.assert_allclose([one['probability'] for one in line['predictions']],
                                   probabilities[order], atol=1e-5)


CLASSES = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']


@pytest.mark.parametrize('use_moving_averages', [False, True])
def test_probabilities_equal_the_plain_networks(network, pictures_, capsys, use_moving_averages):
    """Seven images in batches of three."""
    with flagsaver.flagsaver(use_moving_averages=use_moving_averages):
        assert cifar10_predict.predict(pictures_) == 0
    check(capsys.readouterr().out, pictures_, plain_probabilities(network[use_moving_averages]))


@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_a_network_of_a_fixed_batch_size(network, pictures_, capsys, monkeypatch, batch_size):
    """Seven images fill two batches of three and a third of the next, or seven eighths of one."""
    inference = cifar10.inference
    monkeypatch.setattr(cifar10, 'inference', lambda images: tf.reshape(
        inference(images), [FLAGS.batch_size, 10]))
    with flagsaver.flagsaver(batch_size=batch_size):
        assert cifar10_predict.predict(pictures_) == 0
    check(capsys.readouterr().out, pictures_, plain_probabilities(network[1]))


def test_a_damaged_checkpoint_of_the_default_folder_is_reported_once(
        network, pictures_, tmp_path, capfd):
    newest = plain.save(tmp_path / 'train' / 'model.ckpt-200', {'global_step': 200.0})
    with open(newest + '.index', 'wb'), flagsaver.flagsaver(json=True):
        FLAGS['checkpoint_dir'].unparse()
        FLAGS.set_default('checkpoint_dir', str(tmp_path / 'train'))
        assert cifar10_predict.predict(pictures_[:1]) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)['predictions']
    assert error.count(f': {newest} is damaged (') == 1


def test_a_saved_model_needs_neither_checkpoint_nor_data_set(network, pictures_, tmp_path, capsys):
    with flagsaver.flagsaver(export_dir=str(tmp_path / 'model')):
        cifar10_export.export()
    capsys.readouterr()
    with flagsaver.flagsaver(saved_model=str(tmp_path / 'model'), checkpoint_dir='/nonexistent',
                             dataset='cifar100', top_k=99):
        assert cifar10_predict.predict(pictures_) == 0
        check(capsys.readouterr().out, pictures_, plain_probabilities(network[1]), top_k=10)
        labels = tmp_path / 'model' / 'assets.extra' / 'labels.txt'
        for remove in (lambda: labels.write_text(''), labels.unlink):
            remove()
            assert cifar10_predict.predict(pictures_[:1]) == 0
            top, *_ = json.loads(capsys.readouterr().out)['predictions']
            assert top['class'] == str(top['label'])


def test_folders_and_patterns(network, pictures_, tmp_path, capsys):
    folder = tmp_path / 'pictures'
    (folder / 'notes.txt').write_text('none')
    (folder / 'Näme with [brackets].png').write_bytes((folder / '0.png').read_bytes())
    words = [str(folder), str(folder / '[12].png'), str(folder / 'Näme with [brackets].png'),
             pictures_[3], pictures_[3]]
    assert cifar10_predict.predict(words) == 0
    found = [json.loads(line)['image'] for line in capsys.readouterr().out.splitlines()]
    assert found == [*pictures_, words[2], *pictures_[1:3], words[2], *words[3:]]


def test_a_quoted_pattern_in_the_home_directory(network, pictures_, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert cifar10_predict.predict(['~/pictures/[12].png']) == 0
    found = [json.loads(line)['image'] for line in capsys.readouterr().out.splitlines()]
    assert found == pictures_[1:3]


def test_a_run_of_another_user_is_named(network, pictures_, monkeypatch, capfd):
    monkeypatch.setattr(os, 'geteuid', lambda: os.getuid() + 1)
    assert cifar10_predict.predict(pictures_[:1]) == 0
    assert re.search(rf'using .*/model.ckpt-\d+ \(of user {os.getuid()}\)\n',
                     capfd.readouterr().err)


@pytest.mark.parametrize('word', ['', '*.png'])
def test_a_folder_or_a_pattern_without_images(network, tmp_path, word):
    (tmp_path / 'notes.txt').touch()
    with pytest.raises(app.UsageError, match='No image in .*; expected .jpg'):
        cifar10_predict.predict([os.path.join(tmp_path, word)])


def test_unreadable_images_are_skipped(network, pictures_, capfd):
    for index, data in ((1, b'text'), (3, b''), (4, b''), (5, b'')):  # Including a whole batch.
        with open(pictures_[index], 'wb') as stream:
            stream.write(data)
    os.mkfifo(os.path.join(os.path.dirname(pictures_[0]), '9.png'))  # Without a writer.
    words = [os.path.join(os.path.dirname(pictures_[0]), '*.png'), '/nonexistent.png']
    assert cifar10_predict.predict(words) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)['image'] for line in out.splitlines()] == [
        pictures_[0], pictures_[2], pictures_[6]]
    note, *unreadable = err.splitlines()
    assert note.endswith('train has no run.json: using it with --net=tutorial --dataset=cifar10')
    assert [line.split(' is ')[0].split(' cannot ')[0].split(': ')[1] for line in unreadable] == [
        pictures_[1], *pictures_[3:6], pictures_[0].replace('0.png', '9.png'), '/nonexistent.png']


def test_the_table(network, pictures_, tmp_path, capsys):
    """The width of its first column is that of the longest name."""
    names = [pictures_[0], str(tmp_path / 'str\x1b[2Jange.png')]
    image_files.png(tmp_path / 'str\x1b[2Jange.png', IMAGES[0])
    with flagsaver.flagsaver(json=False, top_k=2):
        assert cifar10_predict.predict(names) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    width = max(map(len, names))
    assert heading == f'{"image":{width}}  probability  class'
    probabilities = plain_probabilities(network[1])[0]
    first, second = np.argsort(-probabilities)[:2]
    assert lines[0] == f'{names[0]:{width}}       {probabilities[first]:.4f}  {CLASSES[first]}'
    assert lines[1] == f'{"":{width}}       {probabilities[second]:.4f}  {CLASSES[second]}'
    assert 'str?[2Jange.png  ' in lines[2] and len(lines) == 4


def test_an_unreadable_saved_model(pictures_, tmp_path):
    for prepare in (lambda: None, lambda: (tmp_path / 'saved_model.pb').write_bytes(b'text')):
        prepare()
        with flagsaver.flagsaver(saved_model=str(tmp_path)), pytest.raises(
                OSError, match=': export a SavedModel with cifar10_export'):
            cifar10_predict.predict(pictures_)


def test_a_saved_model_of_another_program(pictures_, tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        one = tf.placeholder(tf.uint8, [None, 32, 32, 3])
        tf.saved_model.simple_save(session, str(tmp_path / 'model'), {'x': one}, {
            'probabilities': 2 * one})
    with flagsaver.flagsaver(saved_model=str(tmp_path / 'model')), pytest.raises(
            app.UsageError, match='has no signature of images and probabilities: export one with'):
        cifar10_predict.predict(pictures_)


def test_the_size_of_the_images_is_that_of_the_saved_model(tmp_path, capsys):
    """Of 64 x 64 pixels, those from column 32 on are white."""
    with tf.Graph().as_default(), tf.Session() as session:
        pixels = tf.placeholder(tf.uint8, [None, 64, 64, 3])
        white = tf.reduce_mean(tf.cast(pixels[:, :, 32:], tf.float32), axis=[1, 2, 3]) / 255
        tf.saved_model.simple_save(session, str(tmp_path / 'model'), {'images': pixels}, {
            'probabilities': tf.stack([white, 1 - white], axis=1)})
    image_files.png(tmp_path / 'a.png', np.repeat(np.uint8([[[0]], [[255]]]), 32, 0).transpose(
        1, 0, 2).repeat(64, 0).repeat(3, 2))
    with flagsaver.flagsaver(saved_model=str(tmp_path / 'model'), json=True):
        assert cifar10_predict.predict([str(tmp_path / 'a.png')]) == 0
    top, _ = json.loads(capsys.readouterr().out)['predictions']
    assert (top['label'], top['probability']) == (0, 1.0)
