"""Averages gradients over workers, and gives all of them the values of worker 0.

By TensorFlow's collective operations: every worker runs a graph of its own in a session on its own
server, and operations with the same keys meet. On CPUs they pass parts of the data around a ring
over gRPC, so that each of n workers sends and receives 2 (n - 1) / n of it (Patarasu and Yuan,
"Bandwidth optimal all-reduce algorithms", 2009); on GPUs it is NCCL.

A process builds one graph with them: its server remembers the shape that came with a key.
Operations of a step may start in another order on each worker: over gRPC none of them holds a
thread while it waits, so that they cannot block one another.
"""
import contextlib
import dataclasses
import os

import tensorflow.compat.v1 as tf
from absl import flags

from program import console
from program import cores
from workers import ports

flags.DEFINE_float('bucket_mb', 4.0, 'Gradients are averaged in portions of at most so many '
                   'megabytes (2^20 bytes).', lower_bound=0.0, upper_bound=1e6)
flags.DEFINE_boolean('overlap', True, 'Average gradients while others are still computed.')

FLAGS = flags.FLAGS

_JOB = 'worker'
_LEADER = f'/job:{_JOB}/replica:0/task:0'
_CHUNK_BYTES = 1 << 15  # Measured: docs/distributed.md.

# Operations that belong together have the same group and instance on all workers. Where a portion
# starts with the k-th of all variables in the order of their names, its instance is _PORTIONS + k.
_GROUP = 1
_BROADCAST, _LOSSES, _PORTIONS = 1, 99, 100

# What TensorFlow may raise for the failure of another worker.
_PERHAPS_A_PEER = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
                   tf.errors.DeadlineExceededError, tf.errors.InternalError, tf.errors.UnknownError)


@dataclasses.dataclass(frozen=True)
class Group:
    """Who averages with whom.

    Attributes:
        rank: int, which worker this is, from 0.
        size: int, how many there are; alone, a worker keeps what it has.
        on_gpu: whether gradients are averaged on GPUs, by NCCL.
    """
    rank: int = 0
    size: int = 1
    on_gpu: bool = False


def all_reduce_mean(gradients, group, bucket_mb=4.0, overlap=True):
    """Means of gradients over all workers.

    Gradients are packed into portions in reverse, since the backward pass yields the last layer's
    first, and each portion is sent as soon as it is complete.

    Args:
        gradients: list of (gradient, variable), in the order in which the network uses the
            variables; the gradient may be None, then for all workers.
        group: a `Group`.
        bucket_mb: how many megabytes (2^20 bytes) a portion has at most; a larger gradient is a
            portion of its own.
        overlap: False to wait for all gradients before the first portion is sent.

    Returns:
        List of (mean gradient, variable), those without a gradient left out.
    """
    pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in gradients
             if gradient is not None]
    if group.size == 1:
        return pairs
    keys = {name: key for key, name in enumerate(sorted(
        variable.op.name for _, variable in pairs))}
    after = [] if overlap else [gradient for gradient, _ in pairs]
    means = {}
    for portion in portions(pairs[::-1], bucket_mb):
        instance = _PORTIONS + keys[portion[0][1].op.name]
        with tf.control_dependencies(after):
            flat = _reduce_mean(_pack([gradient for gradient, _ in portion]), group, instance)
        if group.on_gpu:  # NCCL runs one at a time, and wants the same order on all workers.
            after = [flat]
        for mean, (gradient, variable) in zip(
                _unpack(flat, [gradient for gradient, _ in portion]), portion):
            mean.set_shape(gradient.shape)
            means[variable.op.name] = mean
    return [(means[variable.op.name], variable) for _, variable in pairs]


def portions(gradients, bucket_mb):
    """Divides gradients into portions that are averaged together.

        3 MB, 2 MB, 6 MB, 1 MB with bucket_mb = 5  ->  [3, 2], [6], [1]

    Args:
        gradients: list of (gradient, variable); shapes are fully known.
        bucket_mb: how many megabytes (2^20 bytes) a portion has at most.

    Returns:
        List of lists of (gradient, variable), all of one type each.
    """
    result, room = [], 0
    for gradient, variable in gradients:
        size = gradient.shape.num_elements() * gradient.dtype.size
        same_type = result and result[-1][-1][0].dtype == gradient.dtype
        if size > room or not same_type:
            result.append([])
            room = bucket_mb * 2**20
        result[-1].append((gradient, variable))
        room -= size
    return result


def mean_losses(losses, group):
    """Means over all workers.

    Args:
        losses: dictionary from name to number []; the same names for all workers.
        group: a `Group`.

    Returns:
        Dictionary from name to float32 [].
    """
    names = sorted(losses)
    values = tf.stack([tf.cast(losses[name], tf.float32) for name in names])
    if group.size > 1:
        # On the CPU in any case: a group is of one kind of device, and this one is small.
        values = _reduce_mean(values, dataclasses.replace(group, on_gpu=False), _LOSSES)
    return dict(zip(names, tf.unstack(values)))


def broadcast(variables, group):
    """An operation that gives variables the values that they have for worker 0.

    Every worker has to run it. It is exact for all types, integers too.

    Args:
        variables: list of variables, the same for all workers.
        group: a `Group`.
    """
    if group.size == 1:
        return tf.no_op()
    variables = sorted(variables, key=lambda variable: variable.op.name)
    types = sorted({variable.dtype.base_dtype for variable in variables}, key=lambda t: t.name)
    return tf.group([
        _broadcast([variable for variable in variables if variable.dtype.base_dtype == dtype],
                   group, _BROADCAST + index) for index, dtype in enumerate(types)])


def _broadcast(variables, group, instance):
    """`broadcast` for variables of one type."""
    common = {'group_size': group.size, 'group_key': _GROUP, 'instance_key': instance}
    values = [variable.read_value() for variable in variables]
    with tf.device('/cpu:0'):
        if group.rank == 0:
            return tf.raw_ops.CollectiveBcastSendV2(input=_pack(values), **common).op
        elements = sum(value.shape.num_elements() for value in values)
        flat = tf.raw_ops.CollectiveBcastRecvV2(shape=[elements], T=values[0].dtype, **common)
        return tf.group([variable.assign(value) for variable, value in zip(
            variables, _unpack(flat, values))])


def _reduce_mean(flat, group, instance):
    """Mean over workers of a vector; the same bits for all of them."""
    kind, device = (2, '/gpu:0') if group.on_gpu else (0, '/cpu:0')
    with tf.device(device):
        return tf.raw_ops.CollectiveReduceV2(
            input=flat, group_size=group.size, group_key=_GROUP + kind, instance_key=instance,
            ordering_token=[], merge_op='Add', final_op='Div',
            communication_hint='nccl' if group.on_gpu else 'ring')


def _pack(tensors):
    """One vector of all elements."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def _unpack(flat, like):
    """The inverse of `_pack`: tensors of the same shapes as others."""
    shapes = [tensor.shape.as_list() for tensor in like]
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in like]) \
        if len(like) > 1 else [flat]
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def layout(gradients):
    """What must be the same for all workers, so that each adds up what belongs together.

    Args:
        gradients: list of (gradient, variable).

    Returns:
        List of strings, such as 'conv1/weights [5, 5, 3, 64]', sorted.
    """
    return sorted(f'{variable.op.name} {gradient.shape.as_list()}'
                  for gradient, variable in gradients if gradient is not None)


def configure(config, group, local_rank=0, gpus=0):
    """Sets what collectives need in the settings of a worker's server and session.

    Args:
        config: a `tf.ConfigProto`.
        group: a `Group`.
        local_rank: which of the workers on its machine this is: it gets the GPU of that number.
        gpus: how many GPUs this process sees.
    """
    # Without a leader no step ends; without the filter sessions wait for all workers' devices.
    config.experimental.collective_group_leader = _LEADER
    config.device_filters.append(f'/job:{_JOB}/task:{group.rank}')
    config.experimental.collective_nccl = group.on_gpu
    # What goes over gRPC is copied in pieces; the default is 4 kB.
    config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    if (config.inter_op_parallelism_threads or cores.visible()) == 1:
        # A single thread, that of a single core, starts no portion before the backward pass ends.
        config.inter_op_parallelism_threads = 2
    if gpus > 1:
        config.gpu_options.visible_device_list = str(local_rank % gpus)


def serve(workers, config):
    """Starts this worker's server, and waits until all workers reach one another.

    Args:
        workers: the `watch.Meeting`.
        config: a `tf.ConfigProto` that `configure` has seen.

    Returns:
        A `tf.train.Server`; sessions are made with its `target`.

    Raises:
        ConnectionError: a server could not be started or reached; tells which. Or the workers
            meet on loopback, and another machine has connected before the port was closed to it.
    """
    # gRPC would go through the proxy that the environment names for the Internet. It reads this
    # variable in small letters.
    hosts = {address.split(':')[0] for address in workers.addresses}
    own = workers.addresses[workers.rank]
    loopback = ports.on_loopback(hosts)
    os.environ['no_grpc_proxy'] = ','.join(sorted(hosts))  # noqa: SIM112
    try:
        server = tf.train.Server({_JOB: workers.addresses}, _JOB, workers.rank, config=config,
                                 start=False)
    except tf.errors.OpError as error:
        raise ConnectionError(f'TensorFlow cannot listen at {own}: is it in use?') from error
    workers.release_port()
    closed = loopback and ports.close_to_others(int(own.split(':')[1]))
    server.start()  # It listens already, but runs no graph before.
    if workers.rank == 0 and not closed:
        console.line(ports.notice(workers.addresses, loopback))
    workers.agree('the servers')
    workers.reach_all()
    workers.agree('the connections')
    return server


def step_options():
    """Options for running a step: it ends after --step_timeout at the latest."""
    return tf.RunOptions(timeout_in_ms=int(1000 * FLAGS.step_timeout))


@contextlib.contextmanager
def failures_of(workers):
    """Turns TensorFlow's errors for the failure of another worker into one that names it.

    Args:
        workers: the `watch.Meeting`.

    Raises:
        ConnectionError: a worker was lost; tells which, and how.
        TimeoutError: a step took longer than --step_timeout, but all workers give signs of life.
    """
    try:
        yield
    except _PERHAPS_A_PEER as error:
        line = workers.lost(workers.patience)
        if line:
            raise ConnectionError(line) from error
        if isinstance(error, tf.errors.DeadlineExceededError):
            raise TimeoutError(f'a step took longer than --step_timeout={FLAGS.step_timeout:g}, '
                               'though all workers give signs of life') from error
        raise
