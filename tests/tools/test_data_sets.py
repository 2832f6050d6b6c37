import json

from cifar10_lib import download, errors
from classification_lib import data_sets

import numpy as np
import pytest

import cifar10

ROW = {'name': 'pets', 'classes': ['cat', 'dög'], 'train_files': {'train.bin': 3},
       'test_files': {'test.bin': 2}}


def records(*labels, num_bytes=3073):
    """Black images; uint8 [count, num_bytes], with the label in the first byte."""
    found = np.zeros([len(labels), num_bytes], np.uint8)
    found[:, 0] = labels
    return found


@pytest.fixture
def pets(tmp_path):
    """A user's folder."""
    folder = tmp_path / 'pets'
    folder.mkdir()
    records(0, 1, 1).tofile(folder / 'train.bin')
    records(1, 0).tofile(folder / 'test.bin')
    (folder / 'dataset.json').write_text(json.dumps(ROW, ensure_ascii=False), encoding='utf-8')
    return folder


def fault(data_set, folder):
    with pytest.raises(errors.UserError) as error:
        data_sets.check(data_set, folder)
    assert '\n' not in str(error.value)
    return str(error.value)


def test_published_facts():
    """CIFAR-100's names are sorted, so that a missing or extra one shifts those that follow."""
    for row, classes, record_bytes in ((data_sets.CIFAR10, 10, 3073),
                                       (data_sets.CIFAR100, 100, 3074)):
        assert (row.record_bytes, len(row.classes)) == (record_bytes, classes)
        assert row.url == f'https://www.cs.toronto.edu/~kriz/cifar-{classes}-binary.tar.gz'
        assert download.PUBLISHED[row.url].sha256
    assert data_sets.CIFAR10.url == cifar10.DATA_URL
    names = data_sets.CIFAR100.classes
    assert names == tuple(sorted(set(names)))
    assert [names[label] for label in (0, 1, 39, 50, 60, 99)] == [
        'apple', 'aquarium_fish', 'keyboard', 'mouse', 'plain', 'worm']


@pytest.mark.parametrize('size', [0, 3 * 3073 - 1, 3 * 3073 + 1])
def test_truncated_files_are_detected(tmp_path, size):
    """Of the files that exist: programs of one's own may read others."""
    records(0, 5, 9).tofile(tmp_path / 'data_batch_2.bin')
    (tmp_path / 'people.bin').write_bytes(b'text')
    data_sets.check(data_sets.CIFAR10, tmp_path)
    (tmp_path / 'test_batch.bin').write_bytes(bytes(size))
    assert fault(data_sets.CIFAR10, tmp_path) == (
        f'{tmp_path}/test_batch.bin has {size} bytes; expected one or more records of 3073 bytes: '
        'restore the file, or choose another --data_dir')


def test_an_invalid_label_is_reported_with_its_record(tmp_path):
    """CIFAR-100's fine label must be valid; the coarse label, before it, is not checked."""
    found = records(*9000 * [200], num_bytes=3074)
    found[:, 1] = 99
    found.tofile(tmp_path / 'test.bin')
    data_sets.check(data_sets.CIFAR100, tmp_path)
    found[8500, 1] = 100
    found.tofile(tmp_path / 'test.bin')
    assert fault(data_sets.CIFAR100, tmp_path).startswith(
        f'{tmp_path}/test.bin has label 100 in record 8500 (counted from 0); expected 0 to 99: '
        'restore the file, or choose another --data_dir')


def test_a_folder_of_ones_own(pets, monkeypatch):
    monkeypatch.chdir(pets.parent)
    for name in (str(pets), 'pets', './pets/'):
        row = data_sets.find(name)
        assert (row.name, row.classes, row.folder) == ('pets', ('cat', 'dög'), str(pets))
        assert (row.train_files, row.test_files) == (('train.bin',), ('test.bin',))
        assert row.record_bytes == 3073
        data_sets.check(row, row.folder)
    records(0, 1, 2).tofile(pets / 'train.bin')
    assert 'has label 2 in record 2' in fault(row, row.folder)
    assert 'or recreate the data set with cifar10_convert.py' in fault(row, row.folder)


@pytest.mark.parametrize('change, words', [
    ({'name': 'a\nb'}, '"name" is "a\\nb"; expected a name other than cifar10, cifar100'),
    ({'classes': ['cat', 'cat']}, '"classes" is ["cat", "cat"]; expected a list of 2 to 256 diff'),
    ({'train_files': None}, '"train_files" is null; expected names of files in this folder'),
    ({'test_files': {'../test.bin': 2}}, '"test_files" is')])
def test_invalid_fields_are_reported(pets, change, words):
    (pets / 'dataset.json').write_text(json.dumps({**ROW, **change}))
    with pytest.raises(errors.UserError) as error:
        data_sets.find(str(pets))
    assert words in str(error.value)
    assert str(error.value).startswith(f'{pets}/dataset.json: "')
    assert '\n' not in str(error.value)
    (pets / 'dataset.json').write_bytes(b'')
    with pytest.raises(errors.UserError, match='dataset.json is not JSON: '):
        data_sets.find(str(pets))
