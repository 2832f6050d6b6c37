"""Which of several workers this process is, and what it does together with the others.

    mpirun -n 4 python classification.py
    TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": ...}' python classification.py

Each process is one worker, with a graph and variables of its own; all make the same updates. MPI
starts the workers, lets them meet and compare, and ends them together; without MPI, TF_CONFIG names
them. TensorFlow's servers and collective operations carry the gradients.
"""
import contextlib
import functools
import itertools
import os
import pathlib
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cifar10_lib import errors
from classification_lib import batch_norm, collectives, interfaces, mpi, tf_config

import tensorflow.compat.v1 as tf

AGAIN = 75  # Exit code if starting again may help: EX_TEMPFAIL of sysexits.h.

# Variables of launchers that start several processes without MPI.
_OF_OTHER_LAUNCHERS = ('SLURM_STEP_NUM_TASKS', 'WORLD_SIZE', 'HOROVOD_SIZE')

# How a step ends if another worker ends or is cut off. The text is in errors of any class.
_BROKEN = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
           tf.errors.DeadlineExceededError)
_LEFT = 'Collective ops is aborted'

# Grappler optimises the graph in the first step, and once more without the summaries.
_LONG_STEPS, _LONG_STEP_SECONDS = 2, 600.0

_POLL_SECONDS = 0.01
_CHUNK_BYTES = 1 << 15  # gRPC copies messages in chunks of 4 kB; larger ones took less time.

Grads = Sequence[tuple[tf.Tensor | None, tf.Variable]]


class WorkersDiffer(errors.UserError):
    """A value differs between workers, which all of them notice."""


class Alone:
    """How a worker without others meets them; `mpi.Meeting` says what these are."""

    rank, size, names, share_a_console = 0, 1, ('worker 0',), False

    def gather(self, value: Any) -> list[Any]:
        return [value]


class Worker:
    """What this process does together with the other workers."""

    def __init__(self, meeting: Any, step_timeout: float) -> None:
        """Takes `Alone`, an `mpi.Meeting` or a `tf_config.Meeting`, and the seconds that a step may
        take."""
        self._meeting, self._step_timeout = meeting, step_timeout
        self.rank, self.size = meeting.rank, meeting.size
        # Arguments of a session; alone, a worker needs no server.
        self.session_options = {'config': tf.ConfigProto(allow_soft_placement=True)}
        self._server: tf.train.Server | None = None
        self._on_gpu = False
        self._numbers = itertools.count()  # Of the vectors that are averaged.

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def meet(self) -> None:
        """Starts the server of this worker, and waits until all can be reached."""
        with self._meeting.addresses() as addresses:
            self._server, config, has_own_gpu = _start_server(addresses, self.rank)
        self._meeting.use(self._server)
        self.session_options = {'master': self._server.target, 'config': config}
        end = time.monotonic() + self._meeting.patience
        while True:  # TensorFlow would wait forever, and name none.
            try:
                interfaces.connect(self._meeting.names, addresses)
                break
            except tf.errors.UnavailableError as error:
                if time.monotonic() > end:
                    raise errors.UserError(f'{error.message}; does a firewall block it?') from error
                time.sleep(_POLL_SECONDS)
        # NCCL requires that no two workers share a GPU.
        self._on_gpu = all(self._meeting.gather(has_own_gpu))

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Compares JSON values by name, and the project's code, with those of all other workers.

        Raises `WorkersDiffer`, which names the first worker and value that differ.
        """
        own = {**facts, **_code(), 'the version of TensorFlow': tf.version.VERSION}
        first, *others = self._meeting.gather(own)
        for name, other in zip(self._meeting.names[1:], others):
            for fact in {**first, **other}:
                if other.get(fact) != first.get(fact):
                    raise WorkersDiffer(
                        f'{name} differs from worker 0: {fact} is {other.get(fact)}, not '
                        f'{first.get(fact)}. Start all workers with the same code, data and flags')

    def gather(self, value: Any) -> list[Any]:
        """JSON values of all workers, in their order, between two steps; waits without limit."""
        return self._meeting.gather(value)

    def mean_gradients(self, grads: Grads, overlap: bool = True) -> Grads:
        """Means over all workers of gradients; see `collectives.mean_gradients`."""
        if self.size == 1:
            return grads
        return collectives.mean_gradients(grads, self.size, on_gpu=self._on_gpu, overlap=overlap)

    def synchrony(self, wanted: bool) -> batch_norm.Synchrony | None:
        """How batch norms of one graph normalise over the batches of all workers, if `wanted`."""
        if not wanted or self.size == 1:
            return None
        return batch_norm.Synchrony(self.size, self._new_mean)

    def means(self, values: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Means over all workers of numbers [], float32 []."""
        if self.size == 1:
            return values
        numbers = tf.stack([tf.cast(value, tf.float32) for value in values])
        return tf.unstack(self._new_mean()(numbers))

    def _new_mean(self):
        """A function that averages one vector over workers, float32 [n]."""
        return functools.partial(collectives.mean, size=self.size, number=next(self._numbers))

    def sharing(self, variables: Sequence[tf.Variable]) -> tf.Operation:
        """An operation for `share`, which gives all workers worker 0's values of variables."""
        if self.size == 1:
            return tf.no_op()
        return collectives.broadcast(variables, self.rank, self.size)

    def share(self, session: tf.Session, operation: tf.Operation) -> None:
        """Runs an operation of `sharing`, between two steps."""
        session.run(operation, options=self.options(0))

    def options(self, steps: int) -> tf.RunOptions | None:
        """Options of the step after the first `steps` of this start: how long it may take."""
        if self.size == 1:
            return None
        seconds = self._step_timeout
        if steps < _LONG_STEPS:
            seconds = max(seconds, _LONG_STEP_SECONDS)
        return tf.RunOptions(timeout_in_ms=int(1000 * seconds))


@contextlib.contextmanager
def joined(step_timeout: float, interface: str | None = None) -> Iterator[Worker]:
    """Yields this process's `Worker` once all workers have met and can reach one another.

    It is alone unless an MPI launcher or TF_CONFIG names several. No worker ends alone: the block
    ends when all of theirs do, and if one fails, so do all. A step may take `step_timeout` seconds;
    then a frozen worker is noticed. `interface` is the network device by which other machines reach
    this one, by default the one by which it reaches them; with TF_CONFIG, the addresses decide.

    Only what worker 0 prints appears. Raises `errors.UserError`. After an error that starting again
    may repair, such as a lost worker, prints a line and raises SystemExit(75).
    """
    meeting: Any = Alone()
    if mpi.is_launcher():
        meeting = mpi.Meeting(interface)
    elif os.environ.get('TF_CONFIG'):
        meeting = tf_config.Meeting()
    else:
        _refuse_other_launchers()
    if meeting.size == 1:
        yield Worker(Alone(), step_timeout)
        return
    worker = Worker(meeting, step_timeout)
    if not worker.is_chief:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.
    try:
        with _lost_worker_explained(step_timeout):
            worker.meet()
            yield worker
            meeting.gather(None)  # Worker 0 has saved the last step.
    except BaseException as error:
        is_noticed_by_all = isinstance(
            error, (WorkersDiffer, tf.train.NanLossDuringTrainingError))
        if is_noticed_by_all and meeting.share_a_console and not worker.is_chief:
            meeting.gather(None)  # Until worker 0 has printed it, and ends all.
        meeting.abort(error)
        raise


def _refuse_other_launchers():
    """Each process of a job without MPI would train alone, and all in one folder."""
    for name in _OF_OTHER_LAUNCHERS:
        count = os.environ.get(name, '')
        if count.isdecimal() and int(count) > 1:
            raise errors.UserError(
                f'{name}={count}: a launcher without MPI started {count} processes, each of which '
                'would train alone. Start them by mpirun, or by srun --mpi=pmix; for a single '
                f'process, unset {name}')


@contextlib.contextmanager
def _lost_worker_explained(step_timeout):
    """Turns the error of a step that another worker has left into a line and SystemExit(75)."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, _BROKEN) and _LEFT not in str(error):
            raise
        time.sleep(1.0)  # MPI ends this process now if another one has failed with a line.
        errors.note(f'a step failed, as another worker was lost ({errors.one_line(error)}). If a '
                    f'step takes longer than --step_timeout={step_timeout:g} seconds, raise it; '
                    'otherwise run the same command again to resume')
        raise SystemExit(AGAIN) from error


def _start_server(addresses, rank):
    """Starts TensorFlow's server of a worker; `addresses` are each one's 'host:port'.

    Returns the server, the options of its sessions, and whether the worker has a GPU of its own.
    """
    hosts = [address.rpartition(':')[0] for address in addresses]
    own, own_host = addresses[rank], hosts[rank]
    local_rank = hosts[:rank].count(own_host)  # Index among those on this machine.
    gpus = len(tf.config.get_visible_devices('GPU'))
    config = tf.ConfigProto(allow_soft_placement=True)
    config.device_count['GPU'] = min(gpus, 1)
    if gpus:
        config.gpu_options.visible_device_list = str(local_rank % gpus)
    # Without a leader no step ends; without the filter, sessions wait for all workers' devices.
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
    config.device_filters.append(f'/job:worker/task:{rank}')
    config.experimental.collective_nccl = gpus > 0
    config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    # Grappler's remapper fuses a convolution, its bias and ReLU also in bfloat16, if the processor
    # has instructions for it, into an operation that a server refuses.
    rewrites = config.graph_options.rewrite_options
    rewrites.remapping = rewrites.OFF
    # gRPC would use the environment's Internet proxy. It reads this variable in lower case.
    os.environ['no_grpc_proxy'] = ','.join(hosts)  # noqa: SIM112
    try:
        server = tf.train.Server(
            {'worker': list(addresses)}, 'worker', rank, config=config, start=False)
    except tf.errors.OpError as error:
        raise errors.UserError(f'TensorFlow cannot listen at {own}: {errors.one_line(error)} '
                               '(is it in use?)') from error
    if not interfaces.bind(int(own.rpartition(':')[2]), interfaces.device_of(own_host, hosts)):
        errors.note(f'warning: any network of this machine can reach the port {own}, and '
                    'TensorFlow executes whatever it is sent there. Use a private network')
    server.start()  # It listens already, but does not run graphs yet.
    return server, config, hosts.count(own_host) <= gpus


def _code():
    """Checksums of the project's modules that this process has imported, wherever their files are:
    a user may have a cifar10_input.py of their own."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, '__file__', None)
        if path and (name.startswith(('cifar10', 'classification')) or name == '__main__'):
            checksum = zlib.crc32(pathlib.Path(path).read_bytes())
            found[f'the checksum of {os.path.basename(path)}'] = f'{checksum:08x}'
    return found
