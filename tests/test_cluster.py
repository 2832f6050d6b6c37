import json

import pytest
from absl import app
from absl.testing import flagsaver

from cifar10_lib.workers import cluster
from cifar10_lib.workers import connection

MPI = {'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_LOCAL_RANK': '1',
       'OMPI_COMM_WORLD_LOCAL_SIZE': '4', 'PMIX_NAMESPACE': 'prterun-a-1@1'}
MPI_SPREAD = {**MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '2'}
SLURM = {'SLURM_PROCID': '2', 'SLURM_STEP_NUM_TASKS': '3', 'SLURM_LOCALID': '0',
         'SLURM_STEP_NODELIST': 'n[2,10-11]', 'SLURM_JOB_ID': '7', 'SLURM_STEP_ID': '0'}


def tf_config(kind, index, **jobs):
    return {'TF_CONFIG': json.dumps({'cluster': jobs, 'task': {'type': kind, 'index': index}})}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in {**MPI, **SLURM, **tf_config('worker', 0), cluster.VARIABLE: '',
                 cluster.SECRET_VARIABLE: '', 'OMPI_MCA_ess_base_jobid': ''}:
        monkeypatch.delenv(name, raising=False)


def resolve(monkeypatch, environment, options):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with flagsaver.flagsaver(**options):
        return cluster.resolve()


@pytest.mark.parametrize('environment, options, rank, size, local_rank, meeting, hosts', [
    ({}, {}, 0, 1, 0, None, ()),
    ({}, {'worker_hosts': ['a:1', 'b:2', 'a:3'], 'task_index': 2}, 2, 3, 1, 'a:1',
     ('a:1', 'b:2', 'a:3')),
    (tf_config('worker', 1, worker=['a:1', 'b:2']), {}, 1, 2, 0, 'a:1', ('a:1', 'b:2')),
    (tf_config('worker', 1, worker=['a:1', 'b:2'], chief=['c:3']), {}, 2, 3, 0, 'c:3',
     ('c:3', 'a:1', 'b:2')),
    (tf_config('chief', 0, worker=['a:1'], chief=['c:3'], evaluator=['e:4']), {}, 0, 2, 0, 'c:3',
     ('c:3', 'a:1')),
    (MPI, {}, 1, 4, 1, '127.0.0.1', ()),
    (MPI_SPREAD, {'coordinator': 'node1:2222'}, 1, 4, 1, 'node1:2222', ()),
    (SLURM, {}, 2, 3, 0, 'n2', ()),
    (SLURM, {'coordinator': 'n2:4000'}, 2, 3, 0, 'n2:4000', ()),
    ({**SLURM, 'SLURM_STEP_NUM_TASKS': '1'}, {}, 0, 1, 0, None, ()),
    ({'SLURM_NTASKS': '3', 'SLURM_PROCID': '0'}, {}, 0, 1, 0, None, ()),  # A batch script.
    ({**SLURM, **MPI}, {}, 1, 4, 1, '127.0.0.1', ()),  # mpirun in a Slurm job.
    ({**MPI, 'OMPI_COMM_WORLD_SIZE': '1'}, {'coordinator': 'a:1'}, 0, 1, 0, None, ())])
def test_rank_size_and_meeting(
        monkeypatch, environment, options, rank, size, local_rank, meeting, hosts):
    found = resolve(monkeypatch, environment, options)
    assert (found.rank, found.size, found.local_rank, found.hosts) == (
        rank, size, local_rank, hosts)
    if meeting and ':' not in meeting:  # The job determines the port.
        host, port = connection.split_address(found.meeting)
        assert host == meeting
        assert 20000 <= port < 30000
    else:
        assert found.meeting == meeting


def test_the_port_is_the_same_within_a_job_and_different_for_the_next(monkeypatch):
    first = resolve(monkeypatch, MPI, {})
    same = resolve(monkeypatch, {**MPI, 'OMPI_COMM_WORLD_RANK': '3'}, {})
    other = resolve(monkeypatch, {**MPI, 'PMIX_NAMESPACE': 'prterun-a-2@1'}, {})
    assert (first.meeting, first.job) == (same.meeting, same.job)
    assert first.meeting != other.meeting
    assert first.job != other.job


@pytest.mark.parametrize('text', [
    'node1 slots=2\nnode2\n', '# für zwei\n\n  root@node1:4\nnode2\n', 'node1'])
def test_the_first_host_of_the_hostfile(monkeypatch, tmp_path, text):
    path = tmp_path / 'hosts'
    path.write_text(text, encoding='latin-1')
    found = resolve(monkeypatch, MPI_SPREAD, {'hostfile': str(path)})
    assert found.meeting.startswith('node1:')


@pytest.mark.parametrize('environment, options, words', [
    ({}, {'worker_hosts': ['a:1', 'b:2']}, '--worker_hosts requires --task_index'),
    ({}, {'task_index': 0}, '--worker_hosts, which is not given'),
    ({}, {'worker_hosts': ['a:1', 'b:2'], 'task_index': 2},
     'worker 2 is not in --worker_hosts, which lists 2 workers, 0 to 1'),
    ({}, {'worker_hosts': ['a:1', 'a:1'], 'task_index': 0}, '--worker_hosts has a:1 twice'),
    ({}, {'worker_hosts': ['a:1', 'b'], 'task_index': 0}, '--worker_hosts: "b" is not HOST:PORT'),
    ({}, {'worker_hosts': ['a:1', 'b:99999'], 'task_index': 0}, '"b:99999" is not HOST:PORT'),
    ({}, {'coordinator': 'a:1'}, '--coordinator is for workers that mpirun or srun starts'),
    ({}, {'hostfile': 'x'}, '--hostfile is for workers that mpirun or srun starts'),
    (MPI, {'worker_hosts': ['a:1'], 'task_index': 0}, '--worker_hosts and mpirun both define'),
    (MPI, {'num_workers': 2}, '--num_workers and mpirun both define'),
    (SLURM, {'num_workers': 2}, '--num_workers and srun both define'),
    (tf_config('worker', 0, worker=['a:1']), {'num_workers': 2},
     '--num_workers and TF_CONFIG both define'),
    ({}, {'worker_hosts': ['a:1'], 'num_workers': 2},
     '--worker_hosts and --num_workers both define'),
    (MPI_SPREAD, {}, '2 of 4 workers are on this machine.*--hostfile.*--coordinator'),
    (MPI_SPREAD, {'coordinator': 'node1'}, '--coordinator: "node1" is not HOST:PORT'),
    ({**MPI, 'OMPI_COMM_WORLD_RANK': 'x'}, {}, 'OMPI_COMM_WORLD_RANK is "x"'),
    ({**SLURM, 'SLURM_STEP_NODELIST': ''}, {}, 'SLURM_STEP_NODELIST names no host'),
    ({'TF_CONFIG': '{"environment": "cloud"}'}, {}, None),
    ({'TF_CONFIG': "{'cluster': {}}"}, {}, 'TF_CONFIG is not JSON'),
    ({'TF_CONFIG': '1'}, {}, 'TF_CONFIG holds 1; expected a JSON object'),
    ({'PMI_SIZE': '1'}, {}, None),
    ({'PMI_RANK': '1', 'PMI_SIZE': '4'}, {}, "this mpirun is not Open MPI's"),
    ({**MPI, 'PMI_SIZE': '4'}, {'coordinator': 'a'}, '"a" is not HOST:PORT'),
    ({'TF_CONFIG': '{"cluster": 1}'}, {}, 'has cluster 1 and task null; expected objects'),
    (tf_config('worker', 2, worker=['a:1']), {},
     'task 2 is not in TF_CONFIG, which lists 1 of "worker"'),
    (tf_config('evaluator', 0, worker=['a:1'], evaluator=['b:1']), {}, 'of "evaluator" among'),
    (tf_config('worker', 0, worker=['a:1'], ps=['b:1']), {},
     r'among \["ps", "worker"\]; expected only workers')])
def test_contradictory_flags_and_environments(monkeypatch, environment, options, words):
    if words is None:
        assert resolve(monkeypatch, environment, options) == cluster.Cluster()
        return
    with pytest.raises(app.UsageError, match=words):
        resolve(monkeypatch, environment, options)


def _tf_config_of(cluster, task):
    return {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': task})}


FIRST = {'type': 'worker', 'index': 0}


@pytest.mark.parametrize('environment, words', [
    (_tf_config_of({'worker': {'1': 'h:2222'}}, {'type': 'worker', 'index': 1}),
     'TF_CONFIG does not list all tasks of "worker"'),
    (_tf_config_of({'worker': {'0': 'a:1', '-1': 'b:1'}}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': 'a:1'}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': [['a:1']]}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': [5]}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': []}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': None}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': {'0': {}}}, FIRST), 'does not list all tasks'),
    (_tf_config_of({'worker': ['a:1'], 'chief': 5}, FIRST), 'all tasks of "chief"'),
    (_tf_config_of({'worker': ['a:1\n']}, FIRST), r'TF_CONFIG: "a:1\\n" is not HOST:PORT'),
    (_tf_config_of({'worker': [1000 * 'a']}, FIRST), r'TF_CONFIG: "a{79}\.\.\. is not HOST:PORT'),
    (_tf_config_of(None, FIRST), 'has cluster null and task'),
    (_tf_config_of([], FIRST), 'has cluster '),
    (_tf_config_of({}, FIRST), r'task 0 of "worker" among \[\]'),
    *((_tf_config_of({'worker': ['a:1']}, task), words) for task, words in (
        (None, 'and task null'), ('worker', 'and task "worker"'), ([], 'and task '),
        ({}, 'task null of null'), ({'type': ['worker'], 'index': 0}, r'task 0 of \["worker"\]'),
        ({'type': 'worker'}, 'task null is not in TF_CONFIG'),
        ({'type': 'worker', 'index': [0]}, r'task \[0\] is not in TF_CONFIG'),
        ({'type': 'worker', 'index': -1}, 'task -1 is not in TF_CONFIG'),
        ({'type': 'worker', 'index': 'x'}, 'task "x" is not in TF_CONFIG'),
        ({'type': 'worker', 'index': True}, 'task true is not in TF_CONFIG'),
        ({'type': 'worker', 'index': 10 ** 40}, 'task 1000.* is not in TF_CONFIG'),
        ({'type': 'worker', 'index': float('inf')}, 'task Infinity is not in TF_CONFIG'))),
    ({'TF_CONFIG': 200000 // 2 * '['}, 'TF_CONFIG is not JSON: nested too deeply'),
    ({'TF_CONFIG': '{"cluster":' + 50000 * '[' + 50000 * ']' + '}'}, 'TF_CONFIG '),
    ({'TF_CONFIG': '[]'}, r'TF_CONFIG holds \[\]; expected a JSON object'),
    ({'TF_CONFIG': '"cluster"'}, 'TF_CONFIG holds "cluster"'),
    *(({**MPI, f'OMPI_COMM_WORLD_{name}': value}, f'OMPI_COMM_WORLD_{name} is ".*expected a number')
      for name, value in (
          ('RANK', '4'), ('RANK', '-1'), ('RANK', ''), ('RANK', 9000 * '9'), ('SIZE', '0'),
          ('SIZE', '-4'), ('SIZE', '1' + 9 * '0'), ('SIZE', '4.0'), ('SIZE', ''),
          ('LOCAL_RANK', '4'), ('LOCAL_RANK', '1_0'), ('LOCAL_SIZE', '5'), ('LOCAL_SIZE', '0'))),
    *(({**SLURM, f'SLURM_{name}': value}, f'SLURM_{name} is ".*expected a number')
      for name, value in (
          ('PROCID', '3'), ('PROCID', '-1'), ('STEP_NUM_TASKS', '0'), ('STEP_NUM_TASKS', 'x'),
          ('STEP_NUM_TASKS', 31 * '9'), ('LOCALID', '3'), ('LOCALID', '\u0663'))),
    *(({**SLURM, 'SLURM_STEP_NODELIST': hosts}, 'SLURM_STEP_NODELIST names no host')
      for hosts in ('n[', 'n[]', 'n[x]', ',', '[', ']', 'n[2', 'n 1', 'n:1', 'n\n', 100000 * '[1',
                    'n[' + 100000 * '1')),
    *(({cluster.VARIABLE: value}, f'{cluster.VARIABLE} {words}.*unset it') for value, words in (
        ('1', 'holds 1; expected a JSON object'), ('', 'is not JSON'), ('x', 'is not JSON'),
        (100000 * '[', 'is not JSON: nested'), ('{}', 'lacks a valid job, meeting, parent, rank')))
])
def test_an_invalid_environment(monkeypatch, environment, words):
    with pytest.raises(app.UsageError, match=words) as error:
        resolve(monkeypatch, environment, {})
    assert '\n' not in str(error.value)
    assert len(str(error.value)) < 400


GIVEN = {'rank': 2, 'size': 3, 'meeting': '127.0.0.1:5', 'job': 'secret', 'parent': 1}


@pytest.mark.parametrize('change, words', [
    ({'rank': 3}, 'names worker 3 of 3'), ({'rank': -1}, 'names worker -1 of 3'),
    ({'rank': '2'}, 'lacks a valid rank'), ({'size': 10 ** 30}, 'names worker 2 of 1000'),
    ({'size': True}, 'lacks a valid size'), ({'meeting': None}, 'lacks a valid meeting'),
    ({'meeting': 'here'}, '"here" is not HOST:PORT'), ({'job': []}, 'lacks a valid job'),
    ({'parent': 1.0}, 'lacks a valid parent')])
def test_an_invalid_variable_of_the_launcher(monkeypatch, change, words):
    with pytest.raises(app.UsageError, match=words) as error:
        resolve(monkeypatch, {cluster.VARIABLE: json.dumps({**GIVEN, **change})}, {})
    assert 'secret' not in str(error.value)


@pytest.mark.parametrize('hosts, first', [
    ('a', 'a'), ('a,b', 'a'), ('n[7-9]', 'n7'), ('n[007-9,11],m', 'n007'), ('[3,5]x', '3x'),
    ('r[1-2]n[3-4]-ib', 'r1n3-ib'), ('n[1-999999999999]', 'n1')])
def test_the_first_host_of_slurms_list(monkeypatch, hosts, first):
    found = resolve(monkeypatch, {**SLURM, 'SLURM_STEP_NODELIST': hosts}, {})
    assert connection.split_address(found.meeting)[0] == first


def test_tf_config_may_list_tasks_by_index(monkeypatch):
    found = resolve(monkeypatch, _tf_config_of(
        {'worker': {'1': 'b:2', '0': 'a:1'}}, {'type': 'worker', 'index': '1'}), {})
    assert (found.rank, found.hosts) == (1, ('a:1', 'b:2'))


def test_a_job_name_that_is_not_utf_8(monkeypatch):
    assert resolve(monkeypatch, {**MPI, 'PMIX_NAMESPACE': 'a\udcff'}, {}).size == 4


@pytest.mark.parametrize('text', [':4\n', 'user@\n', '\0\n', '%$\n', '[::1]\n'])
def test_a_hostfile_without_a_host(monkeypatch, tmp_path, text):
    (tmp_path / 'hosts').write_text(text)
    with pytest.raises(app.UsageError, match='--hostfile=.*is not HOST:PORT'):
        resolve(monkeypatch, MPI_SPREAD, {'hostfile': str(tmp_path / 'hosts')})


NO_JOB = {name: value for name, value in MPI.items() if name != 'PMIX_NAMESPACE'}
SECRET = {cluster.SECRET_VARIABLE: '0123456789abcdef'}


def test_mpirun_that_does_not_name_the_job(monkeypatch):
    """Two such jobs on a machine would share a port, and their workers could mix."""
    for environment, options in (
            (NO_JOB, {}), (NO_JOB, {'coordinator': 'a:1'}), ({**NO_JOB, **SECRET}, {})):
        with pytest.raises(app.UsageError, match='PMIX_NAMESPACE.* are not set.*--coordinator=HOST'
                                                 ':PORT, and the same --secret_file or CIFAR10'):
            resolve(monkeypatch, environment, options)
    assert resolve(monkeypatch, {**NO_JOB, **SECRET}, {'coordinator': 'a:1'}).meeting == 'a:1'
    monkeypatch.delenv(cluster.SECRET_VARIABLE)
    jobs = [resolve(monkeypatch, {**NO_JOB, 'OMPI_MCA_ess_base_jobid': job}, {})
            for job in ('17', '18')]
    assert [one.job for one in jobs] == ['17', '18']
    assert jobs[0].meeting != jobs[1].meeting


@pytest.mark.parametrize('environment, options', [
    (MPI, {}), (MPI_SPREAD, {'coordinator': 'a:1'}), (SLURM, {}),
    (tf_config('worker', 0, worker=['a:1', 'b:2']), {}),
    ({}, {'worker_hosts': ['a:1', 'b:2'], 'task_index': 0}),
    ({cluster.VARIABLE: json.dumps({'rank': 2, 'size': 3, 'meeting': 'a:5', 'job': 'x',
                                   'parent': 1})}, {})])
def test_every_launcher_accepts_a_secret(monkeypatch, tmp_path, environment, options):
    assert resolve(monkeypatch, environment, options).secret == ''
    (tmp_path / 'secret').write_text('of the file, 16 characters\n')
    found = resolve(monkeypatch, environment, {**options, 'secret_file': f'{tmp_path}/secret'})
    assert found.secret == 'of the file, 16 characters'
    found = resolve(monkeypatch, {**environment, **SECRET}, options)
    assert found.secret == '0123456789abcdef'
    assert '0123456789abcdef' not in str(found)


@pytest.mark.parametrize('variable, content, words', [
    ('', None, 'CIFAR10_JOB_SECRET gives a secret of 0 characters, .* too short: use at least 16'),
    ('fifteen letters', None, 'CIFAR10_JOB_SECRET gives a secret of 15 characters'),
    (None, b'\n', '--secret_file=.*/secret gives a secret of 0 characters'),
    ('0123456789abcdef', b'0123456789abcdef', 'both give a secret: leave one out')])
def test_an_invalid_secret(monkeypatch, tmp_path, variable, content, words):
    options = {}
    if content is not None:
        (tmp_path / 'secret').write_bytes(content)
        options = {'secret_file': str(tmp_path / 'secret')}
    environment = {} if variable is None else {cluster.SECRET_VARIABLE: variable}
    with pytest.raises(app.UsageError, match=words):
        resolve(monkeypatch, {**MPI, **environment}, options)


@pytest.mark.parametrize('environment, options, hosts', [
    (MPI, {}, {1: ('127.0.0.1',)}), (MPI_SPREAD, {'coordinator': 'a:1'}, {1: ()}),
    (SLURM, {}, {1: ('n2', 'n10', 'n11')}),
    (tf_config('worker', 0, worker=['a:1', 'b:2']), {}, {1: ('b',), 5: ('a', 'b')}),
    ({}, {'worker_hosts': ['a:1', 'b:2'], 'task_index': 0}, {0: ('a',), -1: ('a', 'b')})])
def test_hosts_from_which_a_worker_may_connect(monkeypatch, environment, options, hosts):
    found = resolve(monkeypatch, environment, options)
    assert {rank: found.hosts_of(rank) for rank in hosts} == hosts


def test_workers_of_mpirun_may_connect_from_the_hosts_of_the_hostfile(monkeypatch, tmp_path):
    (tmp_path / 'hosts').write_text('node1 slots=2\n# two\nroot@node2:4\n')
    found = resolve(monkeypatch, MPI_SPREAD, {'hostfile': str(tmp_path / 'hosts')})
    assert found.hosts_of(3) == ('node1', 'node2')


def test_an_empty_hostfile(monkeypatch, tmp_path):
    (tmp_path / 'hosts').write_text('# none\n')
    with pytest.raises(app.UsageError, match='names no host'):
        resolve(monkeypatch, MPI_SPREAD, {'hostfile': str(tmp_path / 'hosts')})


def test_workers_to_start(monkeypatch):
    assert cluster.workers_to_start() == 0
    with flagsaver.flagsaver(num_workers=1):
        assert cluster.workers_to_start() == 0
        assert cluster.resolve() == cluster.Cluster()
    with flagsaver.flagsaver(num_workers=3):
        assert cluster.workers_to_start() == 3
        monkeypatch.setenv(cluster.VARIABLE, json.dumps(
            {'rank': 2, 'size': 3, 'meeting': '127.0.0.1:5', 'job': 'x', 'parent': 1}))
        assert cluster.workers_to_start() == 0
        assert cluster.resolve() == cluster.Cluster(2, 3, 2, '127.0.0.1:5', (), 'x')
    with flagsaver.flagsaver(num_workers=3, worker_hosts=['a:1']):
        monkeypatch.delenv(cluster.VARIABLE)
        with pytest.raises(app.UsageError, match='both define'):
            cluster.workers_to_start()
