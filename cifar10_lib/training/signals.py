"""Signals that stop training after the running step."""
import contextlib
import os
import signal
import threading
import time

from cifar10_lib.program import console, interrupts

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
    allows handlers only in the main thread; elsewhere, nothing is caught.

    Python runs handlers between bytecodes of the main thread, which may be in a long step, or in
    one that hangs. So the signal's number is written to a pipe, from which a thread reads it.

    Yields:
        List that gets the number of the caught signal.

    Raises:
        KeyboardInterrupt: SIGINT came earlier, and was lost: see `interrupts`.
    """
    found = []
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    threading.Thread(target=_listen, args=(read_end, found), daemon=True).start()
    earlier_end = signal.set_wakeup_fd(write_end)  # First, so that no signal is lost in between.
    try:
        with handled(lambda *_: None):
            interrupts.raise_lost()
            yield found
    finally:
        signal.set_wakeup_fd(earlier_end)
        os.close(write_end)  # Ends the thread.


def _listen(read_end, found):
    """Reads signal numbers from a pipe until it is closed."""
    with open(read_end, 'rb', buffering=0) as pipe:
        while number := pipe.read(1):
            if number[0] not in SIGNALS:
                continue
            if not found:
                found.append(number[0])
                first_time = time.monotonic()
                console.note('')
                console.note('Stopping after this step; interrupt again to stop at once.')
            elif number[0] != signal.SIGHUP and time.monotonic() - first_time > _TOGETHER:
                os._exit(128 + number[0])
