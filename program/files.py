"""What is written: whole or not at all, and what is said where there is no room."""
import contextlib
import errno
import os
import re
import shutil
import stat

import tensorflow.compat.v1 as tf
from absl import app

from program import ownership

_FULL = re.compile('|'.join(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))))


@contextlib.contextmanager
def full_disk_told(folder):
    """Turns what Python, HDF5 and TensorFlow's writers say of a full disk into one line.

    Args:
        folder: where the block writes.

    Raises:
        OSError: there was no room; names the folder.
    """
    try:
        yield
    except (OSError, RuntimeError, tf.errors.OpError) as error:
        reason = _FULL.search(str(error))
        if not reason:
            raise
        raise OSError(f'{reason.group()} in {folder}. What was saved there before is whole: make '
                      'room, then run the same command again') from error


def flush(writer, folder):
    """Flushes a `tf.summary.FileWriter`; where the disk is full then, events may be lost.

    TensorFlow's writer fails for small events alone, and ignores that a large one did not fit.

    Raises:
        OSError, RuntimeError: there was no room: within `full_disk_told`.
    """
    writer.flush()
    room = os.statvfs(folder)
    if room.f_blocks and not (room.f_bavail if os.geteuid() else room.f_bfree):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


@contextlib.contextmanager
def regular_file(path):
    """Yields a regular file, open to read its bytes; never waits for the writer of a named pipe.

    Raises:
        OSError: the file cannot be opened, or is a pipe, a device or a folder.
    """
    def without_waiting(name, flags):
        return os.open(name, flags | os.O_NONBLOCK)

    with open(path, 'rb', opener=without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, 'not a regular file', str(path))
        yield stream


@contextlib.contextmanager
def new_file(path):
    """Yields the name of a file to write, which becomes `path` when the block is done.

    Raises:
        OSError: it cannot be written, the disk is full, or others could change the folder.
    """
    folder = os.path.dirname(os.path.abspath(path))
    ownership.check(folder)
    partial = f'{path}.{os.getpid()}.part'
    try:
        with full_disk_told(folder):
            yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # As it is after the renaming.
            os.remove(partial)


@contextlib.contextmanager
def new_folder(path, flag):
    """Yields an empty folder beside `path`, and gives it that name when the block is done.

    An exception removes it; a process that is killed leaves it, named PATH.NUMBER.part.

    Args:
        path: of the folder to make; may be there, if it is empty.
        flag: how the user named it, for the error's message.

    Raises:
        app.UsageError: there is something at `path` already.
        OSError: the folder cannot be written, the disk is full, or others could change it.
    """
    ownership.check(path)
    path = os.path.realpath(path)
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise app.UsageError(f'{path} is there already, and is not an empty folder: remove it, or '
                             f'name another {flag}')
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f'{path}.{os.getpid()}.part'
    os.mkdir(partial)
    try:
        with full_disk_told(os.path.dirname(path)):
            yield partial
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # After the renaming there is nothing to remove.
