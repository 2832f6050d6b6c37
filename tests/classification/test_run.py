from cifar10_lib import checkpoints, errors
from classification_lib import run

import numpy as np
import pytest
import run_settings
import tensorflow.compat.v1 as tf

HEADER = ('step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
          'images_per_second\n')
LINE = '{},{},1700000000.250,0.1,2.5,0.75,,1234.5\n'
VALUES = {'training_loss': 2.5, 'training_error': 0.75, 'learning_rate': 0.1}


@pytest.fixture
def metrics(tmp_path):
    """Path of a `metrics.csv` with rows for steps 10, 20 and 30."""
    path = tmp_path / 'metrics.csv'
    path.write_text(HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(30, 3))
    return path


def log(folder, first_step=0, frequency=2, **settings):
    return run.Log(str(folder), run_settings.of(**settings), first_step, frequency)


def figures(folder, *names):
    return [tuple(row[name] for name in names) for row in run.read_metrics(str(folder))]


def test_a_resumed_run_drops_the_rows_of_steps_to_repeat(metrics):
    """Rows have seven digits, as many as a float32 has, and all digits of a step."""
    with log(metrics.parent, 20) as written:
        written.validated(12345678, 1 / 3)
    assert metrics.read_text().startswith(HEADER + LINE.format(10, 1) + LINE.format(20, 2))
    last = metrics.read_text().splitlines()[-1].split(',')
    assert last[:2] + last[3:] == ['12345678', '2469136', '', '', '', '0.3333333', '']
    assert run.read_metrics(str(metrics.parent))[1] == {
        'step': 20, 'epoch': 2, 'wall_time': 1700000000.25, **VALUES, 'validation_error': None,
        'images_per_second': 1234.5}


@pytest.mark.parametrize('length', [1, 20, len(LINE.format(30, 3))])
def test_a_torn_last_line_is_dropped(metrics, length):
    """Even if only the line end is missing: the last figure may have had more digits."""
    metrics.write_bytes(metrics.read_bytes()[:-length])
    with log(metrics.parent, 30):
        pass
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2)


@pytest.mark.parametrize('change', [
    lambda data: data.replace(b'step,epoch', b'step;epoch'),  # As a spreadsheet may save it.
    lambda data: data + b'a note\n', lambda data: data + b'40' + 9 * b',1' + b'\n',
    lambda data: b'\xff' + data])
def test_a_table_that_others_have_written_stays(metrics, change):
    metrics.write_bytes(change(metrics.read_bytes()))
    before = metrics.read_bytes()
    with pytest.raises(errors.UserError, match='not a table that a run wrote .* move it away'):
        log(metrics.parent, 30)
    assert metrics.read_bytes() == before


def test_a_row_has_means_since_the_row_before(tmp_path):
    """Five steps are an epoch. The row of a validated step waits for its error."""
    with log(tmp_path) as written:
        for step in range(1, 8):
            written.add(step, {**VALUES, 'training_loss': float(step)})
            if step == 5:
                assert figures(tmp_path, 'step') == [(2,), (4,)]
                written.validated(step, 0.25)
    assert figures(tmp_path, 'step', 'training_loss', 'validation_error') == [
        (2, 1.5, None), (4, 3.5, None), (5, 5.0, 0.25), (6, 6.0, None), (7, 7.0, None)]


def test_a_figure_that_an_edit_adds(metrics):
    """It gets a column, which stays when the edit is undone."""
    for first_step, more in ((30, {'momentum': 0.5}), (32, {})):
        with log(metrics.parent, first_step) as written:
            for step in (first_step + 1, first_step + 2):
                written.add(step, {**VALUES, **more})
    assert figures(metrics.parent, 'step', 'training_loss', 'momentum') == [
        (10, 2.5, None), (20, 2.5, None), (30, 2.5, None), (32, 2.5, 0.5), (34, 2.5, None)]


def test_the_training_error_of_an_epoch_with_a_resume(tmp_path, capsys):
    """Steps 1 to 3 were those of an earlier start."""
    with log(tmp_path, 3) as resumed:
        for step in range(4, 11):
            resumed.add(step, {**VALUES, 'training_error': step / 100})
            if step % 5 == 0:
                resumed.validated(step, 0.5)
    out = capsys.readouterr().out
    assert 'epoch 1, training error since step 3 = 0.0450, validation error = 0.5000' in out
    assert 'epoch 2, training error = 0.0800, validation error = 0.5000' in out


@pytest.mark.parametrize('batch_size, workers, every, expected', [
    (30, 1, 1, [4, 7, 10, 11]),  # 100 images: 4 steps are 120, 7 are 210, 10 are 300.
    (15, 2, 1, [4, 7, 10, 11]),
    (30, 1, 2, [7, 11]),
    (30, 1, 0, []),
    (250, 1, 1, list(range(1, 12)))])
def test_validation_is_after_each_epoch_and_at_the_end(batch_size, workers, every, expected):
    settings = run_settings.of(max_steps=11, batch_size=batch_size, workers=workers,
                               training_images=100, validate_every=every)
    assert [step for step in range(12) if settings.validates(step)] == expected


@pytest.mark.parametrize('change, message', [
    ({'classes': ('cat', 'wolf')}, 'classes cat, dog, not cat, wolf'),
    ({'classes': ('cat', 'dog', 'wolf')}, 'classes cat, dog, not cat, dog, wolf'),
    ({'net': 'tutorial'}, 'net small, not tutorial'), ({'seed': 4}, 'seed 3, not 4'),
    ({'batch_size': 8}, 'batch_size 16, not 8'), ({'workers': 2}, 'workers 1, not 2'),
    ({'training_images': 81}, 'training_images 80, not 81'),
    ({'images_checksum': '0'}, 'images_checksum 01234567, not 0'),
    ({'validate_on': 'held_out'}, 'validate_on test, not held_out')])
def test_another_run_is_refused_in_a_line(tmp_path, change, message):
    run.write(str(tmp_path), run_settings.of())
    with pytest.raises(errors.UserError, match=f'^RUN holds a run with {message}: change that '
                       'back, choose another --train_dir, or start over with --restart$'):
        run.check_resume('RUN', run.read(str(tmp_path)), run_settings.of(**change))


def test_the_best_checkpoint_is_kept(tmp_path):
    w = tf.get_variable('w', initializer=1.0, use_resource=True)
    folder, kept = tmp_path / 'best', []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for is_new_start, step, error, value in [
                (True, 5, 0.1, np.nan), (False, 5, 0.1, np.inf),
                (False, 5, None, 1.0),  # A validation that is not complete.
                (False, 10, 0.5, 1.0), (False, 20, 0.6, 2.0), (False, 30, 0.5, 3.0),
                (False, 40, 0.4, 4.0), (True, 50, 0.45, 5.0),
                (True, 40, 0.3, 6.0), (True, 40, 0.2, 7.0)]:  # Killed, and made again.
            if is_new_start:
                best = run.Best(str(tmp_path), run_settings.of())
            w.load(value, session)
            best.offer(session, step, error)
            if folder.exists():
                found = checkpoints.newest(run.best_checkpoint(str(folder)))
                assert len(list(folder.glob('*.index'))) == 1
                saved = run.read(str(folder))
                kept.append((saved['step'], saved['validation_error'], float(found.values['w'])))
    assert kept == [(10, 0.5, 1.0)] * 3 + [(40, 0.4, 4.0)] * 2 + [(40, 0.3, 6.0), (40, 0.2, 7.0)]
