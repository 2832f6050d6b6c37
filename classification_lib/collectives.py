"""TensorFlow's collective operations: means over workers, and worker 0's variables for all.

Every worker runs its own graph in a session on its own server, and operations with the same keys
exchange data. On CPUs, data travels around a ring over gRPC, so that each of n workers sends and
receives 2 (n - 1) / n of it (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).
On GPUs, it travels over NCCL. A process can build only one graph with the same keys: its server
remembers the shape for each key. Over gRPC they may start in a different order on each worker,
because none of them occupies a thread while it waits.
"""
import itertools

import tensorflow.compat.v1 as tf

# The largest bucket. The tutorial's layers from the top down to local3 have 90 % of its parameters,
# 3.8 MB. They fit into one bucket, which is sent while the convolutions' gradients are computed,
# most of the backward pass. Smaller buckets could not divide local3's own gradient, 3.5 MB.
BUCKET_BYTES = 4 << 20

# Operations that belong together have the same group and instance keys on all workers: _BUCKETS + k
# is the instance of the k-th bucket, _BROADCAST + k that of the k-th variable by name, _VECTORS + k
# that of the k-th small vector. A group has devices of only one kind.
_CPUS, _GPUS = 1, 3
_BUCKETS, _BROADCAST, _VECTORS = 100, 10**6, 2 * 10**6


def mean_gradients(grads, size, on_gpu=False, overlap=True):
    """Means of gradients over `size` workers, each bucket sent as soon as it is complete.

    `grads` are (gradient, variable) in the order in which the network uses the variables; the
    backward pass computes the last first. A gradient that is None must be None on all workers.
    Returns a list like `grads`, without these. Without `overlap`, nothing is sent before the
    backward pass is over, to compare. On GPUs, NCCL averages.
    """
    pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in grads
             if gradient is not None]
    means = []
    after = []
    if not overlap:
        after = [gradient for gradient, _ in pairs]
    for key, bucket in enumerate(buckets(pairs[::-1], BUCKET_BYTES), _BUCKETS):
        own = [gradient for gradient, _ in bucket]
        with tf.control_dependencies(after):
            packed = tf.concat([tf.reshape(gradient, [-1]) for gradient in own], axis=0)
            flat = _reduce_mean(packed, size, key, on_gpu)
        if on_gpu:  # NCCL runs one at a time, and requires the same order on all workers.
            after = [flat]
        parts = tf.split(flat, [gradient.shape.num_elements() for gradient in own])
        means += [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, own)]
    return [(mean, variable) for mean, (_, variable) in zip(means[::-1], pairs)]


def buckets(grads, bucket_bytes):
    """Divides gradients into buckets that are averaged together.

        3 MB, 2 MB, 6 MB, 1 MB with buckets of 5 MB  ->  [3, 2], [6], [1]

    A bucket ends at a layer unless the layer is larger than a bucket, because the gradients of a
    layer may be ready only together: oneDNN computes those of a convolution's filter and bias in
    one operation, which a bucket with the bias alone would wait for. A layer has one outermost
    scope. A gradient that is larger than a bucket gets one of its own.

    Returns a list of lists of (gradient, variable), each with gradients of one type.
    """
    result = []
    room = 0
    for _, layer in itertools.groupby(grads, lambda pair: pair[1].op.name.split('/')[0]):
        sized = [(gradient.shape.num_elements() * gradient.dtype.size, gradient, variable)
                 for gradient, variable in layer]
        if sum(size for size, _, _ in sized) > room:
            room = 0
        for size, gradient, variable in sized:
            same_type = result and result[-1][-1][0].dtype == gradient.dtype
            if size > room or not same_type:
                result.append([])
                room = bucket_bytes
            result[-1].append((gradient, variable))
            room -= size
    return result


def mean(vector, size, number):
    """Mean of a vector over workers, float32 [n], on the CPU, for the `number`-th one of a process.
    """
    return _reduce_mean(vector, size, _VECTORS + number)


def broadcast(variables, rank, size):
    """An operation that sets variables to their values on worker 0, exactly, whatever their types.

    All workers must run it, with the same variables; `rank` is the index of this one.
    """
    operations = []
    for key, variable in enumerate(sorted(variables, key=lambda v: v.op.name), _BROADCAST):
        common = {'group_size': size, 'group_key': _CPUS, 'instance_key': key}
        with tf.device('/cpu:0'):
            if rank == 0:
                operations.append(tf.raw_ops.CollectiveBcastSendV2(
                    input=variable.read_value(), **common))
            else:
                operations.append(variable.assign(tf.raw_ops.CollectiveBcastRecvV2(
                    shape=variable.shape, T=variable.dtype.base_dtype, **common)))
    return tf.group(operations)


def _reduce_mean(flat, size, instance, on_gpu=False):
    """Mean of a vector over workers; all of them get the same bits."""
    group, device, hint = _CPUS, '/cpu:0', 'ring'
    if on_gpu:
        group, device, hint = _GPUS, '/gpu:0', 'nccl'
    with tf.device(device):
        return tf.raw_ops.CollectiveReduceV2(
            input=flat, group_size=size, group_key=group, instance_key=instance,
            ordering_token=[], merge_op='Add', final_op='Div', communication_hint=hint)
