import json
import os

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import cifar10
from cifar10_lib.datasets import custom, image_source, table
from cifar10_lib.program import errors

FLAGS = flags.FLAGS
ROW = {'name': 'pets', 'classes': ['cat', 'dög'], 'train_files': {'train.bin': 3},
       'test_files': {'test.bin': 2}}


def labelled(*labels):
    """Images whose bytes all equal their label, and the labels."""
    return (np.full([len(labels), 32, 32, 3], np.reshape(labels, [-1, 1, 1, 1]), np.uint8),
            np.array(labels, int))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / 'pets'
    path.mkdir()
    train, test = custom.write(path, 'pets', ['cat', 'dög'], labelled(0, 1, 1), labelled(1, 0))
    assert (train.tolist(), test.tolist()) == ([1, 2], [1, 1])
    return path


def test_the_files_and_their_row(folder):
    assert json.loads((folder / 'dataset.json').read_text(encoding='utf-8')) == ROW
    assert (folder / 'train.bin').read_bytes() == b''.join(bytes([k]) * 3073 for k in (0, 1, 1))
    assert (folder / 'test.bin').read_bytes() == b''.join(bytes([k]) * 3073 for k in (1, 0))
    row = image_source.find(folder)
    assert (row.name, row.title, row.classes) == ('pets', 'pets', ('cat', 'dög'))


def test_the_flag_takes_a_name_or_a_folder(folder, monkeypatch):
    assert cifar10.default_source().data_set == table.CIFAR10
    monkeypatch.chdir(folder.parent)
    for name in (str(folder), 'pets', './pets/'):
        with flagsaver.flagsaver(dataset=name, data_dir='/nonexistent'):
            assert cifar10.default_source().data_set.classes == ('cat', 'dög')
            assert cifar10.default_source().folder == str(folder)
            assert cifar10.default_source().files() == {f'{folder}/train.bin': 3}
            assert cifar10.default_source(True).num_examples() == 2
            cifar10.maybe_download_and_extract()


def test_a_name_of_the_table_is_not_a_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    folder.rename('synthetic')
    assert image_source.find('synthetic') is table.SYNTHETIC
    assert image_source.find('./synthetic').name == 'pets'


@pytest.mark.parametrize('name', ['pets', '', '/dev/null'])
def test_neither_a_name_nor_a_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(flags.IllegalFlagValueError, match=(
            f'"{name}" is not a data set; expected cifar10, cifar100, synthetic, or a '
            'folder with a dataset.json')):
        FLAGS.dataset = name


@pytest.mark.parametrize('change, words', [
    ({'name': ''}, '"name" is ""; expected a name other than cifar10'),
    ({'name': 'a\nb'}, '"name" is'),
    ({'classes': ['cat']}, '"classes" is ["cat"]; expected a list of 2 to 256 different names'),
    ({'classes': ['cat', 'cat']}, '"classes" is'),
    ({'classes': ['cat', 7]}, '"classes" is'),
    ({'classes': [str(k) for k in range(257)]}, '"classes" is'),
    ({'name': 50 * [50 * ['a']]}, '"name" is [['),
    ({'test_files': {}}, '"test_files" is {}; expected names of files in this folder'),
    ({'test_files': {'../test.bin': 2}}, '"test_files" is'),
    ({'test_files': {'test.bin': 0}}, '"test_files" is'),
    ({'name': '\ud800'}, '"name" is')])
def test_invalid_fields_are_reported(folder, change, words):
    (folder / 'dataset.json').write_text(json.dumps({**ROW, **change}))
    with pytest.raises(errors.DataError) as error:
        custom.read(folder)
    assert words in str(error.value)
    assert str(error.value).startswith(f'{folder}/dataset.json')
    assert '\n' not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize('data', [b'', b'null', 200000 * b'[', b'\xff\xfe'])
def test_files_without_a_json_object(folder, data):
    (folder / 'dataset.json').write_bytes(data)
    with pytest.raises(errors.DataError, match=(
            'dataset.json (is not JSON: .|holds null; expected a JSON object)')):
        custom.read(folder)


def test_a_damaged_record_file_is_reported_with_a_remedy(folder):
    (folder / 'train.bin').write_bytes(b'\2' * 3073)
    with flagsaver.flagsaver(dataset=str(folder)), pytest.raises(
            errors.DataError, match='has label 2 in record 0.*recreate .* with cifar10_convert.py'):
        cifar10.maybe_download_and_extract()


@pytest.mark.parametrize('name, dog, words', [
    ('pets', 'd\x1b[31mog', r'"classes" is .*"d\\u001b\[31mog"];'),
    ('cifar10', 'dog', 'named like its folder: "name" is "cifar10"; expected a name other than '
     'cifar10, cifar100')])
def test_an_invalid_name_is_reported(tmp_path, name, dog, words):
    with pytest.raises(errors.DataError, match=words):
        custom.write(tmp_path, name, ['cat', dog], labelled(0, 1), labelled(0))
    assert os.listdir(tmp_path) == []
