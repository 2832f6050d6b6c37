"""Which worker this process is, how many there are, and where they meet.

One process is one worker. Its launcher determines which one:

    torchrun --nproc_per_node=4 ...                     RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    mpirun -n 4 python ...                              Open MPI's environment
    TF_CONFIG='{"cluster": ..., "task": ...}' python ...
    mpiexec -n 4 python ... --coordinator=a:2222        PMI_RANK, PMI_SIZE: MPICH, Intel MPI, Cray
    srun -n 4 python ...                                Slurm's environment
    python ... --worker_hosts=a:2222,b:2222 --task_index=0
    python ... --num_workers=4                          starts four on this machine

A flag together with one of these environments is an error. Of several environments the first in
this list counts: `mpirun` inside a Slurm job sets both.
"""
import dataclasses
import os
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import app

from cifar10_lib.program import json_files
from cifar10_lib.workers import ports

# Describes a worker that `launch.py` started: 'RANK SIZE PORT JOB'. Worker 0 listens at the port,
# and the job is the process ID of the launcher.
VARIABLE = 'CIFAR10_WORKER'


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One worker's view of all workers.

    Attributes:
        rank: the index of this worker, from 0.
        size: the number of workers.
        local_rank: the index of this worker among those on its machine, from 0.
        address: 'host:port' where worker 0 listens for the others; '' for a single worker.
        hosts: every worker's 'host:port', or '' if they exchange addresses as they meet.
        job: shared by the workers of one job: worker 0 accepts no others.
        start_timeout, step_timeout, stage_timeout: seconds; see the flags.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ''
    hosts: tuple[str, ...] = ('',)
    job: str = ''
    start_timeout: float = 60.0
    step_timeout: float = 60.0
    stage_timeout: float = 7200.0


def resolve(worker_hosts: Sequence[str] = (), task_index: int | None = None,
            num_workers: int | None = None, coordinator: str | None = None) -> Cluster:
    """The `Cluster` by these flags and the environment; of size 1 if neither defines other workers.

    Raises `app.UsageError` or `errors.DataError` if they are invalid or contradict each other.
    """
    if VARIABLE in os.environ:
        return _started_here()
    flags = []
    if worker_hosts:
        flags.append('--worker_hosts')
    if num_workers:
        flags.append('--num_workers')
    launchers = [name for name in _LAUNCHERS if _started(name)]  # The first one counts.
    _check(flags, launchers, task_index, coordinator)
    if worker_hosts:
        return _of_hosts(worker_hosts, task_index, '--worker_hosts')
    if num_workers or not launchers:
        return Cluster()
    row = _LAUNCHERS[launchers[0]]
    if row is None:
        return _tf_config()
    return _from_environment(launchers[0], row, coordinator)


def _started_here():
    """The `Cluster` of a worker that `launch.py` started."""
    text = os.environ[VARIABLE]
    found = re.fullmatch('([0-9]{1,3}) ([0-9]{1,3}) ([0-9]{1,5}) ([0-9]{1,9})', text)
    if not found or int(found[1]) >= int(found[2]):
        raise app.UsageError(f'{VARIABLE} is {json_files.shown(text)} in the environment, but only '
                             '--num_workers sets it: unset it')
    rank, size, port, parent = map(int, found.groups())
    return Cluster(rank, size, rank, f'127.0.0.1:{port}', ('',) * size, f'{parent}')


def _check(flags, launchers, task_index, coordinator):
    """Raises `app.UsageError` if the flags contradict each other or the environment.

    `flags` are the names of those that define the workers, `launchers` the ones that started this
    process; both are lists.
    """
    found = flags + launchers
    if len(found) > 1 and flags:
        raise app.UsageError(f'{found[0]} and {found[1]} both define the workers: leave one out')
    if (task_index is not None) != ('--worker_hosts' in flags):
        raise app.UsageError('--task_index is an index into --worker_hosts: give both')
    if coordinator and not any(row and row.size in os.environ for row in _LAUNCHERS.values()):
        raise app.UsageError('--coordinator is for workers that torchrun, mpirun, mpiexec or srun '
                             'starts')
    sizes = _sizes()
    if sizes and not found:  # Each would train alone.
        raise app.UsageError(
            f'{sizes[0]} in the environment names several processes, but nothing says which of '
            'them this is: use torchrun, mpirun, mpiexec or srun, or --worker_hosts and '
            '--task_index; if it is not about this program, unset it')


def refuse_several() -> None:
    """Raises `app.UsageError` if the environment names several processes, for a script of one."""
    found = _sizes()
    if 'cluster' in _read_tf_config() and _tf_config().size > 1:
        found.append('TF_CONFIG')
    if found:
        raise app.UsageError(
            f'{" and ".join(found)} in the environment: several processes, each of which would '
            'train alone. Use cifar10_distributed_train.py, or unset the variable if each should '
            'train its own run')


def _sizes():
    """The variables of launchers that name several processes, a list of 'NAME=NUMBER'."""
    names = [row.size for row in _LAUNCHERS.values() if row] + [
        'MV2_COMM_WORLD_SIZE', 'HOROVOD_SIZE', 'FLUX_JOB_SIZE', 'PET_NNODES']  # Other launchers'.
    return [f'{name}={os.environ[name]}' for name in names
            if os.environ.get(name, '') not in ('', '1')]


def _started(launcher):
    """Whether a launcher's environment names several workers."""
    row = _LAUNCHERS[launcher]
    if not row:
        return 'cluster' in _read_tf_config()  # Some set TF_CONFIG for a single task.
    if (launcher == 'mpiexec' and 'SLURM_PROCID' in os.environ
            and 'MPI_LOCALRANKID' not in os.environ):
        return False  # srun sets these, too. Intel's mpirun starts one task of Slurm per machine.
    return row.rank in os.environ and os.environ.get(row.size, '1') != '1'


def _read_tf_config():
    """The JSON object in TF_CONFIG; empty if it is not set."""
    text = os.environ.get('TF_CONFIG', '').strip()
    if not text:
        return {}
    return json_files.parse(text, 'TF_CONFIG')


def _of_hosts(hosts, rank, source):
    """The `Cluster` of workers with known addresses, which meet at worker 0's."""
    machines = [ports.split_address(host, source)[0] for host in hosts]
    if not 0 <= rank < len(hosts):
        raise app.UsageError(f'worker {rank} is not in {source}, which lists {len(hosts)} workers, '
                             f'0 to {len(hosts) - 1}')
    for host in hosts:
        if hosts.count(host) > 1:
            raise app.UsageError(f'{source} lists {host} more than once: give each worker a port '
                                 'of its own')
    local_rank = machines[:rank].count(machines[rank])
    return Cluster(rank, len(hosts), local_rank, hosts[0], tuple(hosts))


def _tf_config():
    """Worker 0 is the chief or master, if there is one; the workers follow."""
    found = _read_tf_config()
    cluster, task = found['cluster'], found.get('task')
    try:
        hosts = {(job, str(index)): host for job in ('chief', 'master', 'worker')
                 for index, host in enumerate(cluster.get(job, []))}
        rank = list(hosts).index((task['type'], str(task['index'])))
        is_valid = set(cluster) <= {'chief', 'master', 'worker', 'evaluator'} and all(
            isinstance(host, str) for host in hosts.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise app.UsageError(
            f'TF_CONFIG has cluster {json_files.shown(cluster)} and task '
            f'{json_files.shown(task)}; expected only workers, one of them perhaps the chief, and '
            'this task among them, such as {"worker": ["HOST:PORT", ...]} and {"type": "worker", '
            '"index": 0}')
    return _of_hosts(list(hosts.values()), rank, 'TF_CONFIG')


def _from_environment(launcher, row, address):
    """The `Cluster` of workers that meet at an address, by default at a port of worker 0's host.

    The port is the same for all workers of a job, and unlikely to be that of another job.
    """
    size = _number(row.size, 1, 10**6)
    rank = _number(row.rank, 0, size - 1)
    local_rank = 0
    local = next((name for name in row.local_rank if name in os.environ), None)
    if local:
        local_rank = _number(local, 0, size - 1)
    host, job = row.place()
    source = '--coordinator'
    if not address and not (host and job):
        raise app.UsageError(f'{launcher} does not provide the address of worker 0 and the name of '
                             'the job: give all workers --coordinator=HOST:PORT')
    if not address:
        # Above the ports of services, below those that Linux assigns to outgoing connections.
        address = f'{host}:{20000 + zlib.crc32(os.fsencode(job)) % 10000}'
        source = f"the host in {launcher}'s environment"
    ports.split_address(address, source)
    return Cluster(rank, size, local_rank, address, ('',) * size, job)


def _torchrun():
    """The host is worker 0's, but the store of torchrun may occupy the port."""
    host, port, run = (os.environ.get(name, '')
                       for name in ('MASTER_ADDR', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID'))
    return host, f'{host}:{port} {run}' if port else ''


def _open_mpi():
    """Open MPI names the job, but no hosts. Versions 5, 4 and older ones use other variables."""
    names = ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid', 'OMPI_MCA_orte_hnp_uri')
    job = next(filter(None, map(os.environ.get, names)), '')
    if os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE') == os.environ['OMPI_COMM_WORLD_SIZE']:
        return '127.0.0.1', job  # All workers are on this machine.
    return '', job


def _slurm():
    """Task 0 runs on the first host of the step's list, however tasks are distributed."""
    hosts = re.sub(r'\[([0-9]+)[^]]*\]', r'\1', os.environ.get('SLURM_STEP_NODELIST', ''))
    job = f'slurm-{os.environ.get("SLURM_JOB_ID")}.{os.environ.get("SLURM_STEP_ID")}'
    return hosts.split(',')[0], job


class _Launcher(NamedTuple):
    """A launcher's variables, and a function that returns worker 0's host and the job, or ''."""

    rank: str
    size: str
    local_rank: tuple[str, ...]
    place: Callable[[], tuple[str, str]]


_LAUNCHERS: dict[str, _Launcher | None] = {  # The first counts, if several are present.
    'torchrun': _Launcher('RANK', 'WORLD_SIZE', ('LOCAL_RANK',), _torchrun),
    'mpirun': _Launcher('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE',
                        ('OMPI_COMM_WORLD_LOCAL_RANK',), _open_mpi),
    'TF_CONFIG': None,
    'mpiexec': _Launcher('PMI_RANK', 'PMI_SIZE', ('MPI_LOCALRANKID', 'PMI_LOCAL_RANK'),
                         lambda: ('', '')),
    # SLURM_NTASKS is set in batch scripts, too; SLURM_STEP_NUM_TASKS only in steps.
    'srun': _Launcher('SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', ('SLURM_LOCALID',), _slurm)}


def _number(variable, low, high):
    """The integer in an environment variable, from `low` to `high`."""
    text = os.environ.get(variable, '')
    if not re.fullmatch('[0-9]{1,7}', text) or not low <= int(text) <= high:
        raise app.UsageError(f'{variable} is {json_files.shown(text)} in the environment; '
                             f'expected a number from {low} to {high}')
    return int(text)
