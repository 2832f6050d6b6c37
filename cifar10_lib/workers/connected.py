"""One of several workers that train together: the same values at the start, and the same last step.

Each worker runs a graph of its own in a session on its own `tf.train.Server`; the collective
operations in the graphs exchange data.
"""
import contextlib
import os
import pathlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10_lib.program import devices, errors
from cifar10_lib.training import worker
from cifar10_lib.workers import collectives, meeting, ports
from cifar10_lib.workers.cluster import Cluster

_JOB = 'worker'
_CHUNK_BYTES = 1 << 15  # gRPC copies messages in chunks of 4 kB; larger ones took less time.

# What TensorFlow may raise when another worker fails; the first four also if a step breaks while
# all workers live: a connection was reset, or the job was suspended.
_BROKEN = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
           tf.errors.DeadlineExceededError)
_PERHAPS_A_PEER = (*_BROKEN, tf.errors.InternalError, tf.errors.UnknownError)
_ABORTED = 'Collective ops is aborted'  # Starts the message of such an error, whatever its class.

_ROOT = pathlib.Path(__file__).parents[2]


@contextlib.contextmanager
def joined(cluster: Cluster, facts: Callable[[], Mapping[str, Any]]) -> Iterator[worker.Worker]:
    """Yields this worker once all workers have met and agree.

    What `facts` returns, JSON values by name, must be the same for all workers of a cluster, and so
    must their code. It is called once they have met, so that all learn of its errors.

    Raises the errors of `meeting.join` and `Meeting.barrier`. If a step breaks although no worker
    is lost, raises `meeting.Lost`, or another `ConnectionError` in the first step: that would break
    again. If a worker is lost, the meeting ends the process.
    """
    if cluster.size == 1:
        yield worker.Worker()
        return
    with meeting.join(cluster) as peers:
        peers.barrier('the settings', {
            'the number of workers': cluster.size, **facts(), **code()})
        me = ConnectedWorker(cluster, peers)
        try:
            yield me
        except _PERHAPS_A_PEER as error:
            # If a worker was lost, the meeting ends this process with its line.
            if peers.wait_for_loss(peers.patience):
                raise
            if not isinstance(error, _BROKEN) and _ABORTED not in str(error):
                raise
            kind: type[ConnectionError] = ConnectionError
            if me.steps > 1:  # One was completed.
                kind = meeting.Lost
            raise kind(
                f'a step failed although all workers send heartbeats ({errors.one_line(error)}): '
                'if the job was not suspended, check the network between the workers; if steps '
                f'take longer than --step_timeout={cluster.step_timeout:g} seconds, raise it'
            ) from error


def code() -> dict[str, str]:
    """Checksums of the project's modules, as imported, by 'the checksum of module NAME'.

    A module counts wherever its file is, such as a user's own cifar10_input.py. Installed packages
    do not: the project's folder may contain a virtual environment.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        path = pathlib.Path(getattr(module, '__file__', None) or '')
        is_ours = _ROOT in path.parents and 'site-packages' not in path.parts
        if path.suffix != '.py' or not (is_ours or name.startswith('cifar10')):
            continue
        if name == '__main__':
            name = path.stem
        with contextlib.suppress(OSError):  # It has been removed meanwhile.
            found[f'the checksum of module {name}'] = f'{zlib.crc32(path.read_bytes()):08x}'
    return found


class ConnectedWorker(worker.Worker):
    """One of several workers; see `worker.Worker`. Create it before the graph."""

    def __init__(self, cluster: Cluster, peers: meeting.Meeting) -> None:
        """`peers` is the meeting of the cluster's workers."""
        super().__init__(cluster.rank, cluster.size, cluster.local_rank, cluster.step_timeout)
        self._peers = peers
        self._gpus = devices.visible_gpus()
        self._layout: dict[str, Any] = {}  # What the workers exchange in their steps.
        self.steps = 0  # Number of steps begun.

    def barrier(self, stage: str, must_match: Mapping[str, Any] | None = None,
                value: Any = None) -> Any:
        """Waits for all workers at a stage; see `Meeting.barrier`."""
        return self._peers.barrier(stage, must_match, value)

    def mean_losses(self, losses: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Averages the collection `errors`, too.

        The same reduction informs all workers of a signal that one of them caught.
        """
        training_errors = tf.get_collection_ref('errors')
        self._ask_stop = tf.placeholder_with_default(0.0, [], name='stop')
        given = {'stop': self._ask_stop}
        given.update({f'error {k}': each for k, each in enumerate(training_errors)})
        given.update({f'loss {name}': each for name, each in losses.items()})
        self._describe('loss', sorted(losses))
        self._layout['the training error count'] = len(training_errors)
        means = collectives.mean_losses(given, self)
        self._stop = means['stop']
        training_errors[:] = [means[f'error {k}'] for k in range(len(training_errors))]
        return {name: means[f'loss {name}'] for name in losses}

    def mean_gradients(self, gradients: Sequence[worker.Gradient]) -> list[collectives.Pair]:
        self._describe('gradient', [
            f'{variable.op.name} {gradient.dtype.name} {gradient.shape.as_list()}'
            for gradient, variable in gradients if gradient is not None])
        return collectives.all_reduce_mean(gradients, self, on_gpu=self._gpus > 0)

    def _describe(self, kind, names):
        """Adds what the workers exchange to the facts that must be the same for all of them."""
        self._layout.update({f'{kind} {k}': name for k, name in enumerate(names)})
        self._layout[f'the {kind} count'] = len(names)

    def session(self, scaffold: tf.train.Scaffold, hooks: Sequence[tf.train.SessionRunHook],
                log_device_placement: bool = False) -> worker.Session:
        """Starts this worker's server, and returns a session on it.

        Raises ConnectionError if the server cannot listen.
        """
        config = self._config(log_device_placement)
        variables = tf.global_variables()
        self._describe('variable', sorted(
            f'{each.op.name} {each.dtype.base_dtype.name} {each.shape.as_list()}'
            for each in variables))
        self._broadcast = collectives.broadcast(variables, self)
        own = self._peers.hosts[self.rank]
        host, port = ports.split_address(own)
        machines = sorted({address.split(':')[0] for address in self._peers.hosts})
        # gRPC would use the environment's Internet proxy. It reads this variable in lower case.
        os.environ['no_grpc_proxy'] = ','.join(machines)  # noqa: SIM112
        try:
            self._server = tf.train.Server({_JOB: self._peers.hosts}, _JOB, self.rank,
                                           config=config, start=False)
        except tf.errors.OpError as error:
            raise ConnectionError(f'TensorFlow cannot listen at {own}: is it in use?') from error
        self._peers.port.close()
        if not ports.bind(port, ports.device_of(host, machines)):
            errors.say('Warning: any network of this machine can reach the port of TensorFlow '
                       f'({own}), which executes whatever it is sent there: use a private network.')
        self._server.start()  # It listens already, but does not run graphs yet.
        return worker.Session(
            scaffold=scaffold, hooks=hooks, master=self._server.target, config=config)

    def _config(self, log_device_placement):
        """The `tf.ConfigProto` of this worker's server and session."""
        config = devices.session_config(log_device_placement)
        # Without a leader no step ends; without the filter, sessions wait for all workers' devices.
        config.experimental.collective_group_leader = f'/job:{_JOB}/replica:0/task:0'
        config.device_filters.append(f'/job:{_JOB}/task:{self.rank}')
        config.experimental.collective_nccl = self._gpus > 0
        config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
        # Grappler's remapper fuses a convolution, its bias and ReLU also in bfloat16, if the
        # processor has instructions for it, into an operation that a server refuses.
        rewrites = config.graph_options.rewrite_options
        rewrites.remapping = rewrites.OFF
        if (config.inter_op_parallelism_threads or devices.visible_cores()) == 1:
            # One core has one thread, which would send the first bucket after the backward pass.
            config.inter_op_parallelism_threads = 2
        if self._gpus > 1:
            config.gpu_options.visible_device_list = str(self.local_rank % self._gpus)
        return config

    def start(self, session: tf.Session) -> None:
        # Before the first step, which has a time limit: all servers listen, and can be reached.
        # The graph may have imported more modules.
        self.barrier('the start', {**code(), **self._layout})
        self._peers.reach_all()
        session.run(self._broadcast, options=self._options())

    def step(self) -> tf.train.SessionRunArgs:
        self.steps += 1
        return tf.train.SessionRunArgs(
            {'stop': self._stop}, {self._ask_stop: float(bool(self.caught))}, self._options())

    def _options(self):
        return tf.RunOptions(timeout_in_ms=int(1000 * self.step_seconds))

    def end(self) -> None:
        """Waits until worker 0 has saved the last step, and leaves."""
        self.barrier('the end')
        self._peers.leave()
