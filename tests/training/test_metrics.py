import pytest

from cifar10_lib.program import errors
from cifar10_lib.runs import metrics

HEADER = ('step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
          'validation_error_averaged,images_per_second\n')


def row(step, **figures):
    return {'step': step, 'epoch': step / 10, 'wall_time': 1700000000.25, 'learning_rate': 0.1,
            'training_loss': 2.5, 'training_error': 0.75, 'validation_error': None,
            'validation_error_averaged': None, 'images_per_second': 1234.5, **figures}


LINE = '{},{},1700000000.250,0.1,2.5,0.75,,,1234.5\n'


def add(path, row):
    with open(path, 'ab') as stream:
        metrics.write(stream, row)


@pytest.fixture
def path(tmp_path):
    """Path of a `metrics.csv` with rows for steps 10, 20 and 30."""
    metrics.start(tmp_path / 'metrics.csv', 0)
    for step in (10, 20, 30):
        add(tmp_path / 'metrics.csv', row(step))
    return tmp_path / 'metrics.csv'


def test_rows_in_the_file(path):
    """Seven digits, as many as a float32 has; all digits of a step."""
    assert [entry.name for entry in path.parent.iterdir()] == ['metrics.csv']
    add(path, row(12345678, epoch=1 / 3, training_loss=123456789.0, validation_error=0.0))
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        30, 3) + '12345678,0.3333333,1700000000.250,0.1,1.234568e+08,0.75,0,,1234.5\n'


def test_read_metrics(path):
    assert metrics.read(path)[1] == row(20)
    assert metrics.read(path.with_name('none.csv')) == []
    path.write_bytes(path.read_bytes().replace(b'\n', b'\r\n').replace(b',1234.5', b','))
    assert [found['images_per_second'] for found in metrics.read(path)] == 3 * [None]


def test_a_resumed_run_drops_the_rows_of_steps_to_repeat(path):
    metrics.start(path, 20)
    add(path, row(25))
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        25, 2.5)


@pytest.mark.parametrize('length', [1, 2, 20, len(LINE.format(30, 3))])
def test_a_torn_last_line_is_dropped_silently(path, capsys, length):
    """Even if only the line end is missing: the last figure may have had more digits."""
    path.write_bytes(path.read_bytes()[:-length])
    metrics.start(path, 30)
    assert capsys.readouterr().out == ''
    assert path.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2)


@pytest.mark.parametrize('length', [0, 1, 20, len(HEADER) - 1])
def test_a_torn_header(path, length):
    path.write_text(HEADER[:length])
    assert metrics.read(path) == []
    metrics.start(path, 0)
    assert path.read_text() == HEADER


@pytest.mark.parametrize('change', [
    lambda data: data.replace(b'step,epoch', b'step;epoch'),  # As a spreadsheet may save it.
    lambda data: data + b'a note\n', lambda data: data + b'40,1.5\n', lambda data: b'\xff' + data])
def test_a_file_that_others_have_written_is_set_aside_with_one_line(path, change, capsys):
    path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(errors.DataError, match=f'{path} is not a table that a run wrote'):
        metrics.read(path)
    metrics.start(path, 30)
    assert path.read_text() == HEADER
    kept, = path.parent.glob('metrics.csv.*')
    assert kept.read_bytes() == before
    out = capsys.readouterr().out
    assert out.endswith(f'; it is kept as {kept}.\n') and out.count('\n') == 1
