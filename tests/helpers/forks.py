"""Starts Python as a fork of a process that has imported TensorFlow: in 0.3 s instead of 4 s.

The process is `multiprocessing`'s fork server. TensorFlow has never run in it; only the import is
shared. A forked process is the server's child, and Python's `atexit` does not run in it. `Python`
starts an ordinary process where a fork would differ in more, and outside of Linux always.
"""
import contextlib
import functools
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from multiprocessing import connection, pool

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Python and TensorFlow read these variables when they start.
_AT_START = ('PYTHON', 'LANG', 'LC_', 'LD_', 'TF_', 'CUDA_', 'OMP_', 'MALLOC_')

_IS_LINUX = hasattr(os, 'sched_getaffinity')
if _IS_LINUX:
    from multiprocessing import forkserver
    _IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
    _forkserver = multiprocessing.get_context('forkserver')
    _forkserver.set_forkserver_preload(['preloaded', 'forks'])
_environment = dict(os.environ)  # The server's.


def Python(args, ignore=(), env=None, **options):  # noqa: N802
    """Starts Python: a `subprocess.Popen`, or a `_Fork`, which is like one.

    Args:
        args: as for `subprocess.Popen`; `sys.executable` comes first.
        ignore: the signals that the process ignores at first.
        env, **options: as for `subprocess.Popen`.
    """
    args = [os.fsdecode(word) for word in args]
    env = {os.fsdecode(name): os.fsdecode(value)
           for name, value in (os.environ if env is None else env).items()}
    if not _IS_LINUX:
        return subprocess.Popen(args, env=env, **options)
    is_program = args[0] == sys.executable and (args[1] == '-c' or args[1][0] != '-')
    if is_program and _at_start(env) == _at_start(_environment):
        return _Fork(args, env, ignore, **options)
    return subprocess.Popen(args, env=env, preexec_fn=lambda: _set_signals(ignore), **options)


def run(args, capture_output=False, timeout=None, check=False, **options):
    """As `subprocess.run`, with `Python`."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Python(args, **options) as process:
        try:
            out, error = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, error)
    if check:
        done.check_returncode()
    return done


class _Fork:
    """What the tests use of a `subprocess.Popen`."""

    def __init__(self, args, env, ignore, stdin=None, stdout=None, stderr=None, text=False,
                 cwd=None, start_new_session=False):
        self.args, self.returncode = args, None
        self._ended, self._readers = threading.Event(), {}
        request = {'args': args, 'env': env, 'cwd': os.fspath(cwd or os.getcwd()),
                   'session': start_new_session, 'ignore': ignore, 'path': _python_path(),
                   'cores': os.sched_getaffinity(0)}
        theirs, ours = zip(*map(_files, (stdin, stdout, stderr), range(3)))
        _start_server()
        self._process = _forkserver.Process(target=_main, args=(request, theirs), daemon=True)
        self._process.start()
        self.pid = self._process.pid
        for each in theirs:
            each.close()
        self.stdin, self.stdout, self.stderr = (
            number and open(number, mode if text else mode + 'b')  # noqa: SIM115
            for number, mode in zip(ours, 'wrr'))
        threading.Thread(target=self._join, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            stream.close()
        self.wait()

    def _join(self):
        self._process.join()
        self.returncode = self._process.exitcode
        self._ended.set()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, input=None, timeout=None):
        deadline = time.monotonic() + (timeout or threading.TIMEOUT_MAX)
        if self.stdin:
            self.stdin.close()
        for stream in filter(None, (self.stdout, self.stderr)):
            if stream not in self._readers:  # Otherwise an earlier call timed out.
                self._readers[stream] = pool.ThreadPool(1).apply_async(stream.read)
        try:
            texts = [stream and self._readers[stream].get(max(0, deadline - time.monotonic()))
                     for stream in (self.stdout, self.stderr)]
        except multiprocessing.TimeoutError as error:
            raise subprocess.TimeoutExpired(self.args, timeout) from error
        self.wait(max(0, deadline - time.monotonic()))
        return texts

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):  # The server has seen its end first.
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _files(given, number):
    """Returns a standard stream for the process, as a `Connection`, which can be sent to it, and
    our end of it: the number of a file descriptor, or None."""
    if given == subprocess.PIPE:
        read_end, write_end = os.pipe()
        theirs, ours = (read_end, write_end) if number == 0 else (write_end, read_end)
    elif given == subprocess.DEVNULL:
        theirs, ours = os.open(os.devnull, os.O_RDWR), None
    else:
        theirs, ours = os.dup(number if given is None else
                              given if isinstance(given, int) else given.fileno()), None
    return connection.Connection(theirs), ours


@functools.cache
def _start_server():
    """In this folder: elsewhere, it does not find what to import, and says nothing."""
    before = os.getcwd()
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    forkserver.ensure_running()
    os.chdir(before)


@functools.cache
def _python_path():
    """The folders that Python searches when it starts, without that of the program."""
    program = 'import json, sys; print(json.dumps(sys.path[1:]))'
    done = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, env=_environment)
    return json.loads(done.stdout)


def _at_start(environment):
    return {name: value for name, value in environment.items()
            if name.startswith(_AT_START) and name != 'TF_CONFIG'}


def _set_signals(ignore):
    """Handles all signals as Python does when it starts, and ignores those in `ignore`."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = number in ignore or number in _IGNORED_BY_PYTHON
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _main(request, files):
    """Runs a program in the forked process, and ends the process as Python would."""
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    sys.stdin = open(0, encoding=sys.stdout.encoding,  # noqa: SIM115, was replaced, too.
                     errors=sys.stdout.errors, closefd=False)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    if request['session']:
        os.setsid()
    os.chdir(request['cwd'])
    os.sched_setaffinity(0, request['cores'])
    os.environ.clear()
    os.environ.update(request['env'])
    sys.path[:] = request['path']
    # The scripts' own, which `preloaded` has set.
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    _set_signals(request['ignore'])
    try:
        _run(request['args'])
    except SystemExit:
        raise
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        sys.exit(1)


def _run(arguments):
    sys.orig_argv[:] = arguments
    option, *rest = arguments[1:]
    main = sys.modules['__main__'] = types.ModuleType('__main__')
    if option == '-c':
        sys.path.insert(0, '')
        sys.argv[:] = ['-c', *rest[1:]]
        code = compile(rest[0], '<string>', 'exec')
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(option)))
        sys.argv[:] = [option, *rest]
        main.__file__ = option
        code = compile(pathlib.Path(option).read_bytes(), option, 'exec')
    exec(code, main.__dict__)
