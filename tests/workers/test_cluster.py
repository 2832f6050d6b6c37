import json

import pytest
from absl import app

from cifar10_lib.program import errors
from cifar10_lib.workers import cluster, ports

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


def resolve(monkeypatch, environment, **options):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return cluster.resolve(**options)


@pytest.mark.parametrize('environment, options, rank, size, local_rank, address, hosts', [
    ({}, {}, 0, 1, 0, '', None),
    ({'TF_CONFIG': '{"environment": "cloud"}'}, {}, 0, 1, 0, '', None),
    ({}, {'num_workers': 3}, 0, 1, 0, '', None),  # The process that starts them.
    ({cluster.VARIABLE: '2 3 5 77'}, {'num_workers': 3}, 2, 3, 2, '127.0.0.1:5', None),
    ({}, {'worker_hosts': ['a:1', 'b:2', 'a:3'], 'task_index': 2}, 2, 3, 1, 'a:1',
     ('a:1', 'b:2', 'a:3')),
    (tf_config('worker', 1, worker=['a:1', 'b:2']), {}, 1, 2, 0, 'a:1', ('a:1', 'b:2')),
    (tf_config('worker', 1, worker=['a:1', 'b:2'], chief=['c:3']), {}, 2, 3, 0, 'c:3',
     ('c:3', 'a:1', 'b:2')),
    (tf_config('chief', 0, worker=['a:1'], chief=['c:3'], evaluator=['e:4']), {}, 0, 2, 0, 'c:3',
     ('c:3', 'a:1')),
    (MPI, {}, 1, 4, 1, '127.0.0.1', None),
    (MPI_SPREAD, {'coordinator': 'node1:2222'}, 1, 4, 1, 'node1:2222', None),
    ({**MPI, 'OMPI_COMM_WORLD_SIZE': '1'}, {'coordinator': 'a:1'}, 0, 1, 0, '', None),
    (SLURM, {}, 2, 3, 0, 'n2', None),
    ({'SLURM_NTASKS': '3', 'SLURM_PROCID': '0'}, {}, 0, 1, 0, '', None),  # A batch script.
    ({**SLURM, **MPI}, {}, 1, 4, 1, '127.0.0.1', None),  # mpirun in a Slurm job.
    (TORCH, {}, 2, 4, 1, 'node1', None),
    ({name: value for name, value in TORCH.items() if name != 'LOCAL_RANK'}, {}, 2, 4, 0, 'node1',
     None),  # PyTorchJob: one process per pod.
    ({**SLURM, **TORCH}, {}, 2, 4, 1, 'node1', None),  # srun starts one torchrun per machine.
    ({**SLURM, 'WORLD_SIZE': '3', 'MASTER_ADDR': 'n2', 'MASTER_PORT': '5'}, {}, 2, 3, 0, 'n2',
     None),
    (PMI, {'coordinator': 'a:1'}, 3, 4, 1, 'a:1', None),
    ({**SLURM, **PMI}, {'coordinator': 'a:1'}, 3, 4, 1, 'a:1', None),  # Intel's mpirun in a job.
    ({**SLURM, 'PMI_RANK': '2', 'PMI_SIZE': '3'}, {}, 2, 3, 0, 'n2', None),  # srun sets these.
    ({**SLURM, 'MPI_LOCALRANKID': '0'}, {}, 2, 3, 0, 'n2', None)])
def test_rank_size_and_addresses(
        monkeypatch, environment, options, rank, size, local_rank, address, hosts):
    found = resolve(monkeypatch, environment, **options)
    assert (found.rank, found.size, found.local_rank) == (rank, size, local_rank)
    assert found.hosts == (hosts or ('',) * size)
    if address and ':' not in address:  # The job determines the port.
        host, port = ports.split_address(found.address)
        assert host == address
        assert 20000 <= port < 30000
    else:
        assert found.address == address


def test_an_environment_of_one_process_may_train_alone(monkeypatch):
    for name, value in {**tf_config('worker', 0, worker=['a:1']), 'WORLD_SIZE': '1'}.items():
        monkeypatch.setenv(name, value)
    cluster.refuse_several()


def test_the_port_is_the_same_within_a_job_and_different_for_the_next(monkeypatch):
    first = resolve(monkeypatch, MPI)
    same = resolve(monkeypatch, {**MPI, 'OMPI_COMM_WORLD_RANK': '3'})
    other = resolve(monkeypatch, {**MPI, 'PMIX_NAMESPACE': 'prterun-a-2@1'})
    assert (first.address, first.job) == (same.address, same.job)
    assert first.address != other.address
    assert first.job != other.job


def test_torchrun_gives_each_job_a_port_of_its_own(monkeypatch):
    """Not MASTER_PORT, where the store of torchrun listens."""
    addresses = {resolve(monkeypatch, {**TORCH, **change}).address for change in (
        {}, {'RANK': '0', 'LOCAL_RANK': '0'}, {'MASTER_PORT': '29501'},
        {'TORCHELASTIC_RUN_ID': 'another'})}
    assert len(addresses) == 3
    assert not {'node1:29500', 'node1:29501'} & addresses


NO_JOB = {name: value for name, value in MPI.items() if name != 'PMIX_NAMESPACE'}


@pytest.mark.parametrize('environment, options, words', [
    ({}, {'worker_hosts': ['a:1', 'b:2']}, '--task_index is an index into --worker_hosts: give bo'),
    ({}, {'task_index': 0}, '--task_index is an index into --worker_hosts: give both'),
    ({}, {'worker_hosts': ['a:1', 'b:2'], 'task_index': 2},
     'worker 2 is not in --worker_hosts, which lists 2 workers, 0 to 1'),
    ({}, {'worker_hosts': ['a:1', 'b'], 'task_index': 0}, '--worker_hosts: "b" is not HOST:PORT'),
    ({}, {'worker_hosts': ['a:1', 'b:2', 'a:1'], 'task_index': 1},
     '--worker_hosts lists a:1 more than once: give each worker a port of its own'),
    (tf_config('worker', 0, worker=['a:1'], chief=['a:1']), {},
     'TF_CONFIG lists a:1 more than once'),
    ({}, {'worker_hosts': ['a:1', '0.0.0.0:2'], 'task_index': 0},
     '--worker_hosts: 0.0.0.0:2 is not the address of one machine: give the one by which the oth'),
    ({**TORCH, 'MASTER_ADDR': '0.0.0.0'}, {}, 'environment: 0.0.0.0:.* is not the address of one'),
    ({cluster.VARIABLE: 'me'}, {}, 'CIFAR10_WORKER is "me" in the environment, but only '
     '--num_workers sets it: unset it'),
    ({cluster.VARIABLE: ''}, {}, 'CIFAR10_WORKER is "" in the environment'),
    ({cluster.VARIABLE: '0 2 5 -1'}, {}, 'CIFAR10_WORKER is "0 2 5 -1" in the environment'),
    ({cluster.VARIABLE: '2 2 5 77'}, {}, 'CIFAR10_WORKER is "2 2 5 77" in the environment'),
    ({}, {'coordinator': 'a:1'}, '--coordinator is for workers that torchrun, mpirun, mpiexec or'),
    (MPI, {'worker_hosts': ['a:1'], 'task_index': 0}, '--worker_hosts and mpirun both define'),
    ({}, {'worker_hosts': ['a:1'], 'num_workers': 2},
     '--worker_hosts and --num_workers both define'),
    (MPI_SPREAD, {}, 'mpirun does not provide the address of worker 0 .*--coordinator=HOST:PORT'),
    # Two such jobs on a machine would share a port, and their workers could mix.
    (NO_JOB, {}, 'and the name of the job: give all workers --coordinator'),
    ({**TORCH, 'MASTER_PORT': ''}, {}, 'torchrun does not provide the address .*--coordinator'),
    (PMI, {}, 'mpiexec does not provide the address of worker 0 .*--coordinator=HOST:PORT'),
    ({**SLURM, 'SLURM_STEP_NODELIST': ''}, {}, 'srun does not provide the address of worker 0'),
    ({**TORCH, 'MASTER_ADDR': '::1'}, {},
     """the host in torchrun's environment: "::1:[0-9]*" is not HOST:PORT"""),
    (MPI_SPREAD, {'coordinator': 'node1'}, '--coordinator: "node1" is not HOST:PORT'),
    ({'WORLD_SIZE': '2', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'}, {},
     'WORLD_SIZE=2 in the environment names several processes, but nothing says which'),
    ({**MPI, 'OMPI_COMM_WORLD_RANK': '4'}, {}, 'RANK is "4" in the .*a number from 0 to 3'),
    ({**TORCH, 'WORLD_SIZE': 'x'}, {}, 'WORLD_SIZE is "x" in the environment; expected a number'),
    ({'TF_CONFIG': "{'cluster': {}}"}, {}, 'TF_CONFIG is not JSON'),
    (tf_config('evaluator', 0, worker=['a:1'], evaluator=['b:1']), {}, 'expected only workers'),
    (tf_config('worker', 1, worker=['a:1']), {}, 'expected only workers'),
    (tf_config('worker', 0, worker=['a:1\n']), {}, r'TF_CONFIG: "a:1\\n" is not HOST:PORT')])
def test_flags_and_environments_that_are_invalid_or_contradict_each_other(
        monkeypatch, environment, options, words):
    with pytest.raises((app.UsageError, errors.DataError), match=words):
        resolve(monkeypatch, environment, **options)


@pytest.mark.parametrize('hosts, first', [
    ('a', 'a'), ('a,b', 'a'), ('n[7-9]', 'n7'), ('n[007-9,11],m', 'n007'), ('[3,5]x', '3x'),
    ('r[1-2]n[3-4]-ib', 'r1n3-ib')])
def test_the_first_host_of_slurms_list(monkeypatch, hosts, first):
    found = resolve(monkeypatch, {**SLURM, 'SLURM_STEP_NODELIST': hosts})
    assert ports.split_address(found.address)[0] == first
