import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_multi_gpu_train
from cifar10_lib import recipes
from cifar10_lib.training import replicas
from cifar10_lib.training.worker import Worker

FLAGS = flags.FLAGS


def session(cpus):
    """A session with CPU devices for that many replicas."""
    return tf.Session(config=tf.ConfigProto(allow_soft_placement=True, device_count={'CPU': cpus}))


def test_each_replica_gathers_all_and_gets_the_gradient_of_all_losses():
    """Replica i has [i, 10 i] and the loss (i + 1) (1 g00 + 2 g01 + 3 g10 + 4 g11 + 5 g20 ...)."""
    weights = np.arange(1.0, 7.0, dtype=np.float32).reshape(3, 2)
    own = [tf.constant([1.0 * i, 10.0 * i]) for i in range(3)]
    gathered = [replicas.Replica(Worker(i, 3), f'/cpu:{i}').gather(own[i]) for i in range(3)]
    gradients = [tf.gradients((i + 1) * tf.reduce_sum(weights * gathered[i]), own[i])[0]
                 for i in range(3)]
    assert gathered[0].shape.as_list() == [3, 2]
    with session(3) as session_:
        found, slopes = session_.run([gathered, gradients])
    np.testing.assert_array_equal(found, 3 * [[[0, 0], [1, 10], [2, 20]]])
    np.testing.assert_array_equal(slopes, 6 * weights)  # 1 + 2 + 3 times the own row.


def test_a_replica_that_fails_ends_the_step_of_all():
    """The second one's images have run out."""
    queue = tf.FIFOQueue(1, [tf.float32], [[2]])
    first = replicas.Replica(Worker(0, 2), '/cpu:0').gather(tf.ones([2]))
    second = replicas.Replica(Worker(1, 2), '/cpu:1').gather(queue.dequeue())
    with session(2) as session_:
        session_.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            session_.run([first, second])


def moving_statistics():
    return [variable for variable in tf.global_variables() if 'moving' in variable.op.name]


def test_towers_with_synced_batch_norms_take_the_step_of_one(monkeypatch):
    """Loss, gradients and moving statistics of a network with four batch norms; the images of one
    tower are brighter."""
    monkeypatch.setitem(recipes.TABLE, 'normed', tiny.NORMED)
    FLAGS.net, FLAGS.num_gpus = 'normed', 2
    random = np.random.RandomState(1)
    images = random.uniform(0, 50, [16, 16, 16, 3]).astype(np.float32)
    images[8:] += 100
    labels = random.randint(0, 10, 16).astype(np.int32)
    queue = tf.FIFOQueue(2, [tf.float32, tf.int32], [[8, 16, 16, 3], [8]])
    fill = queue.enqueue_many([images.reshape(2, 8, 16, 16, 3), labels.reshape(2, 8)])
    with flagsaver.flagsaver(sync_batch_norm=True):
        losses, gradients = cifar10_multi_gpu_train._build_towers(queue)
    averages = cifar10_multi_gpu_train.average_gradients(gradients)
    mean = cifar10_multi_gpu_train._mean_losses(losses)['total_loss']
    updates = cifar10.of_first_tower(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.name_scope('both') as scope:
        total = cifar10_multi_gpu_train.tower_loss(scope, tf.constant(images), labels)
        of_both = cifar10.compute_gradients(total)
    updates_of_both = tf.get_collection(tf.GraphKeys.UPDATE_OPS, 'both/')
    assert len(updates_of_both) == 8
    updates = [update for update in updates if update not in updates_of_both]
    with session(2) as session_:
        session_.run([tf.global_variables_initializer(), fill])
        got = session_.run([mean, [gradient for gradient, _ in averages], updates])[:2]
        moved = session_.run(moving_statistics())
        session_.run([variable.initializer for variable in moving_statistics()])
        expected = session_.run([total, [gradient for gradient, _ in of_both], updates_of_both])[:2]
        expected_moved = session_.run(moving_statistics())
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    assert len(got[1]) == 14 and len(moved) == 8
    for ours, theirs in zip([*got[1], *moved], [*expected[1], *expected_moved]):
        # Sums in another order: 2.3e-6 on a CPU without AVX-512.
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize('count, sync, exchanges', [(2, True, 22), (2, False, 0), (1, True, 0)])
def test_resnet23_gathers_the_statistics_of_every_batch_norm(count, sync, exchanges):
    with flagsaver.flagsaver(net='resnet23', sync_batch_norm=sync):
        replicas.inference(tf.zeros([2, 32, 32, 3]), replicas.Replica(Worker(0, count)))
    kinds = [op.type for op in tf.get_default_graph().get_operations()]
    assert kinds.count('CollectiveGatherV2') == exchanges
    assert kinds.count('FusedBatchNormV3') == 22 - exchanges
