"""Imports TensorFlow quietly, and reports a missing package or an interrupt in one line.

Only the standard library is imported here, so that a missing package is reported, too.
"""
import contextlib
import os
import platform
import sys
import threading

from cifar10_lib.program import errors

# What requirements.txt installs, as it is imported.
_REQUIRED = ('absl', 'filelock', 'google', 'h5py', 'numpy', 'PIL', 'six', 'tensorboard',
             'tensorflow')


def import_tensorflow() -> None:
    """Prepares the process of a script; call it before anything imports TensorFlow.

    TF_CPP_MIN_LOG_LEVEL (0 to 3) shows TensorFlow's own messages.
    """
    _open_closed_streams()
    if sys.platform == 'win32':
        os.system('')  # Lets the console interpret the sequence that clears a line.
    sys.excepthook = _report_exception
    quiet = 'TF_CPP_MIN_LOG_LEVEL' not in os.environ
    with _environment(quiet):
        import tensorflow.compat.v1 as tf
    if quiet:
        # TensorFlow also raises the errors that it logs.
        tf.logging.set_verbosity(tf.logging.FATAL)
    threading.excepthook = _report_exception_of_thread


def _open_closed_streams():
    """Opens closed standard streams, whose text would otherwise end up in some other file."""
    for name in ('stdin', 'stdout', 'stderr'):
        if getattr(sys, name) is None:
            # It gets the lowest free descriptor, which is that of the stream.
            setattr(sys, name, open(os.devnull, 'r+'))  # noqa: SIM115


def _report_exception(kind, error, trace):
    """Reports an uncaught exception: an interrupt and a missing package in one line."""
    if isinstance(error, KeyboardInterrupt):
        errors.say('interrupted')  # Python then ends the process by the signal.
    elif isinstance(error, ModuleNotFoundError) and error.name in _REQUIRED:
        errors.say(f'the Python package {error.name} is not installed: activate the virtual '
                   'environment that has it, or run: pip install -r requirements.txt')
    else:
        sys.__excepthook__(kind, error, trace)


def _report_exception_of_thread(failed):
    # The error of the thread that writes event files is raised again by the next `add_summary`.
    if failed.thread.name != 'EventLoggerThread':
        threading.__excepthook__(failed)


@contextlib.contextmanager
def _environment(quiet):
    """The environment in which TensorFlow is imported; the process's own returns afterwards."""
    before = dict(os.environ)
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # Level 2 would show a missing GPU.
    if platform.machine() in ('x86_64', 'AMD64'):  # The latter is Windows' word.
        # By default, TensorFlow uses oneDNN only on processors with instructions for neural
        # networks. On those with AVX2 only, a step is 1.6 times as fast: docs/results.md.
        os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
    # TensorFlow imports absl's test library and, if installed, Matplotlib. They need a writable
    # folder, and we need neither of them.
    os.environ.setdefault('TEST_TMPDIR', os.curdir)
    is_hidden = 'matplotlib' not in sys.modules
    if is_hidden:
        sys.modules['matplotlib'] = None  # type: ignore[assignment]  # It cannot be imported.
    try:
        with _held_back(quiet):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if is_hidden:
            del sys.modules['matplotlib']


@contextlib.contextmanager
def _held_back(quiet):
    """Holds back what is written to descriptor 2, and shows it if the block fails.

    Whatever the log level, TensorFlow's C++ libraries write there while they load. The text waits
    in a pipe, because all folders may be read-only.
    """
    if not (quiet and hasattr(os, 'set_blocking')):  # Windows lacks it before Python 3.12.
        yield
        return
    screen, (held, pipe) = os.dup(2), os.pipe()
    os.set_blocking(pipe, False)  # If it is full, further text is dropped.
    os.dup2(pipe, 2)
    os.close(pipe)
    try:
        yield
    except Exception:
        os.dup2(screen, 2)
        os.write(2, os.read(held, 1 << 16))
        raise
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(held)
