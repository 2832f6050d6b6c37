"""The folder of a training run: whose it is, what the run wrote there, one trainer at a time."""
import contextlib
import fcntl
import os
import re

from absl import app

from program import console
from program import files
from program import ownership
from runs import results

# What a run writes into its folder; `--restart` removes this and nothing else.
_FILES = (r'checkpoint|model\.ckpt-\d+\..*|events\.out\.tfevents\..*|graph\.pbtxt|run\.json|'
          + results.FILES)
# How the names of files end while they are written: ours, and TensorFlow's.
_UNTIL_WRITTEN = rf'(?:{files.PARTIAL}|\.tmp[0-9a-f]{{32}}|\.tempstate\d+)'
_OWN_FILES, _OWN_BEST_FILES = (
    re.compile(rf'(?:{names})(?:{_UNTIL_WRITTEN}|\.part)?')  # `.part`: of earlier versions.
    for names in (_FILES, results.BEST_FILES))
_HALF_WRITTEN = re.compile(f'(?:{_FILES}|{results.BEST_FILES}){_UNTIL_WRITTEN}')
_LOCK = '.lock'
_PATTERN_SIGNS = frozenset('*?[\\')


@contextlib.contextmanager
def held(folder):
    """Makes a run's folder if it is missing, and keeps other trainers out of it.

    The lock ends with the process, however that ends; its file, with the number of the process,
    stays.

    Args:
        folder: path of the folder.

    Raises:
        app.UsageError: another trainer holds it, which is told by its process; it is no folder, or
            its path reads as a pattern.
        OSError: it cannot be written, or is not safe: see `ownership.check`.
    """
    if set(os.fspath(folder)) & _PATTERN_SIGNS:
        raise app.UsageError(f'{folder} holds one of {" ".join(sorted(_PATTERN_SIGNS))}, by which '
                             'TensorFlow would take it for a pattern of names, and remove other '
                             "runs' checkpoints: name another --train_dir")
    try:
        files.own_folder(folder)
        ownership.check(os.path.join(folder, 'best'))  # Now, not after the first validation.
    except (FileExistsError, NotADirectoryError) as error:
        raise app.UsageError(f'{folder} is, or lies below, something that is no folder: name '
                             'another --train_dir') from error
    path = os.path.join(folder, _LOCK)
    number = files.open_own(path, mode=files.LOCK_MODE)
    with os.fdopen(number, 'r+', encoding='ascii', errors='replace') as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = stream.read(20).strip()
            holder = holder if holder.isdecimal() else 'unknown'
            raise app.UsageError(f'{folder} is in use: process {holder} trains there. Name another '
                                 '--train_dir, or end that one first') from error
        stream.truncate(0)
        stream.write(f'{os.getpid()}\n')
        stream.flush()
        yield


def remove_half_written(folder):
    """Removes files that were being written when a start was killed, or when the disk was full;
    to be called by the process that holds the folder."""
    for place in (folder, os.path.join(folder, 'best')):
        if os.path.isdir(place) and not (place != folder and os.path.islink(place)):
            for path in _own_files(place, _HALF_WRITTEN):
                os.remove(path)


def remove_own_files(folder):
    """Removes what a run wrote; where there is something else, which stays, tells first what goes.

    Links are not followed.
    """
    own = _own_files(folder, _OWN_FILES)
    best = os.path.join(folder, 'best')
    there = [os.path.join(folder, name) for name in {*os.listdir(folder)} - {_LOCK, 'best'}]
    if os.path.isdir(best) and not os.path.islink(best):
        own += _own_files(best, _OWN_BEST_FILES)
        there += [os.path.join(best, name) for name in os.listdir(best)]
    others = set(there) - set(own)
    if others:
        stays, goes = (', '.join(sorted(os.path.relpath(path, folder) for path in paths))
                       for paths in (others, own))
        console.line(f'--restart leaves in {folder} what no run wrote: {stays}. It removes '
                     f'{goes or "nothing"}.')
    for path in own:
        os.remove(path)


def _own_files(folder, names):
    return [entry.path for entry in os.scandir(folder)
            if names.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)]
