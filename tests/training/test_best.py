import json
import pathlib

import h5py
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10_lib.runs import best as best_


@pytest.fixture
def session():
    """A session after one step: `layer/weights`, its moving average and the global step."""
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable('layer/weights', initializer=[[1.0, 2.0], [3.0, 4.0]])
    averages = tf.train.ExponentialMovingAverage(0.5).apply([weights])
    with tf.Session() as session_:
        session_.run(tf.global_variables_initializer())
        session_.run([averages, step.assign_add(1)])
        yield session_


def offer(best, session, step, error, averaged_error):
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    best.offer(session, step, values, error, averaged_error)


@pytest.fixture
def best(session, tmp_path):
    """A `Best` to which step 10 was offered with an averaged error of 0.5."""
    (tmp_path / 'run.json').write_text('{"net": "tutorial"}')
    found = best_.Best(str(tmp_path), tf.global_variables())
    assert (found.error, found.step) == (np.inf, None)
    assert not (tmp_path / 'best').exists()  # Not created before the first checkpoint.
    offer(found, session, 10, 0.625, 0.5)
    return found


def read_error(folder):
    return json.loads(pathlib.Path(folder, 'best', 'error.json').read_text())


def checkpoint_files(step):
    return {f'model.ckpt-{step}.data-00000-of-00001', f'model.ckpt-{step}.index'}


KEPT = {'checkpoint', 'error.json', 'params.h5', 'run.json'}


def kept(folder):
    return {entry.name for entry in pathlib.Path(folder, 'best').iterdir()}


def test_the_folder_may_be_a_link_to_another_disk(session, tmp_path):
    (tmp_path / 'elsewhere' / 'best').mkdir(parents=True)
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train' / 'run.json').write_text('{"net": "tutorial"}')
    (tmp_path / 'train' / 'best').symlink_to(tmp_path / 'elsewhere' / 'best')
    offer(best_.Best(str(tmp_path / 'train'), tf.global_variables()), session, 10, 0.625, 0.5)
    assert kept(tmp_path / 'train') == KEPT | checkpoint_files(10)


def test_a_lower_error_replaces_it(best, session, tmp_path):
    session.run(tf.trainable_variables()[0].assign(np.full([2, 2], 7.0)))
    offer(best, session, 20, 0.75, 0.25)
    assert read_error(tmp_path) == {'step': 20, 'error': 0.75, 'averaged_error': 0.25,
                                    'validated_on': 'test', 'checkpoint': 'model.ckpt-20'}
    assert kept(tmp_path) == KEPT | checkpoint_files(20)
    latest = tf.train.latest_checkpoint(str(tmp_path / 'best'))
    assert latest.endswith('model.ckpt-20')
    assert (tf.train.load_variable(latest, 'layer/weights') == 7).all()
    with h5py.File(tmp_path / 'best' / 'params.h5') as stream:
        assert (stream['weights/layer/weights'][:] == 7).all()


def test_the_old_one_stays_until_the_new_one_is_complete(best, session, tmp_path):
    (tmp_path / 'run.json').unlink()
    with pytest.raises(FileNotFoundError):
        offer(best, session, 20, 0.25, 0.25)
    assert best_.read(str(tmp_path)) == (0.5, 10)


@pytest.mark.parametrize('weight, error', [(7, 0.5), (7, 0.75), (np.nan, 0.25)])
def test_an_error_that_is_not_lower_changes_nothing(best, session, tmp_path, weight, error):
    """Nor do weights that are not finite, whatever their error."""
    def contents():
        return {entry.name: entry.read_bytes() for entry in (tmp_path / 'best').iterdir()}
    before = contents()
    session.run(tf.trainable_variables()[0].assign(np.full([2, 2], weight)))
    offer(best, session, 20, 0.0, error)
    assert (contents(), best.error, best.step) == (before, 0.5, 10)


def test_a_resumed_run_knows_the_best(best, session, tmp_path):
    again = best_.Best(str(tmp_path), tf.global_variables())
    assert (again.error, again.step) == (0.5, 10)
    offer(again, session, 20, 0.75, 0.75)
    assert read_error(tmp_path)['step'] == 10
    offer(again, session, 30, 0.25, 0.25)
    assert kept(tmp_path) == KEPT | checkpoint_files(30)


@pytest.mark.parametrize('name, content', [
    *(('error.json', text) for text in (
        b'', b'[]', b'{"averaged_error": 0.1}', b'{"averaged_error": "?", "step": 10}',
        b'{"averaged_error": 0.1, "step": [10], "validated_on": "test"}')),
    ('model.ckpt-10.data-00000-of-00001', None), ('model.ckpt-10.data-00000-of-00001', bytes(60))])
def test_a_missing_or_damaged_file_is_ignored(best, session, tmp_path, name, content):
    """As after a power failure: the next checkpoint becomes the best."""
    (tmp_path / 'best' / name).unlink()
    if content is not None:
        (tmp_path / 'best' / name).write_bytes(content)
    again = best_.Best(str(tmp_path), tf.global_variables())
    assert (again.error, again.step) == (np.inf, None)
    offer(again, session, 20, 0.75, 0.75)
    assert (again.step, read_error(tmp_path)['step']) == (20, 20)
    assert kept(tmp_path) == KEPT | checkpoint_files(20)


def test_the_error_of_an_earlier_run_does_not_count(best, session, tmp_path):
    """A new run has a best checkpoint of its own, although its error is higher."""
    again = best_.Best(str(tmp_path), tf.global_variables(), 'held_out', resumes=False)
    assert (again.error, again.step) == (np.inf, None)
    offer(again, session, 20, 0.75, 0.75)
    assert read_error(tmp_path)['validated_on'] == 'held_out'
    assert best_.Best(str(tmp_path), tf.global_variables(), 'held_out').step == 20
    assert best_.Best(str(tmp_path), tf.global_variables(), 'test').step is None
