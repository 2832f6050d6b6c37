"""Starts the workers of `--num_workers` on this machine, and sees to it that they end together."""
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time

from absl import app

from program import console
from program import errors
from program import startup
from workers import cluster
from workers import connection

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Exit codes of workers that ended in order: done, or stopped by one of the signals. Those that are
# left then end by themselves, and worker 0 may still be saving.
_STOPPED = {128 + number for number in _SIGNALS}
_ORDERLY = {0, *_STOPPED}

_GRACE = 5.0  # Seconds in which the others may tell of a failure themselves.
_POLL = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(work):
    """Runs `work` as the worker that this process is, or starts those of `--num_workers`.

    Args:
        work: function of the `cluster.Cluster`.

    Returns:
        What `work` returns, or the exit code of `start`.

    Raises:
        app.UsageError: there are more workers than GPUs; or see `cluster.resolve`.
        FileNotFoundError: see `cluster.resolve`.
    """
    end_with_parent()
    count = cluster.workers_to_start()
    gpus = startup.visible_gpus()
    if count > gpus > 0:
        raise app.UsageError(f'--num_workers={count}, but there are {gpus} GPUs, one for each '
                             'worker: ask for fewer, or for --device=cpu')
    return start(count) if count else work(cluster.resolve())


def start(count):
    """Runs this process's own command as so many workers, and waits for them.

    What worker 0 prints goes to the console, and what others print to standard error, line by line
    with their numbers; they have nothing else to say. Signals are passed on.

    Args:
        count: how many.

    Returns:
        0, or the exit code of the worker that failed first. If a signal to this process stopped
        them, 128 + the signal's number.
    """
    # Reserved until all have ended: worker 0 listens there.
    with connection.reserve(host='127.0.0.1') as port:
        told = {'size': count, 'meeting': f'127.0.0.1:{port.getsockname()[1]}',
                'job': secrets.token_hex(16), 'parent': os.getpid()}
        processes, threads, caught = [], [], []

        def pass_on(number, _):
            caught.append(number)
            for process in processes:
                process.send_signal(number)

        earlier = {number: signal.signal(number, pass_on) for number in _SIGNALS
                   if signal.getsignal(number) is not signal.SIG_IGN}
        try:
            for rank in range(count):
                processes.append(_start_one(rank, told))
                if rank:
                    threads.append(_show(rank, processes[rank].stderr))
                if caught:  # Perhaps while this one was not among them yet.
                    processes[rank].send_signal(caught[0])
                    break
            code = _wait(processes)
            # A worker may hear of the signal from another one first.
            return 128 + caught[0] if caught and code in _STOPPED else code
        finally:
            _kill(processes)
            for thread in threads:
                thread.join()
            for number, handler in earlier.items():
                signal.signal(number, handler)


def end_with_parent():
    """Has Linux kill this process when the one that started it ends, however that ends.

    First thing in a worker; without effect in a process that no `start` has started.

    Raises:
        app.UsageError: see `cluster.from_launcher`.
    """
    if cluster.VARIABLE not in os.environ:
        return
    parent = cluster.from_launcher()['parent']
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        errors.say(f'{cluster.VARIABLE} names process {parent}, which ended or did not start this '
                   'one. Where you set the variable yourself, unset it')
        os._exit(1)


def _start_one(rank, told):
    """In a session of its own, so that Ctrl-C reaches it once, from here."""
    others = {} if rank == 0 else {
        'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], start_new_session=True,
        env={**os.environ, cluster.VARIABLE: json.dumps({'rank': rank, **told})}, **others)


def _show(rank, stream):
    """Copies lines to standard error, in a thread of its own, which it returns."""
    def copy():
        for line in stream:
            if line.strip():
                text = line.decode(errors='replace').rstrip().expandtabs()
                console.note(f'[worker {rank}] {text}')
    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _wait(processes):
    """Waits for all; kills those that outlive the first failure for long, and says so."""
    ended, failure, deadline = {}, None, None  # `ended` in the order in which they did.
    while True:
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                ended[rank] = process.returncode
        if len(ended) == len(processes):
            return _exit_code(ended.values())
        if failure is None:
            failure = next((f'worker {rank} ended with exit code {_as_in_a_shell(code)}'
                            for rank, code in ended.items() if code not in _ORDERLY), None)
            deadline = time.monotonic() + _GRACE
        elif time.monotonic() > deadline:
            errors.say(f'{failure}, and others did not end by themselves: killed')
            _kill(processes)
        time.sleep(_POLL)


def _exit_code(codes):
    """The exit code for all workers, by theirs in the order in which they ended.

    The first that is not 0. But workers that stop because another got a signal end as by SIGTERM:
    if one stopped in order for a different reason, that is the code.
    """
    failed = [_as_in_a_shell(code) for code in codes if code]
    first = next(iter(failed), 0)
    if first == 128 + signal.SIGTERM:
        return next((code for code in failed if code in _ORDERLY and code != first), first)
    return first


def _as_in_a_shell(code):
    """128 + number for the -number by which Python reports a process that a signal killed."""
    return code if code >= 0 else 128 - code


def _kill(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
