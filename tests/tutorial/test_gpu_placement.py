"""Where a step runs and what it computes, with one logical CPU in place of each GPU."""
import numpy as np
import placement
import plain
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import cifar10
from cifar10_lib.program import devices

BATCH = 2


def _values_after(steps, place, **flags_):
    """Values of all variables after steps of two towers on a fixed batch each.

    Checks that all operations ran where they asked to, and that the means of the gradients and the
    moving averages are computed at `place`, so that nothing is copied from the variables' memory.
    """
    random = np.random.RandomState(0)
    batches = [(random.uniform(0, 1, [BATCH, 24, 24, 3]), [2 * tower, 2 * tower + 1])
               for tower in range(2)]
    with flagsaver.flagsaver(num_gpus=2, batch_size=BATCH, seed=1, **flags_):
        built = tf.train.export_meta_graph(graph=placement.graph_of_towers())
    with tf.Graph().as_default() as graph, tf.device(placement.gpus_as_cpus):
        tf.train.import_meta_graph(built)
        fill, step = (graph.get_operation_by_name(name)
                      for name in ('prefetch_queue_enqueue', 'train'))
        values = {variable.op.name: variable.read_value() for variable in tf.global_variables()}
        with tf.Session(config=placement.config(2)) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                for batch in batches:
                    session.run(fill, dict(zip(fill.inputs[1:], batch)))
                partitions = placement.parts(session, step)
            assert placement.moved(graph, partitions) == {}
            ran = {node.name: placement.short(node.device)
                   for part in partitions for node in part.node}
            for number, name in enumerate(plain.SHAPES):
                assert ran[f'average_gradients/{name}/AddN'] == place
                suffix = f'_{number}' if number else ''
                assert ran[f'ExponentialMovingAverage/AssignMovingAvg{suffix}/mul'] == place
            return session.run(values)


@pytest.mark.usefixtures('half_bright')
def test_an_edit_of_where_the_variables_are_has_its_effect(monkeypatch):
    def variable_on_gpu(name, shape, initializer):
        with tf.device('/gpu:1'):
            return tf.get_variable(name, shape, initializer=initializer)

    with flagsaver.flagsaver(num_gpus=2, batch_size=BATCH):
        monkeypatch.setattr(cifar10, '_variable_on_cpu', variable_on_gpu)
        graph = placement.graph_of_towers()
    assert placement.short(graph.get_operation_by_name('conv1/weights').device) == 'GPU:1'


@pytest.mark.usefixtures('half_bright')
@pytest.mark.parametrize('net', ['tutorial', 'resnet23', 'airbench94'])
def test_towers_share_variables_on_the_cpu(net):
    with flagsaver.flagsaver(num_gpus=2, batch_size=BATCH, net=net):
        graph = placement.graph_of_towers()
    variables = [op for op in graph.get_operations()
                 if op.type == 'VarHandleOp' and op.get_attr('shape').dim]
    assert {placement.short(op.device) for op in variables} == {'CPU:0'}


@pytest.mark.parametrize('where, asked, expected', [
    ('cpu', '', 'CPU:0'), ('cpu', '/gpu:1', 'GPU:1'), ('gpu', '/cpu:0', 'GPU:0')])
def test_where_a_networks_variables_are(where, asked, expected):
    with tf.device(devices.variables_on(where)), tf.device(asked):
        variable = tf.get_variable('weights', [2])
        scalar = tf.get_variable('step', [])
    assert placement.short(variable.device) == expected
    assert scalar.device == tf.DeviceSpec.from_string(asked).to_string()


@pytest.mark.usefixtures('half_bright')
def test_variables_on_the_gpu_learn_the_same():
    expected = _values_after(3, 'CPU:0')
    got = _values_after(3, 'CPU:1', variables='gpu')
    assert got.keys() == expected.keys()
    assert got['global_step'] == 3
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
