"""The folder of a training run: which run it holds, and one trainer at a time."""
import contextlib
import json
import os

from absl import app

from program import console
from program import errors
from program import files
from program import ownership
from program import small_files
from runs import names

_GLOB_CHARACTERS = frozenset('*?[\\')


@contextlib.contextmanager
def held(folder):
    """Creates a run's folder if necessary, and locks it against other trainers.

    The lock ends with the process, however the process ends. The lock file stays and holds the
    process ID.

    Args:
        folder: path of the folder.

    Raises:
        app.UsageError: another trainer holds the folder, it is not a folder, or TensorFlow would
            read its path as a pattern.
        OSError: the folder cannot be written, or is not safe: see `ownership.check`.
    """
    if set(os.fspath(folder)) & _GLOB_CHARACTERS:
        raise app.UsageError(f'{folder} contains one of {" ".join(sorted(_GLOB_CHARACTERS))}: '
                             "TensorFlow would read it as a pattern and remove other runs' "
                             'checkpoints. Choose another --train_dir')
    try:
        files.own_folder(folder)
        ownership.check(os.path.join(folder, names.BEST))  # Now, not after the first validation.
    except (FileExistsError, NotADirectoryError) as error:
        raise app.UsageError(f'{folder} or one of its parents is not a folder: choose another '
                             '--train_dir') from error
    try:
        with files.locked(os.path.join(folder, names.LOCK)):
            yield
    except files.Locked as error:
        raise app.UsageError(f'{folder} is in use: process {error} trains there. Stop that '
                             'process, or choose another --train_dir') from error


def remove_unfinished(folder):
    """Removes files that a killed process, or a full disk, left unfinished.

    Call it only from the process that holds the folder.
    """
    for place in (folder, os.path.join(folder, names.BEST)):
        if os.path.isdir(place) and not (place != folder and os.path.islink(place)):
            for path in _matching(place, names.UNFINISHED):
                os.remove(path)


def remove_own_files(folder):
    """Removes the files of a run; anything else stays, and is reported together with what goes.

    Does not follow links.
    """
    own = _matching(folder, names.OWN)
    best = os.path.join(folder, names.BEST)
    present = [os.path.join(folder, name)
               for name in {*os.listdir(folder)} - {names.LOCK, names.BEST}]
    if os.path.isdir(best) and not os.path.islink(best):
        own += _matching(best, names.OWN_IN_BEST)
        present += [os.path.join(best, name) for name in os.listdir(best)]
    others = set(present) - set(own)
    if others:
        stays, goes = (', '.join(sorted(os.path.relpath(path, folder) for path in paths))
                       for paths in (others, own))
        console.line(f'--restart keeps these files in {folder}, which no run wrote: {stays}. It '
                     f'removes {goes or "nothing"}.')
    for path in own:
        os.remove(path)


def _matching(folder, pattern):
    return [entry.path for entry in os.scandir(folder)
            if pattern.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)]


def write_run(folder, run):
    """Records in `run.json` which run a folder holds.

    Args:
        folder: path of the folder.
        run: dictionary of JSON values: `net`, `dataset`, `classes`, and the dictionary `settings`.
    """
    with files.new_file(os.path.join(folder, names.RUN)) as stream:
        stream.write((json.dumps(run, indent=2, sort_keys=True) + '\n').encode())


def _are_settings(value):
    return isinstance(value, dict) and type(value.get('examples_per_step', 0)) is int


def _are_classes(value):
    return value is None or isinstance(value, list) and all(map(small_files.is_name, value))


# The fields of `run.json` that the code reads; the rest is for people.
_RUN_FIELDS = {
    'net': (small_files.is_name, 'the name of a network'),
    'dataset': (small_files.is_name, 'the name of a data set'),
    'settings': (_are_settings, 'an object whose "examples_per_step" is a whole number'),
    'classes': (_are_classes, 'a list of names')}


def check_run(folder, net, data_set, advice):
    """Checks that a folder holds a run of this network and data set.

    Args:
        folder: path of the folder.
        net: name of the network.
        data_set: a `table.DataSet`. Its classes may have been renamed since, but a label must not
            have the name that another label had: it would mean a different class.
        advice: what the user can do otherwise; ends the error's message.

    Returns:
        The run's settings, a dictionary; None without `run.json`.

    Raises:
        app.UsageError: the run has a different network or data set, or `run.json` is damaged.
        OSError: the file cannot be read.
    """
    path = os.path.join(folder, names.RUN)
    try:
        run = small_files.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except errors.DataError as error:
        raise app.UsageError(
            f'{error}: it is damaged. Remove it to continue, or {advice}') from error
    for field, (fits, expected) in _RUN_FIELDS.items():
        if not fits(run.get(field)):
            raise app.UsageError(
                f'{path} is damaged: "{field}" is {small_files.shown(run.get(field))}; expected '
                f'{expected}. Remove it to continue, or {advice}')
    earlier = run['net'], run['dataset']
    if earlier != (net, data_set.name):
        raise app.UsageError(
            f'{folder} holds a run with --net={earlier[0]} --dataset={earlier[1]}, not with '
            f'--net={net} --dataset={data_set.name}: {advice}')
    classes = run.get('classes') or data_set.classes  # Earlier versions did not record them.
    for label, (then, now) in enumerate(zip(classes, data_set.classes)):
        if then != now and now in classes:
            raise app.UsageError(
                f'{folder} holds a run whose label {label} was {then}, but in '
                f'--dataset={data_set.name} it is {now}, another class of that run: {advice}')
    return run['settings']
