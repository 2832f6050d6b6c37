"""Where a step runs and what it copies, with one logical CPU in place of each GPU."""
import numpy as np
import placement
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

IMAGES = {'tutorial': 24 * 24 * 3, 'resnet23': 32 * 32 * 3}  # Values per image.
BATCH = 2


def _run(net, towers, steps=0, **flags_):
    """Runs `steps` steps and then one whose parts are recorded, on a fixed batch per tower.

    Returns:
        graph, partitions, and the values of all variables.
    """
    side = int((IMAGES[net] / 3) ** 0.5)
    random = np.random.RandomState(0)
    images = random.uniform(0, 1, [towers, BATCH, side, side, 3]).astype(np.float32)
    labels = np.arange(towers * BATCH, dtype=np.int32).reshape(towers, BATCH)
    with tf.Graph().as_default() as graph, tf.device(placement.gpus_as_cpus), \
            flagsaver.flagsaver(net=net, num_gpus=towers, batch_size=BATCH, **flags_):
        tf.set_random_seed(1)
        with tf.device('/cpu:0'):
            queue = tf.FIFOQueue(towers, [tf.float32, tf.int32], [[BATCH, side, side, 3], [BATCH]])
            fill = queue.enqueue_many([images, labels])
        step = placement.step_of_towers(queue)
        values = {variable.op.name: variable.read_value() for variable in tf.global_variables()}
        with tf.Session(config=placement.config(towers)) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(fill)
                session.run(step)
            session.run(fill)
            partitions = placement.parts(session, step)
            return graph, partitions, session.run(values)


def _sizes(net, towers, **flags_):
    """Dictionary from path to (number of tensors, bytes); no operation was moved."""
    graph, partitions, _ = _run(net, towers, **flags_)
    assert placement.moved(graph, partitions) == {}
    return placement.crossings(graph, partitions)


def test_a_step_of_two_towers_copies_each_variable_to_each_gpu_and_each_gradient_back():
    """Ten variables with 1,068,298 values, images and labels to each GPU; ten gradients and four
    losses (two weight decays, the cross entropy and their sum) back.

    On some processors, oneDNN computes the gradient of conv2's 64 biases in an operation that hides
    its size.
    """
    down = (10 + 2, 4 * 1068298 + BATCH * (4 * IMAGES['tutorial'] + 4))
    up = _sizes('tutorial', 2)
    assert up.pop('CPU:0 to CPU:1') == up.pop('CPU:0 to CPU:2') == down
    assert set(up) == {'CPU:1 to CPU:0', 'CPU:2 to CPU:0'}
    assert set(up.values()) <= {(10 + 4, 4 * (1068298 - hidden + 4)) for hidden in (0, 64)}


@pytest.mark.parametrize('net, down, up', [
    ('tutorial', (4, 4 + 8), (4, 16)),
    pytest.param('resnet23', (7, 4 * 4 + 8), (2, 8), marks=pytest.mark.slow)])
def test_with_the_variables_on_the_gpu_only_the_batch_crosses(net, down, up):
    """Besides images and labels: the learning rate (4 bytes), the global step (8) and, of
    ResNet-23, three constants of Adam (4 each); losses back."""
    count, size = down
    batch = BATCH * (4 * IMAGES[net] + 4)
    assert _sizes(net, 1, variables='gpu') == {
        'CPU:0 to CPU:1': (count, batch + size), 'CPU:1 to CPU:0': up}


def test_variables_on_the_gpu_learn_the_same():
    *_, expected = _run('tutorial', 2, steps=2)
    *_, got = _run('tutorial', 2, steps=2, variables='gpu')
    assert got.keys() == expected.keys()
    assert got['global_step'] == 3
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
