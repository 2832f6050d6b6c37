import os
import subprocess
import sys

from cifar10_lib import console, data_sets, named_sets

import numpy as np
import pytest
from PIL import Image

import cifar10_convert

NAMES = ['upper half', 'ünten']


@pytest.fixture
def folder(tmp_path):
    """60 images of noise in each of two classes."""
    random = np.random.RandomState(1)
    for name in NAMES:
        (tmp_path / 'my images' / name).mkdir(parents=True)
        for index in range(60):
            pixels = random.randint(0, 256, [32, 32, 3]).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / 'my images' / name / f'{index}.png')
    return tmp_path / 'my images'


def test_the_script_prints_what_it_made_and_what_it_skipped(folder, tmp_path):
    (folder / NAMES[0] / 'broken.png').write_text('text')
    (folder / '.git').mkdir()
    data = tmp_path / 'data' / 'halves'
    done = subprocess.run([sys.executable, cifar10_convert.__file__, folder, data],
                          capture_output=True, text=True, encoding='utf-8')
    assert (done.returncode, done.stderr) == (0, '')
    row = named_sets.find(data)
    data_sets.check(row, row.folder)
    assert (row.name, row.classes) == ('halves', tuple(NAMES))
    labels = np.fromfile(data / 'train.bin', np.uint8).reshape(-1, 3073)[:, 0]
    in_train = np.bincount(labels).tolist()
    assert sum(in_train) == row.train_files['train.bin']
    assert done.stdout.splitlines() == [
        'Skipped 1, hidden, or added by the system:',
        f'  {folder}/.git',
        'Skipped 1, not readable:',
        f'  {folder}/{NAMES[0]}/broken.png cannot be read (damaged, or in a format that Pillow '
        'does not read)',
        f'{NAMES[0]}: {in_train[0]} training and {60 - in_train[0]} test images',
        f'{NAMES[1]}: {in_train[1]} training and {60 - in_train[1]} test images',
        f'{data} holds {sum(in_train)} training and {120 - sum(in_train)} test images of 2 '
        f'classes: use classification.py --dataset="{data}" --train_dir=NEW_FOLDER']


def test_converting_twice_gives_the_same_files(folder, tmp_path):
    cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    with pytest.raises(console.UserError, match='one exists and is not .*choose another DATA_DIR'):
        cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    cifar10_convert.convert(str(folder), str(tmp_path / 'two'))
    for name in ('train.bin', 'test.bin'):
        assert (tmp_path / 'one' / name).read_bytes() == (tmp_path / 'two' / name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ['my images', 'one', 'two']


def test_a_data_set_inside_the_images_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(console.UserError, match=r'^set is inside \., where each folder is a class'):
        cifar10_convert.convert('.', 'set')
    assert sorted(os.listdir(folder)) == sorted(NAMES)


def test_a_name_that_is_taken_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(console.UserError, match=(
            '^the new data set, named like its folder: "name" is "cifar10"; expected a name')):
        cifar10_convert.convert('no folder', str(tmp_path / 'cifar10'))


def test_a_class_without_readable_images_is_refused(tmp_path, capsys):
    for name in ('cat', 'dog'):
        path = tmp_path / 'images' / name / '1.png'
        path.parent.mkdir(parents=True)
        path.write_text('text')
    with pytest.raises(console.UserError, match='no training images of cat, dog: add some'):
        cifar10_convert.convert(str(tmp_path / 'images'), str(tmp_path / 'data'))
    assert capsys.readouterr().out.splitlines()[0] == 'Skipped 2, not readable:'
    assert os.listdir(tmp_path) == ['images']
