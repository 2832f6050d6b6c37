"""Where a step runs and what it computes, with one logical CPU in place of each GPU."""
import numpy as np
import placement
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

BATCH = 2


def _values_after(steps, **flags_):
    """Values of all variables after steps of two towers on a fixed batch each.

    Checks that all operations ran where they asked to.
    """
    random = np.random.RandomState(0)
    images = random.uniform(0, 1, [2, BATCH, 24, 24, 3]).astype(np.float32)
    labels = np.arange(2 * BATCH, dtype=np.int32).reshape(2, BATCH)
    with tf.Graph().as_default() as graph, tf.device(placement.gpus_as_cpus), \
            flagsaver.flagsaver(num_gpus=2, batch_size=BATCH, **flags_):
        tf.set_random_seed(1)
        with tf.device('/cpu:0'):
            queue = tf.FIFOQueue(2, [tf.float32, tf.int32], [[BATCH, 24, 24, 3], [BATCH]])
            fill = queue.enqueue_many([images, labels])
        step = placement.step_of_towers(queue)
        values = {variable.op.name: variable.read_value() for variable in tf.global_variables()}
        with tf.Session(config=placement.config(2)) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(fill)
                partitions = placement.parts(session, step)
            assert placement.moved(graph, partitions) == {}
            return session.run(values)


def test_variables_on_the_gpu_learn_the_same():
    expected = _values_after(3)
    got = _values_after(3, variables='gpu')
    assert got.keys() == expected.keys()
    assert got['global_step'] == 3
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
