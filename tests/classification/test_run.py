import json
import os

from cifar10_lib import checkpoints, console, run

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


def test_rows_of_metrics(metrics):
    """Seven digits, as many as a float32 has; all digits of a step."""
    run.Metrics(str(metrics.parent), 30).add(
        row(12345678, epoch=1 / 3, training_loss=123456789.0, validation_error=0.0))
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        30, 3) + '12345678,0.3333333,1700000000.250,0.1,1.234568e+08,0.75,0,1234.5\n'
    assert run.read_metrics(str(metrics.parent))[1] == row(20)


def test_a_resumed_run_drops_the_rows_of_steps_to_repeat(metrics):
    run.Metrics(str(metrics.parent), 20).add(row(25))
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2) + LINE.format(
        25, 2.5)


@pytest.mark.parametrize('length', [1, 2, 20, len(LINE.format(30, 3))])
def test_a_torn_last_line_is_dropped(metrics, length):
    """Even if only the line end is missing: the last figure may have had more digits."""
    metrics.write_bytes(metrics.read_bytes()[:-length])
    run.Metrics(str(metrics.parent), 30)
    assert metrics.read_text() == HEADER + LINE.format(10, 1) + LINE.format(20, 2)


@pytest.mark.parametrize('length', [0, 1, len(HEADER) - 1])
def test_a_torn_header(metrics, length):
    metrics.write_text(HEADER[:length])
    assert run.read_metrics(str(metrics.parent)) == []


@pytest.mark.parametrize('change', [
    lambda data: data.replace(b'step,epoch', b'step;epoch'),  # As a spreadsheet may save it.
    lambda data: data + b'a note\n', lambda data: data + b'40' + 9 * b',1' + b'\n',
    lambda data: b'\xff' + data])
def test_a_table_that_others_have_written_stays(metrics, change):
    metrics.write_bytes(change(metrics.read_bytes()))
    before = metrics.read_bytes()
    with pytest.raises(console.UserError, match='not a table that a run wrote .* move it away'):
        run.Metrics(str(metrics.parent), 30)
    assert metrics.read_bytes() == before


def test_tables_of_earlier_versions_are_read(tmp_path):
    (tmp_path / 'metrics.csv').write_text('step,validation_error,validation_error_averaged\n'
                                          '7,0.5,0.25\n')
    assert run.read_metrics(str(tmp_path)) == [
        {'step': 7, 'validation_error': 0.5, 'validation_error_averaged': 0.25}]
    assert run.read_metrics(str(tmp_path / 'none')) == []


@pytest.mark.parametrize('batch_size, workers, every, expected', [
    (30, 1, 1, [4, 7, 10, 11]),  # 100 images: 4 steps are 120, 7 are 210, 10 are 300.
    (15, 2, 1, [4, 7, 10, 11]),
    (30, 1, 2, [7, 11]),
    (30, 1, 0, []),
    (250, 1, 1, list(range(1, 12)))])
def test_validation_is_after_each_epoch_and_at_the_end(batch_size, workers, every, expected):
    plan = run.Plan(0, 11, batch_size, workers, 100, every)
    assert [step for step in range(1, 12) if plan.validates(step)] == expected


def test_plan():
    plan = run.Plan(7, 100, 16, 3, 120)
    assert plan.images_per_step == 48
    assert plan.steps_per_epoch == 2.5
    assert plan.epochs(15) == 6


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


def test_a_new_run(tmp_path):
    assert run.begin(str(tmp_path), content(seed=4), restart=False) == (0, 4)
    (_, first), (_, second) = [
        run.begin(str(tmp_path / 'none'), content(), restart=False) for _ in range(2)]
    assert first != second and 0 <= min(first, second) <= max(first, second) < 2 ** 31


@pytest.mark.parametrize('change, message', [
    ({'net': 'large'}, 'net small, not large'),
    ({'classes': ['cat', 'wolf']}, 'class 1 dog, not wolf'),
    ({'classes': ['cat', 'dog', 'wolf']}, 'class 2 None, not wolf'),
    ({'classes': ['cat']}, 'class 1 dog, not None'),
    ({'settings': content(batch_size=8)['settings']}, 'batch_size 16, not 8'),
    ({'settings': content(workers=2)['settings']}, 'workers 1, not 2'),
    ({'settings': content(validate_on='held_out')['settings']}, 'validate_on test, not held_out'),
    ({'settings': content(training_images=81)['settings']}, 'training_images 80, not 81'),
    ({'settings': content(images_checksum='f')['settings']}, 'images_checksum 01234567, not f'),
    ({'settings': content(seed=4)['settings']}, 'seed 3, not 4')])
def test_another_run_is_refused_in_a_line(folder, change, message):
    with pytest.raises(console.UserError, match=f'holds a run with {message}: change that back, '
                       'choose another --train_dir, or start over with --restart') as error:
        run.begin(str(folder), {**content(), **change}, restart=False)
    assert '\n' not in str(error.value)
    assert run.begin(str(folder), {**content(seed=1), **change}, restart=True)[0] == 0


def test_a_run_of_the_tutorial_is_refused(folder):
    (folder / 'run.json').unlink()
    with pytest.raises(console.UserError, match="holds a run of the tutorial's programs"):
        run.begin(str(folder), content(), restart=False)


@pytest.mark.parametrize('what', ['metrics', 'best'])
def test_results_without_a_checkpoint_are_kept(tmp_path, what):
    """Their checkpoints may have been removed to save room."""
    if what == 'best':
        (tmp_path / 'best').mkdir()
        save(tmp_path / 'best', 5)
    else:
        run.Metrics(str(tmp_path), 0).add(row(10))
    with pytest.raises(console.UserError, match='no checkpoint from which it could resume'):
        run.begin(str(tmp_path), content(), restart=False)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path):
    run.write(str(tmp_path), content(seed=3))
    run.Metrics(str(tmp_path), 0)
    assert run.begin(str(tmp_path), content(), restart=False)[0] == 0


def test_run_json(tmp_path):
    assert run.read(str(tmp_path)) is None
    run.write(str(tmp_path), content())
    assert run.read(str(tmp_path)) == json.loads((tmp_path / 'run.json').read_text()) == content()
    (tmp_path / 'run.json').write_text('{"net":')
    with pytest.raises(console.UserError, match=r'run\.json is not JSON'):
        run.read(str(tmp_path))


class Trained:
    """A session with the variable `w`, and a `run.Best`."""

    def __init__(self, folder):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.w = tf.get_variable('w', initializer=1.0, use_resource=True)
            tf.train.create_global_step()
            self.best = run.Best(str(folder), content(seed=3))
            self.session = tf.Session()
            self.session.run(tf.global_variables_initializer())

    def offer(self, step, error, value=1.0):
        with self.graph.as_default():
            self.w.load(value, self.session)
            self.best.offer(self.session, step, error)


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
    first = Trained(tmp_path)
    first.offer(10, 0.5, 1.0)
    assert kept(tmp_path) == (10, 0.5, 1.0)
    first.offer(20, 0.6, 2.0)
    first.offer(30, 0.5, 3.0)  # Of equals, the first.
    assert kept(tmp_path) == (10, 0.5, 1.0)
    first.offer(40, 0.4, 4.0)
    assert kept(tmp_path) == (40, 0.4, 4.0)
    second = Trained(tmp_path)  # After a resume.
    second.offer(50, 0.45, 5.0)
    assert kept(tmp_path) == (40, 0.4, 4.0)
    second.offer(60, 0.0, 6.0)
    assert kept(tmp_path) == (60, 0.0, 6.0)


def test_variables_that_are_not_finite_are_never_the_best(tmp_path):
    trained = Trained(tmp_path)
    trained.offer(10, 0.1, np.nan)
    trained.offer(20, 0.1, np.inf)
    assert not (tmp_path / 'best').exists()
    trained.offer(30, 0.9, 1.0)
    assert kept(tmp_path) == (30, 0.9, 1.0)


def test_a_kill_between_checkpoint_and_error_loses_neither(tmp_path):
    """Both checkpoints are there; the error is still that of the old one."""
    Trained(tmp_path).offer(10, 0.5, 1.0)
    save(tmp_path / 'best', 20, 2.0)
    assert os.path.basename(checkpoints.newest(str(tmp_path / 'best')).path) == 'model.ckpt-20'
    resumed = Trained(tmp_path)
    resumed.offer(30, 0.4, 3.0)
    assert kept(tmp_path) == (30, 0.4, 3.0)
