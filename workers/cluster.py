"""Who this worker is, how many there are, and where they meet.

One process is one worker. What started it says which one it is:

    mpirun -n 4 python ...                              Open MPI's environment
    TF_CONFIG='{"cluster": ..., "task": ...}' python ...
    srun -n 4 python ...                                Slurm's environment
    python ... --worker_hosts=a:2222,b:2222 --task_index=0
    python ... --num_workers=4                          starts four on this machine

A flag and an environment that both say it are refused. Among environments Open MPI's counts before
TF_CONFIG, and that before Slurm's: `mpirun` inside of a Slurm job leaves both.
"""
import dataclasses
import json
import os
import re
import zlib

import tensorflow.compat.v1 as tf
from absl import app
from absl import flags
# Not SlurmClusterResolver as a whole: it sorts hosts by name (n10 before n2), while Slurm numbers
# tasks in the order of its list, and it cannot do without GPUs.
from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import expand_hostlist

from program import paths

flags.DEFINE_list('worker_hosts', [], 'HOST:PORT of every worker, as the others reach it.')
flags.DEFINE_integer('task_index', None, 'Which of --worker_hosts this is, from 0.', lower_bound=0,
                     upper_bound=10**6)
flags.DEFINE_integer('num_workers', None, 'Start so many workers on this machine.', lower_bound=1,
                     upper_bound=256)
flags.DEFINE_string('coordinator', None, 'HOST:PORT where worker 0 awaits the others, with mpirun '
                    "and srun. By default on the job's first host.")
paths.define('hostfile', None, 'The file that mpirun got as --hostfile: worker 0 is on its first '
             'host.')
flags.DEFINE_float('start_timeout', 60.0, 'Seconds in which all workers must have come.',
                   lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('step_timeout', 60.0, 'Seconds in which a worker that fails, freezes or cannot '
                   'be reached ends all of them. A step, and what worker 0 saves after it, must '
                   'take less.', lower_bound=1.0, upper_bound=1e6)

FLAGS = flags.FLAGS

# Tells a worker that `workers/launch.py` started who it is. An environment variable, since all
# users of a machine can read a command line, and this holds the token of the job.
VARIABLE = 'CIFAR10_WORKER'

# Ports for meetings that nobody chose: above those of services, below those that Linux gives to
# outgoing connections.
_FIRST_PORT, _PORTS = 20000, 10000


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One worker's view of all workers.

    Attributes:
        rank: int, which worker this is, from 0.
        size: int, how many there are.
        local_rank: int, which of the workers on its machine this is, from 0.
        meeting: 'host:port' where worker 0 awaits the others; None for a worker alone.
        hosts: tuple of every worker's 'host:port', or () where they tell each other when they meet.
        job: str, the same for all workers of one start: a worker of another is turned away.
    """
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    meeting: str | None = None
    hosts: tuple = ()
    job: str = ''


def workers_to_start():
    """How many workers this process has to start, by `--num_workers`; 0 if it is one itself.

    Raises:
        app.UsageError: something else, too, says who the workers are.
    """
    if VARIABLE in os.environ or FLAGS.num_workers is None:
        return 0
    _launcher()
    return FLAGS.num_workers if FLAGS.num_workers > 1 else 0


def resolve():
    """Finds out who this worker is.

    Returns:
        A `Cluster`; of size 1 where nothing speaks of others.

    Raises:
        app.UsageError: what the flags and the environment say does not add up.
        FileNotFoundError: there is no `--hostfile`.
    """
    if VARIABLE in os.environ:
        told = json.loads(os.environ[VARIABLE])
        return Cluster(told['rank'], told['size'], told['rank'], told['meeting'], job=told['job'])
    launcher = _launcher()
    readers = {'--worker_hosts': _by_hand, 'mpirun': _open_mpi, 'TF_CONFIG': _tf_config,
               'srun': _slurm}
    return readers.get(launcher, Cluster)()


def _launcher():
    """Name of what says who the workers are, or None.

    Raises:
        app.UsageError: two do, one of them a flag.
    """
    said = [name for name, present in (
        ('--worker_hosts', bool(FLAGS.worker_hosts)),
        ('--num_workers', FLAGS.num_workers is not None),
        ('mpirun', 'OMPI_COMM_WORLD_SIZE' in os.environ),
        ('TF_CONFIG', _tf_config_has_cluster()),
        # A batch script is told about the tasks of its job as well, but only steps have this one.
        ('srun', os.environ.get('SLURM_STEP_NUM_TASKS', '1') != '1')) if present]
    if len(said) > 1 and said[0].startswith('--'):
        raise app.UsageError(f'{said[0]} and {said[1]} both say who the workers are: leave one out')
    if FLAGS.task_index is not None and '--worker_hosts' not in said:
        raise app.UsageError('--task_index is an index into --worker_hosts, which is not given')
    for name in ('coordinator', 'hostfile'):
        if FLAGS[name].value is not None and not {'mpirun', 'srun'} & set(said):
            raise app.UsageError(f'--{name} is for workers that mpirun or srun starts')
    if not said and os.environ.get('PMI_SIZE', '1') != '1':  # Each would train alone.
        raise app.UsageError("this mpirun is not Open MPI's: use that, or say who the workers are "
                             'with --worker_hosts and --task_index')
    return said[0] if said else None


def _tf_config_has_cluster():
    """Whether TF_CONFIG speaks of several tasks; some set it without."""
    text = os.environ.get('TF_CONFIG', '').strip()
    try:
        return bool(text) and 'cluster' in json.loads(text)
    except (ValueError, TypeError) as error:
        raise app.UsageError(f'TF_CONFIG is no JSON object: {error}') from error


def _by_hand():
    if FLAGS.task_index is None:
        raise app.UsageError('--worker_hosts needs --task_index: which of them is this?')
    return _of_hosts(FLAGS.worker_hosts, FLAGS.task_index, '--worker_hosts')


def _of_hosts(hosts, rank, source):
    """The `Cluster` of workers whose addresses are known; they meet at worker 0's."""
    machines = [_checked(host, source)[0] for host in hosts]
    doubles = sorted(host for host in set(hosts) if hosts.count(host) > 1)
    if doubles:
        raise app.UsageError(f'{source} has {doubles[0]} twice')
    if not 0 <= rank < len(hosts):
        raise app.UsageError(f'{source} has {len(hosts)} workers, 0 to {len(hosts) - 1}: there is '
                             f'no worker {rank}')
    local_rank = machines[:rank].count(machines[rank])
    return Cluster(rank, len(hosts), local_rank, hosts[0], tuple(hosts))


def _tf_config():
    """A chief or master, if there is one, is worker 0; the workers follow it."""
    try:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        cluster = resolver.cluster_spec().as_dict()
        name, index = resolver.task_type, resolver.task_id
    except (ValueError, TypeError, AttributeError) as error:
        raise app.UsageError(f'TF_CONFIG is damaged: {error}') from error
    jobs = [job for job in ('chief', 'master', 'worker') if job in cluster]
    if set(cluster) - {*jobs, 'evaluator'} or name not in jobs or index is None:
        raise app.UsageError(
            f'TF_CONFIG makes this task {index} of "{name}" among {", ".join(sorted(cluster))}: '
            'here all are workers, one of them perhaps chief')
    if not 0 <= index < len(cluster[name]):
        raise app.UsageError(f'TF_CONFIG has {len(cluster[name])} of "{name}": there is no task '
                             f'{index}')
    rank = sum(len(cluster[job]) for job in jobs[:jobs.index(name)]) + index
    return _of_hosts([host for job in jobs for host in cluster[job]], rank, 'TF_CONFIG')


def _open_mpi():
    """Open MPI tells rank and size, but neither the hosts nor the hostfile."""
    rank, size, local_rank, local_size = (_number('OMPI_COMM_WORLD_' + name) for name in (
        'RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE'))
    job = os.environ.get('PMIX_NAMESPACE', '')
    if FLAGS.coordinator:
        _checked(FLAGS.coordinator, '--coordinator')
        meeting = FLAGS.coordinator
    elif FLAGS.hostfile:
        meeting = f'{_first_host(FLAGS.hostfile)}:{_port(job)}'
    elif local_size == size:
        meeting = f'127.0.0.1:{_port(job)}'
    else:
        raise app.UsageError(
            f'{local_size} of {size} workers are on this machine, and mpirun does not say where '
            'worker 0 is: give --hostfile to the script as well, or --coordinator=HOST:PORT')
    return Cluster(rank, size, local_rank, meeting, job=job) if size > 1 else Cluster()


def _slurm():
    """Task 0 is on the first host of the step's list, however tasks are distributed."""
    rank, size, local_rank = (_number('SLURM_' + name) for name in (
        'PROCID', 'STEP_NUM_TASKS', 'LOCALID'))
    job = f'slurm-{os.environ.get("SLURM_JOB_ID")}.{os.environ.get("SLURM_STEP_ID")}'
    if FLAGS.coordinator:
        _checked(FLAGS.coordinator, '--coordinator')
        return Cluster(rank, size, local_rank, FLAGS.coordinator, job=job)
    try:
        first = expand_hostlist(os.environ.get('SLURM_STEP_NODELIST', ''))[0]
    except (ValueError, IndexError) as error:
        raise app.UsageError('SLURM_STEP_NODELIST names no host: give --coordinator=HOST:PORT'
                             ) from error
    return Cluster(rank, size, local_rank, f'{first}:{_port(job)}', job=job)


def _checked(address, source):
    try:
        return split_address(address)
    except ValueError as error:
        raise app.UsageError(f'{source}: {error}') from error


def _number(variable):
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError) as error:
        raise app.UsageError(f'{variable} is {os.environ.get(variable)!r} in the environment, '
                             'wanted a number') from error


def _first_host(hostfile):
    """The first host of lines like `node1 slots=4`, `user@node1` or `node1:4`."""
    with open(hostfile, encoding='utf-8', errors='replace') as stream:
        for line in stream:
            words = line.split('#')[0].split()
            if words:
                return words[0].split('@')[-1].split(':')[0]
    raise app.UsageError(f'--hostfile={hostfile} names no host')


def _port(job):
    """A port that all workers of a job get to by themselves, and another job hardly."""
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


def split_address(address):
    """Splits 'host:port'.

    Returns:
        host: str.
        port: int, 1 to 65535.

    Raises:
        ValueError: it is no such address. IPv6 is not served: TensorFlow's addresses know no
            brackets.
    """
    match = re.fullmatch(r'([A-Za-z0-9._-]+):([0-9]{1,5})', address)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(f'"{address}" is not HOST:PORT')
    return match.group(1), int(match.group(2))
