"""Finds checkpoints, checks that they are complete and fit, and loads them into variables; writes
`params.h5`, the same variables for other programs.

The path of a checkpoint is without `.index`.
"""
import io
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.program import errors, files
from cifar10_lib.runs import names

_NAMED_FAULTS = 10  # At most, in an error; ResNet-23 has 300 variables.


class Found(NamedTuple):
    """A checkpoint that was read: its path, and the values of variables in it by their names."""

    path: str
    values: Mapping[str, np.ndarray]


def newest(folder: str) -> Found | None:
    """Reads the newest intact checkpoint in a folder, once; returns None if there isn't one.

    The file `checkpoint` names the newest. If that one is damaged, reads the intact one with the
    highest step, and says so on standard error. Nothing is removed. The folder may be missing.
    Raises `app.UsageError` if all checkpoints are damaged.
    """
    faults = ''
    paths = candidates(folder)
    for path in paths:
        name = os.path.basename(path)
        try:
            values = read(path)
        except Unreadable as error:
            if faults:
                faults += f'; so is {name}'
            else:
                faults = f'{path} is damaged ({errors.one_line(error.__cause__ or error)})'
            continue
        if faults:
            errors.say(f'{faults}: using {name}')
        return Found(path, values)
    if not paths:
        return None
    if candidates(folder) != paths:  # A trainer has just written or removed some.
        return newest(folder)
    raise app.UsageError(f'{faults}: all checkpoints in {folder} are damaged. Restore '
                         'one, or start over in another folder')


def latest(folder: str) -> str | None:
    """Path of the `newest` checkpoint in a folder, or None."""
    found = newest(folder)
    if found is None:
        return None
    return found.path


def candidates(folder: str) -> list[str]:
    """Paths of a folder's checkpoints: the one that the file `checkpoint` names, then by step.

    That file may hold absolute paths, which are wrong after the run was copied or moved. So only
    the file name is used, and the checkpoint is looked for in this folder. Raises
    `PermissionError` if the folder may not be read.
    """
    try:
        entries = os.listdir(folder)
    except PermissionError:
        raise
    except OSError:  # It is missing, no folder, or on a share that is away.
        entries = []
    matches = [names.CHECKPOINT_INDEX.match(each) for each in entries
               if os.path.isfile(os.path.join(folder, each))]
    steps = sorted((int(match.group(1)) for match in matches if match), reverse=True)
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # The file is empty or not text; TensorFlow returns None for other damage.
        state = None
    paths = [at_step(folder, step) for step in steps]
    if state and state.model_checkpoint_path:
        paths.insert(0, os.path.join(folder, os.path.basename(state.model_checkpoint_path)))
    return list(dict.fromkeys(paths))


def at_step(folder: str, step: int) -> str:
    """The path of a run's checkpoint after this many steps."""
    return os.path.join(folder, f'{names.CHECKPOINT}-{step}')


def named(path: str) -> str | None:
    """The checkpoint that a path names, with or without the ending of one of its files, or None."""
    path = re.sub(r'\.(index|meta|data-\d{5}-of-\d{5})$', '', path)
    path = path if os.path.dirname(path) else os.path.join(os.curdir, path)  # It has a folder.
    return path if any(map(os.path.isfile, (path + '.index', path))) else None


def watch(folder: str, seconds: float) -> Iterator[str]:
    """Yields the newest intact checkpoint of a folder, then each new one, endlessly; see `latest`.

    Unlike `tf.train.checkpoints_iterator`, skips damaged ones, and yields a path again if it is
    that of a new checkpoint, as after `--restart`. At least `seconds` pass between two.
    """
    def identity(path):
        found = filter(os.path.exists, (path + '.index', path))
        return path, [os.stat(each).st_mtime_ns for each in found]

    seen = yielded = None
    while True:
        started = time.monotonic()
        current = [identity(path) for path in candidates(folder)[:1]]
        path = None
        try:
            if current != seen:
                path = latest(folder)
        except app.UsageError:
            if any(map(named, candidates(folder))):
                raise
            # All were removed, but the file `checkpoint` still names one.
        seen = current
        if path is not None and identity(path) != yielded:
            yielded = identity(path)
            yield path
            time.sleep(max(0, started + seconds - time.monotonic()))
        else:
            time.sleep(1)


class Unreadable(errors.DataError):
    """A checkpoint's files are missing or damaged, or were removed while being read."""


def read(path: str, wanted: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """The values in a checkpoint by name; of the variables `wanted` that it has, or all.

    Raises `Unreadable`, perhaps although `latest` has just found the files intact.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        held = reader.get_variable_to_shape_map()
        if wanted is None:
            wanted = held
        return {name: np.asarray(reader.get_tensor(name)) for name in wanted if name in held}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, MemoryError) as error:
        # MemoryError: a damaged index may give exabytes as a size.
        raise Unreadable(f'{path} cannot be read ({errors.one_line(error)}): if it was just '
                         'removed or replaced, run the same command again') from error


def step(path: str, values: Mapping[str, np.ndarray] | None = None) -> int:
    """The global step of a checkpoint. The original multi-GPU script stored a float.

    `values` are those in the checkpoint if it has been read. Scripts of 2015 and 2016 may name the
    step differently; then the number in the file's name counts. Raises `app.UsageError` if both are
    missing or it is not a whole number, or `Unreadable`.
    """
    if values is None:
        values = read(path, ['global_step'])
    value = values.get('global_step')
    in_name = re.search(r'-(\d+)$', path)
    if value is None and in_name:
        value = np.array(int(in_name.group(1)))
    if value is None or value.shape or not (0 <= value < 2 ** 63 and value == np.floor(value)):
        raise app.UsageError(f'{path} is not a checkpoint of a training run: its global_step is '
                             f'{"missing" if value is None else value}; expected a whole number')
    return int(value)


class Loader:
    """Assigns values to variables in one run of the session.

    `variable.load` runs one operation per variable, and TensorFlow optimises the graph for each of
    them, which takes many seconds for ResNet-23.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        """Builds the operation, before the graph is finalized."""
        with tf.device('/cpu:0'), tf.name_scope('load'):
            self._placeholders = {variable.op.name: tf.placeholder(
                variable.dtype.base_dtype, variable.shape) for variable in variables}
            self._assign = tf.group(*[
                variable.assign(self._placeholders[variable.op.name], read_value=False)
                for variable in variables])

    def assign(self, values: Mapping[str, np.ndarray], variables: Mapping[str, tf.Variable],
               session: tf.Session) -> None:
        """Assigns values to all variables of this loader, both by the same names."""
        session.run(self._assign, {
            self._placeholders[variable.op.name]: values[name]
            for name, variable in variables.items()})


def values_for(path: str, variables: Mapping[str, tf.Variable], advice: str,
               stored: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The values of variables in a checkpoint, converted to the variables' types.

    Args:
        path: path of the checkpoint.
        variables: by their names in the checkpoint, as the result.
        advice: what the user can do if the checkpoint is unusable; ends the error's message.
        stored: the values in the checkpoint, if it has been read.

    Raises:
        app.UsageError: variables are missing in the checkpoint, have a different shape or are not
            finite there, or `global_step` is not a step. The message names the first ten.
        Unreadable: see `read`.
    """
    if stored is None:
        stored = read(path, variables)
    if 'global_step' in variables:
        stored = {**stored, 'global_step': np.array(step(path, stored))}
    values, faults, broken, resized = {}, [], [], 0
    for name, variable in sorted(variables.items()):
        value = stored.get(name)
        shape = variable.shape.as_list()
        if value is None:
            faults.append(f'{name} is missing')
        elif list(value.shape) != shape:
            faults.append(f'{name} has shape {list(value.shape)}; expected {shape}')
            resized += len(shape) == 2 and list(value.shape[1:]) == shape[1:]
        else:
            with np.errstate(over='ignore', invalid='ignore'):  # Checked next.
                values[name] = value.astype(variable.dtype.base_dtype.as_numpy_dtype)
            if not (np.isfinite(value).all() and np.isfinite(values[name]).all()):
                broken.append(name)
    if faults and len(faults) == resized:  # Only rows of the matrix after the flattening differ.
        advice = 'Its images had another size: restore IMAGE_SIZE in cifar10_input.py'
    _refuse(f'{path} does not fit this network', faults, advice)
    _refuse(f'{path} has values that are not finite', broken, advice)
    return values


def _refuse(problem, found, advice):
    """Raises `app.UsageError` that names the first of the variables found, if any."""
    if len(found) > _NAMED_FAULTS:
        found = [*found[:_NAMED_FAULTS], f'{len(found) - _NAMED_FAULTS} more']
    if found:
        raise app.UsageError(f'{problem}: {"; ".join(found)}. {advice}')


def write_parameters(path: str, values: Mapping[str, np.ndarray],
                     trainable: Collection[str]) -> None:
    """Writes `params.h5`, an HDF5 file with the values of variables.

    `weights/NAME` are the variables of the network, frozen ones included, `statistics/NAME` the
    moving statistics of batch norms, and `averages/NAME` the averages of both. The attribute
    `global_step` is the number of steps. The state of the optimizer is left out. `values` include
    `global_step`; `trainable` has the names of the trainable variables.
    """
    import h5py  # Here, because the import is slow.
    image = io.BytesIO()  # HDF5 opens files by name, and hides the error of a full disk.
    with h5py.File(image, 'w') as stream:
        for name, value in values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name.endswith(names.AVERAGE):
                stream[f'averages/{name.removesuffix(names.AVERAGE)}'] = value
            elif name.endswith(names.STATISTICS):
                stream[f'statistics/{name}'] = value
            elif not names.is_state(name, trainable):
                stream[f'weights/{name}'] = value
    with files.new_file(path) as stream:
        stream.write(image.getbuffer())
