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


def blocks(*labels):
    """One block of one record for each label."""
    return [np.full([1, 3073], label, np.uint8) for label in labels]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / 'pets'
    path.mkdir()
    assert custom.write(path, 'pets', ['cat', 'dög'], blocks(0, 1, 1), blocks(1, 0)) == (3, 2)
    return path


def test_records():
    """The label, then plane by plane, each row by row."""
    images = np.random.RandomState(1).randint(0, 256, [2, 32, 32, 3]).astype(np.uint8)
    records = custom.records(images, [[7], [200]], 201, 'a file')
    assert records.dtype == np.uint8 and records.shape == (2, 3073)
    assert records[:, 0].tolist() == [7, 200]
    np.testing.assert_array_equal(records[1, 1:].reshape(3, 32, 32)[2, 5], images[1, 5, :, 2])


def test_written_files(folder):
    assert json.loads((folder / 'dataset.json').read_text(encoding='utf-8')) == ROW
    assert (folder / 'train.bin').read_bytes() == b''.join(bytes([k]) * 3073 for k in (0, 1, 1))
    assert (folder / 'test.bin').read_bytes() == b''.join(bytes([k]) * 3073 for k in (1, 0))


def test_the_row_works_like_those_of_the_table(folder):
    row = image_source.find(folder)
    row.check(folder)
    assert (row.name, row.title, row.num_classes, row.record_bytes) == ('pets', 'pets', 2, 3073)
    assert row.classes == ('cat', 'dög')
    assert row.count(folder, eval_data=False) == {f'{folder}/train.bin': 3}
    assert row.count(folder, eval_data=True) == {f'{folder}/test.bin': 2}


def test_the_flag_takes_a_name_or_a_folder(folder, monkeypatch):
    assert cifar10.source().data_set == table.CIFAR10
    monkeypatch.chdir(folder.parent)
    for name in (str(folder), 'pets', './pets/'):
        with flagsaver.flagsaver(dataset=name, data_dir='/nonexistent'):
            assert cifar10.source().data_set.classes == ('cat', 'dög')
            assert cifar10.source().folder == str(folder)
            assert cifar10.source(True).num_examples() == 2
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
            f'"{name}" is not a data set; expected cifar10, cifar100, synthetic, synthetic100, or '
            'a folder with a dataset.json')):
        FLAGS.dataset = name


@pytest.mark.parametrize('change, words', [
    ({'name': ''}, '"name" is ""; expected a name other than cifar10'),
    ({'name': 'cifar10'}, '"name" is "cifar10"'),
    ({'name': 'a\nb'}, '"name" is'),
    ({'classes': ['cat']}, '"classes" is ["cat"]; expected a list of 2 to 256 different names'),
    ({'classes': ['cat', 'cat']}, '"classes" is'),
    ({'classes': ['cat', 7]}, '"classes" is'),
    ({'classes': ['cat', '\x1b[2J']}, '"classes" is'),
    ({'classes': [str(k) for k in range(257)]}, '"classes" is'),
    ({'classes': 'cat'}, '"classes" is "cat"'),
    ({'train_files': {}}, '"train_files" is {}; expected names of files in this folder'),
    ({'train_files': ['train.bin']}, '"train_files" is'),
    ({'test_files': {'../test.bin': 2}}, '"test_files" is'),
    ({'test_files': {'test.bin': 0}}, '"test_files" is'),
    ({'test_files': {'test.bin': True}}, '"test_files" is'),
    ({'train_files': {256 * 'a': 1}}, '"train_files" is'),
    ({'classes': ['cat', 256 * 'a']}, '"classes" is'),
    ({'name': float('nan')}, '"name" is NaN'),
    ({'name': '\ud800'}, '"name" is')])
def test_invalid_fields_are_reported(folder, change, words):
    (folder / 'dataset.json').write_text(json.dumps({**ROW, **change}))
    with pytest.raises(errors.DataError) as error:
        custom.read(folder)
    assert words in str(error.value)
    assert str(error.value).startswith(f'{folder}/dataset.json')
    assert '\n' not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize('text', [
    '', '{', '[]', 'null', '[' * 200000, 100000 * '[' + 100000 * ']', b'\xff\xfe', b'\0',
    '9' * 5000, (1 << 20) * ' ' + '{}'])
def test_files_without_a_json_object(folder, text):
    (folder / 'dataset.json').write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(errors.DataError, match='dataset.json (is not |holds |is larger than 1 MB)'):
        custom.read(folder)


@pytest.mark.parametrize('depth', [100, 300, 900, 980, 2000, 9000, 50000])
def test_a_deeply_nested_field(folder, depth):
    """At some depths, reading fails; at others, writing the message."""
    (folder / 'dataset.json').write_text(json.dumps(ROW).replace(
        '"pets"', depth * '[' + depth * ']'))
    with pytest.raises(errors.DataError, match='dataset.json(: "name" is| is not JSON)'):
        custom.read(folder)


def test_a_damaged_record_file_is_reported_with_a_remedy(folder):
    (folder / 'train.bin').write_bytes(b'\2' * 3073)
    with flagsaver.flagsaver(dataset=str(folder)), pytest.raises(
            errors.DataError, match='has label 2 in record 0.*recreate .* with cifar10_convert.py'):
        cifar10.maybe_download_and_extract()


@pytest.mark.parametrize('name, dog, train, test, words', [
    ('pets', 'dog', blocks(1, 1), blocks(0), 'no training image of cat can be read'),
    ('pets', 'dog', blocks(0, 1), [], 'no test image can be read; expected at least one: add'),
    ('pets', 'd\x1b[31mog', blocks(0, 1), blocks(0), r'"classes" is \["cat", "d\\u001b\[31mog"\];'),
    ('cifar10', 'dog', blocks(0, 1), blocks(0),
     'named like its folder: "name" is "cifar10"; expected a name other than cifar10, cifar100')])
def test_an_invalid_data_set_gets_no_json_file(tmp_path, name, dog, train, test, words):
    with pytest.raises(errors.DataError, match=words):
        custom.write(tmp_path, name, ['cat', dog], train, test)
    assert 'dataset.json' not in os.listdir(tmp_path)
