"""Several workers in processes of their own: real mpirun, or TF_CONFIG by hand."""
import json
import os
import pathlib
import signal
import socket
import time

from cifar10_lib import checkpoints, errors
from classification_lib import workers

import mpi
import numpy as np
import pytest
import spawn

pytestmark = [pytest.mark.slow, mpi.with_mpi]

ENDLESS = {'steps': 10**6, 'pause': 0.1, 'save_steps': 3}


def words(folder, **options):
    return mpi.SMALL_TRAINER, folder, json.dumps(options)


def results(folder, size):
    """What each worker held at the end."""
    return [json.loads((folder / f'worker-{rank}.json').read_text()) for rank in range(size)]


def saved_step(folder):
    """The step of the newest checkpoint, which is intact."""
    return checkpoints.step(checkpoints.newest(str(folder)))


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """What one process holds that takes all twelve points in each step."""
    folder = tmp_path_factory.mktemp('alone')
    done = spawn.fork(words(folder))
    assert done.returncode == 0, done.stderr
    return results(folder, 1)[0]


@pytest.mark.parametrize('size, overlap, options', [
    (2, False, ['--bind-to', 'core']), (3, True, ['--oversubscribe'])])
def test_the_values_are_those_of_one_process_with_all_batches(
        tmp_path, alone, size, overlap, options):
    """And the same bits on all workers, which start with worker 0's values and use all cores."""
    with mpi.running(size, *words(tmp_path, overlap=overlap), options=options) as job:
        out, errors = job.ended(0)
    assert errors == []
    assert out.splitlines() == [  # Worker 0 alone prints.
        *(f'step {step}' for step in range(1, 6)), f'Saved step 5 in {tmp_path}.']
    first, *others = results(tmp_path, size)
    assert others == [first] * (size - 1)
    for name in ('loss', 'w', 'bias/b'):
        np.testing.assert_allclose(first[name], alone[name], atol=1e-6)
    assert first['global_step'] == alone['global_step'] == 5
    assert first['shared'] == [0, '']
    ranks = size * (size + 1) // 2  # Worker r adds r + 1 times [1, 10].
    assert first['sum'] == [ranks, 10 * ranks]
    assert first['moved'] == 0  # Worker 0's.
    assert first['cores'] == len(os.sched_getaffinity(0))
    # No steps are left: all end at once.
    with mpi.running(size, *words(tmp_path)) as job:
        out, _ = job.ended(0)
    assert 'Nothing to do: ' in out
    assert 'step 1' not in out


def test_a_killed_worker_ends_the_job(tmp_path):
    """Worker 0 is killed in test_workers_classification.py."""
    with mpi.running(2, *words(tmp_path, **ENDLESS)) as job:
        job.await_text('step 5')
        job.send_signal(1, signal.SIGKILL)
        job.ended(137)
        assert 'process rank 1 ' in job.error()
    assert saved_step(tmp_path) >= 3


def test_a_frozen_worker_ends_the_job_after_the_limit_of_a_step(tmp_path):
    """The others print a line. Worker 0 is no exception."""
    with mpi.running(3, *words(tmp_path, **ENDLESS, step_timeout=5)) as job:
        job.await_text('step 5')
        job.send_signal(0, signal.SIGSTOP)
        _, errors = job.ended(75)
    errors = [each for each in errors if 'stopping after' not in each]  # mpirun wakes worker 0.
    assert 'another worker was lost' in errors[0]
    assert 'run the same command again to resume' in errors[0]
    assert len(errors) <= 2
    assert saved_step(tmp_path) >= 3


@pytest.mark.parametrize('to', ['mpirun', 1])
def test_sigusr1_lets_worker_0_save_and_all_end(tmp_path, to):
    with mpi.running(2, *words(tmp_path, steps=10**6, pause=0.1)) as job:
        job.await_text('step 5')
        if to == 'mpirun':
            job.process.send_signal(signal.SIGUSR1)
        else:
            job.send_signal(to, signal.SIGUSR1)
        out, errors = job.ended(128 + signal.SIGUSR1)
    # Worker 0 alone prints.
    assert ['stopping after this step' in line for line in errors] == [True] * (to == 'mpirun')
    last = saved_step(tmp_path)
    assert last >= 5
    assert f'Saved step {last} in {tmp_path}.' in out


def test_ctrl_c_ends_the_job_and_leaves_an_intact_checkpoint(tmp_path):
    """mpirun gives the workers half a second."""
    with mpi.running(2, *words(tmp_path, **ENDLESS)) as job:
        job.await_text('step 5')
        start = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        job.ended(1, 128 + signal.SIGINT)
    assert time.monotonic() - start < 60
    assert saved_step(tmp_path) >= 3


def test_a_validation_may_take_longer_than_a_step(tmp_path):
    with mpi.running(2, *words(tmp_path, slow=1, seconds=12, step_timeout=5)) as job:
        _, errors = job.ended(0)
    assert errors == []
    assert results(tmp_path, 2)[0]['sum'] == [3, 30]


@pytest.mark.parametrize('options, line', [
    ({'differs': 1}, 'worker 1 on HOST differs from worker 0: --learning_rate is 0.2, not 0.1. '
     'Start all workers with the same code, data and flags'),
    ({'fails': 1}, 'worker 1 has failed')])
def test_an_error_of_one_worker_ends_all_with_its_line(tmp_path, options, line):
    with mpi.running(3, *words(tmp_path, **options)) as job:
        _, errors = job.ended(1)
    own = [each for each in errors if 'stopping after' not in each]
    assert own[0] == f'small_trainer.py: {line}'.replace('HOST', socket.gethostname())


def test_an_mpi_that_did_not_start_the_workers_is_refused(tmp_path):
    """As if mpirun and mpi4py belonged to two installations of MPI."""
    done = spawn.fork(words(tmp_path), OMPI_COMM_WORLD_SIZE='2')
    assert done.returncode == 1
    assert "the launcher started 2 processes, but mpi4py's MPI sees 1" in done.stderr


def by_tf_config(folder, addresses, rank, **options):
    config = {'cluster': {'chief': addresses[:1], 'worker': addresses[1:]},
              'task': {'type': 'chief', 'index': 0}}
    if rank:
        config['task'] = {'type': 'worker', 'index': rank - 1}
    return spawn.start(
        words(folder, **options), env=spawn.environment(TF_CONFIG=json.dumps(config)))


@pytest.fixture
def addresses():
    """Two addresses with ports that are free."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(('127.0.0.1', 0))
        return [f'127.0.0.1:{each.getsockname()[1]}' for each in (one, other)]


def test_tf_config(tmp_path, alone, addresses):
    """The second worker is started later, and the first waits for it. A value may be large."""
    text = ''.join(map(str, range(20000)))  # 100 kB.
    first = by_tf_config(tmp_path, addresses, 0, shared=text, repeat=15)
    time.sleep(5)
    second = by_tf_config(tmp_path, addresses, 1)
    (code, out, error), (other_code, other_out, other_error) = spawn.all_ended([first, second])
    assert (code, other_code, error, other_error, other_out) == (0, 0, '', '', '')
    assert 'Saved step 5' in out
    own, other = results(tmp_path, 2)
    assert own == other
    assert own['shared'] == [0, 15 * text]
    np.testing.assert_allclose(own['w'], alone['w'], atol=1e-6)
    assert own['sum'] == [3, 30]


def test_tf_config_with_a_worker_that_is_killed(tmp_path, addresses):
    first, second = (by_tf_config(tmp_path, addresses, rank, **ENDLESS, step_timeout=5)
                     for rank in range(2))
    spawn.read_until(first, 'step 5')
    second.kill()
    _, error = spawn.ended(first, 75)
    assert 'another worker was lost' in error
    assert error.count('\n') == 1
    assert saved_step(tmp_path) >= 3


@pytest.mark.parametrize('options', [
    {'lost': 0, 'slow': 0, 'seconds': 3}, {'lost': 1, 'slow': 1, 'seconds': 3}, {'killed': 0},
    {'killed': 1}])
def test_tf_config_with_a_worker_that_is_killed_between_two_steps(tmp_path, addresses, options):
    """Before the sum of a validation, or at the end, while others wait for worker 0 to save. No
    step notices it, but the other ends within seconds."""
    processes = [by_tf_config(tmp_path, addresses, rank, **options) for rank in range(2)]
    lost = options.get('lost', options.get('killed'))
    assert processes[lost].wait(spawn.PATIENCE) == -signal.SIGKILL
    start = time.monotonic()
    _, error = spawn.ended(processes[1 - lost], 75)
    assert time.monotonic() - start < 15
    assert 'another worker was lost' in error


def test_tf_config_with_a_port_in_use(tmp_path):
    with socket.create_server(('', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        process = by_tf_config(tmp_path, [address, '127.0.0.1:9'], 0)
        _, error = spawn.ended(process, 1)
    assert error.startswith(f'small_trainer.py: TensorFlow cannot listen at {address}: ')
    assert error.endswith(' (is it in use?)\n')


@pytest.mark.parametrize('text', [
    'worker', '{"cluster": {"worker": ["a:1", "b:1"]}}',
    '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}'])
def test_invalid_tf_configs(monkeypatch, text):
    monkeypatch.setenv('TF_CONFIG', text)
    with pytest.raises(errors.UserError, match='TF_CONFIG is .*; expected {"cluster":'), \
            workers.joined(60):
        pass


def test_tf_config_of_one_task_is_a_process_alone(monkeypatch):
    monkeypatch.setenv('TF_CONFIG', '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", '
                       '"index": 0}}')
    with workers.joined(60) as worker:
        assert (worker.rank, worker.size, worker.is_chief) == (0, 1, True)


@pytest.mark.parametrize('net, rate', [('resnet23', '1e-4'), ('airbench94', '1e-2')])
def test_batch_norm_over_all_workers(tmp_path, net, rate):
    """With it, two workers make the steps of one with both batches: losses, weights and moving
    statistics, up to rounding. Without it, they do not."""
    program = pathlib.Path(__file__).with_name('whole_batch.py')
    done = spawn.fork([program, tmp_path / 'one.npz', net, rate, '0'])
    assert done.returncode == 0, done.stderr
    for sync in '10':
        with mpi.running(2, program, tmp_path / f'two{sync}.npz', net, rate, sync) as job:
            job.ended(0)
    one, *others = (np.load(tmp_path / f'{name}.npz') for name in ('one', 'two1', 'two0'))
    norms = {name: np.linalg.norm(one[name]) for name in one}
    # Biases that were 0 have moved by less than the rounding of the sums that move them.
    with_sync, without = (max(np.linalg.norm(other[name] - one[name]) / norm
                              for name, norm in norms.items() if norm > 0.01) for other in others)
    assert with_sync < 5e-4 and 10 * with_sync < without
