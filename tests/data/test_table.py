import re

import numpy as np
import pytest
import record_files

import cifar10
from cifar10_lib.datasets import image_source, table
from cifar10_lib.program import errors

NOISE = next(record_files.noise(1, seed=0))[1]


@pytest.fixture
def folder(tmp_path):
    """CIFAR-10's files with three records each."""
    for index, name in enumerate(table.CIFAR10.files):
        record_files.write(tmp_path / name, record_files.noise(3, seed=index))
    return tmp_path


def test_published_facts():
    """CIFAR-100's names are sorted, so that a missing or extra one shifts those that follow."""
    for row, classes, record_bytes in ((table.CIFAR10, 10, 3073), (table.CIFAR100, 100, 3074)):
        assert (row.record_bytes, len(row.classes)) == (record_bytes, classes)
        assert sum(row.train_files.values()) == 50000
        assert sum(row.test_files.values()) == 10000
        assert row.url == f'https://www.cs.toronto.edu/~kriz/cifar-{classes}-binary.tar.gz'
        assert row.copies
        for copy in row.copies:
            assert re.fullmatch(f'https://.*/cifar-{classes}-binary.tar.gz', copy)
    names = table.CIFAR100.classes
    assert names == tuple(sorted(set(names)))
    assert [names[label] for label in (0, 1, 39, 50, 60, 99)] == [
        'apple', 'aquarium_fish', 'keyboard', 'mouse', 'plain', 'worm']


def test_an_edited_url_is_the_only_place():
    assert image_source.find('cifar10', 4, cifar10.DATA_URL).copies == table.CIFAR10.copies
    edited = image_source.find('cifar10', 10, 'http://mirror/cifar-10-binary.tar.gz')
    assert (edited.copies, edited.url) == ((), 'http://mirror/cifar-10-binary.tar.gz')
    other = image_source.find('cifar100', 10, 'http://mirror/cifar-10-binary.tar.gz')
    assert other == table.CIFAR100


def _fault(folder, name):
    with pytest.raises(errors.DataError) as error:
        table.CIFAR10.check(folder)
    message = str(error.value)
    assert str(folder / name) in message
    assert '\n' not in message
    return message


def test_a_missing_file_is_named(folder):
    table.CIFAR10.check(folder)
    (folder / 'data_batch_3.bin').unlink()
    assert 'is missing' in _fault(folder, 'data_batch_3.bin')


@pytest.mark.parametrize('size', [0, 1, 3072, 3 * 3073 - 1, 3 * 3073 + 1])
def test_truncated_files_are_detected(folder, size):
    (folder / 'test_batch.bin').write_bytes(bytes(size))
    message = _fault(folder, 'test_batch.bin')
    assert f'{size} bytes' in message
    assert '3073' in message


def test_an_invalid_label_is_reported_with_its_record(folder):
    data = np.zeros([9000, 3073], np.uint8)
    data[8500, 0] = 10
    data.tofile(folder / 'data_batch_2.bin')
    message = _fault(folder, 'data_batch_2.bin')
    assert 'label 10 in record 8500' in message
    assert '0 to 9' in message


def test_a_label_beyond_fewer_classes_names_the_constant(folder):
    """NUM_CLASSES was lowered on purpose; other faults of the file keep their remedy."""
    record_files.write(folder / 'data_batch_2.bin', [(label, NOISE) for label in (3, 0, 4)])
    record_files.write(folder / 'data_batch_1.bin', [(3, NOISE)])
    with pytest.raises(errors.DataError) as error:
        table.edited_cifar10(4).check(folder)
    assert str(error.value) == (
        f'{folder}/data_batch_2.bin has label 4 in record 2 (counted from 0); expected 0 to 3. '
        'NUM_CLASSES is 4: raise it to 10, or remove the records of other classes from the files.')
    (folder / 'data_batch_2.bin').write_bytes(b'text')
    with pytest.raises(errors.DataError, match='has 4 bytes; .* Restore the file, or move'):
        table.edited_cifar10(4).check(folder)
    record_files.write(folder / 'data_batch_2.bin', [(12, NOISE)])
    with pytest.raises(errors.DataError, match='has label 12 .* 0 to 11. Restore the file'):
        table.edited_cifar10(12).check(folder)


def test_the_row_defines_the_label_byte(tmp_path):
    """The fine label must be valid; the coarse label is not checked."""
    data = np.zeros([3, 3074], np.uint8)
    data[:, 0] = 200
    data[:, 1] = 99
    data.tofile(tmp_path / 'train.bin')
    data.tofile(tmp_path / 'test.bin')
    table.CIFAR100.check(tmp_path)
    data[1, 1] = 100
    data.tofile(tmp_path / 'test.bin')
    with pytest.raises(errors.DataError, match='test.bin has label 100 in record 1 .* 0 to 99'):
        table.CIFAR100.check(tmp_path)
