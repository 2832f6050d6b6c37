"""Remembers Ctrl-C: TensorFlow can lose the KeyboardInterrupt that it raises.

A graph is built by Python functions that call C++ functions that call Python functions. If the
KeyboardInterrupt is raised in the last of these, the C++ function may discard it.
"""
import signal
import threading

_caught = threading.Event()


def raises():
    """Whether Ctrl-C raises KeyboardInterrupt, as by default, and this thread could change that."""
    return (signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and threading.current_thread() is threading.main_thread())


def remember():
    """Remembers each SIGINT from now on, if it raises KeyboardInterrupt; it still does."""
    if raises():
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number, frame):
    _caught.set()
    signal.default_int_handler(number, frame)


def raise_lost():
    """Raises KeyboardInterrupt if SIGINT came before; call it when a graph is built."""
    if _caught.is_set():
        raise KeyboardInterrupt
