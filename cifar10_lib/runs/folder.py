"""The folder of a training run: which run it holds, and one trainer at a time."""
import contextlib
import json
import os
import pathlib

from absl import app

from cifar10_lib.program import console, errors, files, json_files
from cifar10_lib.runs import names

_GLOB_CHARACTERS = frozenset('*?[\\')


def check_path(folder):
    """Raises `app.UsageError` if a path, which may not exist yet, cannot be a run's folder: it or a
    parent is not a folder, or TensorFlow would read it as a pattern."""
    if set(os.fspath(folder)) & _GLOB_CHARACTERS:
        raise app.UsageError(f'{folder} contains one of {" ".join(sorted(_GLOB_CHARACTERS))}: '
                             "TensorFlow would read it as a pattern and remove other runs' "
                             'checkpoints. Choose another --train_dir')
    path = pathlib.Path(folder)
    if any(os.path.lexists(each) and not os.path.isdir(each) for each in (path, *path.parents)):
        raise app.UsageError(f'{folder} or one of its parents is not a folder: choose another '
                             '--train_dir')


@contextlib.contextmanager
def locked(folder):
    """Creates a run's folder if necessary, and locks it against other trainers: see `files.locked`.

    Raises:
        app.UsageError: another trainer holds the folder, or see `check_path`.
        OSError: the folder cannot be written, or belongs to another user.
    """
    check_path(folder)
    files.own_folder(folder)
    lock = os.path.join(folder, names.LOCK)
    try:
        with files.locked(lock):
            yield
    except files.Locked as error:
        raise app.UsageError(f'{folder} is in use: process {error} trains there. Stop that '
                             'process, or choose another --train_dir') from error
    except OSError as error:
        if error.filename != lock:
            raise
        raise OSError(f'{folder} cannot be written ({error.strerror}): choose another '
                      '--train_dir') from error


def remove_unfinished(folder):
    """Removes files that a killed process left unfinished; call it only while `locked`."""
    for place in _places(folder):
        for entry in list(os.scandir(place)):
            if _is_file(entry, names.UNFINISHED):
                os.remove(entry.path)


def remove_own_files(folder):
    """Removes a run's files, but does not follow links; reports other files, which stay."""
    own, others = [], []
    for place, pattern in zip(_places(folder), (names.OWN, names.OWN_IN_BEST)):
        for entry in os.scandir(place):
            if _is_file(entry, pattern):
                own.append(entry.path)
            elif entry.name not in (names.LOCK, names.BEST):
                others.append(entry.path)
    if others:
        stays, goes = (', '.join(sorted(os.path.relpath(path, folder) for path in paths))
                       for paths in (others, own))
        console.line(f'--restart keeps these files in {folder}, which no run wrote: {stays}. It '
                     f'removes {goes or "nothing"}.')
    for path in own:
        os.remove(path)


def _places(folder):
    """The folder of a run and, unless it is a link, the folder `best` in it."""
    best = os.path.join(folder, names.BEST)
    return [folder, best] if os.path.isdir(best) and not os.path.islink(best) else [folder]


def _is_file(entry, pattern):
    return pattern.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False)


def write_run(folder, run):
    """Writes `run.json`, which holds `net`, `dataset`, `classes` and the dictionary `settings`."""
    with files.new_file(os.path.join(folder, names.RUN)) as stream:
        stream.write((json.dumps(run, indent=2, sort_keys=True) + '\n').encode())


def _are_settings(value):
    return isinstance(value, dict) and all(type(value.get(name, 0)) is int for name in _NUMBERS)


def _are_classes(value):
    return value is None or isinstance(value, list) and all(map(json_files.is_name, value))


def _is_folder(value):
    return value is None or isinstance(value, str) and os.path.isabs(value)


_NUMBERS = ('examples_per_step', 'first_step', 'images_before')

# The fields of `run.json` that the code reads; the rest is for people.
_RUN_FIELDS = {
    'net': (json_files.is_name, 'the name of a network'),
    'dataset': (json_files.is_name, 'the name of a data set'),
    'dataset_folder': (_is_folder, 'an absolute path'),
    'settings': (_are_settings, f'an object whose {", ".join(_NUMBERS)} are whole numbers'),
    'classes': (_are_classes, 'a list of names')}


def _read_run(folder, advice):
    """The content of `run.json`; None if it is missing. For errors, see `check_run`."""
    path = os.path.join(folder, names.RUN)
    try:
        run = json_files.read(path)
        json_files.check_fields(run, _RUN_FIELDS, f'{path} is damaged')
    except (FileNotFoundError, NotADirectoryError):
        return None
    except errors.DataError as error:
        raise app.UsageError(f'{error}. Remove it to continue, or {advice}') from error
    return run


def owner(folder):
    """' (of user NAME)' if a folder belongs to another user, else ''; for lines about its run."""
    uid = os.stat(folder).st_uid
    if uid == os.geteuid():
        return ''
    try:
        return f' (of user {pathlib.Path(folder).owner()})'
    except KeyError:  # A container may not know the names of the host's users.
        return f' (of user {uid})'


def net_and_dataset(folder, advice):
    """The values of `--net` and `--dataset` that the run in a folder was trained with.

    A pair; None without `run.json`. A user's own data set is given by its folder; earlier versions
    recorded only its name. For errors, see `check_run`.
    """
    run = _read_run(folder, advice)
    return run and (run['net'], run.get('dataset_folder') or run['dataset'])


def check_run(folder, net, data_set, advice):
    """Checks that a folder holds a run of a network, by name, and a `table.DataSet`.

    Classes may have been renamed, but not to the former name of another class. Returns the run's
    settings, a dictionary; None without `run.json`.

    Raises:
        app.UsageError: the run has a different network or data set, or `run.json` is damaged. The
            message ends with `advice`.
        OSError: the file cannot be read.
    """
    run = _read_run(folder, advice)
    if run is None:
        return None
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
