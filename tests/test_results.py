import csv
import json
import os
import pathlib
import struct
import tracemalloc

import h5py
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from runs import results

HEADER = ('step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
          'images_per_second\n')


def row(step, **figures):
    return {'step': step, 'epoch': step / 10, 'wall_time': 1700000000.25, 'learning_rate': 0.1,
            'training_loss': 2.5, 'training_error': 0.75, 'validation_error': None,
            'images_per_second': 1234.5, **figures}


LINE = '{},{},1700000000.250,0.1,2.5,0.75,,1234.5\n'


@pytest.fixture
def path(tmp_path):
    """Of a `metrics.csv` with rows of steps 10, 20 and 30."""
    metrics = results.Metrics(tmp_path, 0)
    for step in (10, 20, 30):
        metrics.append(**row(step))
    return tmp_path / 'metrics.csv'


def steps(path):
    return [found['step'] for found in results.read_metrics(path)]


def test_a_new_file_has_a_header_and_is_whole(tmp_path):
    results.Metrics(tmp_path, 0)
    assert (tmp_path / 'metrics.csv').read_text() == HEADER
    assert [entry.name for entry in tmp_path.iterdir()] == ['metrics.csv']


def test_rows_as_they_stand_in_the_file(path):
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(30, 3)


def test_digits(tmp_path):
    """A float32's seven; a step whole, however large."""
    results.Metrics(tmp_path, 0).append(**row(
        12345678, epoch=1 / 3, training_loss=123456789.0, validation_error=0.0))
    assert (tmp_path / 'metrics.csv').read_text().splitlines()[1] == (
        '12345678,0.3333333,1700000000.250,0.1,1.234568e+08,0.75,0,1234.5')


def test_read_metrics(path):
    assert results.read_metrics(path)[1] == row(20)
    assert results.read_metrics(path.with_name('none.csv')) == []
    path.write_text('')
    assert results.read_metrics(path) == []


def test_a_run_that_goes_on_drops_the_steps_to_be_made_again(path):
    metrics = results.Metrics(path.parent, 20)
    assert steps(path) == [10, 20]
    metrics.append(**row(25))
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        25, 2.5)


def test_reading_and_writing_again_changes_nothing(path):
    results.Metrics(path.parent, 30).append(**row(33, validation_error=0.1 + 0.2))
    before = path.read_bytes()
    results.Metrics(path.parent, 33)
    assert path.read_bytes() == before


@pytest.mark.parametrize('length', range(1, len(LINE.format(30, 3)) + 1))
def test_a_torn_last_line_is_dropped(path, length):
    """Also one that lacks nothing but its end, whose last figure may have had more digits."""
    path.write_bytes(path.read_bytes()[:-length])
    results.Metrics(path.parent, 30).append(**row(30))
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(30, 3)


@pytest.mark.parametrize('length', range(len(HEADER)))
def test_a_torn_header(tmp_path, length):
    (tmp_path / 'metrics.csv').write_text(HEADER[:length])
    results.Metrics(tmp_path, 0)
    assert (tmp_path / 'metrics.csv').read_text() == HEADER


@pytest.mark.parametrize('garbage', [
    b'\n', b'notes\n', b'15,1.5\n', b'15,1,1,1,1,1,1,1,1\n', b',1,1,1,1,1,1,1\n', b'\0\0\0\0\n',
    b'inf,1,1,1,1,1,1,1\n', b'nan,1,1,1,1,1,1,1\n', b'\xff\xfe,1\n', b'"15,1\n',
    b'15,1,1,1,nan,1,1,1\n', b'15,1,1,1,1,1,-inf,1\n', b'15,1,1,1,1e39,1,1,1\n',
    b'1e300,1,1,1,1,1,1,1\n', b'-15,1,1,1,1,1,1,1\n', b'1.5,1,1,1,1,1,1,1\n',
    b'15,1,1,1,1,1,1,' + 2000 * b'1' + b'\n', b'15,1,1,1,1,1,1,1' + 2000 * b' ' + b'\n',
    '\u0661\u0665,1,1,1,1,1,1,1\n'.encode()])
def test_a_line_that_is_no_row_is_kept_elsewhere(path, garbage, capsys):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b''.join(lines[:2]) + garbage + b''.join(lines[2:]))
    before = path.read_bytes()
    results.Metrics(path.parent, 30)
    assert path.read_bytes() == b''.join(lines)
    assert (path.parent / 'metrics.csv.old').read_bytes() == before
    assert capsys.readouterr().out == (
        f'{path} has lines that are not rows of a run; the file as it was is now {path}.old.\n')


def test_files_kept_elsewhere_are_never_replaced(path, capsys):
    """By three starts, each with other notes in the file."""
    for number in range(3):
        with open(path, 'a') as stream:
            stream.write(f'note {number}\n')
        results.Metrics(path.parent, 30)
    kept = [path.with_name(f'metrics.csv.old{end}') for end in ('', '.1', '.2')]
    assert [file.read_text().splitlines()[-1] for file in kept] == ['note 0', 'note 1', 'note 2']
    assert steps(path) == [10, 20, 30]
    assert set(os.listdir(path.parent)) == {path.name, *(file.name for file in kept)}


@pytest.mark.parametrize('remove', [lambda path: path.unlink(), lambda path: path.write_text('')])
def test_a_file_removed_while_training_returns_with_its_header(path, remove, capsys):
    metrics = results.Metrics(path.parent, 30)
    remove(path)
    metrics.append(**row(40))
    metrics.append(**row(50))
    assert path.read_text() == HEADER + LINE.format(40, 4) + LINE.format(50, 5)
    results.Metrics(path.parent, 50)
    assert steps(path) == [40, 50]


def test_a_file_without_a_header_keeps_its_rows(path):
    """As an earlier version left it where the file was removed while training."""
    path.write_text(LINE.format(10, 1) + LINE.format(20, 2))
    results.Metrics(path.parent, 30)
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2)


def test_a_line_that_a_crash_cut_short_is_no_matter(path, capsys):
    before = path.read_bytes()
    path.write_bytes(before + b'40,1,17')
    results.Metrics(path.parent, 30)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ['metrics.csv']
    assert capsys.readouterr().out == ''


def test_a_line_without_end_takes_little_memory(tmp_path):
    """A quarter of a gigabyte of zeros, of which the disk holds none."""
    with open(tmp_path / 'metrics.csv', 'wb') as stream:
        stream.write(HEADER.encode() + LINE.format(10, 1).encode())
        stream.truncate(1 << 28)
    tracemalloc.start()
    try:
        assert steps(tmp_path / 'metrics.csv') == [10]
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_lines_may_end_as_on_windows(path):
    path.write_bytes(path.read_bytes().replace(b'\n', b'\r\n').replace(b',1234.5', b','))
    assert [found['images_per_second'] for found in results.read_metrics(path)] == 3 * [None]


def test_a_spreadsheet_and_numpy_can_read_it(path):
    with open(path, newline='') as stream:
        rows = list(csv.DictReader(stream))
    assert [found['step'] for found in rows] == ['10', '20', '30']
    assert rows[0]['validation_error'] == '' and rows[0]['training_error'] == '0.75'
    table = np.genfromtxt(path, delimiter=',', names=True)
    assert table.dtype.names == results.COLUMNS
    assert table['epoch'].tolist() == [1, 2, 3]
    assert np.isnan(table['validation_error']).all()


@pytest.fixture
def session():
    """A session after one step of Adam on `w`, with averages and a batch norm's statistics."""
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable('layer/weights', initializer=[[1.0, 2.0], [3.0, 4.0]])
    for name in ('moving_mean', 'moving_variance'):
        tf.get_variable(f'layer/bn/{name}', initializer=[5.0, 6.0], trainable=False)
    step_op = tf.train.AdamOptimizer(0.5).minimize(tf.reduce_sum(weights), step)
    with tf.control_dependencies([step_op]):
        train_op = tf.train.ExponentialMovingAverage(0.5).apply([weights])
    with tf.Session() as session_:
        session_.run(tf.global_variables_initializer())
        session_.run(train_op)
        yield session_


def test_parameters(session, tmp_path):
    """Adam's first step is its rate, 0.5; the average is halfway between 1 and 0.5."""
    path = tmp_path / 'params.h5'
    results.write_parameters(str(path), tf.global_variables(), session)
    assert [entry.name for entry in tmp_path.iterdir()] == ['params.h5']
    names = []
    with h5py.File(path) as stream:
        stream.visititems(lambda name, node: names.append(name) if hasattr(node, 'shape') else None)
        assert sorted(names) == [
            'averages/layer/weights', 'statistics/layer/bn/moving_mean',
            'statistics/layer/bn/moving_variance', 'weights/layer/weights']
        np.testing.assert_allclose(stream['weights/layer/weights'], [[0.5, 1.5], [2.5, 3.5]],
                                   rtol=1e-6)
        np.testing.assert_allclose(stream['averages/layer/weights'], [[0.75, 1.75], [2.75, 3.75]],
                                   rtol=1e-6)
        assert stream['statistics/layer/bn/moving_mean'][:].tolist() == [5, 6]
        assert stream['weights/layer/weights'].dtype == np.float32
        assert dict(stream.attrs) == {'global_step': 1}


def test_parameters_replace_an_earlier_file(session, tmp_path):
    (tmp_path / 'params.h5').write_text('earlier')
    (tmp_path / 'params.h5.0123456789abcdef.part').write_text('what a kill left')
    results.write_parameters(str(tmp_path / 'params.h5'), tf.global_variables(), session)
    assert [entry.name for entry in tmp_path.iterdir()] == ['params.h5']
    assert h5py.is_hdf5(tmp_path / 'params.h5')


@pytest.mark.parametrize('value', [
    'x', b'7', 7.0, np.inf, np.nan, 1 + 2j, np.array([7, 7]), np.array([]), h5py.Empty('i')])
def test_parameters_without_a_step(tmp_path, value):
    path = tmp_path / 'params.h5'
    with h5py.File(path, 'w') as stream:
        stream.attrs['global_step'] = 7
    assert results.parameters_step(path) == 7
    with h5py.File(path, 'w') as stream:
        stream.attrs['global_step'] = value
    assert results.parameters_step(path) is None
    path.write_bytes(path.read_bytes()[:-50])
    assert results.parameters_step(path) is None


@pytest.fixture
def best(session, tmp_path):
    """A `Best` to which step 10 was offered with an averaged error of 0.5."""
    best_ = results.Best(str(tmp_path), tf.global_variables())
    assert (best_.error, best_.step) == (np.inf, None)
    assert not (tmp_path / 'best').exists()  # Nothing is made before there is something.
    best_.offer(session, 10, 0.625, 0.5)
    return best_


def read_error(folder):
    return json.loads(pathlib.Path(folder, 'best', 'error.json').read_text())


def checkpoint_files(step):
    return [f'model.ckpt-{step}.data-00000-of-00001', f'model.ckpt-{step}.index']


def kept(folder):
    return sorted(entry.name for entry in pathlib.Path(folder, 'best').iterdir())


def test_the_first_is_the_best(best, tmp_path):
    assert (best.error, best.step) == (0.5, 10)
    assert read_error(tmp_path) == {'step': 10, 'error': 0.625, 'averaged_error': 0.5,
                                    'validated_on': 'test', 'checkpoint': 'model.ckpt-10'}
    assert kept(tmp_path) == ['checkpoint', 'error.json', *checkpoint_files(10), 'params.h5']
    assert tf.train.latest_checkpoint(str(tmp_path / 'best')).endswith('model.ckpt-10')


def test_a_lower_error_replaces_it(best, session, tmp_path):
    session.run(tf.trainable_variables()[0].assign(np.full([2, 2], 7.0)))
    best.offer(session, 20, 0.75, 0.25)
    assert read_error(tmp_path) == {'step': 20, 'error': 0.75, 'averaged_error': 0.25,
                                    'validated_on': 'test', 'checkpoint': 'model.ckpt-20'}
    assert kept(tmp_path) == ['checkpoint', 'error.json', *checkpoint_files(20), 'params.h5']
    latest = tf.train.latest_checkpoint(str(tmp_path / 'best'))
    assert latest.endswith('model.ckpt-20')
    assert (tf.train.load_variable(latest, 'layer/weights') == 7).all()
    with h5py.File(tmp_path / 'best' / 'params.h5') as stream:
        assert (stream['weights/layer/weights'][:] == 7).all()


@pytest.mark.parametrize('error', [0.5, 0.75])
def test_no_lower_error_changes_nothing(best, session, tmp_path, error):
    def contents():
        return {entry.name: entry.read_bytes() for entry in (tmp_path / 'best').iterdir()}
    before = contents()
    best.offer(session, 20, 0.0, error)
    assert contents() == before
    assert (best.error, best.step) == (0.5, 10)


def test_a_resumed_run_knows_the_best(best, session, tmp_path):
    again = results.Best(str(tmp_path), tf.global_variables())
    assert (again.error, again.step) == (0.5, 10)
    again.offer(session, 20, 0.75, 0.75)
    assert read_error(tmp_path)['step'] == 10
    again.offer(session, 30, 0.25, 0.25)
    assert kept(tmp_path) == ['checkpoint', 'error.json', *checkpoint_files(30), 'params.h5']


@pytest.mark.parametrize('text', [
    '', '{', '[]', '{"error": 0.1}', '{"error": "?", "step": 10}', 200000 * '[',
    '{"error": 0.1, "step": Infinity}', '{"error": NaN, "step": 10}', '{"error": -1, "step": 10}',
    '{"error": 0.1, "step": [10]}', '{"error": {}, "step": 10}', '{"error": 0.1, "step": -10}',
    '{"error": 0.1, "step": 1' + 400 * '0' + '}', '{"error": 1' + 400 * '0' + ', "step": 10}',
    (1 << 20) * ' ' + '{"error": 0.1, "step": 10}'])
def test_a_damaged_error_json_is_none(best, session, tmp_path, text):
    text = text.replace('"error"', '"averaged_error"')
    (tmp_path / 'best' / 'error.json').write_text(text)
    again = results.Best(str(tmp_path), tf.global_variables())
    assert (again.error, again.step) == (np.inf, None)
    again.offer(session, 20, 0.75, 0.75)
    assert read_error(tmp_path)['step'] == 20
    assert kept(tmp_path) == ['checkpoint', 'error.json', *checkpoint_files(20), 'params.h5']


def test_an_error_on_other_images_does_not_count(best, session, tmp_path):
    """A worse one on the held-out images replaces the best one on the test set."""
    again = results.Best(str(tmp_path), tf.global_variables(), 'held_out')
    assert (again.error, again.step) == (np.inf, None)
    again.offer(session, 20, 0.75, 0.75)
    assert read_error(tmp_path)['validated_on'] == 'held_out'
    assert results.Best(str(tmp_path), tf.global_variables(), 'held_out').step == 20


def test_an_error_without_its_checkpoint_is_none(best, tmp_path):
    for name in checkpoint_files(10):
        (tmp_path / 'best' / name).unlink()
    assert results.Best(str(tmp_path), tf.global_variables()).error == np.inf


def test_an_error_with_a_damaged_checkpoint_is_none(best, session, tmp_path):
    """After a loss of power, say: the next one is better than that."""
    data = tmp_path / 'best' / 'model.ckpt-10.data-00000-of-00001'
    data.write_bytes(bytes(data.stat().st_size))
    again = results.Best(str(tmp_path), tf.global_variables())
    assert (again.error, again.step) == (np.inf, None)
    again.offer(session, 20, 0.75, 0.75)
    assert kept(tmp_path) == ['checkpoint', 'error.json', *checkpoint_files(20), 'params.h5']


def test_others_files_stay(best, session, tmp_path):
    for name in ('notes.txt', 'model.ckpt-best.index'):
        (tmp_path / 'best' / name).write_text('mine')
    best.offer(session, 20, 0.25, 0.25)
    assert {'notes.txt', 'model.ckpt-best.index'} <= set(kept(tmp_path))


@pytest.fixture
def event_file(tmp_path):
    """Path of an event file whose curve is 0.5 at step 1 and 0.25 at step 2."""
    with tf.Graph().as_default(), tf.summary.FileWriter(str(tmp_path / 'eval')) as writer:
        for step, value in ((1, 0.5), (2, 0.25)):
            writer.add_summary(
                tf.Summary(value=[tf.Summary.Value(tag='curve', simple_value=value)]), step)
    path, = (tmp_path / 'eval').iterdir()
    return path


def framed(data, length):
    """A record with right checksums, of a length that need not be the data's."""
    header = struct.pack('<Q', length)
    return b''.join([header, struct.pack('<I', masked_crc32c(header)),
                     data, struct.pack('<I', masked_crc32c(data))])


@pytest.mark.parametrize('added, told', [
    (b'', False), (b'\0', False), (framed(b'', 1 << 46), False),
    (framed(b'', (1 << 64) - 10), False), (framed(b'\xff\xff\xff', 3), True),
    (bytes(100), True), (b'any text that is longer than the frame of a record', False)])
def test_a_curve_ends_where_its_file_is_damaged(event_file, capsys, added, told):
    """What seems to be longer than the file may be one that is being written: no line."""
    whole = event_file.read_bytes()
    event_file.write_bytes(whole + added)
    assert results.read_scalars(str(event_file.parent), 'curve') == {1: 0.5, 2: 0.25}
    assert capsys.readouterr().out == told * (
        f'{event_file} is damaged; using what comes before the damage.\n')
    event_file.write_bytes(whole[:-1] + added)
    assert results.read_scalars(str(event_file.parent), 'curve') == {1: 0.5}
