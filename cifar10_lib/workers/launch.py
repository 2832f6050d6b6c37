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
from cifar10_lib.training import signals
from cifar10_lib.workers import cluster, meeting, ports

FLAGS = flags.FLAGS

# Exit codes of a regular end: success, or a stop by one of the signals. The other workers then end
# by themselves, while worker 0 may still be saving.
_STOPPED = {128 + number for number in signals.SIGNALS}

_KILLED_AFTER = 5.0  # Seconds after a failure in which the other workers can end by themselves.
_POLL = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(work):
    """Runs `work`, a function of the `cluster.Cluster`; or with `--num_workers`, starts processes
    that do.

    Returns the result of `work`, the exit code for all workers, or `meeting.LOST` if another one
    was lost. Raises `app.UsageError` if flags or environment are invalid.
    """
    if cluster.VARIABLE in os.environ:
        _end_with_parent()
    count = cluster.workers_to_start()
    gpus = devices.visible_gpus()
    if count > gpus > 0:
        raise app.UsageError(f'--num_workers={count}, but each worker needs a GPU of its own, and '
                             f'this machine has {gpus}: start fewer, or use --device=cpu')
    if count:
        return start(count)
    try:
        return work(cluster.resolve())
    except meeting.Lost as error:
        console.end()
        errors.say(errors.one_line(error))
        return meeting.LOST


def start(count):
    """Runs this process's own command in `count` workers, and waits for all of them.

    Worker 0 prints to the console. The standard error of the others is copied to ours, line by
    line with their ranks, and their standard output is dropped. Signals are passed on.

    Returns 0, or the exit code of the worker that failed first; 128 + the number of a signal to
    this process that stopped them.
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
                while len(processes) < count and not caught:
                    processes.append(_start_one(len(processes), place))
                for process in processes[-1:] if caught else []:
                    process.send_signal(caught[0])  # It may have come before this was in the list.
                for rank, process in enumerate(processes[1:], 1):
                    threads.append(threading.Thread(target=_show, args=(rank, process.stderr)))
                    threads[-1].start()
                code = _wait(processes)
                # Workers may stop with another code, if another worker stopped them first.
                return 128 + caught[0] if caught and code in _STOPPED else code
            finally:
                _kill(processes)
                for thread in threads:
                    thread.join()


def _end_with_parent():
    """Makes Linux kill this worker when its launcher ends, for whatever reason."""
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
    """Copies lines to standard error with the worker's rank."""
    with stream:
        for line in stream:
            if line.strip():
                text = line.decode(errors='replace').rstrip().expandtabs()
                console.note(f'[worker {rank}] {text}')


def _wait(processes):
    """Waits for all workers; kills those still running some seconds after the first failure.

    Returns the exit code for all workers: see `_exit_code`.
    """
    ended, failure, deadline = {}, None, None  # From rank to exit code, in order of time.
    while len(ended) < len(processes):
        for rank, process in enumerate(processes):
            code = process.poll()
            if rank in ended or code is None:
                continue
            ended[rank] = code if code >= 0 else 128 - code  # Of a killed process, as in a shell.
            if not failure and code != 0 and code not in _STOPPED:
                failure = f'worker {rank} ended with exit code {ended[rank]}'
                deadline = time.monotonic() + _KILLED_AFTER
        if failure and time.monotonic() > deadline and len(ended) < len(processes):
            errors.say(f'{failure}; killed the others, which did not end by themselves')
            _kill(processes)
        time.sleep(_POLL)
    return _exit_code(ended.values())


def _exit_code(codes):
    """The exit code for all workers, from theirs in the order in which they ended.

    It is the first that is not 0. But when one worker gets a signal, the others end as if by
    SIGTERM, so the code of another regular stop takes precedence over SIGTERM's.
    """
    failed = [code for code in codes if code]
    first = next(iter(failed), 0)
    if first == 128 + signal.SIGTERM:
        return next((code for code in failed if code in _STOPPED - {first}), first)
    return first


def _kill(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
