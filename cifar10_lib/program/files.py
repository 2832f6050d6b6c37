"""Writes files and folders atomically, locks them, and explains a full disk."""
import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import BinaryIO

import filelock
from absl import app

from cifar10_lib.program import console, errors

PARTIAL = r'\.[0-9a-f]{16}\.part'  # Suffix of the temporary names; random, so that none meet.
# The last one is how Windows reports it.
_FULL = re.compile('No space left on device|Dis[ck] quota exceeded|File too large|'
                   'There is not enough space on the disk')


@contextlib.contextmanager
def explain_full_disk(folder: str) -> Iterator[None]:
    """Turns full-disk errors of Python and TensorFlow into an `OSError` naming `folder`."""
    try:
        yield
    except Exception as error:
        # TensorFlow's errors have an `error_code`. Reading data must not import TensorFlow. Event
        # files raise built-in types: IndexError if they are too large, RuntimeError for others.
        built_in = isinstance(error, (IndexError, RuntimeError))
        candidate = built_in or isinstance(error, OSError) or hasattr(error, 'error_code')
        reason = candidate and _FULL.search(str(error))
        if reason:
            raise OSError(f'{reason.group()} in {folder}. Files saved earlier are complete: make '
                          'room, then run the same command again') from error
        if built_in and '.tfevents.' in str(error):
            raise OSError(errors.one_line(error)) from error
        raise


def own_folder(path: str) -> None:
    """Creates a folder if it is missing; raises `OSError`, also if it belongs to another user."""
    os.makedirs(path, exist_ok=True)
    check_owner(path)


def check_owner(path: str) -> None:
    """Raises `PermissionError` if a folder belongs to another user, unless one of you is root."""
    owner = other_owner(path)
    if owner not in (None, 0) and os.geteuid() != 0:  # Neither of them is root.
        raise PermissionError(f'{path} belongs to user {owner}, not you: choose another folder')


def other_owner(path: str) -> int | None:
    """The user ID of a folder's owner if that is another user; else, and on Windows, None."""
    if not hasattr(os, 'geteuid'):
        return None
    owner = os.stat(path).st_uid
    if owner == os.geteuid():
        return None
    return owner


@contextlib.contextmanager
def locked(path: str, waiting: str | None = None) -> Iterator[None]:
    """Holds a lock on a file, created if missing.

    The lock ends with the block or with the process, even a killed one. If another process holds
    it, prints the line `waiting` and waits, or without one raises `filelock.Timeout`. Raises
    `OSError` if the file cannot be written.
    """
    open(path, 'ab').close()  # Raises `OSError` here if the file cannot be written.
    # A soft lock would take the file itself for a lock that somebody holds.
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if waiting is None:
            raise
        console.line(waiting)
        lock.acquire()
    except OSError as error:  # NFS without its lock daemon raises it.
        console.line(f'Warning: {os.path.dirname(path)} cannot be locked ({error.strerror}): '
                     'make sure that no other process uses it.')
    try:
        yield
    finally:
        lock.release()


def regular_file(path: str) -> BinaryIO:
    """Opens a file to read bytes; raises `OSError`, also for a pipe, which might never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, 'not a regular file', str(path))
    return open(path, 'rb')


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """Yields a binary stream; when the block ends, its content becomes the file `path`.

    Until then, it has a temporary name. If the block raises, it is removed. Raises `OSError`.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f'{folder} is not a folder: create it, or choose another')
    with _replacing(path) as partial, open(partial, 'xb') as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def new_folder(path: str, flag: str) -> Iterator[str]:
    """Yields an empty folder; when the block ends, it becomes the folder `path`, as in `new_file`.

    Replaces an empty folder. Raises `OSError`, or `app.UsageError` if `path` exists and is not an
    empty folder, or is a mount point; the message names the `flag` with the path.
    """
    path = os.path.realpath(path)
    is_empty = os.path.isdir(path) and not os.listdir(path)
    if os.path.ismount(path) or (os.path.lexists(path) and not is_empty):
        raise app.UsageError(f'{path} exists and is not an empty folder, or is a mount point: '
                             f'choose another {flag}')
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with _replacing(path) as partial:
        os.mkdir(partial)
        yield partial
        if os.path.isdir(path):
            os.rmdir(path)  # Windows does not replace a folder.


@contextlib.contextmanager
def _replacing(path):
    """Yields a temporary name; the file or folder that the block creates there becomes `path`."""
    partial = f'{path}.{secrets.token_hex(8)}.part'
    with explain_full_disk(os.path.dirname(os.path.abspath(path))):
        try:
            yield partial
            os.replace(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # A folder.
            with contextlib.suppress(OSError):  # It may have just been renamed.
                os.remove(partial)
            raise
