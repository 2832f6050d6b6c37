import json

import pytest
from absl import app
from absl.testing import flagsaver

from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, connection

MPI = {'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_LOCAL_RANK': '1',
       'OMPI_COMM_WORLD_LOCAL_SIZE': '4', 'PMIX_NAMESPACE': 'prterun-a-1@1'}
MPI_SPREAD = {**MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '2'}
SLURM = {'SLURM_PROCID': '2', 'SLURM_STEP_NUM_TASKS': '3', 'SLURM_LOCALID': '0',
         'SLURM_STEP_NODELIST': 'n[2,10-11]', 'SLURM_JOB_ID': '7', 'SLURM_STEP_ID': '0'}
TORCH = {'RANK': '2', 'WORLD_SIZE': '4', 'LOCAL_RANK': '1', 'MASTER_ADDR': 'node1',
         'MASTER_PORT': '29500'}
PMI = {'PMI_RANK': '3', 'PMI_SIZE': '4', 'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '2'}


def tf_config(kind, index, **jobs):
    return {'TF_CONFIG': json.dumps({'cluster': jobs, 'task': {'type': kind, 'index': index}})}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in {**MPI, **SLURM, **TORCH, **PMI, **tf_config('worker', 0), cluster.VARIABLE: '',
                 'OMPI_MCA_ess_base_jobid': '', 'TORCHELASTIC_RUN_ID': ''}:
        monkeypatch.delenv(name, raising=False)


def resolve(monkeypatch, environment, options):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with flagsaver.flagsaver(**options):
        return cluster.resolve()


@pytest.mark.parametrize('environment, options, rank, size, local_rank, meeting, hosts', [
    ({}, {}, 0, 1, 0, None, ()),
    ({'HOROVOD_SIZE': '1', 'WORLD_SIZE': ''}, {}, 0, 1, 0, None, ()),
    ({'TF_CONFIG': '{"environment": "cloud"}'}, {}, 0, 1, 0, None, ()),
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
    ({'SLURM_NTASKS': '3', 'SLURM_PROCID': '0'}, {}, 0, 1, 0, None, ()),  # A batch script.
    ({**SLURM, **MPI}, {}, 1, 4, 1, '127.0.0.1', ()),  # mpirun in a Slurm job.
    ({**MPI, 'OMPI_COMM_WORLD_SIZE': '1'}, {'coordinator': 'a:1'}, 0, 1, 0, None, ()),
    (TORCH, {}, 2, 4, 1, 'node1', ()),
    ({**TORCH, 'WORLD_SIZE': '1', 'RANK': '0'}, {}, 0, 1, 0, None, ()),
    ({name: value for name, value in TORCH.items() if name != 'LOCAL_RANK'}, {}, 2, 4, 0, 'node1',
     ()),  # PyTorchJob: one process per pod.
    ({**SLURM, **TORCH}, {}, 2, 4, 1, 'node1', ()),  # srun starts one torchrun per machine.
    ({**SLURM, 'WORLD_SIZE': '3', 'MASTER_ADDR': 'n2', 'MASTER_PORT': '5'}, {}, 2, 3, 0, 'n2', ()),
    (PMI, {'coordinator': 'a:1'}, 3, 4, 1, 'a:1', ()),
    ({**SLURM, **PMI}, {'coordinator': 'a:1'}, 3, 4, 1, 'a:1', ()),  # Intel's mpirun in a job.
    ({**SLURM, 'PMI_RANK': '2', 'PMI_SIZE': '3'}, {}, 2, 3, 0, 'n2', ())])  # srun sets these, too.
def test_rank_size_and_meeting(
        monkeypatch, environment, options, rank, size, local_rank, meeting, hosts):
    found = resolve(monkeypatch, environment, options)
    assert (found.worker, found.hosts) == (Worker(rank, size, local_rank), hosts)
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


def test_torchrun_gives_each_job_a_port_of_its_own(monkeypatch):
    """Not MASTER_PORT, where the store of torchrun listens."""
    meetings = {resolve(monkeypatch, {**TORCH, **change}, {}).meeting for change in (
        {}, {'RANK': '0', 'LOCAL_RANK': '0'}, {'MASTER_PORT': '29501'},
        {'TORCHELASTIC_RUN_ID': 'another'})}
    assert len(meetings) == 3
    assert not {'node1:29500', 'node1:29501'} & meetings


@pytest.mark.parametrize('environment, options, words', [
    ({}, {'worker_hosts': ['a:1', 'b:2']}, '--worker_hosts requires --task_index'),
    ({}, {'task_index': 0}, '--worker_hosts, which is not given'),
    ({}, {'worker_hosts': ['a:1', 'b:2'], 'task_index': 2},
     'worker 2 is not in --worker_hosts, which lists 2 workers, 0 to 1'),
    ({}, {'worker_hosts': ['a:1', 'a:1'], 'task_index': 0}, '--worker_hosts has a:1 twice'),
    ({}, {'worker_hosts': ['a:1', 'b'], 'task_index': 0}, '--worker_hosts: "b" is not HOST:PORT'),
    ({}, {'worker_hosts': ['a:1', 'b:99999'], 'task_index': 0}, '"b:99999" is not HOST:PORT'),
    ({}, {'coordinator': 'a:1'}, '--coordinator is for workers that torchrun, mpirun, mpiexec or'),
    (MPI, {'worker_hosts': ['a:1'], 'task_index': 0}, '--worker_hosts and mpirun both define'),
    (tf_config('worker', 0, worker=['a:1']), {'num_workers': 2},
     '--num_workers and TF_CONFIG both define'),
    ({}, {'worker_hosts': ['a:1'], 'num_workers': 2},
     '--worker_hosts and --num_workers both define'),
    (MPI_SPREAD, {}, 'mpirun does not provide the address of worker 0 .*--coordinator=HOST:PORT'),
    ({**TORCH, 'MASTER_PORT': ''}, {}, 'torchrun does not provide the address .*--coordinator'),
    ({**TORCH, 'MASTER_ADDR': '::1'}, {},
     """the host in torchrun's environment: "::1:[0-9]*" is not HOST:PORT"""),
    ({'WORLD_SIZE': '2', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'}, {},
     'WORLD_SIZE=2 in the environment names several processes, but nothing says which'),
    ({'PMI_SIZE': '4'}, {}, 'PMI_SIZE=4 in the environment names several'),
    ({'PET_NNODES': '1:3'}, {}, 'PET_NNODES=1:3 in the environment names several .*unset it'),
    (MPI_SPREAD, {'coordinator': 'node1'}, '--coordinator: "node1" is not HOST:PORT'),
    ({**SLURM, 'SLURM_STEP_NODELIST': ''}, {}, 'srun does not provide the address of worker 0'),
    ({'TF_CONFIG': "{'cluster': {}}"}, {}, 'TF_CONFIG is not JSON'),
    (PMI, {}, 'mpiexec does not provide the address of worker 0 .*--coordinator=HOST:PORT'),
    ({**MPI, 'PMI_SIZE': '4'}, {'coordinator': 'a'}, '"a" is not HOST:PORT'),
    (tf_config('evaluator', 0, worker=['a:1'], evaluator=['b:1']), {}, 'expected only workers'),
    (tf_config('worker', 0, worker=['a:1'], ps=['b:1']), {}, 'expected only workers')])
def test_contradictory_flags_and_environments(monkeypatch, environment, options, words):
    with pytest.raises(app.UsageError, match=words):
        resolve(monkeypatch, environment, options)


def _tf_config_of(cluster, task):
    return {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': task})}


FIRST = {'type': 'worker', 'index': 0}


@pytest.mark.parametrize('environment, words', [
    *((_tf_config_of({'worker': tasks}, FIRST), words) for tasks, words in (
        ({'0': 'a:1'}, 'TF_CONFIG: "0" is not HOST:PORT'),
        ('a:1', 'TF_CONFIG: "a" is not HOST:PORT|TF_CONFIG has a twice'),
        (['a:1\n'], r'TF_CONFIG: "a:1\\n" is not HOST:PORT'),
        ([1000 * 'a'], r'TF_CONFIG: "a{79}\.\.\. is not HOST:PORT'),
        *((tasks, 'TF_CONFIG has cluster .* and task .*; expected only workers, one of them')
          for tasks in ([['a:1']], [5], [], None)))),
    (_tf_config_of({'worker': ['a:1'], 'chief': 5}, FIRST), 'TF_CONFIG has cluster '),
    (_tf_config_of(None, FIRST), 'has cluster null and task'),
    (_tf_config_of({}, FIRST), 'has cluster {} and task'),
    *((_tf_config_of({'worker': ['a:1']}, task), f'and task {words}; expected')
      for task, words in (
        (None, 'null'), ([], r'\[\]'), ({'index': 0}, '{.*}'), ({'type': 'worker'}, '{.*}'),
        ({'type': 'worker', 'index': [0]}, '{.*}'), ({'type': 'worker', 'index': -1}, '{.*-1}'),
        ({'type': 'worker', 'index': 1}, '{.*1}'), ({'type': 'worker', 'index': True}, '{.*}'),
        ({'type': 'worker', 'index': 10 ** 40}, '.*'))),
    ({'TF_CONFIG': 200000 // 2 * '['}, 'TF_CONFIG is not JSON: nested too deeply'),
    ({'TF_CONFIG': '"cluster"'}, 'TF_CONFIG holds "cluster"; expected a JSON object'),
    *(({**MPI, f'OMPI_COMM_WORLD_{name}': value}, f'OMPI_COMM_WORLD_{name} is ".*expected a number')
      for name, value in (
          ('RANK', '4'), ('RANK', '-1'), ('RANK', ''), ('RANK', 9000 * '9'), ('SIZE', '0'),
          ('SIZE', '1' + 9 * '0'), ('SIZE', '4.0'), ('LOCAL_RANK', '4'), ('LOCAL_RANK', '1_0'))),
    *(({**environment, name: value}, f'{name} is ".*expected a number')
      for environment, name, value in (
          (TORCH, 'RANK', '4'), (TORCH, 'WORLD_SIZE', 'x'), (TORCH, 'LOCAL_RANK', '9'),
          (PMI, 'PMI_RANK', '4'), (PMI, 'PMI_SIZE', ''), (PMI, 'MPI_LOCALRANKID', '-1'),
          (SLURM, 'SLURM_PROCID', '3'), (SLURM, 'SLURM_STEP_NUM_TASKS', '0'),
          (SLURM, 'SLURM_LOCALID', '\u0663'))),
    *(({**SLURM, 'SLURM_STEP_NODELIST': hosts},
       "srun does not provide the address|the host in srun's environment: .* is not HOST:PORT")
      for hosts in ('n[', 'n[x]', ',', ']', 'n 1', 'n:1', 'n\n', 100000 * '[1')),
    *(({cluster.VARIABLE: value}, f'{cluster.VARIABLE} is ".*unset it') for value in (
        '', '1 2 3', '1 2 3 4 5', '0 2 5 x', 100000 * '1'))
])
def test_an_invalid_environment(monkeypatch, environment, words):
    with pytest.raises(app.UsageError, match=words) as error:
        resolve(monkeypatch, environment, {})
    assert '\n' not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize('hosts, first', [
    ('a', 'a'), ('a,b', 'a'), ('n[7-9]', 'n7'), ('n[007-9,11],m', 'n007'), ('[3,5]x', '3x'),
    ('r[1-2]n[3-4]-ib', 'r1n3-ib'), ('n[1-999999999999]', 'n1')])
def test_the_first_host_of_slurms_list(monkeypatch, hosts, first):
    found = resolve(monkeypatch, {**SLURM, 'SLURM_STEP_NODELIST': hosts}, {})
    assert connection.split_address(found.meeting)[0] == first


def test_a_job_name_that_is_not_utf_8(monkeypatch):
    assert resolve(monkeypatch, {**MPI, 'PMIX_NAMESPACE': 'a\udcff'}, {}).worker.size == 4


NO_JOB = {name: value for name, value in MPI.items() if name != 'PMIX_NAMESPACE'}


def test_mpirun_that_does_not_name_the_job(monkeypatch):
    """Two such jobs on a machine would share a port, and their workers could mix."""
    with pytest.raises(app.UsageError, match='and the name of the job: give all .*--coordinator'):
        resolve(monkeypatch, NO_JOB, {})
    assert resolve(monkeypatch, NO_JOB, {'coordinator': 'a:1'}).meeting == 'a:1'
    jobs = [resolve(monkeypatch, {**NO_JOB, 'OMPI_MCA_ess_base_jobid': job}, {})
            for job in ('17', '18')]
    assert [one.job for one in jobs] == ['17', '18']
    assert jobs[0].meeting != jobs[1].meeting


def test_workers_to_start(monkeypatch):
    assert cluster.workers_to_start() == 0
    with flagsaver.flagsaver(num_workers=1):
        assert cluster.workers_to_start() == 0
        assert cluster.resolve() == cluster.Cluster()
    with flagsaver.flagsaver(num_workers=3):
        assert cluster.workers_to_start() == 3
        monkeypatch.setenv(cluster.VARIABLE, '2 3 5 77')
        assert cluster.workers_to_start() == 0
        assert cluster.resolve() == cluster.Cluster(Worker(2, 3, 2), '127.0.0.1:5', (), '77')
    with flagsaver.flagsaver(num_workers=3, worker_hosts=['a:1']):
        monkeypatch.delenv(cluster.VARIABLE)
        with pytest.raises(app.UsageError, match='both define'):
            cluster.workers_to_start()
