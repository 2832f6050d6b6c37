"""Reads checkpoints: of which run and step, whether they fit, and their values into variables."""
import json
import os
import re
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from program import console
from program import errors

_INDEX = re.compile(r'model\.ckpt-(\d+)\.index')  # Which is written last.


def write_run(folder, run):
    """Notes in a run's folder what run it is.

    Args:
        folder: of the checkpoints.
        run: dictionary of what JSON can hold: `net`, `dataset`, `classes`, and the dictionary
            `settings`.
    """
    path = os.path.join(folder, 'run.json')
    with open(path + '.part', 'w') as stream:
        json.dump(run, stream, indent=2, sort_keys=True)
        stream.write('\n')
    os.replace(path + '.part', path)


def check_run(folder, net, data_set, advice):
    """The settings of the run noted in a folder, or None if nothing is noted.

    Args:
        folder: of the checkpoints.
        net: name of the network that the run is to be of.
        data_set: the `table.DataSet` that it is to be of. Classes may have got other names since,
            but none may have got the name of another: the labels would be others.
        advice: what to do if it is not: ends the error's message.

    Raises:
        app.UsageError: that run is of other data or another network.
    """
    path = os.path.join(folder, 'run.json')
    if not os.path.exists(path):
        return None
    try:
        with open(path) as stream:
            run = json.load(stream)
        earlier, settings = (run['net'], run['dataset']), dict(run['settings'])
        classes = list(run.get('classes', data_set.classes))  # Earlier versions did not note them.
    except (ValueError, TypeError, KeyError) as error:
        raise app.UsageError(f'{path} is damaged ({error!r}): remove it to go on, or {advice}'
                             ) from error
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


def fault(path):
    """Why a checkpoint, by its path without `.index`, cannot be read to its end; or None."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError, MemoryError) as error:
        return errors.one_line(error)  # Of memory: a damaged index may tell of exabytes.
    return None


def step(path):
    """The global step of a checkpoint, also where the original multi-GPU script stored it as a
    float.

    Args:
        path: of the checkpoint, without `.index`.

    Raises:
        app.UsageError: the checkpoint has no `global_step`.
    """
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor('global_step'):
        raise app.UsageError(f'{path} has no global_step: it is no checkpoint of a training run')
    return int(reader.get_tensor('global_step'))


def load(path, variables, session, advice):
    """Gives variables the values that a checkpoint holds, converted to their types.

    What else the checkpoint holds is ignored.

    Args:
        path: of the checkpoint, without `.index`.
        variables: dictionary from name in the checkpoint to variable.
        session: the session whose variables are set.
        advice: what to do about a checkpoint that cannot be used: ends the error's message.

    Raises:
        app.UsageError: variables are missing in the checkpoint, have another shape there, or hold
            values that are not finite; names them all.
    """
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    faults = [f'{name} is missing' for name in sorted(variables) if name not in shapes]
    faults += [f'{name} has shape {shapes[name]}, wanted {variables[name].shape.as_list()}'
               for name in sorted(variables)
               if name in shapes and shapes[name] != variables[name].shape.as_list()]
    if faults:
        raise app.UsageError(f'{path} does not fit this network: {"; ".join(faults)}. {advice}')
    values = {name: reader.get_tensor(name) for name in variables}
    broken = sorted(name for name, value in values.items() if not np.all(np.isfinite(value)))
    if broken:
        raise app.UsageError(f'{path} is no use, not finite: {", ".join(broken)}. {advice}')
    assign(values, variables, session)


def assign(values, variables, session):
    """Gives variables values, converted to their types; both are dictionaries by the same names."""
    for name, variable in variables.items():
        variable.load(values[name].astype(variable.dtype.base_dtype.as_numpy_dtype), session)

