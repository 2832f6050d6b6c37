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
import itertools
import os
import re
import zlib

from absl import app
from absl import flags

from program import errors
from program import paths
from program import small_files

# The secret of a job, as an alternative to --secret_file. An environment variable and a file, since
# all users of a machine can read a command line.
SECRET_VARIABLE = 'CIFAR10_JOB_SECRET'
_SHORTEST_SECRET, _LONGEST_SECRET = 16, 4096  # Characters.

flags.DEFINE_list('worker_hosts', [], 'HOST:PORT of every worker, as the others reach it.')
flags.DEFINE_integer('task_index', None, 'Which of --worker_hosts this is, from 0.', lower_bound=0,
                     upper_bound=10**6)
flags.DEFINE_integer('num_workers', None, 'Start so many workers on this machine.', lower_bound=1,
                     upper_bound=256)
flags.DEFINE_string('coordinator', None, 'HOST:PORT where worker 0 awaits the others, with mpirun '
                    "and srun. By default on the job's first host.")
paths.define('hostfile', None, 'The file that mpirun got as --hostfile: worker 0 is on its first '
             'host.')


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """How long workers wait for one another, in seconds; the defaults of the flags.

    Attributes:
        start: until all workers have come.
        step: until a worker that fails, freezes or cannot be reached ends all of them.
        stage: until all have come to the same point outside of steps, once the first one has.
    """
    start: float = 60.0
    step: float = 60.0
    stage: float = 7200.0


flags.DEFINE_float('start_timeout', Timeouts.start, 'Seconds in which all workers must have come.',
                   lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('step_timeout', Timeouts.step, 'Seconds in which a worker that fails, freezes '
                   'or cannot be reached ends all of them. A step, and what worker 0 saves after '
                   'it, must take less.', lower_bound=1.0, upper_bound=1e6)
flags.DEFINE_float('stage_timeout', Timeouts.stage, 'Seconds in which all workers must follow the '
                   'first to the same point outside of steps: the data, the graph, a validation. '
                   'A download and a validation must take less.', lower_bound=1.0, upper_bound=1e7)
paths.define('secret_file', None, 'File with the secret of the job, the same for all '
             f'workers, at least {_SHORTEST_SECRET} characters; or set {SECRET_VARIABLE}.')

FLAGS = flags.FLAGS

# Tells a worker that `workers/launch.py` started who it is. An environment variable, since all
# users of a machine can read a command line, and this holds the token of the job.
VARIABLE = 'CIFAR10_WORKER'

_TOLD = {'rank': int, 'size': int, 'meeting': str, 'job': str, 'parent': int}
_UNSET = 'Only --num_workers sets it, for the workers that it starts: unset it'

_MAX_SIZE = 10**6  # Workers; far more than anybody has.

_HOST = '[A-Za-z0-9._-]+'

# Ports for meetings that nobody chose: above those of services, below those that Linux gives to
# outgoing connections.
_FIRST_PORT, _PORTS = 20000, 10000

# What Open MPI 5 and 4 call a job, the same for all of its workers, and older ones the same or
# mpirun's own address.
_OPEN_MPI_JOBS = ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid', 'OMPI_MCA_orte_hnp_uri')


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
        timeouts: a `Timeouts`.
        nodes: tuple of the hosts that workers run on, where it is not known which runs on which; ()
            where they are not known either.
        secret: str, known to all workers of the job and to nobody else; '' if there isn't one.
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

    def hosts_of(self, rank):
        """Tuple of the hosts that a worker may be on; () where they are not known."""
        hosts = self.hosts[rank:rank + 1] if 0 <= rank < len(self.hosts) else self.hosts
        return tuple(split_address(host)[0] for host in hosts) or self.nodes


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
        OSError: `--hostfile` or `--secret_file` cannot be read.
    """
    me = _who()
    return dataclasses.replace(
        me, secret=_secret() if me.size > 1 else '',
        timeouts=Timeouts(FLAGS.start_timeout, FLAGS.step_timeout, FLAGS.stage_timeout))


def _secret():
    """What `--secret_file` or the environment gives; '' if neither does.

    Raises:
        app.UsageError: both do, or it is too short: who listens to two workers could guess it.
        OSError: the file cannot be read.
    """
    if FLAGS.secret_file is None and SECRET_VARIABLE not in os.environ:
        return ''
    if FLAGS.secret_file is None:
        source, secret = SECRET_VARIABLE, os.environ[SECRET_VARIABLE].strip()
    elif SECRET_VARIABLE in os.environ:
        raise app.UsageError(f'--secret_file and {SECRET_VARIABLE} both give a secret: leave one '
                             'out')
    else:
        source = f'--secret_file={FLAGS.secret_file}'
        with open(FLAGS.secret_file, encoding='utf-8', errors='surrogateescape') as stream:
            secret = stream.read(_LONGEST_SECRET).strip()
    if len(secret) < _SHORTEST_SECRET:
        raise app.UsageError(f'{source} gives a secret of {len(secret)} characters, which is too '
                             f'short: use at least {_SHORTEST_SECRET}, as from `openssl rand -hex '
                             '16`')
    return secret


def _who():
    """The `Cluster`, as what started this worker describes it."""
    if VARIABLE in os.environ:
        told = from_launcher()
        return Cluster(told['rank'], told['size'], told['rank'], told['meeting'], job=told['job'])
    launcher = _launcher()
    readers = {'--worker_hosts': _by_hand, 'mpirun': _open_mpi, 'TF_CONFIG': _tf_config,
               'srun': _slurm}
    return readers.get(launcher, Cluster)()


def from_launcher():
    """What `workers/launch.py` told this worker: a dictionary with the keys of `_TOLD`.

    Raises:
        app.UsageError: the variable holds something else, perhaps copied from elsewhere.
    """
    try:
        told = small_files.parse_json(os.environ[VARIABLE], VARIABLE)
    except errors.DataError as error:
        raise app.UsageError(f'{error}. {_UNSET}') from error
    wrong = sorted(key for key, kind in _TOLD.items() if type(told.get(key)) is not kind)
    if wrong:  # Without the values: one of them is secret.
        raise app.UsageError(f'{VARIABLE} lacks a valid {", ".join(wrong)}. {_UNSET}')
    if not 0 <= told['rank'] < told['size'] <= _MAX_SIZE:
        raise app.UsageError(f'{VARIABLE} says worker {told["rank"]} of {told["size"]}. {_UNSET}')
    _checked(told['meeting'], VARIABLE)
    return told


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
    return 'cluster' in _read_tf_config()


def _read_tf_config():
    """The JSON object in TF_CONFIG, empty where it is not set.

    Raises:
        app.UsageError: it holds something else.
    """
    text = os.environ.get('TF_CONFIG', '').strip()
    try:
        return small_files.parse_json(text, 'TF_CONFIG') if text else {}
    except errors.DataError as error:
        raise app.UsageError(f'{error}') from error


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
    found = _read_tf_config()
    cluster, task = found['cluster'], found.get('task')
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise app.UsageError(
            f'TF_CONFIG has cluster {small_files.shown(cluster)} and task '
            f'{small_files.shown(task)}, expected objects such as '
            '{"worker": ["HOST:PORT", ...]} and {"type": "worker", "index": 0}')
    name, index = task.get('type'), task.get('index')
    jobs = [job for job in ('chief', 'master', 'worker') if job in cluster]
    if set(cluster) - {*jobs, 'evaluator'} or name not in jobs:
        raise app.UsageError(
            f'TF_CONFIG makes this task {small_files.shown(index)} of {small_files.shown(name)} '
            f'among {small_files.shown(sorted(cluster))}: here all are workers, one of them '
            'perhaps chief')
    hosts = {job: _tasks(job, cluster[job]) for job in jobs}
    number = str(index) if isinstance(index, (int, str)) else ''
    if not re.fullmatch('[0-9]{1,7}', number) or int(number) >= len(hosts[name]):
        raise app.UsageError(f'TF_CONFIG has {len(hosts[name])} of "{name}": there is no '
                             f'task {small_files.shown(index)}')
    rank = sum(len(hosts[job]) for job in jobs[:jobs.index(name)]) + int(number)
    return _of_hosts([host for job in jobs for host in hosts[job]], rank, 'TF_CONFIG')


def _tasks(job, tasks):
    """The addresses of a job's tasks in TF_CONFIG, from their list or an object by number.

    Raises:
        app.UsageError: it is neither, or does not give all of them: TensorFlow then calls a cluster
            sparse, but workers need the address of each.
    """
    if isinstance(tasks, dict):
        missing = [str(index) for index in range(len(tasks)) if str(index) not in tasks]
        tasks = None if missing else [tasks[str(index)] for index in range(len(tasks))]
    if not tasks or not isinstance(tasks, list) or not all(isinstance(host, str) for host in tasks):
        raise app.UsageError(f'TF_CONFIG does not list all tasks of "{job}", expected the '
                             'HOST:PORT of each, from task 0 on')
    return tasks


def _open_mpi():
    """Open MPI tells rank and size, but neither the hosts nor the hostfile."""
    size = _number('OMPI_COMM_WORLD_SIZE', 1, _MAX_SIZE)
    if size == 1:
        return Cluster()
    rank = _number('OMPI_COMM_WORLD_RANK', 0, size - 1)
    local_size = _number('OMPI_COMM_WORLD_LOCAL_SIZE', 1, size)
    local_rank = _number('OMPI_COMM_WORLD_LOCAL_RANK', 0, local_size - 1)
    job = next(filter(None, map(os.environ.get, _OPEN_MPI_JOBS)), '')
    if not job and not (FLAGS.coordinator and _secret()):
        raise app.UsageError(
            f'{", ".join(_OPEN_MPI_JOBS)} are not set, and without them two jobs of mpirun could '
            'meet: give --coordinator=HOST:PORT, and the same --secret_file or '
            f'{SECRET_VARIABLE} to all workers')
    listed = _hosts_in(FLAGS.hostfile) if FLAGS.hostfile else ()
    nodes = ('127.0.0.1',) if local_size == size else listed
    if FLAGS.coordinator:
        _checked(FLAGS.coordinator, '--coordinator')
        meeting = FLAGS.coordinator
    elif FLAGS.hostfile:
        meeting = f'{listed[0]}:{_port(job)}'
        _checked(meeting, f'--hostfile={FLAGS.hostfile}')
    elif local_size == size:
        meeting = f'127.0.0.1:{_port(job)}'
    else:
        raise app.UsageError(
            f'{local_size} of {size} workers are on this machine, and mpirun does not say where '
            'worker 0 is: give --hostfile to the script as well, or --coordinator=HOST:PORT')
    return Cluster(rank, size, local_rank, meeting, job=job, nodes=nodes)


def _slurm():
    """Task 0 is on the first host of the step's list, however tasks are distributed."""
    size = _number('SLURM_STEP_NUM_TASKS', 1, _MAX_SIZE)
    rank = _number('SLURM_PROCID', 0, size - 1)
    local_rank = _number('SLURM_LOCALID', 0, size - 1)
    job = f'slurm-{os.environ.get("SLURM_JOB_ID")}.{os.environ.get("SLURM_STEP_ID")}'
    nodes = _hosts_of_list(os.environ.get('SLURM_STEP_NODELIST', ''))
    if FLAGS.coordinator:
        _checked(FLAGS.coordinator, '--coordinator')
    elif not nodes:
        raise app.UsageError('SLURM_STEP_NODELIST names no host: give --coordinator=HOST:PORT')
    meeting = FLAGS.coordinator or f'{nodes[0]}:{_port(job)}'
    return Cluster(rank, size, local_rank, meeting, job=job, nodes=nodes)


def _hosts_of_list(text):
    """The hosts, a tuple, of a list like `n[2,10-11],login1`, which Slurm never sorts; () if it is
    not such a list.

    TensorFlow's `expand_hostlist` would make all of `n[1-999999999999]`; here are the first ones.
    """
    item = r'(?:[^,\[\]]|\[[^\[\]]*\])+'
    if not re.fullmatch(f'{item}(?:,{item})*', text):
        return ()
    try:
        hosts = tuple(itertools.islice(itertools.chain.from_iterable(
            map(''.join, itertools.product(*map(_numbered, re.split(r'(\[.*?\])', each))))
            for each in re.findall(item, text)), _MAX_SIZE))
    except ValueError:
        return ()
    return hosts if all(re.fullmatch(_HOST, host) for host in hosts) else ()


def _numbered(part):
    """What a part of a host's name stands for: '[2,10-11]' -> ['2', '10', '11'], 'n' -> ['n'].

    Raises:
        ValueError: there is something else in the brackets.
    """
    if not part.startswith('['):
        return [part]
    ranges = [each.partition('-')[::2] for each in part[1:-1].split(',')]
    return [f'{number:0{len(first)}}' for first, last in ranges for number in itertools.islice(
        range(int(first), int(last or first) + 1), _MAX_SIZE)]


def _checked(address, source):
    try:
        return split_address(address)
    except ValueError as error:
        raise app.UsageError(f'{source}: {error}') from error


def _number(variable, low, high):
    """The whole number in an environment variable, from `low` to `high`.

    Raises:
        app.UsageError: it holds something else.
    """
    text = os.environ.get(variable, '')
    if not re.fullmatch('[0-9]{1,7}', text) or not low <= int(text) <= high:
        found = small_files.shown(text) if variable in os.environ else 'not set'
        raise app.UsageError(f'{variable} is {found} in the environment, expected a number from '
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


def _port(job):
    """A port that all workers of a job get to by themselves, and another job hardly."""
    return _FIRST_PORT + zlib.crc32(os.fsencode(job)) % _PORTS


def split_address(address):
    """Splits 'host:port'.

    Returns:
        host: str.
        port: int, 1 to 65535.

    Raises:
        ValueError: it is no such address. IPv6 is not served: TensorFlow's addresses know no
            brackets.
    """
    match = re.fullmatch(rf'({_HOST}):([0-9]{{1,5}})', address)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(f'{small_files.shown(address)} is not HOST:PORT')
    return match.group(1), int(match.group(2))
