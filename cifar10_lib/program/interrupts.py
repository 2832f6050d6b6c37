"""Remembers Ctrl-C: TensorFlow can lose the KeyboardInterrupt that it raises.

A graph is built by Python functions that call C++ functions that call Python functions. If the
KeyboardInterrupt is raised in the last of these, the C++ function may discard it.
"""
import signal
import threading

_caught = threading.Event()


def remember():
    """Remembers each SIGINT from now on. It still raises KeyboardInterrupt.

    Has no effect if SIGINT is handled otherwise, or in a thread other than the main one.
    """
    if (signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and threading.current_thread() is threading.main_thread()):
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number, frame):
    _caught.set()
    signal.default_int_handler(number, frame)


def raise_lost():
    """Raises KeyboardInterrupt if SIGINT came before; call it when a graph is built."""
    if _caught.is_set():
        raise KeyboardInterrupt
