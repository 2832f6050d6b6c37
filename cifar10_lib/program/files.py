"""Writes files and folders atomically, locks them, and explains a full disk."""
import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import re
import secrets
import shutil
import stat
import time

from absl import app

from cifar10_lib.program import console, ownership

# Suffix of the temporary names; random, so that other users cannot plant a link under that name.
PARTIAL = r'\.[0-9a-f]{16}\.part'
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # Before the umask.
_LOCK_MODE = 0o600  # Whoever can read a file can lock it.
_LEFTOVER_SECONDS = 24 * 3600  # Whoever writes a file is faster, or was killed.

_FULL = re.compile('|'.join(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))))


class Locked(Exception):
    """Another process holds the lock; the message is its process ID, or 'unknown'."""


@contextlib.contextmanager
def explain_full_disk(folder):
    """Turns full-disk errors of Python, HDF5 and TensorFlow into an `OSError` naming `folder`."""
    try:
        yield
    except Exception as error:
        # TensorFlow's errors have an `error_code`. Reading data must not import TensorFlow.
        candidate = isinstance(error, (OSError, RuntimeError)) or hasattr(error, 'error_code')
        reason = candidate and _FULL.search(str(error))
        if not reason:
            raise
        raise OSError(f'{reason.group()} in {folder}. Files saved earlier are complete: make '
                      'room, then run the same command again') from error


def own_folder(path):
    """Creates a folder if it is missing; other users cannot create or change files in it.

    Raises `OSError` if creating it fails, or others could tamper with it: see `ownership.check`.
    """
    ownership.check(path)
    make_folder(path)
    ownership.check(path)  # Another user may have created it in the meantime.


def make_folder(path):
    """Creates a folder and its missing parents; others cannot write to any, whatever the umask."""
    path = pathlib.Path(path)
    for folder in (*reversed(path.parents), path):
        try:
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
        except FileExistsError as error:
            raise FileExistsError(
                f'{folder} is not a folder: choose another path') from error


def open_own(path, flags=0, mode=_FILE_MODE):
    """Opens or creates a file with a fixed name, such as a lock; returns its descriptor.

    Another user who knows the name cannot redirect our writes: raises `PermissionError` for a link,
    or another user's file. `flags` are added to those of `os.open`; `mode` is that of a new file.
    """
    if os.path.islink(path):  # O_NOFOLLOW alone has a worse message.
        raise PermissionError(f'{path} is a link, which this program never creates: remove it')
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, mode)
    try:
        ownership.check_file(path, number)
    except BaseException:
        os.close(number)
        raise
    return number


@contextlib.contextmanager
def locked(path, waiting=None):
    """Holds a lock on a file, created if missing, which then contains the holder's process ID.

    The lock ends with the block or with the process, even a killed one. The file remains. Where the
    file system has no locks (NFS without its lock daemon), prints a warning and goes without.

    If another process holds the lock, prints the line `waiting` and waits, or without one raises
    `Locked`. For other errors, see `open_own`.
    """
    number = open_own(path, mode=_LOCK_MODE)
    with os.fdopen(number, 'r+', encoding='ascii', errors='replace') as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if waiting is None:
                holder = stream.read(20).strip()
                raise Locked(holder if holder.isdecimal() else 'unknown') from error
            console.line(waiting)
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            console.line(f'Warning: {os.path.dirname(path)} cannot be locked ({error.strerror}): '
                         'make sure that no other process uses it.')
        stream.truncate(0)
        stream.write(f'{os.getpid()}\n')
        stream.flush()
        yield


@contextlib.contextmanager
def regular_file(path):
    """Yields a binary stream that reads a regular file; never waits for the writer of a pipe.

    Raises `OSError` if the file cannot be opened, or is a pipe, a device or a folder.
    """
    def without_waiting(name, flags):
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, 'rb', opener=without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, 'not a regular file', str(path))
        yield stream


@contextlib.contextmanager
def new_file(path):
    """Yields a binary stream; when the block ends, its content becomes the file `path`.

    Until then, the file has a temporary name. If the block raises, the file is removed. If the
    process is killed, the first `new_file` of the same path a day later removes it.

    Raises:
        OSError: writing failed, the disk is full, or others could change the folder.
    """
    folder = os.path.dirname(os.path.abspath(path))
    ownership.check_place(folder)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f'{folder} is not a folder: create it, or choose another')
    with _replacing(path) as partial, open(partial, 'xb', opener=_open_new) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


def _open_new(path, flags):
    return os.open(path, flags, _FILE_MODE)


@contextlib.contextmanager
def new_folder(path, flag):
    """Yields an empty folder; when the block ends, it becomes the folder `path`, as in `new_file`.

    Replaces an empty folder. Error messages name the `flag` that names the folder.

    Raises:
        app.UsageError: `path` exists and is not an empty folder.
        OSError: writing failed, the disk is full, or others could change the folder.
    """
    ownership.check(path)
    path = os.path.realpath(path)
    if os.path.ismount(path):
        raise app.UsageError(f'{path} is a mount point, which cannot be replaced: choose a folder '
                             f'below it as {flag}')
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise app.UsageError(f'{path} exists and is not an empty folder: remove it, or choose '
                             f'another {flag}')
    make_folder(os.path.dirname(path))
    with _replacing(path) as partial:
        os.mkdir(partial, _FOLDER_MODE)
        yield partial
        for place, _, names in os.walk(partial):  # Flushing may reveal that the disk is full.
            for name in names:
                with open(os.path.join(place, name), 'rb') as stream:
                    os.fsync(stream.fileno())


@contextlib.contextmanager
def _replacing(path):
    """Yields a temporary name; the file or folder that the block creates there becomes `path`."""
    _remove_leftovers(path)
    partial = f'{path}.{secrets.token_hex(8)}.part'
    with explain_full_disk(os.path.dirname(os.path.abspath(path))):
        try:
            yield partial
            os.replace(partial, path)
        except BaseException:
            _remove(partial)
            raise


def _remove_leftovers(path):
    """Removes temporary files and folders of `path` that killed processes left behind."""
    for partial in glob.glob(glob.escape(os.fspath(path)) + f'.{"[0-9a-f]" * 16}.part'):
        with contextlib.suppress(OSError):  # Another process may remove it, too.
            if time.time() - os.lstat(partial).st_mtime > _LEFTOVER_SECONDS:
                _remove(partial)


def _remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # It may have just been renamed.
            os.remove(path)
