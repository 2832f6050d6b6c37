import io
import json
import os

import image_files
import numpy as np
import outcomes
import pytest
import record_files
from absl import app
from absl.testing import flagsaver
from PIL import Image

import cifar10_convert
import cifar10_predict
import cifar10_train
from cifar10_lib.datasets import custom
from cifar10_lib.program import errors

DEEP = ('cannot be read (more than 8 bits per channel, or signed values: scale them to 0 to 255, '
        'as in docs/usage.md)')
NAMES = ['upper half', 'ünten']  # The bright half; see `record_files.half_bright`.


@pytest.fixture
def folder(tmp_path):
    """A folder of 2 x 42 images: 2 x 35 for training, 2 x 7 for testing."""
    for index, (label, image) in enumerate(record_files.half_bright(84, seed=1)):
        path = tmp_path / 'my images' / NAMES[label]
        path.mkdir(parents=True, exist_ok=True)
        image_files.png(path / f'{index}.png', image)
    return tmp_path / 'my images'


@pytest.mark.slow
def test_the_data_set_trains_evaluates_and_predicts(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('cifar10.INITIAL_LEARNING_RATE', 0.03)
    (folder / NAMES[0] / 'broken.png').write_text('text')
    (folder / NAMES[0] / 'notes.txt').write_text('text')
    os.mkfifo(folder / NAMES[0] / 'pipe.png')  # Without a writer.
    image_files.png(folder / NAMES[0] / 'deep.png', np.full([32, 32], 300, np.uint16))
    data = tmp_path / 'data' / 'halves'
    cifar10_convert.convert(str(folder), str(data))
    assert capsys.readouterr().out.splitlines() == [
        'Skipped 2:',
        f'{folder}/{NAMES[0]}/notes.txt is not a file named like an image',
        f'{folder}/{NAMES[0]}/pipe.png is not a file named like an image',
        'Skipped 1:',
        f'{folder}/{NAMES[0]}/broken.png cannot be read (damaged, or not JPEG, PNG, GIF, BMP, '
        'WEBP, TIFF, AVIF of 8 bits per channel)',
        'Skipped 1:',
        f'{folder}/{NAMES[0]}/deep.png {DEEP}',
        f'{NAMES[0]}: 35 training and 7 test images',
        f'{NAMES[1]}: 35 training and 7 test images',
        f'{data} holds 70 training and 14 test images of 2 classes: use cifar10_train.py '
        f'--train_dir=NEW_FOLDER --epochs=100 --dataset="{data}"']
    assert custom.read(data).classes == tuple(NAMES)
    with flagsaver.flagsaver(
            dataset=str(data), data_dir='/nonexistent', train_dir=str(tmp_path / 'train'),
            checkpoint_dir=str(tmp_path / 'train'), batch_size=8, max_steps=30, seed=1,
            json=True):
        cifar10_train.main()
        assert outcomes.precision(str(tmp_path / 'train')) == 1.0
        run = json.loads((tmp_path / 'train' / 'run.json').read_text())
        assert run['dataset'] == 'halves'
        capsys.readouterr()
        for label, name in enumerate(NAMES):
            assert cifar10_predict.predict([str(folder / name)]) == 1 - label  # Two are refused.
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [line['predictions'][0]['class'] for line in lines] == 42 * [name]
            assert len(lines[0]['predictions']) == 2
    with flagsaver.flagsaver(dataset='synthetic', checkpoint_dir=str(tmp_path / 'train')):
        with pytest.raises(app.UsageError, match='--dataset=halves, which has no class disc, as '):
            cifar10_predict.predict([str(folder / NAMES[0])])


def test_converting_twice_gives_the_same_files_with_each_images_label(folder, tmp_path):
    cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    before = (tmp_path / 'one' / 'train.bin').read_bytes()
    labels = {image.transpose(2, 0, 1).tobytes(): label
              for label, image in record_files.half_bright(84, seed=1)}
    records = np.frombuffer(before, np.uint8).reshape(70, 3073)
    assert [labels[record[1:].tobytes()] for record in records] == list(records[:, 0])
    with pytest.raises(app.UsageError, match='one exists and is not .*choose another DATA_DIR'):
        cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    cifar10_convert.convert(str(folder), str(tmp_path / 'two'))
    assert (tmp_path / 'two' / 'train.bin').read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ['my images', 'one', 'two']


def test_a_data_set_inside_the_images_is_rejected(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(app.UsageError, match=r'^set is inside \., where each folder is a class'):
        cifar10_convert.convert('.', 'set')
    assert sorted(os.listdir(folder)) == sorted(NAMES)


def test_a_class_without_readable_images_is_an_error(tmp_path, capsys):
    for name in ('cat', 'dog'):
        path = tmp_path / 'images' / name / '1.png'
        path.parent.mkdir(parents=True)
        path.write_text('text')
    with pytest.raises(errors.DataError, match='no training images of cat, dog: add some'):
        cifar10_convert.convert(str(tmp_path / 'images'), str(tmp_path / 'data'))
    assert capsys.readouterr().out.splitlines()[0] == 'Skipped 2:'
    assert os.listdir(tmp_path) == ['images']


def test_many_skipped_files(folder, tmp_path, capsys):
    """30 beside the classes, and three images of which some bytes are missing: 5, 10 and 15."""
    for number in range(30):
        (folder / f'{number}.txt').touch()
    image = io.BytesIO()
    Image.fromarray(np.full([64, 64, 3], 7, np.uint8)).save(image, 'JPEG')
    for missing in (5, 10, 15):
        (folder / NAMES[0] / f'{missing}.jpg').write_bytes(image.getvalue()[:-missing])
    cifar10_convert.convert(str(folder), str(tmp_path / 'data'))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'Skipped 30:'
    assert lines[1] == f'{folder}/0.txt is not in the folder of a class'
    assert lines[21:23] == ['... and 10 more', 'Skipped 3:'] and len(lines) == 29


@pytest.mark.parametrize('classes, shown', [
    (10, [f'{k}: {k + 1} training and 1 test images' for k in range(10)]),
    (11, ['The smallest class is 0: 1 training and 1 test images',
          'The largest class is 10: 11 training and 1 test images'])])
def test_the_numbers_of_images_per_class(tmp_path, capsys, classes, shown):
    labels = np.repeat(np.arange(classes), np.arange(classes) + 1)  # Label k occurs k + 1 times.
    np.savez(tmp_path / 'a.npz', x_train=np.zeros([len(labels), 32, 32, 3], np.uint8),
             y_train=labels, x_test=np.zeros([classes, 32, 32, 3], np.uint8),
             y_test=np.arange(classes))
    cifar10_convert.convert(str(tmp_path / 'a.npz'), str(tmp_path / 'made'))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == shown
    assert f'holds {len(labels)} training and {classes} test images of {classes} ' in lines[-1]
