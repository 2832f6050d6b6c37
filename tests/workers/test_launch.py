import os
import signal
import time

import pytest
import spawn

from cifar10_lib.workers import cluster

PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import os, pathlib, signal, time
from cifar10_lib.program import quiet
quiet.import_tensorflow()
from cifar10_lib.program import startup
from cifar10_lib.workers import cluster, launch
what, folder, count = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)), int(sys.argv.pop(1))
def main(me):
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    print('out of', me.rank, flush=True)
    os.write(2, f'error of {me.rank}\\n'.encode())  # `print` would write it in four pieces.
    if what == 'done':
        return 0
    if what == 'fail' and me.rank == 1:
        raise OSError('disk full')
    if what == 'count':
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)  # Gets signals that Python's handlers would merge.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        (folder / f'ready {me.rank}').touch()
        caught = b''
        while signal.SIGTERM not in caught:
            caught += os.read(read_end, 10)
            (folder / f'caught {me.rank}').touch()
        print('caught', *caught, flush=True)
        return 130
    try:
        (folder / f'{me.rank}.part').write_text(str(os.getpid()))
        (folder / f'{me.rank}.part').rename(folder / str(me.rank))
        time.sleep(300)
    except SystemExit:
        time.sleep(me.rank == 0)  # Saves.
        print('saved', me.rank, flush=True)
        raise
start_one = launch._start_one
def start_one_and_be_stopped(rank, place):
    process = start_one(rank, place)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return process
if what == 'stopped early':
    launch._start_one = start_one_and_be_stopped
startup.run(lambda: launch.run(main, cluster.resolve(num_workers=count), count))
'''


def start(what, folder, count=3, **options):
    arguments = ['-c', PROGRAM, str(spawn.ROOT), what, str(folder), str(count)]
    return spawn.start(arguments, **options)


def ended(what, folder):
    """Exit code, standard output and the lines of standard error of a run."""
    process = start(what, folder)
    out, error = process.communicate(timeout=spawn.PATIENCE)
    return process.returncode, out, error.splitlines()


def pids(folder, count=3):
    """The process IDs of the workers, once all have started."""
    files = [folder / str(rank) for rank in range(count)]
    wait_for(files)
    return [int(file.read_text()) for file in files]


def wait_for(files):
    deadline = time.monotonic() + spawn.PATIENCE
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_signal_during_the_start_stops_all_and_starts_no_more(tmp_path):
    assert ended('stopped early', tmp_path)[0] == 143
    assert not (tmp_path / '1').exists() and not (tmp_path / '2').exists()


def test_all_run_and_worker_0_gets_the_console(tmp_path):
    code, out, lines = ended('done', tmp_path)
    assert (code, out) == (0, 'out of 0\n')
    assert sorted(lines) == ['[worker 1] error of 1', '[worker 2] error of 2', 'error of 0']


def test_a_worker_that_fails_ends_the_others(tmp_path):
    code, _, lines = ended('fail', tmp_path)
    assert code == 1
    assert '[worker 1] -c: disk full' in lines
    assert ('-c: worker 1 ended with exit code 1; killed the others, which did not end by '
            'themselves' in lines)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_worker_0_may_save(tmp_path, number):
    process = start('sleep', tmp_path)
    numbers = pids(tmp_path)
    process.send_signal(number)
    out, _ = spawn.ended(process, 128 + number)
    assert out == 'out of 0\nsaved 0\n'
    assert not any(spawn.runs(pid) for pid in numbers)


def test_ctrl_c_reaches_each_worker_once(tmp_path):
    """A terminal sends it to the whole process group; a second one would stop the saving. The
    launcher would pass it on before the SIGTERM that follows."""
    process = start('count', tmp_path, count=2, stderr=None, start_new_session=True)
    assert process.stdout.readline() == 'out of 0\n'
    wait_for([tmp_path / f'ready {rank}' for rank in range(2)])
    os.killpg(process.pid, signal.SIGINT)
    wait_for([tmp_path / f'caught {rank}' for rank in range(2)])
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=spawn.PATIENCE)
    assert out == f'caught {signal.SIGINT:d} {signal.SIGTERM:d}\n'
    assert process.returncode == 130


def test_no_orphans_when_the_parent_is_killed(tmp_path):
    process = start('sleep', tmp_path)
    numbers = pids(tmp_path)
    process.kill()
    process.wait()
    deadline = time.monotonic() + spawn.PATIENCE
    while any(spawn.runs(pid) for pid in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_whose_parent_has_already_ended_ends(monkeypatch, tmp_path):
    """Also one whose variable was copied from elsewhere."""
    monkeypatch.setenv(cluster.VARIABLE, '1 2 5 1')
    done = spawn.run_script('cifar10_distributed_train.py', f'--train_dir={tmp_path}/train')
    assert (done.returncode, done.stdout, done.stderr) == (
        1, '', 'cifar10_distributed_train.py: CIFAR10_WORKER names process 1, which has ended or '
        'is not the parent of this process. If you set the variable yourself, unset it\n')
