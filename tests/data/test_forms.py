"""Makes each form of data from known records, and converts it back."""
import dataclasses
import io
import json
import os
import pickle
import shutil
import struct
import zipfile

import image_files
import numpy as np
import pytest
import record_files
from PIL import Image

import cifar10_convert
from cifar10_lib.datasets import custom, download, forms, table
from cifar10_lib.program import errors


def some_records(count, seed, num_classes=10):
    """Records of noise with all labels in turn: uint8 [count, 3073]."""
    images = np.random.RandomState(seed).randint(0, 256, [count, 3073]).astype(np.uint8)
    images[:, 0] = np.arange(count) % num_classes
    return images


TRAIN, TEST = some_records(100, 1), some_records(20, 2)
OF_100 = some_records(100, 3, 100), some_records(100, 4, 100)


def images_of(records):
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def python_2_pickle(records, key):
    """A pickle as Python 2 and its NumPy wrote the published files: protocol 2, `str` of bytes."""
    def text(value):
        return b'U' + bytes([len(value)]) + value

    def string(value):
        return b'T' + struct.pack('<i', len(value)) + value

    array = (b'cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85' + text(b'b')
             + b'\x87R(K\1J' + struct.pack('<i', len(records)) + b'M' + struct.pack('<H', 3072)
             + b'\x86cnumpy\ndtype\n' + text(b'u1') + b'K\0K\1\x87R(K\3' + text(b'|')
             + b'NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89' + string(records[:, 1:].tobytes())
             + b'tb')
    labels = b'](' + b''.join(b'K' + bytes([label]) for label in records[:, 0]) + b'e'
    return (b'\x80\2}(' + text(b'data') + array + text(key) + labels + text(b'batch_label')
            + text(b'batch 1 of 5') + b'u.')


def pickled_by_python_3(records, key):
    return pickle.dumps({'data': records[:, 1:], key.decode(): records[:, 0].tolist()}, protocol=2)


def cifar10_pickles(folder, write=python_2_pickle):
    folder = folder / 'cifar-10-batches-py'
    folder.mkdir()
    for k in range(5):
        (folder / f'data_batch_{k + 1}').write_bytes(write(TRAIN[20 * k:20 * k + 20], b'labels'))
    (folder / 'test_batch').write_bytes(write(TEST, b'labels'))
    return folder


def cifar100_pickles(folder):
    folder = folder / 'cifar-100-python'
    folder.mkdir()
    for name, records in zip(('train', 'test'), OF_100):
        (folder / name).write_bytes(python_2_pickle(records, b'fine_labels'))
    return folder


def npz(path, **changes):
    np.savez_compressed(path, **{
        'x_train': images_of(TRAIN), 'y_train': TRAIN[:, :1], 'x_test': images_of(TEST),
        'y_test': TEST[:, 0].astype(np.int64), **changes})
    return path


def png(image):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, 'PNG')
    return stream.getvalue()


def parquet(folder, names=table.CIFAR10.classes, label='label', test='test', encode=png):
    """As Hugging Face's `cifar10`: a column `img` of PNG files, names in the schema."""
    pyarrow = pytest.importorskip('pyarrow')
    from pyarrow import parquet as files
    (folder / 'plain_text').mkdir()
    for split, records in (('train', TRAIN), (test, TEST)):
        rows = pyarrow.table({
            'img': [data and {'bytes': data, 'path': None}
                    for data in map(encode, images_of(records))],
            label: records[:, 0].tolist()})
        features = {'img': {'_type': 'Image'}, label: {'names': list(names), '_type': 'ClassLabel'}}
        rows = rows.replace_schema_metadata(
            {'huggingface': json.dumps({'info': {'features': features}})})
        files.write_table(rows, folder / 'plain_text' / f'{split}-00000-of-00001.parquet')
    return folder


def convert(path, tmp_path):
    """Converts; returns the records for training and testing, and the row."""
    data = tmp_path / 'converted'
    cifar10_convert.convert(str(path), str(data))
    row = custom.read(data)
    row.check(data)
    return *(np.fromfile(data / name, np.uint8).reshape(-1, 3073)
             for name in ('train.bin', 'test.bin')), row


@pytest.mark.parametrize('write', [python_2_pickle, pickled_by_python_3])
@pytest.mark.parametrize('below', ['', 'cifar-10-batches-py'])
def test_pickles_of_cifar10(tmp_path, capsys, write, below):
    cifar10_pickles(tmp_path, write)
    train, test, row = convert(tmp_path / below, tmp_path)
    np.testing.assert_array_equal(train, TRAIN)
    np.testing.assert_array_equal(test, TEST)
    assert row.classes == table.CIFAR10.classes
    assert ('10 classes, from CIFAR as torchvision and Keras store it: train'
            in capsys.readouterr().out)


def test_pickles_of_cifar100(tmp_path):
    """Without the coarse label, the first byte of the published records."""
    train, test, row = convert(cifar100_pickles(tmp_path), tmp_path)
    np.testing.assert_array_equal(train, OF_100[0])
    np.testing.assert_array_equal(test, OF_100[1])
    assert row.classes == table.CIFAR100.classes


def test_npz(tmp_path):
    train, test, row = convert(npz(tmp_path / 'a.npz'), tmp_path)
    np.testing.assert_array_equal(train, TRAIN)
    np.testing.assert_array_equal(test, TEST)
    assert row.classes == tuple('0123456789')


def test_names_in_an_npz(tmp_path):
    path = npz(tmp_path / 'a.npz', classes=np.array(table.CIFAR10.classes))
    assert convert(path, tmp_path)[2].classes == table.CIFAR10.classes


@pytest.mark.parametrize('label, test', [('label', 'test'), ('fine_label', 'validation')])
def test_parquet(tmp_path, label, test):
    train, tested, row = convert(parquet(tmp_path, label=label, test=test), tmp_path)
    np.testing.assert_array_equal(train, TRAIN)
    np.testing.assert_array_equal(tested, TEST)
    assert row.classes == table.CIFAR10.classes


def refused(path, tmp_path):
    """Converts data that is refused in one line and leaves nothing; returns the line."""
    with pytest.raises(errors.DataError) as error:
        cifar10_convert.convert(str(path), str(tmp_path / 'converted'))
    assert '\n' not in str(error.value) and len(str(error.value)) < 600
    assert not [name for name in os.listdir(tmp_path) if name.startswith('converted')]
    return str(error.value)


class Program:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f'touch {self.path}',)


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_cannot_run_programs(tmp_path, protocol):
    folder = cifar10_pickles(tmp_path)
    (folder / 'data_batch_2').write_bytes(
        pickle.dumps({'data': Program(tmp_path / 'ran'), 'labels': []}, protocol))
    assert 'system is not allowed' in refused(tmp_path, tmp_path)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('statement', [
    b'cnumpy\nload\n.', b'cbuiltins\neval\n.', b'cnumpy.core.multiarray\nscalar\n.',
    b'c_codecs\ndecode\n.', b'\x82\1.', b'P1\n.', b'cnumpy\ndtype\n(S\'O8\'\ntR.',
    b'(cnumpy\nndarray\n(I1000000000000\nltR.'])
def test_other_content_of_a_pickle(tmp_path, statement):
    folder = cifar10_pickles(tmp_path)
    (folder / 'test_batch').write_bytes(statement)
    assert 'test_batch is not a pickle of CIFAR' in refused(tmp_path, tmp_path)


@pytest.mark.parametrize('change, words', [
    (lambda data: data[:5000], 'is not a pickle of CIFAR'), (lambda data: b'', 'is not a pickle'),
    (lambda data: data.replace(b'labels', b'lables'), 'is not a pickle of CIFAR'),
    (lambda data: python_2_pickle(TEST, b'labels').replace(b'](K\0', b'](K\x0a'),
     'has label 10; expected 0 to 9'),
    (lambda data: python_2_pickle(TEST, b'labels').replace(b'](K\0', b']('),
     'has images of uint8 (20, 32, 32, 3) and 19 labels')])
def test_damaged_pickles(tmp_path, change, words):
    folder = cifar10_pickles(tmp_path)
    path = folder / 'data_batch_5'
    path.write_bytes(change(path.read_bytes()))
    assert words in refused(folder, tmp_path)


@pytest.mark.parametrize('change, words', [
    ({'x_train': images_of(TRAIN)[:, :28]}, 'has images of uint8 (100, 28, 32, 3)'),
    ({'x_test': images_of(TEST) / 255}, 'has images of float64'),
    ({'y_train': TRAIN[:, 0] * 0.5}, 'has label 0.5; expected 0 to 5'),
    ({'y_train': np.array(['cat'] * 100)}, 'cannot be read (ufunc'),
    ({'y_train': np.full(100, np.nan)}, 'cannot be read ('),
    ({'y_train': np.array([])}, 'has images of uint8 (100, 32, 32, 3) and 0 labels'),
    ({'y_test': TEST[:, 0] + np.uint8(1)}, 'has label 10; expected 0 to 9'),
    ({'y_test': TEST[:, 0].astype(int) - 1}, 'has label -1; expected 0 to 9'),
    ({'y_train': TRAIN[:, 0].astype(int) + 10**9}, 'has label 1000000000; expected 0 to 1023'),
    ({'y_train': TRAIN[:, 0].astype(int) + 290}, '"classes" is ["0", "1"'),
    ({'y_train': np.array([Program('/tmp/never')] * 100)}, 'cannot be read (Object arrays cannot'),
    ({'classes': np.array(['a', 'a'] + 8 * ['b'])}, 'expected a list of 2 to 256 different names')])
def test_other_arrays_in_an_npz(tmp_path, change, words):
    assert words in refused(npz(tmp_path / 'a.npz', **change), tmp_path)


def test_an_npz_that_would_exhaust_memory(tmp_path):
    """The header of `y_train` claims three gigabytes."""
    path, header = npz(tmp_path / 'a.npz'), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {'descr': '|u1', 'fortran_order': False, 'shape': (3 << 30,)})
    with zipfile.ZipFile(path, 'a') as archive:
        archive.writestr('y_train.npy', header.getvalue())
    assert 'cannot be read (Unable to allocate 3.00 GiB' in refused(path, tmp_path)


def test_a_damaged_npz(tmp_path):
    path = npz(tmp_path / 'a.npz')
    data = bytearray(path.read_bytes())
    data[5000:6000] = bytes(1000)
    path.write_bytes(data)
    assert 'cannot be read' in refused(path, tmp_path)
    data[-200:-100] = bytes(100)  # The list of its files.
    path.write_bytes(data)
    assert 'expected' in refused(path, tmp_path)


@pytest.mark.parametrize('options, words', [
    ({'names': table.CIFAR10.classes[:9]}, 'has label 9; expected 0 to 8'),
    ({'label': 'coarse_label'}, 'is not a Parquet file of images and labels'),
    ({'names': 10 * ['a']}, '"classes" is ["a", "a"')])
def test_other_parquet_files(tmp_path, options, words):
    assert words in refused(parquet(tmp_path, **options), tmp_path)


def test_damaged_parquet_files(tmp_path):
    parquet(tmp_path)
    path = tmp_path / 'plain_text' / 'train-00000-of-00001.parquet'
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(1000) + data[1004:])
    assert 'damaged' in refused(tmp_path, tmp_path)
    path.write_bytes(b'text')
    assert 'is not a Parquet file of images' in refused(tmp_path, tmp_path)


def test_a_damaged_image_in_a_parquet_file(tmp_path, capsys):
    broken = []

    def encode(image):
        broken.append(image)
        return {99: None, 100: b'text'}.get(len(broken), png(image))

    train, _, _ = convert(parquet(tmp_path, encode=encode), tmp_path)
    np.testing.assert_array_equal(train, TRAIN[:98])
    shown = capsys.readouterr().out
    assert 'parquet has an image that is damaged or truncated' in shown
    assert 'parquet has an image that is empty' in shown


def test_a_data_folder_of_another_form_names_the_command(tmp_path):
    """Instead of a download of 170 MB."""
    cifar10_pickles(tmp_path)
    with pytest.raises(errors.DataError, match=(
            f'{tmp_path} holds CIFAR as torchvision and Keras store it; convert that with python '
            f'cifar10_convert.py {tmp_path} NEW_FOLDER, and train with --dataset=NEW_FOLDER')):
        download.maybe_download_and_extract(table.CIFAR10, str(tmp_path))
    shutil.rmtree(tmp_path / 'cifar-10-batches-py')
    image_files.write_sorted(tmp_path)
    with pytest.raises(errors.DataError, match='holds a folder of images per class; convert'):
        download.maybe_download_and_extract(table.CIFAR10, str(tmp_path))


def test_a_data_folder_with_other_things_is_for_the_download(tmp_path):
    """Pickles of another data set, or an archive that somebody put there."""
    cifar10_pickles(tmp_path)
    absent = dataclasses.replace(table.CIFAR100, url='file:///nowhere/cifar-100.tar.gz')
    with pytest.raises(errors.DataError, match='Cannot download file:///nowhere'):
        download.maybe_download_and_extract(absent, str(tmp_path))
    (tmp_path / 'cifar-10-binary.tar.gz').write_bytes(b'text')
    with pytest.raises(errors.DataError, match='replace it, or remove it'):
        download.maybe_download_and_extract(table.CIFAR10, str(tmp_path))


def test_other_folders_have_no_form(tmp_path):
    record_files.write(tmp_path / 'data_batch_1.bin', record_files.noise(1, seed=1))
    assert forms.find(tmp_path) is None
    assert forms.find(tmp_path / 'nowhere') is None
    assert forms.find(tmp_path / 'data_batch_1.bin') is None
