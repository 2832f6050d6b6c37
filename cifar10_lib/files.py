"""Writes files and folders complete or not at all, locks them, and explains a full disk."""
import contextlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from cifar10_lib import errors

if sys.platform == 'win32':
    import msvcrt
else:
    import fcntl

PARTIAL = r'\.[0-9a-f]{16}\.part'  # Suffix of the temporary names; random, so that none meet.
_FULL = re.compile('No space left on device|Dis[ck] quota exceeded|File too large')


@contextlib.contextmanager
def explain_full_disk(folder: str) -> Iterator[None]:
    """Turns full-disk errors of Python and TensorFlow into an `OSError` that names `folder`."""
    try:
        yield
    except errors.UserError:  # It says already what is full, as that of a download.
        raise
    except Exception as error:  # Event files raise IndexError or RuntimeError.
        reason = _FULL.search(str(error))
        if reason:
            raise OSError(f'{reason.group()} in {folder}. Files saved earlier are complete: make '
                          'room, then run the same command again') from error
        if '.tfevents.' in str(error):
            raise OSError(errors.one_line(error)) from error
        raise


@contextlib.contextmanager
def locked(path: str, waiting: str | None = None) -> Iterator[None]:
    """Holds a lock on a file, created if missing, until the block or the process ends.

    If another process holds it, prints the line `waiting` and waits, or without one raises
    `errors.UserError`. Raises `OSError` if the file cannot be written.
    """
    folder = os.path.dirname(path)
    with open(path, 'ab') as stream:  # Closing it releases the lock.
        while True:
            try:
                if sys.platform == 'win32':
                    msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
                else:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:  # Windows raises the latter.
                if waiting is None:
                    raise errors.UserError(f'{folder} is in use: another process trains there. '
                                           'Stop that process, or choose another folder') from error
                if waiting:
                    print(waiting, flush=True)
                    waiting = ''
                time.sleep(0.1)
            except OSError as error:  # NFS without its lock daemon raises it.
                print(f'Warning: {folder} cannot be locked ({error.strerror}): make sure that no '
                      'other process uses it.', flush=True)
                break
        yield


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """Yields a binary stream; when the block ends, its content becomes the file `path`.

    Until then, it has a temporary name. If the block raises, it is removed. Raises `OSError`.
    """
    with _replacing(path) as partial, open(partial, 'xb') as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def new_folder(path: str, flag: str) -> Iterator[str]:
    """Yields an empty folder; when the block ends, it becomes the folder `path`, as in `new_file`.

    Replaces an empty folder. Raises `OSError`, or `errors.UserError` if `path` exists and is not
    an empty folder; the message names the `flag` with the path.
    """
    path = os.path.realpath(path)
    is_empty = os.path.isdir(path) and not os.listdir(path)
    if os.path.ismount(path) or (os.path.lexists(path) and not is_empty):
        raise errors.UserError(f'{path} exists and is not an empty folder, or is a mount point: '
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
