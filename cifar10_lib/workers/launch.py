"""Starts the workers of `--num_workers` on this machine, and makes them end together."""
import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from absl import app

from cifar10_lib.program import console, devices, errors
from cifar10_lib.training import worker
from cifar10_lib.workers import cluster, meeting, ports

# Exit codes of a worker that runs, has succeeded, or was stopped by a signal: the others will end
# by themselves, while worker 0 may still be saving.
_ORDERLY = {None, 0, *(128 + number for number in worker.SIGNALS)}

_KILLED_AFTER = 5.0  # Seconds after a failure in which the other workers can end by themselves.
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(work: Callable[[cluster.Cluster], int | None], workers: cluster.Cluster,
        count: int = 1) -> int | None:
    """Runs `work`, or starts processes that do.

    Args:
        work: the function.
        workers: its argument, from `cluster.resolve`.
        count: number of processes to start on this machine; 1 to run `work` in this one.

    Returns the result of `work`, the exit code for all workers, or `meeting.LOST` if another one
    was lost. Raises `app.UsageError` if this process cannot be a worker, or start that many.
    """
    if max(count, workers.size) > 1 and not hasattr(os, 'fork'):
        raise app.UsageError('several workers require Linux or macOS: start one')
    if cluster.VARIABLE in os.environ:
        if sys.platform == 'linux':  # If the launcher is killed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(workers.job):
            raise app.UsageError(
                f'{cluster.VARIABLE} names process {workers.job}, which has ended or is not the '
                'parent of this process. If you set the variable yourself, unset it')
    elif count > 1:
        gpus = devices.visible_gpus()
        if count > gpus > 0:
            raise app.UsageError(f'--num_workers={count}, but each worker needs a GPU of its own, '
                                 f'and this machine has {gpus}: start fewer, or use --device=cpu')
        return start(count)
    try:
        return work(workers)
    except meeting.Lost as error:
        console.end()
        errors.say(errors.one_line(error))
        return meeting.LOST


def start(count: int) -> int:
    """Runs this process's own command in `count` workers, and waits for all of them.

    Worker 0 prints to the console. The standard error of the others is copied to ours, line by
    line with their ranks, and their standard output is dropped. Signals are passed on.

    Returns the smallest exit code that is not 0: a mistake (1) outranks a loss (75), and the code
    of a worker that caught a signal outranks 143, that of the workers it stopped. If a signal
    stopped a worker, or this process caught one, 128 + its number outranks a loss.
    """
    # Worker 0 listens at this port, which is reserved until all have ended.
    with ports.reserve(host='127.0.0.1') as port:
        place = f'{count} {port.getsockname()[1]} {os.getpid()}'
        processes: list[subprocess.Popen[bytes]] = []
        threads: list[threading.Thread] = []
        caught: list[int] = []

        def pass_on(number, _):
            caught.append(number)
            for process in processes:
                process.send_signal(number)

        with worker.signals_handled(pass_on):
            try:
                while len(processes) < count and not caught:
                    processes.append(_start_one(len(processes), place))
                if caught and processes:
                    processes[-1].send_signal(caught[0])  # It may not have been in the list yet.
                for rank, process in enumerate(processes[1:], 1):
                    threads.append(threading.Thread(target=_show, args=(rank, process.stderr)))
                    threads[-1].start()
                code = _wait(processes)
                # Workers may stop with another code, if another worker stopped them first.
                if caught and code in {*_ORDERLY, meeting.LOST}:
                    code = 128 + caught[0]
                return code
            finally:
                _kill(processes)
                for thread in threads:
                    thread.join()


def _start_one(rank, place):
    """Starts a worker in a session of its own, so that it gets Ctrl-C only once, from here."""
    stdin, stdout, stderr = None, None, None  # This process's own.
    if rank:
        stdin, stdout, stderr = subprocess.DEVNULL, subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], stdin=stdin, stdout=stdout, stderr=stderr,
        start_new_session=True, env={**os.environ, cluster.VARIABLE: f'{rank} {place}'})


def _show(rank, stream):
    """Copies lines to standard error with the worker's rank."""
    with stream:
        for line in stream:
            if line.strip():
                text = line.decode(errors='replace').rstrip().expandtabs()
                console.note(f'[worker {rank}] {text}')


def _wait(processes):
    """Waits for all workers; kills those still running some seconds after the first failure.

    Returns their exit code, see `start`.
    """
    failed, deadline = None, math.inf
    while None in [process.poll() for process in processes]:
        if failed is None:
            failed = next((rank for rank, process in enumerate(processes)
                           if process.returncode not in _ORDERLY), None)
            deadline = time.monotonic() + _KILLED_AFTER
        elif time.monotonic() > deadline:
            errors.say(f'worker {failed} ended with exit code {_code(processes[failed])}; killed '
                       'the others, which did not end by themselves')
            _kill(processes)
        time.sleep(0.1)
    codes = {*map(_code, processes)} - {0}
    if codes & _ORDERLY:  # Otherwise a restart loop would start again.
        codes.discard(meeting.LOST)
    return min(codes, default=0)


def _code(process):
    """The exit code as in a shell: 128 + the signal that killed a process, for Python's -signal."""
    if process.returncode < 0:
        return 128 - process.returncode
    return process.returncode


def _kill(processes):
    for process in processes:
        process.kill()  # Has no effect on those that have ended.
        process.wait()
