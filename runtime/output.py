"""Folders that are there whole, or not at all."""
import contextlib
import os
import shutil

from absl import app

from datasets import ownership


@contextlib.contextmanager
def new_folder(path, flag):
    """Yields an empty folder beside `path`, and gives it that name when the block is done.

    An exception removes it; a process that is killed leaves it, named PATH.NUMBER.part.

    Args:
        path: of the folder to make; may be there, if it is empty.
        flag: how the user named it, for the error's message.

    Raises:
        app.UsageError: there is something at `path` already.
        OSError: the folder cannot be written, or others could change it.
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
        yield partial
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # After the renaming there is nothing to remove.
