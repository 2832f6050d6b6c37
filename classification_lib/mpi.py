"""Workers that an MPI launcher has started meet by mpi4py, which works with any MPI."""
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from cifar10_lib import errors
from classification_lib import interfaces

# Variables that launchers set: Open MPI; MPICH and its relatives; `srun --mpi=pmix`.
_VARIABLES = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')

_POLL_SECONDS = 0.01


def is_launcher() -> bool:
    """Whether MPI has started this process."""
    return any(name in os.environ for name in _VARIABLES)


class Meeting:
    """How workers meet.

    Attributes:
        rank: index of this worker. Worker 0 alone prints and saves.
        size: number of workers.
        names: of all workers, for messages.
        patience: seconds within which all servers must be reachable.
        share_a_console: whether worker 0 alone prints an error that all of them notice.
    """

    patience, share_a_console = 60.0, True

    def __init__(self, interface: str | None) -> None:
        """Takes the network device by which other machines reach this one, or None. Raises
        `errors.UserError`."""
        self._interface = interface
        try:
            from mpi4py import MPI, run  # Here, because the import initialises MPI.
        except (ImportError, RuntimeError) as error:
            raise errors.UserError(
                f'MPI started this process, but mpi4py cannot be imported ({error}): '
                'pip install -r requirements-mpi.txt') from error
        self._world, self._set_abort_status = MPI.COMM_WORLD, run.set_abort_status
        self.rank, self.size = self._world.rank, self._world.size
        started = os.environ.get('OMPI_COMM_WORLD_SIZE') or os.environ.get('PMI_SIZE')
        if started and int(started) != self.size:
            raise errors.UserError(
                f"the launcher started {started} processes, but mpi4py's MPI sees {self.size}: "
                f'use the launcher of {MPI.Get_library_version().splitlines()[0]}, or unset '
                f'{" and ".join(name for name in _VARIABLES if name in os.environ)}')
        # Open MPI binds each of two processes to one core, where TensorFlow would have one thread.
        if hasattr(os, 'sched_setaffinity') and len(os.sched_getaffinity(0)) <= 2:
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
        self._machines = self.gather(socket.gethostname())
        self.names = [f'worker {rank} on {each}' for rank, each in enumerate(self._machines)]

    @contextlib.contextmanager
    def addresses(self) -> Iterator[list[str]]:
        """Yields each worker's 'host:port'; this worker's port stays reserved in the block."""
        host = '127.0.0.1'
        if len(set(self._machines)) > 1:
            host = interfaces.own_host(self._interface, self._machines)
        # Other processes get a port that is bound here only by its number.
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(('', 0))
            yield self.gather(f'{host}:{reserved.getsockname()[1]}')

    def use(self, server: Any) -> None:
        """Takes the server of this worker, which has started; MPI does not need it."""

    def gather(self, value: Any) -> list[Any]:
        """JSON values of all workers, in their order; waits for them without limit."""
        arrival = self._world.Ibarrier()
        while not arrival.Test():  # MPI's own waiting would use a core.
            time.sleep(_POLL_SECONDS)
        return self._world.allgather(value)

    def abort(self, error: BaseException) -> None:
        """Ends all workers when this process ends with this error."""
        # MPI_Abort instead of MPI_Finalize, which would wait for the others.
        self._set_abort_status(error)
