import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import app

from runtime import checkpoints


def _save(path, **values):
    """A checkpoint of variables made from arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.Variable(value, name=name) for name, value in values.items()]
        session.run(tf.variables_initializer(variables))
        return tf.train.Saver(variables).save(session, str(path), write_meta_graph=False)


@pytest.mark.parametrize('dtype', [np.int64, np.int32, np.float32])
def test_step_of_any_type(tmp_path, dtype):
    assert checkpoints.step(_save(tmp_path / 'a', global_step=dtype(1234))) == 1234


def test_no_step(tmp_path):
    with pytest.raises(app.UsageError, match='no global_step'):
        checkpoints.step(_save(tmp_path / 'a', other=np.float32(1)))


def test_load_converts_and_ignores_the_rest(tmp_path):
    path = _save(tmp_path / 'a', w=np.ones([2, 3], np.float16), step=np.float32(7), x=np.zeros(3))
    w = tf.get_variable('w', [2, 3])
    step = tf.get_variable('step', [], tf.int64, initializer=tf.zeros_initializer())
    with tf.Session() as session:
        checkpoints.load(path, {'w': w, 'step': step}, session, '')
        assert session.run(w).tolist() == [[1, 1, 1], [1, 1, 1]]
        assert session.run(step) == 7


def test_all_that_does_not_fit_is_named(tmp_path):
    path = _save(tmp_path / 'a', w=np.ones([2, 3], np.float32), fine=np.float32(0))
    variables = {'w': tf.get_variable('w', [3, 2]), 'v': tf.get_variable('v', []),
                 'fine': tf.get_variable('fine', [])}
    with tf.Session() as session, pytest.raises(app.UsageError) as error:
        checkpoints.load(path, variables, session, 'Do this.')
    assert str(error.value) == (
        f'{path} does not fit this network: v is missing; w has shape [2, 3], wanted [3, 2]. '
        'Do this.')


def test_values_that_are_not_finite_are_refused(tmp_path):
    path = _save(tmp_path / 'a', v=np.array([1, np.nan], np.float32), w=np.float32(np.inf))
    variables = {'v': tf.get_variable('v', [2]), 'w': tf.get_variable('w', [])}
    with tf.Session() as session, pytest.raises(app.UsageError, match='not finite: v, w. Do this'):
        checkpoints.load(path, variables, session, 'Do this.')
