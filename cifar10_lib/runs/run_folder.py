"""The folder of a training run: which run it holds, and one trainer at a time."""
import contextlib
import itertools
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import filelock
from absl import app

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files, json_files
from cifar10_lib.runs import names


def check_path(folder: str) -> None:
    """Raises `app.UsageError` if a path, which may not exist yet, cannot be a run's folder: it or a
    parent is not a folder, or TensorFlow would read it as a pattern."""
    special = set('*?[\\') - {os.sep}
    if not special.isdisjoint(os.fspath(folder)):
        raise app.UsageError(f'{folder} contains one of * ? [ \\: TensorFlow would read it as a '
                             "pattern and remove other runs' checkpoints. Choose another "
                             '--train_dir')
    path = pathlib.Path(folder)
    if any(os.path.lexists(each) and not os.path.isdir(each) for each in (path, *path.parents)):
        raise app.UsageError(f'{folder} or one of its parents is not a folder: choose another '
                             '--train_dir')


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Creates a run's folder if necessary, and locks it against other trainers: see `files.locked`.

    A second file names the holder: nobody else can read a locked file on Windows.

    Raises:
        app.UsageError: another trainer holds the folder, or see `check_path`.
        OSError: the folder cannot be written, or belongs to another user.
    """
    check_path(folder)
    files.own_folder(folder)
    holder = pathlib.Path(folder, names.LOCK_HOLDER)
    try:
        with files.locked(os.path.join(folder, names.LOCK)):
            holder.write_text(f'{os.getpid()}\n', 'ascii')
            yield
    except filelock.Timeout as error:
        number = ''
        with contextlib.suppress(OSError):
            number = holder.read_text('ascii', 'replace')[:20].strip()
        if not number.isdecimal():
            number = 'unknown'
        raise app.UsageError(f'{folder} is in use: process {number} trains there. Stop that '
                             'process, or choose another --train_dir') from error


def remove_files(folder: str, also_finished: bool) -> None:
    """Removes the files of a run that a killed process left unfinished, or all of a run's files.

    Files of others stay. Call it only while `locked`.
    """
    for place, own in ((folder, names.OWN), (os.path.join(folder, names.BEST), names.OWN_IN_BEST)):
        if not os.path.isdir(place):
            continue
        found = []
        for entry in os.scandir(place):
            match = own.fullmatch(entry.name)
            if match and not entry.is_dir() and (also_finished or match['unfinished']):
                found.append(entry.name)
        # The indexes first, in the order of their steps (longer names have later ones): an
        # evaluation that watches the folder finds the newest checkpoint or none.
        found.sort(key=lambda name: (not name.endswith('.index'), len(name), name))
        for name in found:
            os.remove(os.path.join(place, name))


def read_run(folder: str, advice: str) -> dict[str, Any] | None:
    """The content of `run.json`; None if it is missing.

    Raises `app.UsageError`, which ends with `advice`, if it is not JSON, or `OSError`. The fields
    are not checked: trainers write the file all or nothing.
    """
    path = os.path.join(folder, names.RUN)
    if not os.path.lexists(path):
        return None
    try:
        return json_files.read(path)
    except FileNotFoundError:  # A trainer's `--restart` has just removed it.
        return None
    except errors.DataError as error:
        raise app.UsageError(f'{error}. Remove it to continue, or {advice}') from error


def owner(folder: str) -> str:
    """' (of user ID)' if a folder belongs to another user, else ''; for lines about its run."""
    try:
        user = files.other_owner(folder)
    except FileNotFoundError:  # It has just been removed.
        return ''
    return '' if user is None else f' (of user {user})'


def check_net(folder: str, run: Mapping[str, Any], net: str, advice: str) -> None:
    """Raises `app.UsageError`, which ends with `advice`, if a run, from `read_run`, has another
    network, by name."""
    if run['net'] != net:
        raise app.UsageError(
            f'{folder} holds a run with --net={run["net"]}, not with --net={net}: {advice}')


def check_run(folder: str, run: Mapping[str, Any], net: str, data_set: table.DataSet, images: str,
              advice: str) -> None:
    """Checks that a run, from `read_run`, has a network, by name, and a data set's classes, and is
    validated on `images`, 'test' or 'held_out'.

    A data set is known by the names of its classes in order: its folder may have moved. Raises
    `app.UsageError`, which ends with `advice`.
    """
    check_net(folder, run, net, advice)
    pairs = itertools.zip_longest(run['classes'], data_set.classes, fillvalue='missing')
    for number, (earlier, now) in enumerate(pairs):
        if earlier != now:
            raise app.UsageError(
                f'{folder} holds a run of --dataset={run["dataset"]} with other classes than those '
                f'of --dataset={data_set.name} (class {number}: {earlier}, not {now}): {advice}')
    earlier = run['settings'].get('validate_on', 'test')
    if images != earlier:
        raise app.UsageError(f'{folder} holds a run with --validate_on={earlier}, which trains on '
                             f'other images than --validate_on={images}: {advice}')
