import os

from cifar10_lib import checkpoints, errors
from classification_lib import run

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

HEADER = ('step,epoch,wall_time,learning_rate,training_loss,training_error,validation_error,'
          'images_per_second\n')
LINE = '{},{},1700000000.250,0.1,2.5,0.75,,1234.5\n'


def row(step, **figures):
    return {'step': step, 'epoch': step / 10, 'wall_time': 1700000000.25, 'learning_rate': 0.1,
            'training_loss': 2.5, 'training_error': 0.75, 'validation_error': None,
            'images_per_second': 1234.5, **figures}


@pytest.fixture
def metrics(tmp_path):
    """Path of a `metrics.csv` with rows for steps 10, 20 and 30."""
    writer = run.Metrics(str(tmp_path), 0)
    for step in (10, 20, 30):
        writer.add(row(step))
    return tmp_path / 'metrics.csv'


def test_a_resumed_run_drops_the_rows_of_steps_to_repeat(metrics):
    """Rows have seven digits, as many as a float32 has, and all digits of a step."""
    run.Metrics(str(metrics.parent), 20).add(
        row(12345678, epoch=1 / 3, training_loss=123456789.0, validation_error=0.0))
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + (
        '12345678,0.3333333,1700000000.250,0.1,1.234568e+08,0.75,0,1234.5\n')
    assert run.read_metrics(str(metrics.parent))[1] == row(20)


@pytest.mark.parametrize('length', [1, 20, len(LINE.format(30, 3))])
def test_a_torn_last_line_is_dropped(metrics, length):
    """Even if only the line end is missing: the last figure may have had more digits."""
    metrics.write_bytes(metrics.read_bytes()[:-length])
    run.Metrics(str(metrics.parent), 30)
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2)


@pytest.mark.parametrize('change', [
    lambda data: data.replace(b'step,epoch', b'step;epoch'),  # As a spreadsheet may save it.
    lambda data: data + b'a note\n', lambda data: data + b'40' + 9 * b',1' + b'\n',
    lambda data: b'\xff' + data])
def test_a_table_that_others_have_written_stays(metrics, change):
    metrics.write_bytes(change(metrics.read_bytes()))
    before = metrics.read_bytes()
    with pytest.raises(errors.UserError, match='not a table that a run wrote .* move it away'):
        run.Metrics(str(metrics.parent), 30)
    assert metrics.read_bytes() == before


@pytest.mark.parametrize('batch_size, workers, every, expected', [
    (30, 1, 1, [4, 7, 10, 11]),  # 100 images: 4 steps are 120, 7 are 210, 10 are 300.
    (15, 2, 1, [4, 7, 10, 11]),
    (30, 1, 2, [7, 11]),
    (30, 1, 0, []),
    (250, 1, 1, list(range(1, 12)))])
def test_validation_is_after_each_epoch_and_at_the_end(batch_size, workers, every, expected):
    plan = run.Plan(0, 11, batch_size, workers, 100, every)
    assert [step for step in range(1, 12) if plan.validates(step)] == expected


def content(seed=None, **settings):
    return {'net': 'small', 'dataset': 'pets', 'classes': ['cat', 'dog'], 'settings': {
        'batch_size': 16, 'workers': 1, 'validate_on': 'test', 'training_images': 80,
        'images_checksum': '01234567', 'seed': seed, 'learning_rate': 0.1, **settings}}


@pytest.fixture
def folder(tmp_path):
    """A run with seed 3 after 5 steps."""
    run.write(str(tmp_path), content(seed=3))
    save(tmp_path, 5)
    return tmp_path


def save(folder, step, value=0.0):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable('w', initializer=value)
        counter = tf.get_variable('global_step', initializer=np.int64(step))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / 'model.ckpt'), global_step=counter)


def test_a_run_resumes_with_its_seed(folder):
    assert run.begin(str(folder), content(), restart=False) == (5, 3)
    assert run.begin(str(folder), content(seed=3, learning_rate=0.2), restart=False) == (5, 3)
    assert run.begin(str(folder), content(seed=8), restart=True) == (0, 8)


def test_a_new_run_has_the_seed_that_was_given_or_a_random_one(tmp_path):
    """Also one that was killed before its first checkpoint."""
    run.write(str(tmp_path), content(seed=3))
    run.Metrics(str(tmp_path), 0)
    assert run.begin(str(tmp_path), content(seed=4), restart=False) == (0, 4)
    (steps, first), (_, second) = [
        run.begin(str(tmp_path), content(), restart=False) for _ in range(2)]
    assert steps == 0 and first != second
    assert 0 <= min(first, second) <= max(first, second) < 2 ** 31


@pytest.mark.parametrize('change, message', [
    ({'classes': ['cat', 'wolf']}, 'class 1 dog, not wolf'),
    ({'classes': ['cat', 'dog', 'wolf']}, 'class 2 None, not wolf'),
    (content(workers=2), 'workers 1, not 2'),
    (content(training_images=81), 'training_images 80, not 81')])
def test_another_run_is_refused_in_a_line(folder, change, message):
    with pytest.raises(errors.UserError, match=f'holds a run with {message}: change that back, '
                       'choose another --train_dir, or start over with --restart') as error:
        run.begin(str(folder), {**content(), **change}, restart=False)
    assert '\n' not in str(error.value)
    assert run.begin(str(folder), {**content(seed=1), **change}, restart=True)[0] == 0


def test_other_runs_that_cannot_continue_are_refused(folder, tmp_path):
    """One of the tutorial, and one whose checkpoints were removed, maybe to save room."""
    (folder / 'run.json').unlink()
    with pytest.raises(errors.UserError, match="holds a run of the tutorial's programs"):
        run.begin(str(folder), content(), restart=False)
    (tmp_path / 'other').mkdir()
    run.Metrics(str(tmp_path / 'other'), 0).add(row(10))
    with pytest.raises(errors.UserError, match='no checkpoint from which it could resume'):
        run.begin(str(tmp_path / 'other'), content(), restart=False)


def kept(folder):
    """Step, error and value of w in `best/`."""
    best = folder / 'best'
    saved = run.read(str(best))
    found = checkpoints.newest(str(best))
    assert saved == {**content(seed=3), 'step': saved['step'],
                     'validation_error': saved['validation_error']}
    assert os.path.basename(found.path) == f'model.ckpt-{saved["step"]}'
    assert len(checkpoints.candidates(str(best))) == 1
    return saved['step'], saved['validation_error'], float(found.values['w'])


def test_the_best_checkpoint_is_kept(tmp_path):
    """Also if a run is killed between checkpoint and error: the error is that of the old one."""
    w = tf.get_variable('w', initializer=1.0, use_resource=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def offer(best, step, error, value):
            w.load(value, session)
            best.offer(session, step, error)

        first = run.Best(str(tmp_path), content(seed=3))
        for value in (np.nan, np.inf):  # Variables that are not finite are never the best.
            offer(first, 5, 0.1, value)
        assert not (tmp_path / 'best').exists()
        offer(first, 10, 0.5, 1.0)
        assert kept(tmp_path) == (10, 0.5, 1.0)
        offer(first, 20, 0.6, 2.0)
        offer(first, 30, 0.5, 3.0)  # Of equals, the first.
        assert kept(tmp_path) == (10, 0.5, 1.0)
        offer(first, 40, 0.4, 4.0)
        assert kept(tmp_path) == (40, 0.4, 4.0)
        second = run.Best(str(tmp_path), content(seed=3))  # After a resume.
        offer(second, 50, 0.45, 5.0)
        assert kept(tmp_path) == (40, 0.4, 4.0)
        save(tmp_path / 'best', 60, 6.0)
        assert float(checkpoints.newest(str(tmp_path / 'best')).values['w']) == 6.0
        third = run.Best(str(tmp_path), content(seed=3))  # After a kill.
        offer(third, 70, 0.39, 7.0)
        assert kept(tmp_path) == (70, 0.39, 7.0)
        offer(third, 80, 0.0, 8.0)
        assert kept(tmp_path) == (80, 0.0, 8.0)
