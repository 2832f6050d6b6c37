"""`maybe_download_and_extract`: which files are checked, and what happens to other people's."""
import os
import re
import tarfile

from cifar10_lib import checkpoints, errors
from classification_lib import data_sets, records

import copies
import numpy as np
import pytest
import record_files
from absl import flags
from absl.testing import flagsaver

import cifar10

FLAGS = flags.FLAGS
NAMES = [f'data_batch_{number}.bin' for number in range(1, 6)] + ['test_batch.bin']

# A program's own, with the tutorial's functions: two classes, 40 x 40 images.
THEIR_INPUT = '''
import os
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
IMAGE_SIZE = 40
NUM_CLASSES = 2
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 40
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 12


def _batches(path, batch_size):
    queue = tf.train.string_input_producer([path])
    _, record = tf.FixedLengthRecordReader(record_bytes=1 + 40 * 40 * 3).read(queue)
    values = tf.decode_raw(record, tf.uint8)
    image = tf.image.per_image_standardization(tf.reshape(values[1:1 + 4800], [40, 40, 3]))
    return tf.train.batch([image, tf.cast(values[0], tf.int32)], batch_size)


def distorted_inputs(data_dir, batch_size):
    return _batches(os.path.join(data_dir, 'data_batch_1.bin'), batch_size)


def inputs(eval_data, data_dir, batch_size):
    name = 'test_batch.bin' if eval_data else 'data_batch_1.bin'
    return _batches(os.path.join(data_dir, name), batch_size)
'''


def rows_of(classes, num_bytes=3073, label_byte=0):
    """Records of noise with all labels below `classes`, uint8 [max(classes, 8), num_bytes]."""
    rows = np.random.RandomState(1).randint(0, 256, [max(classes, 8), num_bytes], np.uint8)
    rows[:, label_byte] = np.arange(len(rows)) % classes
    return rows


@pytest.fixture
def folder(tmp_path):
    """CIFAR-10's folder in a new --data_dir."""
    path = tmp_path / 'data' / 'cifar-10-batches-bin'
    path.mkdir(parents=True)
    with flagsaver.flagsaver(
            data_dir=str(path.parent), train_dir=str(tmp_path / 'run'), batch_size=8,
            checkpoint_dir=str(tmp_path / 'run'), eval_dir=str(tmp_path / 'eval'), max_steps=2,
            run_once=True):
        yield path


def fault():
    with pytest.raises(errors.UserError) as error:
        cifar10.maybe_download_and_extract()
    return str(error.value)


def train_and_evaluate(copy, capsys):
    """Runs the three scripts of a copy of the project; returns the precision."""
    with copies.imported(copy) as import_:
        for steps, script in enumerate(('cifar10_train', 'cifar10_multi_gpu_train'), start=2):
            with flagsaver.flagsaver(max_steps=steps, num_gpus=2):
                import_(script).main()
            assert f'Saved step {steps} in ' in capsys.readouterr().out
        import_('cifar10_eval').main()
    return float(re.search(r': precision @ 1 = ([01]\.\d{3})\n', capsys.readouterr().out)[1])


@pytest.mark.parametrize('names', ['data_batch_1 test_batch', 'people people_test'])
def test_an_input_module_of_ones_own(tmp_path, folder, capsys, names):
    """Under CIFAR-10's names and others. It evaluates as many images as its constant says."""
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10.py': {'INITIAL_LEARNING_RATE = 0.1 ': 'INITIAL_LEARNING_RATE = 0.01 '}})
    source = THEIR_INPUT
    for old, name, count in zip(('data_batch_1', 'test_batch'), names.split(), (40, 12)):
        source = source.replace(old, name)
        np.tile(rows_of(2, num_bytes=4801), [5, 1])[:count].tofile(folder / f'{name}.bin')
    (copy / 'cifar10_input.py').write_text(source)
    precision = train_and_evaluate(copy, capsys)
    np.testing.assert_allclose(12 * precision, round(12 * precision), atol=0.01)
    found = checkpoints.newest(FLAGS.train_dir).values
    assert found['local3/weights'].shape == (10 * 10 * 64, 384)
    assert found['softmax_linear/weights'].shape == (192, 2)


def test_cifar100s_records_under_other_names(tmp_path, folder, capsys):
    """Beside CIFAR-10's own files. Those that are read are checked."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': {
        "'data_batch_%d.bin'": "'mine_%d.bin'", "'test_batch.bin'": "'mine_6.bin'",
        '_LABEL_BYTES = 1': '_LABEL_BYTES = 2', 'NUM_CLASSES = 10\n': 'NUM_CLASSES = 100\n',
        'FOR_TRAIN = 50000': 'FOR_TRAIN = 80'}})
    for number, name in enumerate(NAMES, start=1):
        rows_of(10).tofile(folder / name)
        rows_of(100, 3074, label_byte=1).tofile(folder / f'mine_{number}.bin')
    train_and_evaluate(copy, capsys)
    rows_of(101, 3074, label_byte=1).tofile(folder / 'mine_6.bin')
    with copies.imported(copy) as import_, pytest.raises(ValueError, match=(
            'mine_6.bin has label 100 in record 100 .*; expected 0 to 99: change NUM_CLASSES')):
        import_('cifar10').maybe_download_and_extract()


@pytest.mark.parametrize('name', ['data_batch_4.bin', 'test_batch.bin'])
def test_damaged_files_are_named_and_stay(folder, monkeypatch, name):
    """The test set alone is enough, for an evaluation. No advice is to remove or replace files."""
    record_files.write(folder / 'test_batch.bin', record_files.noise(12, seed=0))
    cifar10.maybe_download_and_extract()
    for each in NAMES[:5]:
        record_files.write(folder / each, record_files.noise(12, seed=0))
    cifar10.maybe_download_and_extract()
    rows = rows_of(8)
    rows[5, 0] = 10
    rows.tofile(folder / name)
    assert fault() == (
        f'{folder}/{name} has label 10 in record 5 (counted from 0); expected 0 to 9: change '
        'NUM_CLASSES in cifar10_input.py, or restore the file')
    monkeypatch.setattr(cifar10, 'NUM_CLASSES', 11)  # A program may set it, too.
    cifar10.maybe_download_and_extract()
    (folder / name).write_bytes(b'torn')
    assert fault() == (
        f'{folder}/{name} has 4 bytes; expected one or more records of 3073 bytes: restore the '
        'file, choose another --data_dir, or change the record size in cifar10_input.py')
    assert (folder / name).read_bytes() == b'torn'
    with pytest.raises(errors.UserError, match='4 bytes; .*: restore the file, or choose another '
                       '--data_dir$'):
        records.fetch(data_sets.CIFAR10, FLAGS.data_dir)  # As classification.py does.


def test_another_url_of_the_data(tmp_path, folder, monkeypatch, capsys):
    """The constant decides, when the function runs; copies of the published archive are not asked.
    Its bytes are not verified, and a line says so."""
    for name in NAMES:
        rows_of(10).tofile(folder / name)
    with tarfile.open(tmp_path / 'images.tar.gz', 'w:gz') as tar:
        tar.add(folder, './cifar-10-batches-bin')
    monkeypatch.setattr(cifar10, 'DATA_URL', f'file://{tmp_path}/images.tar.gz')
    with flagsaver.flagsaver(data_dir=str(tmp_path / 'new')):
        cifar10.maybe_download_and_extract()
    line, *_ = capsys.readouterr().out.splitlines()
    assert line == f'file://{tmp_path}/images.tar.gz is not the published URL: images.tar.gz is ' \
        'not verified.'
    assert sorted(os.listdir(tmp_path / 'new' / folder.name)) == NAMES
    monkeypatch.setattr(cifar10, 'DATA_URL', 'file:///gone/images.tar.gz')
    with flagsaver.flagsaver(data_dir=str(tmp_path / 'newer')):
        assert fault().startswith('Cannot download file:///gone/images.tar.gz')
        with pytest.raises(errors.UserError, match='^Cannot download file:///gone/images.tar.gz'):
            records.fetch(data_sets.CIFAR10, FLAGS.data_dir)  # As classification.py does.
