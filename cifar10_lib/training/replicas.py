"""Batch-norm statistics over the replicas of a network: towers or workers.

A replica gathers the statistics of all others with TensorFlow's collective operations: each replica
runs an operation of its own, and operations with the same keys exchange data, within a process or
over gRPC. The data is small, so it goes through host memory, also between GPUs.
"""
import itertools

import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib import recipes
from cifar10_lib.training import worker as worker_

flags.DEFINE_boolean('sync_batch_norm', False, 'Normalise by the mean and variance over the '
                     'batches of all towers or workers; for networks with batch norm (resnet23).')

FLAGS = flags.FLAGS

_GROUP = 1000  # Unlike the groups of workers/collectives.py, so that instance keys cannot clash.


@flags.multi_flags_validator(['sync_batch_norm', 'net'], 'this network has no batch norm; expected '
                             'one that has, such as --net=resnet23: choose it, or remove '
                             '--sync_batch_norm')
def _check_net(values):
    return not values['sync_batch_norm'] or recipes.TABLE[values['net']].has_batch_norm


class Replica:
    """One of several replicas that train together.

    All are built in the same order, so that their k-th exchanges belong together. All must run in
    the same step: one that runs alone waits for the others.
    """

    def __init__(self, worker, device='/cpu:0'):
        """`worker` is a `worker.Worker`; for towers, its rank is the tower's. Replicas in one
        process exchange data at `device`s of their own: see `solo.Solo`."""
        self.worker = worker
        self._device = device
        self._keys = itertools.count()  # Two for each `gather`.

    def gather(self, values):
        """Collects a tensor of each replica: float32 [...], fully known -> [replicas, ...].

        All replicas get the same bits. The gradient for `values` is that of the sum of all
        replicas' losses: a step averages gradients over replicas, which makes it that of their
        mean.
        """
        forward, backward = next(self._keys), next(self._keys)
        shape = values.shape.as_list()

        @tf.custom_gradient
        def gathered(values):
            with tf.device(self._device):
                flat = tf.raw_ops.CollectiveGatherV2(
                    input=tf.reshape(values, [1, -1]), **self._collective(forward))
            return tf.reshape(flat, [self.worker.size, *shape]), self._gradient(backward)

        return gathered(values)

    def _gradient(self, key):
        """The gradient function of `gather`: the sum of all replicas' gradients for own values."""
        def gradient(upstream):
            with tf.device(self._device):
                total = tf.raw_ops.CollectiveReduceV2(
                    input=upstream, merge_op='Add', final_op='Id', **self._collective(key))
            return total[self.worker.rank]
        return gradient

    def _collective(self, key):
        return {'group_size': self.worker.size, 'group_key': _GROUP, 'instance_key': key,
                'ordering_token': [], 'communication_hint': 'ring'}


ALONE = Replica(worker_.Worker())


def inference(images, replica):
    """Logits of `--net` in training, with `--sync_batch_norm` if given: float32 [batch, height,
    width, 3], the images of a `Replica` -> [batch, classes]."""
    recipe = recipes.chosen()
    if FLAGS.sync_batch_norm and replica.worker.size > 1:
        return recipe.inference(images, training=True, gather=replica.gather)
    return recipe.inference(images, training=True)
