"""Which worker this process is, how many there are, and where they meet.

One process is one worker. Its launcher determines which one:

    mpirun -n 4 python ...                              Open MPI's environment
    TF_CONFIG='{"cluster": ..., "task": ...}' python ...
    srun -n 4 python ...                                Slurm's environment
    python ... --worker_hosts=a:2222,b:2222 --task_index=0
    python ... --num_workers=4                          starts four on this machine

A flag together with one of these environments is an error. Open MPI's environment takes precedence
over TF_CONFIG, and TF_CONFIG over Slurm's: `mpirun` inside a Slurm job sets both.
"""
import dataclasses
import itertools
import os
import re
import zlib

from absl import app
from absl import flags

from cifar10_lib.program import errors
from cifar10_lib.program import paths
from cifar10_lib.program import small_files
from cifar10_lib.workers import connection

# The secret of a job, as an alternative to --secret_file. Not a flag: all users of a machine can
# read a command line.
SECRET_VARIABLE = 'CIFAR10_JOB_SECRET'
_SHORTEST_SECRET, _LONGEST_SECRET = 16, 4096  # Characters.

flags.DEFINE_list('worker_hosts', [], 'HOST:PORT of every worker, as the other workers reach it; '
                  'separated by commas.')
flags.DEFINE_integer('task_index', None, 'Index of this worker in --worker_hosts, from 0.',
                     lower_bound=0, upper_bound=10**6)
flags.DEFINE_integer('num_workers', None, 'Start this number of workers on this machine.',
                     lower_bound=1, upper_bound=256)
flags.DEFINE_string('coordinator', None, 'HOST:PORT where worker 0 listens for the others, with '
                    "mpirun and srun. By default a port of the job's first host.")
paths.define('hostfile', None, "mpirun's --hostfile; worker 0 runs on its first host.")


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """How long workers wait for one another, in seconds; the flags below explain them."""
    start: float = 60.0
    step: float = 60.0
    stage: float = 7200.0


flags.DEFINE_float('start_timeout', Timeouts.start, 'Seconds within which all workers must join.',
                   lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('step_timeout', Timeouts.step, 'Seconds within which all workers end if one '
                   'fails, freezes or cannot be reached. A step must take less, including the '
                   'time in which worker 0 saves a checkpoint.', lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('stage_timeout', Timeouts.stage, 'Seconds that the first worker to reach a '
                   'point outside of steps (the data, the graph, a validation) waits for the '
                   'others. A download and a validation must take less.', lower_bound=1.0,
                   upper_bound=1e7)
paths.define('secret_file', None, 'File that holds the secret of the job, the same for all '
             f'workers, at least {_SHORTEST_SECRET} characters; or set {SECRET_VARIABLE}.')

FLAGS = flags.FLAGS

# Describes a worker that `workers/launch.py` started: JSON with these keys. Not a flag: it holds
# the job's token, and all users of a machine can read a command line.
VARIABLE = 'CIFAR10_WORKER'
_KEYS = {'rank': int, 'size': int, 'meeting': str, 'job': str, 'parent': int}
_UNSET = 'Only --num_workers sets it, for the workers that it starts: unset it'

_MAX_SIZE = 10**6  # Workers.

# Where workers meet if no port was given: above the ports of services, below those that Linux
# assigns to outgoing connections.
_FIRST_PORT, _PORTS = 20000, 10000

# A host or hosts in Slurm's notation: node[01-16,20]-ib.
_RANGE = '[0-9]{1,18}(?:-[0-9]{1,18})?'
_SLURM_HOST = rf'(?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])+'

# Where Open MPI 5, 4 and older ones keep the name of the job, which all of its workers share.
_OPEN_MPI_JOBS = ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid', 'OMPI_MCA_orte_hnp_uri')


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One worker's view of all workers.

    Attributes:
        rank: int, the index of this worker, from 0.
        size: int, the number of workers.
        local_rank: int, the index of this worker among those on its machine, from 0.
        meeting: 'host:port' where worker 0 listens for the others; None for a single worker.
        hosts: tuple of every worker's 'host:port', or () if they exchange addresses as they meet.
        job: str, shared by the workers of one job: those of another job are rejected.
        timeouts: a `Timeouts`.
        nodes: tuple of the hosts of all workers if it is unknown which worker runs on which; () if
            the hosts are unknown, too.
        secret: str, known only to the workers of the job; '' if none was given.
    """
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    meeting: str | None = None
    hosts: tuple = ()
    job: str = ''
    timeouts: Timeouts = Timeouts()
    nodes: tuple = ()
    secret: str = dataclasses.field(default='', repr=False)

    def address_of(self, rank):
        """A worker's 'host:port', or '' if it is not known in advance."""
        return self.hosts[rank] if self.hosts else ''

    def own_port(self):
        """The port of this worker, or 0 for any free one."""
        return connection.split_address(self.hosts[self.rank])[1] if self.hosts else 0

    def hosts_of(self, rank):
        """Tuple of the hosts that a worker may run on; () if they are unknown."""
        hosts = self.hosts[rank:rank + 1] or self.hosts
        return tuple(connection.split_address(host)[0] for host in hosts) or self.nodes


def workers_to_start():
    """How many workers this process must start (`--num_workers`); 0 if it is a worker itself.

    Raises:
        app.UsageError: an environment or another flag defines the workers, too.
    """
    if VARIABLE in os.environ or FLAGS.num_workers is None:
        return 0
    _launcher()
    return FLAGS.num_workers if FLAGS.num_workers > 1 else 0


def resolve():
    """Determines which worker this is, by the flags and the environment.

    Returns:
        A `Cluster`; of size 1 if neither defines other workers.

    Raises:
        app.UsageError: flags and environment are invalid or contradict each other.
        OSError: `--hostfile` or `--secret_file` cannot be read.
    """
    if VARIABLE in os.environ:
        given = from_launcher()
        me = Cluster(given['rank'], given['size'], given['rank'], given['meeting'],
                     job=given['job'])
    else:
        readers = {'--worker_hosts': _by_hand, 'mpirun': _open_mpi, 'TF_CONFIG': _tf_config,
                   'srun': _slurm}
        me = readers.get(_launcher(), Cluster)()
    return dataclasses.replace(
        me, secret=_secret() if me.size > 1 else '',
        timeouts=Timeouts(FLAGS.start_timeout, FLAGS.step_timeout, FLAGS.stage_timeout))


def _secret():
    """The secret from `--secret_file` or the environment; '' if neither is given."""
    if FLAGS.secret_file is not None and SECRET_VARIABLE in os.environ:
        raise app.UsageError(f'--secret_file and {SECRET_VARIABLE} both give a secret: leave one '
                             'out')
    if FLAGS.secret_file is not None:
        source = f'--secret_file={FLAGS.secret_file}'
        with open(FLAGS.secret_file, encoding='utf-8', errors='surrogateescape') as stream:
            secret = stream.read(_LONGEST_SECRET).strip()
    elif SECRET_VARIABLE in os.environ:
        source, secret = SECRET_VARIABLE, os.environ[SECRET_VARIABLE].strip()
    else:
        return ''
    if len(secret) < _SHORTEST_SECRET:  # An eavesdropper could find it by trying.
        raise app.UsageError(f'{source} gives a secret of {len(secret)} characters, which is too '
                             f'short: use at least {_SHORTEST_SECRET}, as from `openssl rand -hex '
                             '16`')
    return secret


def from_launcher():
    """Reads what `workers/launch.py` set: a dictionary with the keys of `_KEYS`.

    Raises:
        app.UsageError: the variable holds something else, perhaps copied from elsewhere.
    """
    try:
        given = small_files.parse_json(os.environ[VARIABLE], VARIABLE)
    except errors.DataError as error:
        raise app.UsageError(f'{error}. {_UNSET}') from error
    wrong = sorted(key for key, kind in _KEYS.items() if type(given.get(key)) is not kind)
    if wrong:  # Without the values: one of them is secret.
        raise app.UsageError(f'{VARIABLE} lacks a valid {", ".join(wrong)}. {_UNSET}')
    if not 0 <= given['rank'] < given['size'] <= _MAX_SIZE:
        raise app.UsageError(
            f'{VARIABLE} names worker {given["rank"]} of {given["size"]}. {_UNSET}')
    _checked(given['meeting'], VARIABLE)
    return given


def _launcher():
    """The name of the flag or launcher that defines the workers, or None; never two of them."""
    found = [name for name, present in (
        ('--worker_hosts', bool(FLAGS.worker_hosts)),
        ('--num_workers', FLAGS.num_workers is not None),
        ('mpirun', 'OMPI_COMM_WORLD_SIZE' in os.environ),
        ('TF_CONFIG', 'cluster' in _read_tf_config()),  # Some set it for a single task.
        # SLURM_NTASKS is set in batch scripts, too; this one only in steps.
        ('srun', os.environ.get('SLURM_STEP_NUM_TASKS', '1') != '1')) if present]
    if len(found) > 1 and found[0].startswith('--'):
        raise app.UsageError(f'{found[0]} and {found[1]} both define the workers: leave one out')
    if FLAGS.task_index is not None and '--worker_hosts' not in found:
        raise app.UsageError('--task_index is an index into --worker_hosts, which is not given')
    for name in ('coordinator', 'hostfile'):
        if FLAGS[name].value is not None and not {'mpirun', 'srun'} & set(found):
            raise app.UsageError(f'--{name} is for workers that mpirun or srun starts')
    if not found and os.environ.get('PMI_SIZE', '1') != '1':  # Each would train alone.
        raise app.UsageError("this mpirun is not Open MPI's: use Open MPI, or define the workers "
                             'with --worker_hosts and --task_index')
    return found[0] if found else None


def _read_tf_config():
    """The JSON object in TF_CONFIG; empty if it is not set."""
    text = os.environ.get('TF_CONFIG', '').strip()
    try:
        return small_files.parse_json(text, 'TF_CONFIG') if text else {}
    except errors.DataError as error:
        raise app.UsageError(f'{error}') from error


def _by_hand():
    if FLAGS.task_index is None:
        raise app.UsageError('--worker_hosts requires --task_index, the index of this worker')
    return _of_hosts(FLAGS.worker_hosts, FLAGS.task_index, '--worker_hosts')


def _of_hosts(hosts, rank, source):
    """The `Cluster` of workers with known addresses, which meet at worker 0's."""
    machines = [_checked(host, source)[0] for host in hosts]
    doubles = sorted(host for host in set(hosts) if hosts.count(host) > 1)
    if doubles:
        raise app.UsageError(f'{source} has {doubles[0]} twice')
    if not 0 <= rank < len(hosts):
        raise app.UsageError(f'worker {rank} is not in {source}, which lists {len(hosts)} workers, '
                             f'0 to {len(hosts) - 1}')
    local_rank = machines[:rank].count(machines[rank])
    return Cluster(rank, len(hosts), local_rank, hosts[0], tuple(hosts))


def _tf_config():
    """Worker 0 is the chief or master, if there is one; the workers follow."""
    found = _read_tf_config()
    cluster, task = found['cluster'], found.get('task')
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise app.UsageError(
            f'TF_CONFIG has cluster {small_files.shown(cluster)} and task '
            f'{small_files.shown(task)}; expected objects such as '
            '{"worker": ["HOST:PORT", ...]} and {"type": "worker", "index": 0}')
    name, index = task.get('type'), task.get('index')
    jobs = [job for job in ('chief', 'master', 'worker') if job in cluster]
    if set(cluster) - {*jobs, 'evaluator'} or name not in jobs:
        raise app.UsageError(
            f'TF_CONFIG makes this task {small_files.shown(index)} of {small_files.shown(name)} '
            f'among {small_files.shown(sorted(cluster))}; expected only workers, one of them '
            'perhaps the chief')
    tasks = {(job, number): host for job in jobs
             for number, host in enumerate(_tasks(job, cluster[job]))}
    is_number = isinstance(index, (int, str)) and re.fullmatch('[0-9]{1,7}', str(index))
    task = (name, int(index)) if is_number else None
    if task not in tasks:
        raise app.UsageError(f'task {small_files.shown(index)} is not in TF_CONFIG, which lists '
                             f'{sum(job == name for job, _ in tasks)} of "{name}"')
    return _of_hosts(list(tasks.values()), list(tasks).index(task), 'TF_CONFIG')


def _tasks(job, tasks):
    """The addresses of a job's tasks in TF_CONFIG: from a list, or an object with their indices.

    None may be missing, as in TensorFlow's sparse clusters: every worker must know its address.
    """
    if isinstance(tasks, dict):
        tasks = [tasks.get(str(index)) for index in range(len(tasks))]
    if not tasks or not isinstance(tasks, list) or not all(isinstance(host, str) for host in tasks):
        raise app.UsageError(f'TF_CONFIG does not list all tasks of "{job}"; expected the '
                             'HOST:PORT of each, from task 0 on')
    return tasks


def _open_mpi():
    """Open MPI gives rank and size, but neither the hosts nor the hostfile."""
    size = _number('OMPI_COMM_WORLD_SIZE', 1, _MAX_SIZE)
    if size == 1:
        return Cluster()
    rank = _number('OMPI_COMM_WORLD_RANK', 0, size - 1)
    local_size = _number('OMPI_COMM_WORLD_LOCAL_SIZE', 1, size)
    local_rank = _number('OMPI_COMM_WORLD_LOCAL_RANK', 0, local_size - 1)
    job = next(filter(None, map(os.environ.get, _OPEN_MPI_JOBS)), '')
    if not job and not (FLAGS.coordinator and _secret()):
        raise app.UsageError(
            f'{", ".join(_OPEN_MPI_JOBS)} are not set; without them the workers of two mpirun jobs '
            'could mix: give all workers --coordinator=HOST:PORT, and the same --secret_file or '
            f'{SECRET_VARIABLE}')
    nodes = _hosts_in(FLAGS.hostfile) if FLAGS.hostfile else ()
    if local_size == size:
        nodes = ('127.0.0.1',)
    meeting = _meeting(
        nodes, job, f'--hostfile={FLAGS.hostfile}',
        f'{local_size} of {size} workers are on this machine, and mpirun does not provide the '
        'address of worker 0: give the script --hostfile as well, or --coordinator=HOST:PORT')
    return Cluster(rank, size, local_rank, meeting, job=job, nodes=nodes)


def _slurm():
    """Task 0 runs on the first host of the step's list, however tasks are distributed."""
    size = _number('SLURM_STEP_NUM_TASKS', 1, _MAX_SIZE)
    rank = _number('SLURM_PROCID', 0, size - 1)
    local_rank = _number('SLURM_LOCALID', 0, size - 1)
    job = f'slurm-{os.environ.get("SLURM_JOB_ID")}.{os.environ.get("SLURM_STEP_ID")}'
    nodes = _hosts_of_list(os.environ.get('SLURM_STEP_NODELIST', ''))
    meeting = _meeting(nodes, job, 'SLURM_STEP_NODELIST',
                       'SLURM_STEP_NODELIST names no host: give --coordinator=HOST:PORT')
    return Cluster(rank, size, local_rank, meeting, job=job, nodes=nodes)


def _meeting(nodes, job, source, unknown):
    """Where the workers of mpirun or srun meet: --coordinator, or a port of the first node.

    The port is the same for all workers of a job, and unlikely to be that of another job.
    `source` gave the nodes; `unknown` is the error if there are none.
    """
    if FLAGS.coordinator:
        meeting, source = FLAGS.coordinator, '--coordinator'
    elif nodes:
        meeting = f'{nodes[0]}:{_FIRST_PORT + zlib.crc32(os.fsencode(job)) % _PORTS}'
    else:
        raise app.UsageError(unknown)
    _checked(meeting, source)
    return meeting


def _hosts_of_list(text):
    """The hosts, a tuple, of a list like `n[2,10-11],login1` in its order; () if it is malformed.

    At most `_MAX_SIZE`: TensorFlow's `expand_hostlist` would expand all of `n[1-999999999999]`.
    """
    if not re.fullmatch(f'{_SLURM_HOST}(?:,{_SLURM_HOST})*', text):
        return ()
    hosts = (''.join(parts) for host in re.findall(_SLURM_HOST, text)
             for parts in itertools.product(*map(_numbered, re.findall(r'\[.*?\]|[^[]+', host))))
    return tuple(itertools.islice(hosts, _MAX_SIZE))


def _numbered(part):
    """Expands a part of a host's name: '[2,10-11]' -> ['2', '10', '11'], 'n' -> ['n']."""
    if not part.startswith('['):
        return [part]
    return [f'{number:0{len(first)}}'
            for first, last in re.findall('([0-9]+)-?([0-9]*)', part)
            for number in itertools.islice(range(int(first), int(last or first) + 1), _MAX_SIZE)]


def _checked(address, source):
    try:
        return connection.split_address(address)
    except ValueError as error:
        raise app.UsageError(f'{source}: {error}') from error


def _number(variable, low, high):
    """The integer in an environment variable, from `low` to `high`."""
    text = os.environ.get(variable, '')
    if not re.fullmatch('[0-9]{1,7}', text) or not low <= int(text) <= high:
        found = small_files.shown(text) if variable in os.environ else 'not set'
        raise app.UsageError(f'{variable} is {found} in the environment; expected a number from '
                             f'{low} to {high}')
    return int(text)


def _hosts_in(hostfile):
    """The hosts, a tuple, of lines like `node1 slots=4`, `user@node1` or `node1:4`."""
    with open(hostfile, encoding='utf-8', errors='replace') as stream:
        lines = [line.split('#')[0].split() for line in stream]
    hosts = tuple(words[0].split('@')[-1].split(':')[0] for words in lines if words)
    if not hosts:
        raise app.UsageError(f'--hostfile={hostfile} names no host')
    return hosts
