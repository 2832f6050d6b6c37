"""Writes files and folders completely or not at all, and reports a full disk."""
import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat

from absl import app

from program import ownership

# Ends the name of what is being written: nobody can guess it, and plant a link of that name.
PARTIAL = r'\.[0-9a-f]{16}\.part'
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # The umask may take away more.
LOCK_MODE = 0o600

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
    except Exception as error:
        # TensorFlow's have an `error_code`. It is not imported here: reading data does not need it.
        may_be = isinstance(error, (OSError, RuntimeError)) or hasattr(error, 'error_code')
        reason = may_be and _FULL.search(str(error))
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


def own_folder(path):
    """Makes a folder if it is missing, in which nobody else can make or change files.

    Raises:
        FileExistsError, NotADirectoryError: something that is not a folder is in the way.
        OSError: it cannot be made, or others could tamper with it: see `ownership.check`.
    """
    ownership.check(path)
    make_folder(path)
    ownership.check(path)  # Somebody else may have made it in the meantime.


def make_folder(path):
    """Makes a folder, and those that lead to it, if they are missing.

    Unlike those of `os.makedirs`, none can be written by others, whatever the umask.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.fspath(path).rstrip('/'))
    if parent:
        make_folder(parent)
    try:
        os.mkdir(path, _FOLDER_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def open_own(path, flags=0, mode=_FILE_MODE):
    """Opens a file of ours to read and write it, and makes it if it is missing.

    For files whose names must be the same each time, such as locks: another user who can guess the
    name must not make us write somewhere else.

    Args:
        path: of the file.
        flags: what else `os.open` takes, such as os.O_APPEND.
        mode: of the file. Whoever can read a lock can hold it: see `LOCK_MODE`.

    Returns:
        A file descriptor.

    Raises:
        PermissionError: it is a link, not a regular file, or another user's.
        OSError: it cannot be opened.
    """
    if os.path.islink(path):  # A better message than that of O_NOFOLLOW.
        raise PermissionError(f'{path} is a link, which this program never makes: remove it')
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, mode)
    try:
        ownership.check_file(path, number)
        if os.fstat(number).st_uid == os.geteuid():
            os.fchmod(number, os.fstat(number).st_mode & mode)  # Of an earlier version.
    except BaseException:
        os.close(number)
        raise
    return number


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
    """Yields a binary stream; what is written to it becomes the file `path` after the block.

    Until then the file has a name of its own beside `path`: see `PARTIAL`. An exception removes it.
    If the process is killed, it stays until the next `new_file` of that path.

    Raises:
        OSError: it cannot be written, the disk is full, or others could change the folder.
    """
    folder = os.path.dirname(os.path.abspath(path))
    ownership.check_place(folder)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f'{folder} is not a folder: make it first, or name another')
    _remove_leftovers(path)
    with full_disk_told(folder):
        partial, number = _new_partial(path, _make_file)
        with os.fdopen(number, 'wb') as stream:
            try:
                yield stream
                stream.flush()
                os.fsync(number)
                os.replace(partial, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):  # It has just become `path`.
                    os.remove(partial)
                raise


@contextlib.contextmanager
def new_folder(path, flag):
    """Yields an empty folder beside `path`, and gives it that name when the block is done.

    Until then the folder has a name of its own: see `PARTIAL`. An exception removes it. If the
    process is killed, it stays until the next `new_folder` of that path.

    Args:
        path: of the folder to make; may be there, if it is empty.
        flag: how the user named it, for the error's message.

    Raises:
        app.UsageError: there is something at `path` already.
        OSError: the folder cannot be written, the disk is full, or others could change it.
    """
    ownership.check(path)
    path = os.path.realpath(path)
    if os.path.ismount(path):
        raise app.UsageError(f'{path} is a mount point, which cannot be replaced: name a folder '
                             f'below it as {flag}')
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise app.UsageError(f'{path} is there already, and is not an empty folder: remove it, or '
                             f'name another {flag}')
    make_folder(os.path.dirname(path))
    _remove_leftovers(path)
    with full_disk_told(os.path.dirname(path)):
        partial, number = _new_partial(path, _make_folder)
        try:
            yield partial
            _sync(partial)
            os.rename(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            os.close(number)


def _new_partial(path, make):
    """Makes and locks what is to be renamed to `path`.

    The lock ends with the process, however that ends. It shows the `_remove_leftovers` of another
    process that this one is at work.

    Args:
        path: of the file or folder to be.
        make: `_make_file` or `_make_folder`.

    Returns:
        (path until then, file descriptor that holds the lock).
    """
    while True:
        partial = f'{path}.{secrets.token_hex(8)}.part'
        number = make(partial)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(partial, number):
                return partial, number
        except BlockingIOError:  # Another process holds it: to remove it, or to stop this one.
            pass
        except OSError:  # Some network file systems have no locks.
            return partial, number
        os.close(number)


def _make_file(path):
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)


def _make_folder(path):
    os.mkdir(path, _FOLDER_MODE)
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # Another process removed it before it was locked.
            os.mkdir(path, _FOLDER_MODE)


def _is_at(path, number):
    """Whether an open file or folder is still the one at a path."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(number))
    except FileNotFoundError:
        return False


def _remove_leftovers(path):
    """Removes what killed processes left of `path`; what live ones are writing stays."""
    folder, name = os.path.split(os.path.abspath(path))
    names = re.compile(re.escape(name) + PARTIAL)
    with contextlib.suppress(OSError):  # A folder may be ours to write, but not to list.
        for entry in os.scandir(folder):
            if names.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # In use, or it only takes room.
                    _remove_if_dead(entry.path)


def _remove_if_dead(path):
    found = os.lstat(path)
    if found.st_uid != os.geteuid() or not (stat.S_ISDIR(found.st_mode)
                                            or stat.S_ISREG(found.st_mode)):
        return
    access = os.O_RDONLY if stat.S_ISDIR(found.st_mode) else os.O_RDWR  # NFS locks need the latter.
    number = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, number):
            shutil.rmtree(path) if stat.S_ISDIR(found.st_mode) else os.remove(path)
    finally:
        os.close(number)


def _sync(folder):
    """Waits until all files in a folder are on the disk; a full one may be noticed only here."""
    for place, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(place, name), 'rb') as stream:
                os.fsync(stream.fileno())
