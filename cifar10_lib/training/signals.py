"""Signals that stop training after the running step."""
import contextlib
import os
import signal
import threading
import time

from cifar10_lib.program import console

# Open MPI and Slurm pass SIGUSR1 on, and let the processes live.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_TOGETHER = 0.25  # Seconds within which signals count as one: `timeout`, for one, sends two.


@contextlib.contextmanager
def handled(handler):
    """Handles `SIGNALS` by a function (number, frame) in this context, in the main thread.

    A signal that the process ignores from its start, as with `nohup` or in the background of a
    script, stays ignored.
    """
    earlier = {number: signal.signal(number, handler) for number in SIGNALS
               if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler_ in earlier.items():
            signal.signal(number, handler_)


@contextlib.contextmanager
def caught():
    """Catches the first of `SIGNALS` that is not ignored; a second one ends the process at once.

    A second signal that is SIGHUP does not: the system, the shell and `console` all send it. Python
    allows handlers only in the main thread; elsewhere, nothing is caught. It runs them between two
    operations of its own, so after a step, not during one.

    Yields a list that gets the number of the caught signal.
    """
    found, first_time = [], 0.0

    def catch(number, frame):
        nonlocal first_time
        del frame
        if not found:
            found.append(number)
            first_time = time.monotonic()
            console.note('')
            console.note('Stopping after this step; interrupt again to stop at once.')
        elif number != signal.SIGHUP and time.monotonic() - first_time > _TOGETHER:
            os._exit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    with handled(catch) if is_main else contextlib.nullcontext():
        yield found
