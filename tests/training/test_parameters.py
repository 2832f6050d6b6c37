import h5py
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10_lib.runs import parameters


@pytest.fixture
def session():
    """A session after one step of Adam, with averages and the statistics of a batch norm."""
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


def write(path, session):
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    parameters.write(path, values, {'layer/weights'})


def test_parameters(session, tmp_path):
    """Adam's first step equals its rate, 0.5; the average is halfway between 1 and 0.5."""
    path = tmp_path / 'params.h5'
    write(path, session)
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


@pytest.mark.parametrize('value', ['x', 7.0, np.nan, np.array([7, 7]), h5py.Empty('i')])
def test_parameters_without_a_step(tmp_path, value):
    path = tmp_path / 'params.h5'
    with h5py.File(path, 'w') as stream:
        stream.attrs['global_step'] = 7
    assert parameters.step(path) == 7
    with h5py.File(path, 'w') as stream:
        stream.attrs['global_step'] = value
    assert parameters.step(path) is None
    path.write_bytes(path.read_bytes()[:-50])
    assert parameters.step(path) is None
