import json
import os
import signal

import image_files
import numpy as np
import outcomes
import pytest
import record_files
import spawn
from absl import app
from absl.testing import flagsaver

import cifar10_convert
import cifar10_predict
import cifar10_train
from cifar10_lib.datasets import custom, images
from cifar10_lib.program import errors

NAMES = ['upper half', 'ünten']  # The bright half; see `record_files.half_bright`.


@pytest.fixture
def folder(tmp_path):
    """A folder of 2 x 42 images: 2 x 35 for training, 2 x 7 for testing."""
    for index, (label, image) in enumerate(record_files.half_bright(84, seed=1)):
        path = tmp_path / 'my images' / NAMES[label]
        path.mkdir(parents=True, exist_ok=True)
        image_files.bmp(path / f'{index}.bmp', image)
    return tmp_path / 'my images'


@pytest.mark.slow
def test_the_data_set_trains_evaluates_and_predicts(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr('cifar10.INITIAL_LEARNING_RATE', 0.03)
    (folder / NAMES[0] / 'broken.png').write_text('text')
    (folder / NAMES[0] / 'notes.txt').write_text('text')
    os.mkfifo(folder / NAMES[0] / 'pipe.png')  # Without a writer.
    data = tmp_path / 'data' / 'halves'
    cifar10_convert.convert(str(folder), str(data))
    assert capsys.readouterr().out.splitlines() == [
        'Skipped 2:',
        f'{folder}/{NAMES[0]}/notes.txt is not a file named like an image',
        f'{folder}/{NAMES[0]}/pipe.png is not a file named like an image',
        'Skipped 1:',
        f'{folder}/{NAMES[0]}/broken.png is damaged or truncated, or not an image '
        f'({", ".join(images._FORMATS)})',
        f'{data} holds 70 training and 14 test images of 2 classes, from a folder of images per '
        f'class: train with --dataset={data} --epochs=100']
    assert custom.read(data).classes == tuple(NAMES)
    with flagsaver.flagsaver(
            dataset=str(data), data_dir='/nonexistent', train_dir=str(tmp_path / 'train'),
            checkpoint_dir=str(tmp_path / 'train'), batch_size=8, max_steps=30, json=True):
        cifar10_train.train()
        assert outcomes.precision(str(tmp_path / 'train')) == 1.0
        run = json.loads((tmp_path / 'train' / 'run.json').read_text())
        assert run['dataset'] == 'halves'
        capsys.readouterr()
        for label, name in enumerate(NAMES):
            assert cifar10_predict.predict([str(folder / name)]) == 1 - label  # One is broken.
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [line['predictions'][0]['class'] for line in lines] == 42 * [name]
            assert len(lines[0]['predictions']) == 2
    with flagsaver.flagsaver(dataset='synthetic', checkpoint_dir=str(tmp_path / 'train')):
        with pytest.raises(app.UsageError, match='--dataset=halves, not with .*=synthetic'):
            cifar10_predict.predict([str(folder / NAMES[0])])


def test_each_image_has_its_label_and_its_pixels(folder, tmp_path):
    cifar10_convert.convert(str(folder), str(tmp_path / 'halves'))
    expected = {image.transpose(2, 0, 1).tobytes(): label
              for label, image in record_files.half_bright(84, seed=1)}
    found = np.concatenate([np.fromfile(tmp_path / 'halves' / name, np.uint8).reshape(-1, 3073)
                            for name in ('train.bin', 'test.bin')])
    assert {record[1:].tobytes(): record[0] for record in found} == expected


def test_converting_twice_gives_the_same_files(folder, tmp_path):
    cifar10_convert.convert(str(folder), str(tmp_path / 'one'))
    before = (tmp_path / 'one' / 'train.bin').read_bytes()
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
        (tmp_path / 'images' / name).mkdir(parents=True)
        (tmp_path / 'images' / name / '1.png').write_text('text')
    with pytest.raises(errors.DataError, match='no training image of cat, dog can be read'):
        cifar10_convert.convert(str(tmp_path / 'images'), str(tmp_path / 'data'))
    assert capsys.readouterr().out.splitlines()[0] == 'Skipped 2:'
    assert os.listdir(tmp_path) == ['images']


def test_svhn(tmp_path, capsys):
    io = pytest.importorskip('scipy.io')
    random = np.random.RandomState(1)
    for name, count in (('train', 20), ('test', 4)):
        io.savemat(tmp_path / f'{name}_32x32.mat', {
            'X': random.randint(0, 256, [32, 32, 3, count]).astype(np.uint8),
            'y': (np.arange(count) % 10 + 1)[:, np.newaxis].astype(np.uint8)})
    cifar10_convert.convert(str(tmp_path), str(tmp_path / 'svhn'))
    assert 'holds 20 training and 4 test images of 10 classes' in capsys.readouterr().out
    labels = np.fromfile(tmp_path / 'svhn' / 'train.bin', np.uint8).reshape(-1, 3073)[:, 0]
    assert labels.tolist() == 2 * [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    row = custom.read(tmp_path / 'svhn')
    row.check(tmp_path / 'svhn')
    assert row.classes[3] == '3'


def test_kaggles_images(tmp_path, capsys):
    """Four labelled images per class, byte for byte, and 30 more without a label."""
    expected = {}
    (tmp_path / 'train').mkdir()
    for index, (label, image) in enumerate(record_files.half_bright(38, seed=1)):
        image_files.png(tmp_path / 'train' / f'{index + 1}.png', image)
        if index < 8:
            expected[image.transpose(2, 0, 1).tobytes()] = label
    (tmp_path / 'trainLabels.csv').write_text(
        'id,label\n' + ''.join(f'{index + 1},{"ab"[index % 2]}\n' for index in range(8)))
    cifar10_convert.convert(str(tmp_path), str(tmp_path.parent / 'halves'))
    found = np.concatenate([np.fromfile(tmp_path.parent / 'halves' / name, np.uint8)
                            for name in ('train.bin', 'test.bin')]).reshape(-1, 3073)
    assert {record[1:].tobytes(): record[0] for record in found} == expected
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'Skipped 30:'
    assert lines[21] == '... and 10 more' and len(lines) == 23
    assert 'holds 6 training and 2 test images of 2 classes' in lines[22]


def test_too_long_a_name(folder, tmp_path):
    with pytest.raises(app.UsageError, match='has 240 bytes; expected a name of at most 225'):
        cifar10_convert.convert(str(folder), str(tmp_path / (80 * '\u732b')))
    assert os.listdir(tmp_path) == ['my images']
    cifar10_convert.convert(str(folder), str(tmp_path / (225 * 'x')))


@pytest.mark.slow
def test_a_lost_console_does_not_remove_the_data_set(folder, tmp_path):
    (folder / NAMES[0] / 'broken.png').write_text('text')
    process = spawn.start_script('cifar10_convert.py', folder, tmp_path / 'data')
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=spawn.PATIENCE) == -signal.SIGHUP
    assert error == '\nThe console is gone: Broken pipe.\n'
    assert custom.read(tmp_path / 'data').classes == tuple(NAMES)
