"""Whose names the classes of a run of the tutorial have."""
import json
import os

from classification_lib import data_sets

import numpy as np
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import cifar10_export
import cifar10_plot
import cifar10_predict
import cifar10_train
import classification

FLAGS = flags.FLAGS
NAMES = ('upper half', 'lower half', 'ünten', *'cdefghi')
PLAIN = data_sets.CIFAR10.classes


@pytest.fixture
def run(half_bright, tmp_path):
    """A run on images with these names, and an image file. --data_dir is not given."""
    write_names(half_bright, NAMES)
    with flagsaver.flagsaver(max_steps=2):
        with tf.Graph().as_default():
            cifar10_train.main()
        Image.fromarray(next(record_files.noise(1, seed=1))[1]).save(tmp_path / 'image.png')
        FLAGS['data_dir'].unparse()
        yield half_bright


def write_names(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'batches.meta.txt').write_text('\n'.join([*names, '']), encoding='utf-8')


def predicted(tmp_path, capsys, **options):
    """The names that a prediction prints, in the order of the labels; its standard error."""
    capsys.readouterr()
    with flagsaver.flagsaver(json=True, top_k=99, **options):
        assert cifar10_predict.predict([str(tmp_path / 'image.png')]) == 0
    out, error = capsys.readouterr()
    found = sorted(json.loads(out)['predictions'], key=lambda each: each['label'])
    return tuple(each['class'] for each in found), error


def test_they_are_those_beside_the_images_of_the_run(run, tmp_path, capsys):
    assert predicted(tmp_path, capsys) == (NAMES, '')
    with flagsaver.flagsaver(export_dir=str(tmp_path / 'model')):
        cifar10_export.export()
    labels = (tmp_path / 'model' / 'assets.extra' / 'labels.txt').read_text('utf-8')
    assert tuple(labels.splitlines()) == NAMES
    # The confusion matrix requires that images and network have the same names.
    for picture in ('predictions', 'confusion', 'samples'):
        path = tmp_path / f'{picture}.png'
        with flagsaver.flagsaver(picture=picture, runs=[FLAGS.train_dir], output=str(path)):
            cifar10_plot.plot()
        assert np.ptp(np.asarray(Image.open(path))) > 200
    assert capsys.readouterr().err == ''
    with flagsaver.flagsaver(evaluate=True, per_class=True):
        classification.main()
    assert 'upper half' in capsys.readouterr().out


def test_a_given_data_dir_wins(run, tmp_path, capsys):
    write_names(tmp_path / 'other' / 'cifar-10-batches-bin', 'ABCDEFGHIJ')
    names, error = predicted(tmp_path, capsys, data_dir=str(tmp_path / 'other'))
    assert (names, error) == (tuple('ABCDEFGHIJ'), '')
    os.remove(tmp_path / 'other' / 'cifar-10-batches-bin' / 'batches.meta.txt')
    assert predicted(tmp_path, capsys, data_dir=str(tmp_path / 'other')) == (PLAIN, '')


def test_without_names_they_are_those_of_cifar10(run, tmp_path, capsys):
    """A line says so, unless the images are there, as those of CIFAR-10."""
    os.remove(run / 'batches.meta.txt')
    assert predicted(tmp_path, capsys) == (PLAIN, '')
    run.rename(tmp_path / 'moved')
    names, error = predicted(tmp_path, capsys)
    assert names == PLAIN and error.count('\n') == 1
    assert (f'the images of the run were not found in {run}, so the names of the classes are those '
            'of CIFAR-10: if it had other images, add their --data_dir') in error
