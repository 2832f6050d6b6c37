"""Which of several workers this process is, and what it does together with the others.

    mpirun -n 4 python classification.py
    TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": ...}' python classification.py

Each process is one worker, with a graph and variables of its own; all make the same updates. MPI
starts the workers, lets them meet and compare, and ends them together; without MPI, TF_CONFIG names
them. TensorFlow's servers and collective operations carry the gradients.
"""
import contextlib
import itertools
import json
import os
import pathlib
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cifar10_lib import errors, session
from classification_lib import collectives, interfaces

import numpy as np
import tensorflow.compat.v1 as tf

AGAIN = 75  # Exit code if starting again may help: EX_TEMPFAIL of sysexits.h.

# Variables that MPI's launchers set: Open MPI; MPICH and its relatives; `srun --mpi=pmix`.
_OF_MPI = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')

# How a step ends if another worker ends or is cut off. The text is in errors of any class.
_BROKEN = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
           tf.errors.DeadlineExceededError)
_LEFT = 'Collective ops is aborted'

# Grappler optimises the graph in the first step, and once more without the summaries.
_LONG_STEPS, _LONG_STEP_SECONDS = 2, 600.0

_POLL_SECONDS = 0.01
_ROW_BYTES = 1 << 20  # A JSON value, padded with spaces; 256 names of classes take less.
_CHUNK_BYTES = 1 << 15  # gRPC copies messages in chunks of 4 kB; larger ones took less time.

Grads = Sequence[tuple[tf.Tensor | None, tf.Variable]]


class Worker(session.SignalHook):
    """A process that trains alone, a team of one. It is a hook of its session."""

    rank = 0  # Index of this worker. Worker 0 alone prints and saves.
    size = 1  # Number of workers.
    _names: Sequence[str] = ('worker 0',)  # Of all workers, for messages.
    _prints = True  # Whether this worker reports an error that all of them notice.

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def _gather(self, value: Any) -> list[Any]:
        """JSON values of all workers, in their order; waits for them without limit."""
        return [value]

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Compares JSON values by name, and the project's code, with those of all other workers.

        Raises `errors.UserError`, which names the first worker and value that differ.
        """
        own = {**facts, **_code(), 'the version of TensorFlow': tf.version.VERSION}
        first, *others = self._gather(own)
        for name, other in zip(self._names[1:], others):
            for fact in {**first, **other}:
                if other.get(fact) != first.get(fact):
                    if not self._prints:
                        self._gather(None)  # Until worker 0 has printed the line, and ends all.
                    raise errors.UserError(
                        f'{name} differs from worker 0: {fact} is {other.get(fact)}, not '
                        f'{first.get(fact)}. Start all workers with the same code, data and flags')

    def share(self, value: Any) -> Any:
        """Returns worker 0's JSON value; all workers call it."""
        return self._gather(value)[0]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over all workers of an array, between two steps; waits for them without limit."""
        return np.sum(self._gather(values.tolist()), axis=0)

    def share_variables(self, sess: tf.Session) -> None:
        """Gives all workers worker 0's variables, between two steps: moving statistics differ."""

    def mean_gradients(self, grads: Grads, overlap: bool = True) -> Grads:
        """Means over all workers of gradients; see `collectives.mean_gradients`."""
        return grads

    def mean(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Means over all workers of numbers [] by name, float32 [].

        Call it exactly once in a graph: it also carries the signals that end the training. Each
        worker's session needs the worker as a hook, which makes every step compute the means.
        """
        return values

    def session_options(self, config: tf.ConfigProto) -> tuple[str, tf.ConfigProto]:
        """The arguments `master` and `config` of a session with these options."""
        return '', config


@contextlib.contextmanager
def joined(step_timeout: float, interface: str | None = None) -> Iterator[Worker]:
    """Yields this process's `Worker` once all workers have met and can reach one another.

    It is alone unless an MPI launcher or TF_CONFIG names several. No worker ends alone: the block
    ends when all of theirs do, and if one fails, so do all. A step may take `step_timeout` seconds;
    then a frozen worker is noticed. `interface` is the network device by which other machines reach
    this one, by default the one by which it reaches them; with TF_CONFIG, the addresses decide.

    Raises `errors.UserError`. After an error that starting again may repair, such as a lost
    worker, prints a line and raises SystemExit(75).
    """
    worker: _Member
    if any(name in os.environ for name in _OF_MPI):
        worker = _MpiWorker(step_timeout, interface)
    elif os.environ.get('TF_CONFIG'):
        worker = _TfConfigWorker(step_timeout)
    else:
        yield Worker()
        return
    if worker.size == 1:
        yield Worker()
        return
    if not worker.is_chief:
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.
    stopped = None
    with worker._aborting():
        worker._meet()
        with _lost_worker_explained(step_timeout):
            try:
                yield worker
            except (KeyboardInterrupt, SystemExit) as error:
                if not worker._is_over:
                    raise
                stopped = error
            worker._gather(None)  # Worker 0 has saved the last step.
    if stopped:
        raise stopped


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


class _Member(Worker):
    """One of several workers.

    As a hook, it starts with worker 0's values, limits each step, and stops after the same step as
    the others. Subclasses set rank, size, `_names` and `_addresses`, a list of each worker's
    'host:port'.
    """

    _steps = 0  # Number of steps of this start.
    _is_over = False  # Whether the training has ended as it should.

    def __init__(self, step_timeout) -> None:
        self._step_timeout = step_timeout

    def mean_gradients(self, grads, overlap=True):
        return collectives.mean_gradients(grads, self.size, on_gpu=self._on_gpu, overlap=overlap)

    def mean(self, values):
        self._signal = tf.placeholder_with_default(0.0, [], name='signal')
        means = collectives.mean_values({**values, 'a signal': self._signal}, self.size)
        self._any_signal = means.pop('a signal')
        return means

    def session_options(self, config):
        merged = tf.ConfigProto()
        merged.CopyFrom(config)
        merged.MergeFrom(self._config)
        return self._server.target, merged

    def begin(self):
        self._broadcast = collectives.broadcast(tf.global_variables(), self.rank, self.size)

    def share_variables(self, sess):
        sess.run(self._broadcast, options=self._options())

    def after_create_session(self, session, coord):
        self.coord = coord
        if self.share(self.is_finished):  # Worker 0 knows.
            coord.request_stop()
        else:
            self.share_variables(session)

    def before_run(self, run_context):
        super().before_run(run_context)
        options = self._options()
        self._steps += 1
        return tf.train.SessionRunArgs(
            self._any_signal, {self._signal: float(self.caught or 0)}, options)

    def after_run(self, run_context, run_values):
        self.is_stepping = False
        if run_values.results > 0:
            self.caught = next(filter(None, self._gather(self.caught)))
            run_context.request_stop()

    def end(self, session):
        self._is_over = True

    def _options(self):
        seconds = self._step_timeout
        if self._steps < _LONG_STEPS:
            seconds = max(seconds, _LONG_STEP_SECONDS)
        return tf.RunOptions(timeout_in_ms=int(1000 * seconds))

    @contextlib.contextmanager
    def _aborting(self):
        """An error in this context ends all workers when this process ends."""
        yield

    def _start_server(self):
        """Starts TensorFlow's server of this worker."""
        hosts = [address.rpartition(':')[0] for address in self._addresses]
        own, own_host = self._addresses[self.rank], hosts[self.rank]
        local_rank = hosts[:self.rank].count(own_host)  # Index among those on this machine.
        gpus = len(tf.config.get_visible_devices('GPU'))
        self._has_own_gpu = hosts.count(own_host) <= gpus
        config = tf.ConfigProto()
        config.device_count['GPU'] = min(gpus, 1)
        if gpus:
            config.gpu_options.visible_device_list = str(local_rank % gpus)
        # Without a leader no step ends; without the filter, sessions wait for all workers' devices.
        config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
        config.device_filters.append(f'/job:worker/task:{self.rank}')
        config.experimental.collective_nccl = gpus > 0
        config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
        # Grappler's remapper fuses a convolution, its bias and ReLU also in bfloat16, if the
        # processor has instructions for it, into an operation that a server refuses.
        rewrites = config.graph_options.rewrite_options
        rewrites.remapping = rewrites.OFF
        # gRPC would use the environment's Internet proxy. It reads this variable in lower case.
        os.environ['no_grpc_proxy'] = ','.join(hosts)  # noqa: SIM112
        try:
            self._server = tf.train.Server(
                {'worker': self._addresses}, 'worker', self.rank, config=config, start=False)
        except tf.errors.OpError as error:
            raise errors.UserError(f'TensorFlow cannot listen at {own}: {errors.one_line(error)} '
                                    '(is it in use?)') from error
        self._config = config
        if not interfaces.bind(int(own.rpartition(':')[2]), interfaces.device_of(own_host, hosts)):
            errors.note(f'warning: any network of this machine can reach the port {own}, and '
                         'TensorFlow executes whatever it is sent there. Use a private network')
        self._server.start()  # It listens already, but does not run graphs yet.

    def _reach_all(self, seconds):
        """Waits until all servers can be reached; TensorFlow would wait forever, and name none."""
        end = time.monotonic() + seconds
        for name, address in zip(self._names, self._addresses):
            host, _, port = address.rpartition(':')
            while True:
                try:
                    # By IPv4, on which TensorFlow's server always listens.
                    socket.create_connection((socket.gethostbyname(host), int(port)), 5.0).close()
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        raise errors.UserError(
                            f'cannot connect to {name} at {address}: {error.strerror or error}; '
                            'does a firewall block it?') from error
                    time.sleep(_POLL_SECONDS)


class _MpiWorker(_Member):
    """One of the workers that an MPI launcher has started."""

    def __init__(self, step_timeout, interface) -> None:
        super().__init__(step_timeout)
        self._interface = interface
        try:
            from mpi4py import MPI, run  # It initialises MPI, so only here.
        except (ImportError, RuntimeError) as error:
            raise errors.UserError(
                f'MPI started this process, but mpi4py cannot be imported ({error}): '
                'pip install -r requirements-mpi.txt') from error
        self._world, self._set_abort_status = MPI.COMM_WORLD, run.set_abort_status
        self.rank, self.size = self._world.rank, self._world.size
        self._prints = self.is_chief  # All write to the console of the launcher.
        started = os.environ.get('OMPI_COMM_WORLD_SIZE') or os.environ.get('PMI_SIZE')
        if started and int(started) != self.size:
            raise errors.UserError(
                f"the launcher started {started} processes, but mpi4py's MPI sees {self.size}: "
                f'use the launcher of {MPI.Get_library_version().splitlines()[0]}, or unset '
                f'{" and ".join(name for name in _OF_MPI if name in os.environ)}')

    def _meet(self):
        # Open MPI binds each of two processes to one core, where TensorFlow would have one thread.
        if hasattr(os, 'sched_setaffinity') and len(os.sched_getaffinity(0)) <= 2:
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
        machines = self._gather(socket.gethostname())
        self._names = [f'worker {rank} on {machine}' for rank, machine in enumerate(machines)]
        host = '127.0.0.1'
        if len(set(machines)) > 1:
            host = interfaces.own_host(self._interface, machines)
        # Reserves a port until the server listens: other processes get it only by its number.
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(('', 0))
            self._addresses = self._gather(f'{host}:{reserved.getsockname()[1]}')
            self._start_server()
        # NCCL requires that no two workers share a GPU.
        self._on_gpu = all(self._gather(self._has_own_gpu))
        self._reach_all(self._step_timeout)

    def _gather(self, value):
        arrival = self._world.Ibarrier()
        while not arrival.Test():  # MPI's own waiting would use a core.
            time.sleep(_POLL_SECONDS)
        return self._world.allgather(value)

    @contextlib.contextmanager
    def _aborting(self):
        try:
            yield
        except BaseException as error:
            # MPI_Abort instead of MPI_Finalize, which would wait for the others.
            self._set_abort_status(error)
            raise


class _TfConfigWorker(_Member):
    """One of the workers that TF_CONFIG names; the chief or master, if any, is worker 0."""

    def __init__(self, step_timeout) -> None:
        super().__init__(step_timeout)
        self._gathered = itertools.count()
        try:
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            cluster = resolver.cluster_spec().as_dict()
            tasks = {(job, index): address for job in ('chief', 'master', 'worker')
                     for index, address in enumerate(cluster.get(job, []))}
            self._addresses = list(tasks.values())
            if len(tasks) > 1:  # Some platforms set it for a single one.
                self.size = len(tasks)
                self.rank = list(tasks).index((resolver.task_type, resolver.task_id))
        except (AttributeError, TypeError, ValueError) as error:
            raise errors.UserError(
                f'TF_CONFIG is {os.environ["TF_CONFIG"]}; expected {{"cluster": {{"worker": '
                '["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, with one of the '
                'workers as the task') from error
        self._names = [f'worker {rank} ({each})' for rank, each in enumerate(self._addresses)]

    def _meet(self):
        self._start_server()
        self._reach_all(float('inf'))  # They may be started by hand, one after another.
        self._on_gpu = all(self._gather(self._has_own_gpu))

    def _gather(self, value):
        row = np.frombuffer(json.dumps(value).encode().ljust(_ROW_BYTES), np.int32)
        with tf.Graph().as_default() as graph:
            gathered = collectives.gather(row, self.size, next(self._gathered))
            with tf.Session(self._server.target, graph, self._config) as running:
                rows = running.run(gathered)
        return [json.loads(row.tobytes()) for row in rows]


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
