"""Starts the workers of `--num_workers` on this machine, and makes them end together."""
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from absl import app, flags

from cifar10_lib.program import console, devices, errors
from cifar10_lib.training import resume, signals
from cifar10_lib.training import session  # noqa: F401, defines --restart and --train_dir.
from cifar10_lib.workers import cluster, connection, ports

flags.DEFINE_integer('max_restarts', 0, 'With --num_workers: how many times in a row to start all '
                     'workers again after a loss (one was killed, crashed or froze) without a new '
                     'checkpoint in between.', lower_bound=0, upper_bound=16)

FLAGS = flags.FLAGS

# Exit codes of a regular end: success, or a stop by one of the signals. The other workers then end
# by themselves, while worker 0 may still be saving.
_STOPPED = {128 + number for number in signals.SIGNALS}
_ORDERLY = {0, *_STOPPED}

_KILLED_AFTER = 5.0  # Seconds after a failure in which the other workers can end by themselves.
_POLL = 0.1
_PAUSE = 1.0  # Seconds before the first start after a loss; doubles with each further one.
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(work):
    """Runs `work`, a function of the `cluster.Cluster`; or with `--num_workers`, starts processes
    that do.

    Returns the result of `work`, the exit code for all workers, or `connection.LOST` if another one
    was lost. Raises `app.UsageError` if flags or environment are invalid.
    """
    end_with_parent()
    count = cluster.workers_to_start()
    gpus = devices.visible_gpus()
    if count > gpus > 0:
        raise app.UsageError(f'--num_workers={count}, but each worker needs a GPU of its own, and '
                             f'this machine has {gpus}: start fewer, or use --device=cpu')
    if FLAGS.max_restarts and FLAGS.restart:
        raise app.UsageError('--restart would remove the checkpoints that --max_restarts resumes '
                             'from: leave one out')
    if FLAGS.max_restarts and not count and cluster.VARIABLE not in os.environ:
        raise app.UsageError('--max_restarts requires --num_workers, at least 2: other launchers '
                             'start workers again by themselves')
    if count:
        return _start_until_done(count)
    try:
        return work(cluster.resolve())
    except connection.Lost as error:
        console.end()
        errors.say(errors.one_line(error))
        return connection.LOST


def _start_until_done(count):
    """Starts workers; after a loss again, up to `--max_restarts` times without a new checkpoint."""
    restarts, saved = 0, resume.first_step() if FLAGS.max_restarts else 0
    while True:
        code, stopped = start(count)
        killed = code > 128 and code not in _STOPPED
        if stopped or not FLAGS.max_restarts or not (code == connection.LOST or killed):
            return code
        step = resume.first_step()
        restarts, saved = (0 if step > saved else restarts), step
        if restarts == FLAGS.max_restarts:
            errors.say(f'--max_restarts={restarts} starts in a row saved no new checkpoint')
            return code
        pause = _PAUSE * 2**restarts
        restarts += 1
        errors.say(f'starting all workers again in {pause:g} seconds, from step {step}; start '
                   f'{restarts} of --max_restarts={FLAGS.max_restarts} without a new checkpoint')
        time.sleep(pause)


def start(count):
    """Runs this process's own command in `count` workers, and waits for all of them.

    Worker 0 prints to the console. The standard error of the others is copied to ours, line by
    line with their ranks, and their standard output is dropped. Signals are passed on.

    Returns:
        0, or the exit code of the worker that failed first. If a signal to this process stopped
        them, 128 + the signal's number.
        Whether there was such a signal.
    """
    # Worker 0 listens at this port, which is reserved until all have ended.
    with ports.reserve(host='127.0.0.1') as port:
        place = f'{count} {port.getsockname()[1]} {os.getpid()}'
        processes, threads, caught = [], [], []

        def pass_on(number, _):
            caught.append(number)
            for process in processes:
                process.send_signal(number)

        with signals.handled(pass_on):
            try:
                for rank in range(count):
                    processes.append(_start_one(rank, place))
                    if rank:
                        threads.append(_show(rank, processes[rank].stderr))
                    if caught:  # The signal may have come before this worker was in the list.
                        processes[rank].send_signal(caught[0])
                        break
                code = _wait(processes)
                # Workers may stop with another code, if another worker stopped them first.
                return 128 + caught[0] if caught and code in _STOPPED else code, bool(caught)
            finally:
                _kill(processes)
                for thread in threads:
                    thread.join()


def end_with_parent():
    """Makes Linux kill this process when its parent ends, for whatever reason.

    A worker calls it first. It has no effect in a process that `start` did not start.
    """
    if cluster.VARIABLE not in os.environ:
        return
    *_, parent = cluster.from_launcher()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        errors.say(f'{cluster.VARIABLE} names process {parent}, which has ended or is not the '
                   'parent of this process. If you set the variable yourself, unset it')
        os._exit(1)


def _start_one(rank, place):
    """Starts a worker in a session of its own, so that it gets Ctrl-C only once, from here."""
    others = {} if rank == 0 else {
        'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], start_new_session=True,
        env={**os.environ, cluster.VARIABLE: f'{rank} {place}'}, **others)


def _show(rank, stream):
    """Starts a thread that copies lines to standard error with the worker's rank; returns it."""
    def copy():
        with stream:
            for line in stream:
                if line.strip():
                    text = line.decode(errors='replace').rstrip().expandtabs()
                    console.note(f'[worker {rank}] {text}')
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _wait(processes):
    """Waits for all workers; kills those still running some seconds after the first failure."""
    ended, failure, deadline = {}, None, None  # `ended` is in order of time.
    while True:
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                ended[rank] = process.returncode
        if len(ended) == len(processes):
            return _exit_code(ended.values())
        if failure is None:
            failure = next((f'worker {rank} ended with exit code {_as_in_a_shell(code)}'
                            for rank, code in ended.items() if code not in _ORDERLY), None)
            deadline = time.monotonic() + _KILLED_AFTER
        elif time.monotonic() > deadline:
            errors.say(f'{failure}; killed the others, which did not end by themselves')
            _kill(processes)
        time.sleep(_POLL)


def _exit_code(codes):
    """The exit code for all workers, from theirs in the order in which they ended.

    It is the first that is not 0. But when one worker gets a signal, the others end as if by
    SIGTERM, so the code of another regular stop takes precedence over SIGTERM's.
    """
    failed = [_as_in_a_shell(code) for code in codes if code]
    first = next(iter(failed), 0)
    if first == 128 + signal.SIGTERM:
        return next((code for code in failed if code in _ORDERLY and code != first), first)
    return first


def _as_in_a_shell(code):
    """Converts Python's exit code for a killed process, -signal, to a shell's, 128 + signal."""
    return code if code >= 0 else 128 - code


def _kill(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
