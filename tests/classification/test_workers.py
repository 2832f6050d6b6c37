"""How several workers start, meet and end: by a real mpirun, or TF_CONFIG by hand."""
import json
import os
import signal
import socket
import time

from cifar10_lib import checkpoints, errors
from classification_lib import run, workers

import mpi
import pytest
import spawn
from absl import flags

FLAGS = flags.FLAGS
pytestmark = [pytest.mark.slow, mpi.with_mpi]


def saved_step():
    """The step of the newest checkpoint, which is intact."""
    return checkpoints.step(checkpoints.newest(FLAGS.train_dir))


@pytest.mark.parametrize('to, number, codes', [
    (0, signal.SIGKILL, [137]), (1, signal.SIGKILL, [137]), ('mpirun', signal.SIGINT, [1, 130])])
def test_a_kill_ends_the_job_and_leaves_an_intact_checkpoint(half_bright, to, number, codes):
    """After Ctrl-C, mpirun gives the workers half a second."""
    with mpi.running(2, *mpi.endless()) as job:
        job.await_text('step 5,')
        job.send_signal(to, number)
        job.ended(*codes)
    saved = saved_step()
    assert saved >= 3
    with mpi.running(2, *mpi.endless(f'--max_steps={saved + 2}')) as job:
        out, _ = job.ended(0)
    assert f'Resuming from {FLAGS.train_dir} at step {saved}, until step {saved + 2}.' in out
    assert saved_step() == saved + 2


def test_a_frozen_worker_ends_the_job_after_the_limit_of_a_step(half_bright):
    """The others print a line. Worker 0 is no exception."""
    with mpi.running(3, *mpi.endless('--step_timeout=5')) as job:
        job.await_text('step 5,')
        job.send_signal(0, signal.SIGSTOP)
        _, lines = job.ended(75)
    lines = [each for each in lines if 'stopping after' not in each]  # mpirun wakes worker 0.
    assert 'another worker was lost' in lines[0]
    assert 'run the same command again to resume' in lines[0]
    assert len(lines) <= 2
    assert saved_step() >= 3


@pytest.mark.parametrize('to', ['mpirun', 1])
def test_sigusr1_lets_worker_0_save_and_all_end(half_bright, to):
    """Here, mpirun binds each worker to a core of its own, but they use all."""
    with mpi.running(2, *mpi.endless(), options=['--bind-to', 'core']) as job:
        job.await_text('step 5,')
        assert {len(each.cpu_affinity()) for each in job.workers().values()} == {
            len(os.sched_getaffinity(0))}
        job.send_signal(to, signal.SIGUSR1)
        out, lines = job.ended(128 + signal.SIGUSR1)
    # Worker 0 alone prints.
    assert ['stopping after this step' in line for line in lines] == [True] * (to == 'mpirun')
    assert f'Saved step {saved_step()} in {FLAGS.train_dir}.' in out
    assert out.count(': step 5, ') == 1


def test_a_validation_may_take_longer_than_a_step(half_bright):
    change = '''
if is_worker_1:
    row = row._replace(prepare=small_nets.calling(lambda: time.sleep(12), 1))
'''
    with mpi.running(2, *mpi.words('-n', 'steps', '--max_steps=5', '--step_timeout=5',
                                   change=change)) as job:
        _, lines = job.ended(0)
    assert lines == []
    assert run.read_metrics(FLAGS.train_dir)[-1]['validation_error'] is not None


def test_an_error_of_one_worker_ends_all_with_its_line(half_bright):
    change = '''
if is_worker_1:
    def add(*_):
        raise errors.UserError('worker 1 has failed')
    run.Nothing.add = add
'''
    with mpi.running(3, *mpi.words('-n', 'steps', change=change)) as job:
        _, lines = job.ended(1)
    assert [each for each in lines if 'stopping after' not in each][0] == (
        'classification.py: worker 1 has failed')


def test_an_mpi_that_did_not_start_the_workers_is_refused(half_bright):
    """As if mpirun and mpi4py belonged to two installations of MPI."""
    done = spawn.fork(mpi.words(), OMPI_COMM_WORLD_SIZE='2')
    spawn.expect_one_line(done, "the launcher started 2 processes, but mpi4py's MPI sees 1")


# By TF_CONFIG.

@pytest.fixture
def addresses():
    """Two addresses with ports that are free."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(('127.0.0.1', 0))
        return [f'127.0.0.1:{each.getsockname()[1]}' for each in (one, other)]


def by_tf_config(addresses, rank, words):
    task = [{'type': 'chief', 'index': 0}, {'type': 'worker', 'index': 0}][rank]
    config = {'cluster': {'chief': addresses[:1], 'worker': addresses[1:]}, 'task': task}
    return spawn.start(words, env=spawn.environment(TF_CONFIG=json.dumps(config)))


def five_steps(change='pass'):
    return mpi.words('-n', 'steps', '--max_steps=5', change=change)


def test_tf_config(half_bright, addresses):
    """The second worker is started later, and the first waits for it."""
    first = by_tf_config(addresses, 0, five_steps())
    time.sleep(5)
    second = by_tf_config(addresses, 1, five_steps())
    (code, out, error), other = spawn.all_ended([first, second])
    assert (code, error) == (0, '') and other == (0, '', '')
    assert f'Saved step 5 in {FLAGS.train_dir}.' in out
    error = run.read_metrics(FLAGS.train_dir)[-1]['validation_error']
    assert error * 130 == pytest.approx(round(error * 130))  # Each image once.


def test_tf_config_with_a_worker_that_is_killed(half_bright, addresses):
    first, second = (by_tf_config(addresses, rank, mpi.endless('--step_timeout=5'))
                     for rank in range(2))
    spawn.read_until(first, 'step 5,')
    second.kill()
    _, error = spawn.ended(first, 75)
    assert 'another worker was lost' in error and error.count('\n') == 1
    assert saved_step() >= 3


@pytest.mark.parametrize('lost', [0, 1])
@pytest.mark.parametrize('method', ['lacks_validation', '__exit__'])
def test_tf_config_with_a_worker_that_is_killed_between_two_steps(
        half_bright, addresses, lost, method):
    """Or at the end, while the other waits for it. No step notices it, but that one ends at once.
    """
    killed = f'''
def killed(*_):
    time.sleep(3)
    os.kill(os.getpid(), signal.SIGKILL)
run.Log.{method} = run.Nothing.{method} = killed
'''
    processes = [by_tf_config(addresses, rank, five_steps(killed if rank == lost else 'pass'))
                 for rank in range(2)]
    assert processes[lost].wait(spawn.PATIENCE) == -signal.SIGKILL
    start = time.monotonic()
    _, error = spawn.ended(processes[1 - lost], 75)
    assert time.monotonic() - start < 15
    assert 'another worker was lost' in error


def test_tf_config_with_a_port_in_use(half_bright):
    with socket.create_server(('', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        _, error = spawn.ended(by_tf_config([address, '127.0.0.1:9'], 0, five_steps()), 1)
    assert error.startswith(f'classification.py: TensorFlow cannot listen at {address}: ')
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
