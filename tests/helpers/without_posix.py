"""Runs a script as on Windows, as far as Linux can imitate it.

    python without_posix.py FILE SCRIPT ...

Once TensorFlow is imported, what Windows lacks is removed, and the file operations that it refuses
fail. There is no /tmp. When FILE exists, if it is not '', the process gets Ctrl-C. On other systems
than Linux, nothing else is imitated. To do the same to the tests themselves:

    PYTHONPATH=.:tests/helpers pytest -n 0 -p without_posix -o timeout_method=thread
"""
import _thread
import contextlib
import errno
import os
import pathlib
import runpy
import signal
import sys
import tempfile
import threading
import time
import types

import filelock  # noqa: F401
import tensorflow.compat.v1  # noqa: F401

MODULES = ('fcntl', 'grp', 'pty', 'pwd', 'resource', 'termios', 'tty')
OF_OS = ('chown', 'confstr', 'ctermid', 'fchmod', 'fchown', 'fdatasync', 'fork', 'forkpty',
         'getegid', 'geteuid', 'getgid', 'getloadavg', 'getpgid', 'getpriority', 'getsid', 'getuid',
         'killpg', 'lchown', 'mkfifo', 'nice', 'pipe2', 'pread', 'pwrite', 'sched_getaffinity',
         'sched_setaffinity', 'set_blocking', 'setpgid', 'setsid', 'setuid', 'statvfs', 'sync',
         'sysconf', 'uname', 'wait', 'waitid', 'O_CLOEXEC', 'O_DIRECTORY', 'O_NOFOLLOW',
         'O_NONBLOCK', 'O_TMPFILE', *(name for name in dir(os) if name.startswith('EX_')))
OF_SIGNAL = ('alarm', 'getitimer', 'pause', 'pthread_kill', 'pthread_sigmask', 'setitimer',
             'siginterrupt', 'sigpending', 'sigtimedwait', 'sigwait', 'sigwaitinfo',
             *(name for name in dir(signal) if name.startswith('SIG') and name not in (
                 'SIGABRT', 'SIGBREAK', 'SIGFPE', 'SIGILL', 'SIGINT', 'SIGSEGV', 'SIGTERM',
                 'SIG_DFL', 'SIG_IGN')))


def remove():
    """Removes what Windows lacks, and refuses what it refuses."""
    is_dir = os.path.isdir
    # Only as it is written in the scripts: the folder itself is above those of the tests.
    os.path.isdir = lambda path: path != '/tmp' and is_dir(path)
    if sys.platform != 'linux':
        return
    import fcntl
    whole = types.SimpleNamespace(**vars(os))  # For modules that have other ways on Windows.
    tempfile._os = whole
    for name, module in list(sys.modules.items()):
        if name.startswith(('filelock', '_pytest')) and hasattr(module, 'os'):
            module.os = whole
    for name in MODULES:
        sys.modules[name] = None
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            vars(module).pop(name, None)
    fsync, rename = os.fsync, os.rename

    def flush(number):
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        fsync(number)

    def rename_new(source, target, **options):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
        rename(source, target, **options)

    os.fsync, os.rename = flush, rename_new
    sys.addaudithook(_refuse)


def pytest_load_initial_conftests():
    remove()


def _refuse(event, arguments):
    """An audit hook: raises an `OSError` where Windows would."""
    if event == 'open' and isinstance(arguments[0], str):
        if arguments[0].startswith(('/proc', '/sys')) and arguments[0] != '/proc/self/maps':
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    elif event == 'os.rename':
        source, target = map(os.path.realpath, arguments[:2])
        if os.path.lexists(target) and os.path.isdir(target):
            raise PermissionError(errno.EACCES, 'Access is denied', target)
        _refuse_open(source)
        _refuse_open(target)
    elif event in ('os.remove', 'os.rmdir'):
        _refuse_open(os.path.realpath(arguments[0]))


def _refuse_open(path):
    """Raises `PermissionError` if this process has a file open or mapped, or one in a folder."""
    found = []
    for number in os.listdir('/proc/self/fd'):
        with contextlib.suppress(FileNotFoundError):  # That of the list itself.
            found.append(os.readlink(f'/proc/self/fd/{number}'))
    with open('/proc/self/maps', encoding='utf-8', errors='replace') as stream:
        found += [line.rstrip('\n').partition('/')[2] for line in stream]
    for each in found:
        each = '/' + each.lstrip('/')
        if each == path or each.startswith(path + '/'):
            raise PermissionError(errno.EACCES, 'The file is being used by a process', path)


def _interrupt_when(path):
    while not path.exists():
        time.sleep(0.05)
    _thread.interrupt_main()


if __name__ == '__main__':
    awaited, script = sys.argv[1:3]
    del sys.argv[:2]
    sys.path[0] = str(pathlib.Path(script).parent)
    tempfile.tempdir = None  # The variable TMPDIR counts.
    remove()
    if awaited:
        threading.Thread(
            target=_interrupt_when, args=[pathlib.Path(awaited)], daemon=True).start()
    runpy.run_path(script, run_name='__main__')
