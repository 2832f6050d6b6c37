"""Starts Python as a fork of a process that has imported TensorFlow: in 0.3 s instead of 4 s.

The tests start hundreds of processes, which would otherwise take most of their time.

The process is `multiprocessing`'s fork server. TensorFlow has never run in it; only the import is
shared. A forked process is the server's child, and Python's `atexit` does not run in it. `Python`
starts an ordinary process where a fork would differ in more, and outside of Linux always.
"""
import functools
import inspect
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from multiprocessing import connection

# Python and TensorFlow read these variables when they start.
_AT_START = ('PYTHON', 'LANG', 'LC_', 'LD_', 'TF_', 'CUDA_', 'OMP_', 'MALLOC_')

_IS_LINUX = hasattr(os, 'sched_getaffinity')
if _IS_LINUX:
    from multiprocessing import forkserver
    _forkserver = multiprocessing.get_context('forkserver')
    _forkserver.set_forkserver_preload(['preloaded', 'forks'])
_environment = dict(os.environ)  # The server's.


def Python(args, env, **options):  # noqa: N802
    """Starts Python: a `subprocess.Popen`.

    Args:
        args: as for `subprocess.Popen`; `sys.executable` comes first.
        env, **options: as for `subprocess.Popen`.
    """
    args = [os.fsdecode(word) for word in args]
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    if not _IS_LINUX:
        return subprocess.Popen(args, env=env, **options)
    is_program = args[1] == '-c' or args[1][0] != '-'
    if is_program and _at_start(env) == _at_start(_environment):
        return _Fork(args, env=env, **options)
    return subprocess.Popen(args, env=env, preexec_fn=_set_signals, **options)


def _at_start(environment):
    return {name: value for name, value in environment.items()
            if name.startswith(_AT_START) and name != 'TF_CONFIG'}


class _Fork(subprocess.Popen):
    """A `Popen` that forks its process from the server."""

    def _execute_child(self, *arguments):
        given = inspect.signature(super()._execute_child).bind(*arguments).arguments
        pipes = {name: given[name] for name in (
            'p2cread', 'p2cwrite', 'c2pread', 'c2pwrite', 'errread', 'errwrite')}
        # Its standard streams: ends of pipes, files, or ours. Such objects can be sent.
        streams = [connection.Connection(os.dup(number if pipes[name] == -1 else pipes[name]))
                   for number, name in enumerate(('p2cread', 'c2pwrite', 'errwrite'))]
        _start_server()
        self._process = _forkserver.Process(target=_main, daemon=True, args=(
            given['args'], given['env'], given['cwd'] or os.getcwd(), given['start_new_session'],
            streams))
        self._process.start()
        self.pid, self._child_created = self._process.pid, True
        for each in streams:
            each.close()
        self._close_pipe_fds(**pipes)

    def _wait(self, timeout):
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _internal_poll(self, _deadstate=None):
        self.returncode = self._process.exitcode
        return self.returncode

    def communicate(self, input=None, timeout=None):
        """Also after some lines were read: `Popen` would lose those that are in a buffer."""
        end = time.monotonic() + (timeout or threading.TIMEOUT_MAX)
        if self.stdin:
            self.stdin.close()
        readers = futures.ThreadPoolExecutor(2)
        coming = [stream and readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
        readers.shutdown(wait=False)
        try:
            texts = [text and text.result(max(0, end - time.monotonic())) for text in coming]
        except futures.TimeoutError as error:
            raise subprocess.TimeoutExpired(self.args, timeout) from error
        self.wait(max(0, end - time.monotonic()))
        return texts


@functools.cache
def _start_server():
    """In this folder: elsewhere, it does not find what to import, and says nothing."""
    before = os.getcwd()
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    forkserver.ensure_running()
    os.chdir(before)


def _set_signals():
    """Handles all signals as Python does when it is started from a terminal."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_ignored = number in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _main(arguments, environment, folder, is_session, streams):
    """Runs a program in the forked process, and ends the process as Python would."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, encoding=sys.stdout.encoding,  # noqa: SIM115, was replaced, too.
                     errors=sys.stdout.errors, closefd=False)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    if is_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # The scripts' own, which `preloaded` has set.
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    _set_signals()
    try:
        _run(arguments)
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        sys.exit(1)


def _run(arguments):
    import preloaded  # Only here: it imports TensorFlow.
    sys.orig_argv[:] = arguments
    option, *rest = arguments[1:]
    if option == '-c':
        sys.path[:] = ['', *preloaded.PATH]
        sys.argv[:] = ['-c', *rest[1:]]
        exec(compile(rest[0], '<string>', 'exec'), vars(sys.modules['__main__']))
    else:
        sys.path[:] = [os.path.dirname(os.path.realpath(option)), *preloaded.PATH]
        sys.argv[:] = [option, *rest]
        runpy.run_path(option, run_name='__main__')
