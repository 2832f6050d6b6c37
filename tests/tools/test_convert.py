import os

from cifar10_lib import errors
from classification_lib import data_sets

import numpy as np
import pytest
import spawn
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
    done = spawn.fork_script('cifar10_convert.py', folder, data)
    assert (done.returncode, done.stderr) == (0, '')
    row = data_sets.find(data)
    data_sets.check(row, row.folder)
    assert (row.name, row.classes) == ('halves', tuple(NAMES))
    labels = np.fromfile(data / 'train.bin', np.uint8).reshape(-1, 3073)[:, 0]
    in_train = np.bincount(labels).tolist()
    assert done.stdout.splitlines() == [
        'Skipped 2:',
        f'  {folder}/.git (not a folder, or hidden)',
        f'  {folder}/{NAMES[0]}/broken.png cannot be read (damaged, or in a format that Pillow '
        'does not read; for HEIC, the format of iPhones, see docs/usage.md)',
        f'{NAMES[0]}: {in_train[0]} training and {60 - in_train[0]} test images',
        f'{NAMES[1]}: {in_train[1]} training and {60 - in_train[1]} test images',
        f'{data} holds {sum(in_train)} training and {120 - sum(in_train)} test images of 2 '
        f'classes: use classification.py --dataset="{data}" --train_dir=NEW_FOLDER']


def test_converting_twice_gives_the_same_files(folder, tmp_path):
    cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    with pytest.raises(errors.UserError, match=(
            'one already holds a data set: if you have added images, convert them into a new ')):
        cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    with pytest.raises(errors.UserError, match=' exists and is not .*choose another DATA_DIR'):
        cifar10_convert.convert(str(folder), str(tmp_path))
    cifar10_convert.convert(str(folder), str(tmp_path / 'two'))
    for name in ('train.bin', 'test.bin'):
        assert (tmp_path / 'one' / name).read_bytes() == (tmp_path / 'two' / name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ['my images', 'one', 'two']


def test_a_data_set_among_the_classes_is_refused(folder):
    with pytest.raises(errors.UserError, match='set is inside .*, where each folder is a class'):
        cifar10_convert.convert(str(folder), str(folder / 'set'))
    assert sorted(os.listdir(folder)) == sorted(NAMES)


@pytest.mark.parametrize('values, line', [
    ({'cat': 0, 'dog': 9}, 'no training images of dog: add some'),
    ({'cat': 0, 'dog': 1},
     'no test images: add images, or sort them into CLASS/IMAGE, or train/CLASS')])
def test_incomplete_sets_are_refused(tmp_path, capsys, values, line):
    """The grey values 0 and 1 are for training, 9 for testing. What is skipped is shown
    nevertheless."""
    for name, value in values.items():
        (tmp_path / 'images' / name).mkdir(parents=True)
        (tmp_path / 'images' / name / 'broken.png').write_text('text')
        grey = Image.new('RGB', (32, 32), (value, value, value))
        grey.save(tmp_path / 'images' / name / '1.png')
    with pytest.raises(errors.UserError, match=f'^{line}'):
        cifar10_convert.convert(str(tmp_path / 'images'), str(tmp_path / 'data'))
    assert capsys.readouterr().out.splitlines()[0] == 'Skipped 2:'
    assert os.listdir(tmp_path) == ['images']
