"""Finds checkpoints, checks that they are complete and fit, and loads them into variables.

The path of a checkpoint is without `.index`.
"""
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.program import console, errors
from cifar10_lib.runs import names as names_

_STEPS = 2 ** 63  # Steps are int64.
_NAMED_FAULTS = 10  # At most, in an error; ResNet-23 has 300 variables.


def latest(folder, report=True):
    """Path of the newest intact checkpoint in a folder; None if it has none.

    The file `checkpoint` names the newest. If that one is damaged, uses the intact one with the
    highest step, and prints a line if `report`. Nothing is removed. The folder may be missing.
    Raises `app.UsageError` if all checkpoints are damaged, or TensorFlow cannot open the folder.
    """
    faults, paths = [], candidates(folder)
    if paths and not {'[', '\\'}.isdisjoint(os.fspath(folder)):
        raise app.UsageError(f'{folder} contains [ or \\, which TensorFlow reads as a pattern: '
                             'rename the folder')
    for path in paths:
        reason = fault(path)
        if reason is None:
            if faults and report:
                console.line(f'{"; ".join(faults)}: using {os.path.basename(path)}.')
            return path
        faults.append(f'{path} is damaged ({reason})' if not faults else
                      f'so is {os.path.basename(path)}')
    if not faults:
        return None
    if candidates(folder) != paths:  # A trainer has just written or removed some.
        return latest(folder, report)
    raise app.UsageError(f'{"; ".join(faults)}: all checkpoints in {folder} are damaged. Restore '
                         'one, or start over in another folder')


def candidates(folder):
    """Paths of a folder's checkpoints: the one that the file `checkpoint` names, then by step.

    That file may hold absolute paths, which are wrong after the run was copied or moved. So only
    the file name is used, and the checkpoint is looked for in this folder.
    """
    try:
        matches = filter(None, map(names_.CHECKPOINT_INDEX.fullmatch, os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    steps = sorted((int(match.group(1)) for match in matches), reverse=True)
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # The file is empty or not text; TensorFlow returns None for other damage.
        state = None
    named = os.path.basename(state.model_checkpoint_path) if state else ''
    found = dict.fromkeys([named, *map(names_.checkpoint, steps)])  # Each once, in this order.
    return [os.path.join(folder, name) for name in found if name]


def watch(folder, seconds):
    """Yields the newest intact checkpoint of a folder, then each new one, endlessly; see `latest`.

    Unlike `tf.train.checkpoints_iterator`, skips damaged ones, and yields a path again if it is
    that of a new checkpoint, as after `--restart`. At least `seconds` pass between two.
    """
    seen = yielded = None
    while True:
        started = time.monotonic()
        newest = [_identity(path) for path in candidates(folder)[:1]]
        path = _latest_unless_gone(folder) if newest != seen else None
        seen = newest
        if path is not None and _identity(path) != yielded:
            yielded = _identity(path)
            yield path
            time.sleep(max(0, started + seconds - time.monotonic()))
        else:
            time.sleep(1)


def _identity(path):
    """Path, inode and time of a checkpoint."""
    try:
        found = os.stat(path + '.index')
    except OSError:
        return path, None, None
    return path, found.st_ino, found.st_mtime_ns


def _latest_unless_gone(folder):
    """`latest`, or None if all files are gone but the file `checkpoint` still names one."""
    try:
        return latest(folder)
    except app.UsageError:
        if any(os.path.exists(path + '.index') for path in candidates(folder)):
            raise
        return None


class Unreadable(errors.DataError):
    """A checkpoint's files are missing or damaged, or were removed while being read."""


def fault(path):
    """Why a checkpoint cannot be read completely, or None."""
    try:
        read(path)
    except Unreadable as error:
        return errors.one_line(error.__cause__)
    return None


def read(path, names=None):
    """The values in a checkpoint, {name: array}; of the variables `names` that it has, or all.

    Raises `Unreadable`, perhaps although `latest` has just found the files intact.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        held = reader.get_variable_to_shape_map()
        return {name: np.asarray(reader.get_tensor(name))
                for name in (held if names is None else names) if name in held}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, MemoryError) as error:
        # MemoryError: a damaged index may give exabytes as a size.
        raise Unreadable(f'{path} cannot be read ({errors.one_line(error)}): if it was just '
                         'removed or replaced, run the same command again') from error


def step(path):
    """The global step of a checkpoint, an int. The original multi-GPU script stored a float.

    Raises `app.UsageError` if it is missing or not a whole number, or `Unreadable`.
    """
    value = read(path, ['global_step']).get('global_step')
    _check_step(path, value)
    return int(value)


def _check_step(path, value):
    """Raises `app.UsageError` if an array, or None, cannot be a global step."""
    fault = _misfit('global_step', value, [])
    if fault is None and not (0 <= value < _STEPS and value == np.floor(value)):
        fault = f'global_step is {value}; expected a whole number of at least 0'
    if fault:
        raise app.UsageError(f'{path} is not a checkpoint of a training run: {fault}')


class Loader:
    """Assigns values to variables in one run of the session.

    `variable.load` runs one operation per variable, and TensorFlow optimises the graph for each of
    them, which takes many seconds for ResNet-23.
    """

    def __init__(self, variables):
        """Builds the operation for a list of variables, before the graph is finalized."""
        with tf.device('/cpu:0'), tf.name_scope('load'):
            self._placeholders = {variable.op.name: tf.placeholder(
                variable.dtype.base_dtype, variable.shape) for variable in variables}
            self._assign = tf.group(*[
                variable.assign(self._placeholders[variable.op.name], read_value=False)
                for variable in variables])

    def assign(self, values, variables, session):
        """Assigns values, {name: array}, to all variables of this loader, {name: variable}."""
        session.run(self._assign, {
            self._placeholders[variable.op.name]: values[name]
            for name, variable in variables.items()})


def values_for(path, variables, advice):
    """Reads the values of variables from a checkpoint and converts them to the variables' types.

    Args:
        path: path of the checkpoint.
        variables: {name in the checkpoint: variable}; the result is {that name: array}.
        advice: what the user can do if the checkpoint is unusable; ends the error's message.

    Raises:
        app.UsageError: variables are missing in the checkpoint, have a different shape or are not
            finite there, or `global_step` is not a step. The message names the first ten.
        Unreadable: see `read`.
    """
    stored = read(path, {each for name in variables for each in (name, _fallback(name))})
    values = {name: stored.get(name, stored.get(_fallback(name))) for name in sorted(variables)}
    faults = list(filter(None, (_misfit(name, value, variables[name].shape.as_list())
                                for name, value in values.items())))
    if faults:
        raise app.UsageError(
            f'{path} does not fit this network: {"; ".join(_first(faults))}. {advice}')
    if 'global_step' in values:
        _check_step(path, values['global_step'])
    with np.errstate(over='ignore', invalid='ignore'):  # Checked below.
        converted = {name: value.astype(variables[name].dtype.base_dtype.as_numpy_dtype)
                     for name, value in values.items()}
    broken = [name for name in values
              if not (np.all(np.isfinite(values[name])) and np.all(np.isfinite(converted[name])))]
    if broken:
        raise app.UsageError(
            f'{path} has values that are not finite: {", ".join(_first(broken))}. {advice}')
    return converted


def _fallback(name):
    """The variable to read if a checkpoint does not have one; for most, the same.

    Checkpoints of earlier versions and of other programs have no averages of moving statistics.
    """
    statistic = name.removesuffix(names_.AVERAGE)
    return statistic if names_.is_statistic(statistic) else name


def _first(faults):
    """The first few of a list of texts, and how many follow."""
    more = len(faults) - _NAMED_FAULTS
    return faults if more <= 0 else [*faults[:_NAMED_FAULTS], f'{more} more']


def _misfit(name, value, shape):
    """Why a value (None if missing) does not fit a variable of that shape, or None if it does."""
    if value is None:
        return f'{name} is missing'
    if list(value.shape) != shape:
        return f'{name} has shape {list(value.shape)}; expected {shape}'
    dtype = tf.as_dtype(value.dtype)
    if not (dtype.is_integer or dtype.is_floating):
        return f'{name} has type {dtype.name}; expected numbers'
    return None
