import errno
import os

import pytest

from cifar10_lib.runs import metrics as metrics_

HEADER = ('step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
          'validation_error_averaged,images_per_second\n')


def row(step, **figures):
    return {'step': step, 'epoch': step / 10, 'wall_time': 1700000000.25, 'learning_rate': 0.1,
            'training_loss': 2.5, 'training_error': 0.75, 'validation_error': None,
            'validation_error_averaged': None, 'images_per_second': 1234.5, **figures}


LINE = '{},{},1700000000.250,0.1,2.5,0.75,,,1234.5\n'


@pytest.fixture
def path(tmp_path):
    """Path of a `metrics.csv` with rows for steps 10, 20 and 30."""
    metrics = metrics_.Metrics(tmp_path, 0)
    for step in (10, 20, 30):
        metrics.append(**row(step))
    return tmp_path / 'metrics.csv'


def steps(path):
    return [found['step'] for found in metrics_.read(path)]


def test_a_new_file_has_only_a_header(tmp_path):
    metrics_.Metrics(tmp_path, 0)
    assert (tmp_path / 'metrics.csv').read_text() == HEADER
    assert [entry.name for entry in tmp_path.iterdir()] == ['metrics.csv']


def test_rows_in_the_file(path):
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(30, 3)


def test_digits(tmp_path):
    """Seven, as many as a float32 has; all digits of a step."""
    metrics_.Metrics(tmp_path, 0).append(**row(
        12345678, epoch=1 / 3, training_loss=123456789.0, validation_error=0.0))
    assert (tmp_path / 'metrics.csv').read_text().splitlines()[1] == (
        '12345678,0.3333333,1700000000.250,0.1,1.234568e+08,0.75,0,,1234.5')


def test_read_metrics(path):
    assert metrics_.read(path)[1] == row(20)
    assert metrics_.read(path.with_name('none.csv')) == []
    path.write_text('')
    assert metrics_.read(path) == []


def test_a_resumed_run_drops_the_rows_of_steps_to_repeat(path):
    metrics = metrics_.Metrics(path.parent, 20)
    assert steps(path) == [10, 20]
    metrics.append(**row(25))
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        25, 2.5)


def test_reading_and_writing_again_changes_nothing(path):
    metrics_.Metrics(path.parent, 30).append(**row(33, validation_error=0.1 + 0.2))
    before = path.read_bytes()
    metrics_.Metrics(path.parent, 33)
    assert path.read_bytes() == before


@pytest.mark.parametrize('length', range(1, len(LINE.format(30, 3)) + 1))
def test_a_torn_last_line_is_dropped_silently(path, capsys, length):
    """Even if only the line end is missing: the last figure may have had more digits."""
    path.write_bytes(path.read_bytes()[:-length])
    metrics_.Metrics(path.parent, 30).append(**row(30))
    assert capsys.readouterr().out == ''
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(30, 3)


@pytest.mark.parametrize('length', range(len(HEADER)))
def test_a_torn_header(tmp_path, length):
    (tmp_path / 'metrics.csv').write_text(HEADER[:length])
    metrics_.Metrics(tmp_path, 0)
    assert (tmp_path / 'metrics.csv').read_text() == HEADER


@pytest.mark.parametrize('garbage', [
    b'\n', b'notes\n', b'15,1.5\n', b'15,1,1,1,1,1,1,1,1,1\n', b',1,1,1,1,1,1,1,1\n', b'\0\0\0\0\n',
    b'inf,1,1,1,1,1,1,1,1\n', b'nan,1,1,1,1,1,1,1,1\n', b'\xff\xfe,1\n', b'"15,1\n',
    b'15,1,1,1,nan,1,1,1,1\n', b'15,1,1,1,1,1,-inf,1,1\n', b'15,1,1,1,1e39,1,1,1,1\n',
    b'1e300,1,1,1,1,1,1,1,1\n', b'-15,1,1,1,1,1,1,1,1\n', b'1.5,1,1,1,1,1,1,1,1\n',
    b'15,1,1,1,1,1,1,1,' + 2000 * b'1' + b'\n',
    b'step\n', b'step note\n', '\u0661\u0665,1,1,1,1,1,1,1,1\n'.encode()])
def test_a_file_with_other_lines_is_kept(path, garbage, capsys):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b''.join(lines[:2]) + garbage + b''.join(lines[2:]))
    before = path.read_bytes()
    metrics_.Metrics(path.parent, 30)
    assert path.read_bytes() == b''.join(lines)
    assert (path.parent / 'metrics.csv.old').read_bytes() == before
    assert capsys.readouterr().out == (
        f'{path} has lines that a run did not write; the file is kept as {path}.old.\n')


def test_kept_files_are_never_replaced(path, capsys):
    """Three starts, each after other notes were added."""
    for number in range(3):
        with open(path, 'a') as stream:
            stream.write(f'note {number}\n')
        metrics_.Metrics(path.parent, 30)
    kept = [path.with_name(f'metrics.csv.old{end}') for end in ('', '.1', '.2')]
    assert [file.read_text().splitlines()[-1] for file in kept] == ['note 0', 'note 1', 'note 2']
    assert steps(path) == [10, 20, 30]
    assert set(os.listdir(path.parent)) == {path.name, *(file.name for file in kept)}


def test_a_full_disk_leaves_the_file_as_it_is(path, monkeypatch):
    """Although a copy with the lines of others is kept."""
    path.write_text(path.read_text() + 'note\n')
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left on device'):
        metrics_.Metrics(path.parent, 30)
    assert path.read_bytes() == before


@pytest.mark.parametrize('remove', [lambda path: path.unlink(), lambda path: path.write_text('')])
def test_a_file_removed_during_training_returns_with_its_header(path, remove, capsys):
    metrics = metrics_.Metrics(path.parent, 30)
    remove(path)
    metrics.append(**row(40))
    metrics.append(**row(50))
    assert path.read_text() == HEADER + LINE.format(40, 4) + LINE.format(50, 5)
    metrics_.Metrics(path.parent, 50)
    assert steps(path) == [40, 50]


def test_lines_may_end_as_on_windows(path):
    path.write_bytes(path.read_bytes().replace(b'\n', b'\r\n').replace(b',1234.5', b','))
    assert [found['images_per_second'] for found in metrics_.read(path)] == 3 * [None]
