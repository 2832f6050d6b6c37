"""Averages gradients over workers, and copies the variables of worker 0 to the others.

These are TensorFlow's collective operations: every worker runs a graph of its own in a session on
its own server, and operations with the same keys exchange data: on CPUs around a ring over gRPC, so
that each of n workers sends and receives 2 (n - 1) / n of it (Patarasu and Yuan, "Bandwidth optimal
all-reduce algorithms", 2009); on GPUs over NCCL. A process can build only one graph with them: its
server remembers the shape for each key. Over gRPC they may start in a different order on each
worker, because none of them occupies a thread while it waits.
"""
import contextlib
import itertools
import os

import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

from cifar10_lib.program import cores
from cifar10_lib.program import errors
from cifar10_lib.workers import connection
from cifar10_lib.workers import ports

flags.DEFINE_float('bucket_mb', 4.0, 'Gradients are averaged in buckets of at most this number of '
                   'megabytes (2^20 bytes).', lower_bound=0.0, upper_bound=1e6)
flags.DEFINE_boolean('overlap', True, 'Average gradients while others are still being computed.')
flags.DEFINE_enum('compress', 'none', ['none', 'bf16'], 'How workers send gradients: float32, or '
                  'rounded to bfloat16, which halves the bytes. Sums are rounded, too.')

FLAGS = flags.FLAGS

_JOB = 'worker'
_LEADER = f'/job:{_JOB}/replica:0/task:0'
_CHUNK_BYTES = 1 << 15  # Measured: docs/distributed.md.

# Operations that belong together have the same group and instance keys on all workers. A bucket
# that starts with the k-th gradient has the instance key _BUCKETS + k; the k-th variable by name is
# broadcast with _BROADCAST + k. A group has devices of only one kind.
_CPUS, _GPUS = 1, 3
_LOSSES, _BUCKETS, _BROADCAST = 99, 100, 10**6

# What TensorFlow may raise when another worker fails.
_PERHAPS_A_PEER = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
                   tf.errors.DeadlineExceededError, tf.errors.InternalError, tf.errors.UnknownError)


def check_compression(gpus):
    """Raises app.UsageError if workers with these GPUs cannot send as `--compress` says."""
    if gpus and FLAGS.compress != 'none':
        raise app.UsageError(f'--compress={FLAGS.compress}, but TensorFlow does not send bfloat16 '
                             'between GPUs: remove the flag, or use --device=cpu')


def all_reduce_mean(gradients, worker, bucket_mb=4.0, overlap=True, compress='none', on_gpu=False):
    """Means of gradients over all workers, each bucket sent as soon as it is complete.

    Args:
        gradients: list of (gradient, variable), in the order in which the network uses the
            variables; the backward pass computes the last first. A gradient that is None must be
            None on all workers.
        worker: this `worker.Worker`.
        bucket_mb: see `buckets`.
        overlap: False to wait for all gradients before the first bucket is sent.
        compress: 'bf16' to send float32 gradients as bfloat16. Gradients and sums are then rounded
            to 8 bits of precision; all workers still get the same bits.
        on_gpu: True to average on GPUs, by NCCL.

    Returns:
        List of (mean gradient, variable) without the variables that have no gradient.
    """
    pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in gradients
             if gradient is not None]
    means, after = [], [] if overlap else [gradient for gradient, _ in pairs]
    for bucket in buckets(pairs[::-1], bucket_mb):
        own = [gradient for gradient, _ in bucket]
        first = len(pairs) - len(means) - 1
        with tf.control_dependencies(after):
            flat = _reduce_mean(_pack(own), worker, _BUCKETS + first, on_gpu, compress)
        if on_gpu:  # NCCL runs one at a time, and requires the same order on all workers.
            after = [flat]
        means += _unpack(flat, own)
    return [(mean, variable) for mean, (_, variable) in zip(means[::-1], pairs)]


def buckets(gradients, bucket_mb):
    """Divides gradients into buckets that are averaged together.

        3 MB, 2 MB, 6 MB, 1 MB with bucket_mb = 5  ->  [3, 2], [6], [1]

    A bucket ends at a layer unless the layer is larger than a bucket, because the gradients of a
    layer may be ready only together: oneDNN computes those of a convolution's filter and bias in
    one operation, which a bucket with the bias alone would wait for.

    Args:
        gradients: list of (gradient, variable). A layer has one outermost scope.
        bucket_mb: largest size of a bucket, in megabytes (2^20 bytes); a larger gradient gets a
            bucket of its own.

    Returns:
        List of lists of (gradient, variable) of one type.
    """
    result, room = [], 0
    for _, layer in itertools.groupby(gradients, lambda pair: pair[1].op.name.split('/')[0]):
        layer = list(layer)
        if sum(_bytes(gradient) for gradient, _ in layer) > room:
            room = 0
        for gradient, variable in layer:
            same_type = result and result[-1][-1][0].dtype == gradient.dtype
            if _bytes(gradient) > room or not same_type:
                result.append([])
                room = bucket_mb * 2**20
            result[-1].append((gradient, variable))
            room -= _bytes(gradient)
    return result


def _bytes(tensor):
    return tensor.shape.num_elements() * tensor.dtype.size


def mean_losses(losses, worker):
    """Means over all workers, on the CPU since they are small: dictionary from name to float32 [].

    `losses` is a dictionary from name to number [], with the same names for all workers.
    """
    names = sorted(losses)
    values = tf.stack([tf.cast(losses[name], tf.float32) for name in names])
    return dict(zip(names, tf.unstack(_reduce_mean(values, worker, _LOSSES))))


def broadcast(variables, worker):
    """An operation that sets variables to their values on worker 0, exactly, whatever their types.

    All workers must run it, with the same variables.
    """
    operations = []
    for key, variable in enumerate(sorted(variables, key=lambda v: v.op.name), _BROADCAST):
        common = {'group_size': worker.size, 'group_key': _CPUS, 'instance_key': key}
        with tf.device('/cpu:0'):
            if worker.leads:
                operations.append(tf.raw_ops.CollectiveBcastSendV2(
                    input=variable.read_value(), **common))
            else:
                operations.append(variable.assign(tf.raw_ops.CollectiveBcastRecvV2(
                    shape=variable.shape, T=variable.dtype.base_dtype, **common)))
    return tf.group(operations)


def _reduce_mean(flat, worker, instance, on_gpu=False, compress='none'):
    """Mean of a vector over workers, sent as bfloat16 if `compress` says so and it is float32.

    All workers get the same bits.
    """
    if compress != 'none' and flat.dtype == tf.float32:
        small = tf.cast(flat, tf.bfloat16)
        return tf.cast(_reduce_mean(small, worker, instance, on_gpu), tf.float32)
    key, device, hint = (_GPUS, '/gpu:0', 'nccl') if on_gpu else (_CPUS, '/cpu:0', 'ring')
    with tf.device(device):
        return tf.raw_ops.CollectiveReduceV2(
            input=flat, group_size=worker.size, group_key=key, instance_key=instance,
            ordering_token=[], merge_op='Add', final_op='Div', communication_hint=hint)


def _pack(tensors):
    """Concatenates all elements into one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _unpack(flat, like):
    """The inverse of `_pack`: tensors with the shapes of others."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like)]


def layout(gradients):
    """What must be the same on all workers: sorted strings like 'conv1/weights [5, 5, 3, 64]'.

    `gradients` is a list of (gradient, variable).
    """
    return sorted(f'{variable.op.name} {gradient.shape.as_list()}'
                  for gradient, variable in gradients if gradient is not None)


def configure(config, worker, gpus=0):
    """Configures a worker's server and session, a `tf.ConfigProto`, for collective operations.

    The worker's local rank selects one of `gpus`, the number of GPUs that this process sees.
    """
    # Without a leader no step ends; without the filter, sessions wait for all workers' devices.
    config.experimental.collective_group_leader = _LEADER
    config.device_filters.append(f'/job:{_JOB}/task:{worker.rank}')
    config.experimental.collective_nccl = gpus > 0
    # gRPC copies messages in chunks; the default is 4 kB.
    config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    if (config.inter_op_parallelism_threads or cores.visible()) == 1:
        # A single core has one thread, which would send the first bucket after the backward pass.
        config.inter_op_parallelism_threads = 2
    if gpus > 1:
        config.gpu_options.visible_device_list = str(worker.local_rank % gpus)


def serve(workers, config):
    """Starts this worker's `tf.train.Server`. All must listen before the first operation.

    `workers` is the `watch.Meeting`; `config` has been through `configure`. Raises ConnectionError
    if the server cannot listen.
    """
    hosts = sorted({address.split(':')[0] for address in workers.addresses})
    own = workers.addresses[workers.rank]
    host, port = connection.split_address(own)
    # gRPC would use the environment's Internet proxy. It reads this variable in lower case.
    os.environ['no_grpc_proxy'] = ','.join(hosts)  # noqa: SIM112
    try:
        server = tf.train.Server({_JOB: workers.addresses}, _JOB, workers.rank, config=config,
                                 start=False)
    except tf.errors.OpError as error:
        raise ConnectionError(f'TensorFlow cannot listen at {own}: is it in use?') from error
    workers.port.close()
    if not ports.bind(port, ports.device_of(host, hosts)):
        errors.say(f'Warning: any network of this machine can reach the port of TensorFlow ({own}),'
                   ' which executes whatever it is sent there: use a private network.')
    server.start()  # It listens already, but does not run graphs yet.
    return server


def reach_all(workers):
    """Checks that this worker can connect to all servers; call it after a barrier after `serve`.

    If a firewall blocks a port, TensorFlow would wait for it in a step, in some cases forever, and
    never name it.

    Raises:
        connection.Lost: a server cannot be reached; the message names its worker.
    """
    for rank, address in enumerate(workers.addresses):
        try:
            if rank != workers.rank:
                connection.reach(address).close()
        except OSError as error:
            raise connection.Lost(
                f'cannot connect to {workers.name(rank)}: {error.strerror or error}; does a '
                'firewall block it?') from error


def step_options():
    """Options for running a step: TensorFlow ends it after --step_timeout."""
    return tf.RunOptions(timeout_in_ms=int(1000 * FLAGS.step_timeout))


@contextlib.contextmanager
def failures_of(workers):
    """Turns TensorFlow's errors about another worker of a `watch.Meeting` into one that names it.

    Raises:
        connection.Lost: a worker was lost, or cannot be reached; the message names it.
        TimeoutError: a step took longer than --step_timeout, although all workers are alive.
    """
    try:
        yield
    except _PERHAPS_A_PEER as error:
        line = workers.wait_for_loss(workers.patience)
        if not line:
            reach_all(workers)
            line = workers.wait_for_loss(2 * connection.SECONDS)  # Another may have failed to.
        if line:
            raise connection.Lost(line) from error
        if isinstance(error, tf.errors.DeadlineExceededError):
            raise TimeoutError(
                f'a step took longer than --step_timeout={FLAGS.step_timeout:g} seconds although '
                'all workers are alive: raise it if steps are that slow') from error
        raise
