"""Starts Python as a fork of a process that has imported TensorFlow: in 0.2 s instead of 4 s.

The forked process is a child of the process that asked for it, so that signals, exit codes, process
IDs and parents are those of any other child. TensorFlow has never run in the forked process; only
its import is shared. `Python` starts an ordinary process where a fork would differ from one.

Run as a script, this module is the server: it forks itself when a message arrives.
"""
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Python and TensorFlow read these variables when they start.
_AT_START = ('PYTHON', 'LANG', 'LC_', 'LD_', 'TF_', 'CUDA_', 'OMP_', 'MALLOC_')

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}

_lock = threading.Lock()
_servers = {}  # From the variables that Python and TensorFlow read to the socket of a server.
servers_pids = set()
_environment = None  # The one of the first server.


class Python(subprocess.Popen):
    """A `subprocess.Popen` of Python.

    Args:
        args: as for `subprocess.Popen`; `sys.executable` comes first.
        ignore: the signals that the process ignores at first. By default, those that this process
            ignores, as for any new process.
        **options: as for `subprocess.Popen`.
    """

    def __init__(self, args, ignore=None, **options):
        self._ignore = _ignored() if ignore is None else ignore
        super().__init__([os.fsdecode(word) for word in args], **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite,
                       errread, errwrite, *others):
        env = {os.fsdecode(name): os.fsdecode(value)
               for name, value in (os.environ if env is None else env).items()}
        _, gid, gids, uid, umask, start_new_session = others[:6]
        special = preexec_fn or pass_fds or not gid == gids == uid is None
        if special or not _can_fork(args) or _needs_own_start(env):
            prepare = preexec_fn or (lambda: _set_signals(self._ignore))
            super()._execute_child(
                args, executable, prepare, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                *others)
            return
        request = {
            'arguments': args, 'environment': env, 'folder': os.fspath(cwd or os.getcwd()),
            'umask': _umask() if umask == -1 else umask, 'session': start_new_session,
            'ignore': list(self._ignore), 'cores': list(os.sched_getaffinity(0))}
        try:
            self.pid = _fork(request, [p2cread if p2cread >= 0 else 0,
                                       c2pwrite if c2pwrite >= 0 else 1,
                                       errwrite if errwrite >= 0 else 2])
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


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


def prepare(environment):
    """Makes `Python` fork processes of this environment, too, although it differs from the tests'
    in what Python and TensorFlow read when they start."""
    global _environment
    _environment = _environment or dict(os.environ)
    with _lock:
        if _at_start(environment) not in _servers:
            _start_server(environment)


def _can_fork(args):
    if sys.platform != 'linux' or args[0] != sys.executable:
        return False
    return not args[1].startswith('-') or args[1] in ('-c', '-m')  # No option of the interpreter.


def _needs_own_start(environment):
    read = _at_start(environment)
    return read not in _servers and read != _at_start(_environment or os.environ)


def _at_start(environment):
    return tuple(sorted((name, value) for name, value in environment.items()
                        if name.startswith(_AT_START) and name != 'TF_CONFIG'))


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _ignored():
    return [number for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN]


def _set_signals(ignore):
    """Handles all signals as Python does when it starts, and ignores those in `ignore`."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = number in ignore or number in _IGNORED_BY_PYTHON
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _fork(request, files):
    """Makes the server fork; returns the process ID of the new child of this process."""
    environment = _at_start(request['environment'])
    with _lock, _adopting():
        if environment not in _servers:
            _start_server(request['environment'])
        server = _servers[environment]
        socket.send_fds(server, [json.dumps(request).encode()], files)
        answer = server.recv(100)
    if not answer:
        raise ChildProcessError('the process that forks has ended')
    return int(answer)


@contextlib.contextmanager
def _adopting():
    """Makes this process the parent of grandchildren whose parent ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _start_server(environment):
    global _environment
    _environment = _environment or dict(environment)
    server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        servers_pids.add(subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,  # A fork keeps one thread only.
            env={**environment, 'OPENBLAS_NUM_THREADS': '1'}).pid)
    atexit.register(server.close)  # Ends the server.
    _servers[_at_start(environment)] = server


def _serve(server):
    """Answers messages until the other end is closed, then exits.

    Returns:
        In a forked process: (request, file descriptors).
    """
    while True:
        message, files, _, _ = socket.recv_fds(server, 1 << 20, 3)
        if not message:
            os._exit(0)
        adopted, parent_ended = os.pipe()
        number, numbers = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(numbers, str(child).encode())
                os._exit(0)
            os.close(parent_ended)
            os.read(adopted, 1)  # Until the process between has ended.
            for each in (adopted, number, numbers):
                os.close(each)
            server.close()
            return json.loads(message), files
        os.waitpid(between, 0)
        server.send(os.read(number, 100))
        for each in (adopted, parent_ended, number, numbers, *files):
            os.close(each)


def _next_program(server):
    """Serves; in a forked process, does what Python does before it runs a program.

    Returns:
        A function without arguments that runs the program.
    """
    request, files = _serve(server)
    if any(word.startswith('--num_workers=') for word in request['arguments']):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            _serve_launchers(ours)
        else:  # Its children are the launcher's.
            ours.close()
            for each in files:
                os.close(each)
            request, files = _serve(theirs)
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    if request['session']:
        os.setsid()
    os.chdir(request['folder'])
    os.umask(request['umask'])
    os.sched_setaffinity(0, request['cores'])
    os.environ.clear()
    os.environ.update(request['environment'])
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    _set_signals(request['ignore'])
    return _program(request['arguments'])


def _serve_launchers(server):
    """Makes this process fork its workers, too; the launcher starts them by `subprocess.Popen`."""
    _servers[_at_start(_environment)] = server
    subprocess.Popen = Python


def _program(arguments):
    sys.orig_argv[:] = arguments
    option, *rest = arguments[1:]
    if option == '-m':
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = rest
        return lambda: runpy.run_module(rest[0], run_name='__main__', alter_sys=True)
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
    return lambda: exec(code, main.__dict__)


def _import_once():
    """Imports what every script imports first; other modules define flags that some lack."""
    sys.path[0] = str(ROOT)
    importlib.import_module('cifar10_lib.program.startup')
    del sys.path[0]
    gc.collect()
    gc.freeze()  # Keeps the collector from writing to shared pages.


if __name__ == '__main__':
    for _number in (signal.SIGINT, signal.SIGHUP):  # Meant for pytest, which closes the socket.
        signal.signal(_number, signal.SIG_IGN)
    _environment = dict(os.environ)
    _import_once()
    _next_program(socket.socket(fileno=int(sys.argv[1])))()
