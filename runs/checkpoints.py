"""Reads checkpoints: of which run and step, whether they fit, and their values into variables."""
import contextlib
import json
import os
import re
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from program import console
from program import errors
from program import files
from program import small_files

_INDEX = re.compile(r'model\.ckpt-(\d+)\.index')  # Which is written last.
_STEPS = 2 ** 63  # Steps are int64.


def write_run(folder, run):
    """Notes in a run's folder what run it is.

    Args:
        folder: of the checkpoints.
        run: dictionary of what JSON can hold: `net`, `dataset`, `classes`, and the dictionary
            `settings`.
    """
    with files.new_file(os.path.join(folder, 'run.json')) as stream:
        stream.write((json.dumps(run, indent=2, sort_keys=True) + '\n').encode())


def _are_settings(value):
    return isinstance(value, dict) and type(value.get('examples_per_step', 0)) is int


def _are_classes(value):
    return value is None or isinstance(value, list) and all(map(small_files.is_name, value))


# What other parts of `run.json` are for is people.
_RUN_FIELDS = {
    'net': (small_files.is_name, 'the name of a network'),
    'dataset': (small_files.is_name, 'the name of a data set'),
    'settings': (_are_settings, 'an object whose "examples_per_step" is a whole number'),
    'classes': (_are_classes, 'a list of names')}


def check_run(folder, net, data_set, advice):
    """The settings of the run noted in a folder, or None if nothing is noted.

    Args:
        folder: of the checkpoints.
        net: name of the network that the run is to be of.
        data_set: the `table.DataSet` that it is to be of. Classes may have got other names since,
            but none may have got the name of another: the labels would be others.
        advice: what to do if it is not: ends the error's message.

    Raises:
        app.UsageError: that run is of other data or another network, or the note is damaged.
        OSError: the note cannot be read.
    """
    path = os.path.join(folder, 'run.json')
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
                f'{path} is damaged: "{field}" is {small_files.shown(run.get(field))}, expected '
                f'{expected}. Remove it to continue, or {advice}')
    earlier, settings = (run['net'], run['dataset']), run['settings']
    classes = run.get('classes') or data_set.classes  # Earlier versions did not note them.
    if earlier != (net, data_set.name):
        raise app.UsageError(
            f'{folder} holds a run with --net={earlier[0]} --dataset={earlier[1]}, not with '
            f'--net={net} --dataset={data_set.name}: {advice}')
    for label, (then, now) in enumerate(zip(classes, data_set.classes)):
        if then != now and now in classes:
            raise app.UsageError(
                f'{folder} holds a run whose label {label} was {then}, and in '
                f'--dataset={data_set.name} it is {now}, another class of that run: {advice}')
    return settings


def latest(folder, tell=True):
    """Path of the newest checkpoint in a folder that is whole, without `.index`.

    The file `checkpoint` says which is the latest. Where that one cannot be read to its end, or the
    file is damaged, the one with the highest step that can is taken, and a line says so. Nothing is
    removed.

    Args:
        folder: of the checkpoints; may be missing.
        tell: whether to print that line.

    Returns:
        str, or None where there is no checkpoint at all.

    Raises:
        app.UsageError: there are some, and none is whole; tells why.
    """
    faults, paths = [], candidates(folder)
    for path in paths:
        reason = fault(path)
        if reason is None:
            if faults and tell:
                console.line(f'{"; ".join(faults)}: taking {os.path.basename(path)}.')
            return path
        faults.append(f'{path} is damaged ({reason})' if not faults else
                      f'{os.path.basename(path)}, too')
    if faults:
        if candidates(folder) != paths:  # A trainer has written or removed some meanwhile.
            return latest(folder, tell)
        raise app.UsageError(f'{"; ".join(faults)}: no checkpoint in {folder} is whole. Put one '
                             'there, or start over in another folder')
    return None


def candidates(folder):
    """Paths of a folder's checkpoints, the latest first: as the file `checkpoint` says, then by
    step.

    That file may name them by absolute paths, which stay as they are when a run is copied or moved:
    what counts is the name in this folder, not whose run lies there now.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    steps = {int(match.group(1)) for match in map(_INDEX.fullmatch, names) if match}
    paths = [os.path.join(folder, f'model.ckpt-{step_}') for step_ in sorted(steps, reverse=True)]
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # An empty file, or one that is no text; of another fault it makes None.
        state = None
    named = os.path.basename(state.model_checkpoint_path) if state else ''
    first = [os.path.join(folder, named)] if named else []
    return first + [path for path in paths if path not in first]


def as_they_come(folder, seconds):
    """Yields the newest whole checkpoint of a folder, then each that comes, without end.

    In place of `tf.train.checkpoints_iterator`, which knows no damage.

    Args:
        folder: of the checkpoints; may be missing at first.
        seconds: how long to wait at least from one to the next.

    Raises:
        app.UsageError: see `latest`.
    """
    seen = yielded = None
    while True:
        started = time.monotonic()
        newest = candidates(folder)[:1]
        path = _latest_unless_gone(folder) if newest != seen else yielded
        seen = newest
        if path not in (None, yielded):
            yielded = path
            yield path
            time.sleep(max(0, started + seconds - time.monotonic()))
        else:
            time.sleep(1)


def _latest_unless_gone(folder):
    """`latest`, or None where all were removed, though the file `checkpoint` names one."""
    try:
        return latest(folder)
    except app.UsageError:
        if any(os.path.exists(path + '.index') for path in candidates(folder)):
            raise
        return None


class Unreadable(errors.DataError):
    """A checkpoint's files are missing, damaged, or vanished while they were read."""


@contextlib.contextmanager
def _reader(path):
    """Yields TensorFlow's reader of a checkpoint.

    Raises:
        Unreadable: whatever the reader raises when files are missing or damaged; the message is
            the reason alone.
    """
    try:
        yield tf.train.load_checkpoint(path)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, MemoryError) as error:
        # MemoryError: a damaged index may claim exabytes.
        raise Unreadable(errors.one_line(error)) from error


def fault(path):
    """Why a checkpoint, by its path without `.index`, cannot be read to its end; or None."""
    try:
        with _reader(path) as reader:
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except Unreadable as error:
        return str(error)
    return None


def read(path, names=None):
    """Values that a checkpoint holds.

    Args:
        path: of the checkpoint, without `.index`.
        names: of the variables to read, in order; those it does not hold are left out. By default
            all.

    Returns:
        Dictionary from name to array.

    Raises:
        Unreadable: the files are missing or damaged, perhaps since `latest` found them whole.
    """
    try:
        with _reader(path) as reader:
            held = reader.get_variable_to_shape_map()
            return {name: np.asarray(reader.get_tensor(name))
                    for name in (held if names is None else names) if name in held}
    except Unreadable as error:
        raise Unreadable(f'{path} cannot be read ({error}): if something removed or replaced it '
                         'just now, run the same command again') from error


def step(path):
    """The global step of a checkpoint, also where the original multi-GPU script stored it as a
    float.

    Args:
        path: of the checkpoint, without `.index`.

    Raises:
        app.UsageError: the checkpoint has no `global_step`, or one that is not a step.
        Unreadable: see `read`.
    """
    values = read(path, ['global_step'])
    if not values:
        raise app.UsageError(f'{path} has no global_step: it is no checkpoint of a training run')
    _check_step(path, values['global_step'])
    return int(values['global_step'])


def _check_step(path, value):
    """Raises `app.UsageError` where an array cannot be a global step."""
    if value.shape != () or not _holds_numbers(value):
        found = f'of type {_type(value)} and shape {list(value.shape)}'
    elif not 0 <= value < _STEPS or value != np.floor(value):
        found = f'{value}'
    else:
        return
    raise app.UsageError(f'{path} has a global_step {found}, expected one whole number, 0 or more: '
                         'it is not a checkpoint of a training run')


def _holds_numbers(value):
    dtype = tf.as_dtype(value.dtype)
    return dtype.is_integer or dtype.is_floating


def _type(value):
    return tf.as_dtype(value.dtype).name


class Loader:
    """Sets variables to values that come from outside of TensorFlow, all in one run.

    Build it before the graph is finalized. `variable.load` runs one operation per variable, and
    TensorFlow optimises the whole graph for each of them: 40 seconds for ResNet-23.
    """

    def __init__(self, variables):
        """Builds the operation.

        Args:
            variables: list of variables.
        """
        with tf.device('/cpu:0'), tf.name_scope('load'):
            self._placeholders = {variable.op.name: tf.placeholder(
                variable.dtype.base_dtype, variable.shape) for variable in variables}
            self._assign = tf.group(*[
                variable.assign(self._placeholders[variable.op.name], read_value=False)
                for variable in variables])

    def load(self, path, variables, session, advice):
        """Sets the variables to what a checkpoint holds.

        Args:
            path, variables, advice: see `values_for`; the variables are those of the loader.
            session: whose variables are set.

        Raises:
            app.UsageError, Unreadable: see `values_for`.
        """
        self.assign(values_for(path, variables, advice), variables, session)

    def assign(self, values, variables, session):
        """Sets the variables to values.

        Args:
            values: dictionary from name to array; may hold more.
            variables: dictionary from those names to the variables of the loader.
            session: whose variables are set.
        """
        session.run(self._assign, {
            self._placeholders[variable.op.name]: values[name]
            for name, variable in variables.items()})


def values_for(path, variables, advice):
    """Reads the values that a checkpoint holds for variables, converted to their types.

    What else it holds is ignored.

    Args:
        path: of the checkpoint, without `.index`.
        variables: dictionary from name in the checkpoint to variable.
        advice: what to do about a checkpoint that cannot be used: ends the error's message.

    Returns:
        Dictionary from name in the checkpoint to array.

    Raises:
        app.UsageError: variables are missing in the checkpoint, have another shape there, or hold
            values that are not finite numbers, or no step in `global_step`; names them all.
        Unreadable: see `read`.
    """
    values = read(path, sorted(variables))
    faults = [fault_ for name in sorted(variables)
              if (fault_ := _misfit(name, values.get(name), variables[name].shape.as_list()))]
    if faults:
        raise app.UsageError(f'{path} does not fit this network: {"; ".join(faults)}. {advice}')
    if 'global_step' in values:
        _check_step(path, values['global_step'])
    with np.errstate(over='ignore', invalid='ignore'):  # The check below reports these.
        converted = {name: value.astype(variables[name].dtype.base_dtype.as_numpy_dtype)
                     for name, value in values.items()}
    broken = [name for name in values
              if not (np.all(np.isfinite(values[name])) and np.all(np.isfinite(converted[name])))]
    if broken:
        raise app.UsageError(f'{path} is no use, not finite: {", ".join(broken)}. {advice}')
    return converted


def _misfit(name, value, shape):
    """Why a value, None if there is none, does not fit a variable of that shape; or None."""
    if value is None:
        return f'{name} is missing'
    if list(value.shape) != shape:
        return f'{name} has shape {list(value.shape)}, wanted {shape}'
    if not _holds_numbers(value):
        return f'{name} has type {_type(value)}, expected numbers'
    return None

