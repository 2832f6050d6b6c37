"""Finds checkpoints, and checks that they are intact and fit.

The path of a checkpoint is without `.index`.
"""
import contextlib
import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from cifar10_lib import errors, quiet  # noqa: F401, it imports TensorFlow quietly.

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

NAME = 'model.ckpt'  # TensorFlow appends '-' and the step.
AVERAGE = '/ExponentialMovingAverage'  # Ends the name of a variable's moving average.

# TensorFlow writes this file last; it is the only one in TensorFlow's older format, V1.
_INDEX = re.compile(r'model\.ckpt-(\d+)(?:\.index)?$')


class Found(NamedTuple):
    """A checkpoint that was read: its path, and the values of variables in it by their names."""

    path: str
    values: Mapping[str, np.ndarray]


def newest(folder: str) -> Found | None:
    """Reads the newest intact checkpoint in a folder, or the one that a path names; else None.

    The file `checkpoint` names the newest. If that one is damaged, prints a line on standard error,
    and reads the intact one with the highest step. Raises `errors.UserError` if all are damaged.
    """
    paths = candidates(folder)
    faults = []
    for path in paths:
        try:
            found = Found(path, read(path))
        except errors.UserError as error:
            faults.append(str(error))
            continue
        if faults:
            errors.note(f'{"; ".join(faults)}: using {os.path.basename(path)}')
        return found
    if not paths:
        return None
    raise errors.UserError(f'{"; ".join(faults)}: no intact checkpoint in {folder}. '
                            'Restore one, or start over in another folder')


def latest(folder: str) -> tuple[str, int] | None:
    """The newest checkpoint in a folder, and when it was written, in nanoseconds; None without one.

    A run that was started over may have a checkpoint of the same name.
    """
    for path in candidates(folder)[:1]:
        with contextlib.suppress(FileNotFoundError):  # It was just removed, or has the format V1.
            return path, os.stat(f'{path}.index').st_mtime_ns
        return path, 0
    return None


def restore(saver: tf.train.Saver, session: tf.Session, folder: str) -> int:
    """Restores the newest intact checkpoint in a folder, or the one that a path names; returns its
    global step.

    Unlike `saver.restore`, it reads the checkpoint that `newest` finds. Raises `errors.UserError`
    if there isn't one, if it lacks variables of the `saver` or has others of these names, or if it
    is of classification.py.
    """
    found = newest(folder)
    if found is None:
        raise errors.UserError(f'No checkpoint in {folder}: train first, or choose another '
                               '--checkpoint_dir')
    refuse_other_program(os.path.dirname(found.path), 'classification.py --evaluate')
    variables = saver._var_list
    if not isinstance(variables, dict):
        variables = {variable.op.name: variable for variable in variables}
    check_fit(found, variables, 'Evaluate it with the network that was trained')
    assign(session, {variable: found.values[name] for name, variable in variables.items()})
    return step(found)


def assign(session: tf.Session, values: Mapping[tf.Variable, np.ndarray]) -> None:
    """Initialises variables with these values, by one run."""
    options = scaffold_options(values)
    session.run([variable.initializer for variable in values], options['init_feed_dict'])
    options['init_fn'](None, session)


def scaffold_options(values: Mapping[tf.Variable, np.ndarray]) -> dict[str, Any]:
    """Arguments of a `tf.train.Scaffold` whose session starts with these values of variables."""
    feeds: dict[tf.Tensor, np.ndarray] = {}
    shared = {}
    for variable, value in values.items():
        if variable.initial_value in feeds:  # A program's own, with one tensor for several.
            shared[variable] = value
        else:
            feeds[variable.initial_value] = value

    def load(_, session):
        for variable, value in shared.items():
            variable.load(value, session)

    return {'init_feed_dict': feeds, 'init_fn': load}


def graph(path: str) -> tf.MetaGraphDef:
    """The graph beside a checkpoint; an empty one if it is missing or damaged."""
    found = tf.MetaGraphDef()
    with contextlib.suppress(OSError, message.DecodeError), open(f'{path}.meta', 'rb') as stream:
        found.ParseFromString(stream.read())
    return found


def refuse_other_program(folder: str, command: str) -> None:
    """Raises `errors.UserError` if a folder holds a run of classification.py, which has a run.json.

    The tutorial's programs would take its images for CIFAR-10's. `command` is what to use instead.
    """
    if os.path.exists(os.path.join(folder, 'run.json')):
        raise errors.UserError(f'{folder} holds a run of classification.py (run.json): use '
                               f'{command} --train_dir={folder}')


def candidates(folder: str) -> list[str]:
    """Paths of a folder's checkpoints: the one that the file `checkpoint` names, then the latest.

    That file may hold paths of another machine. So only the file name is used, and the checkpoint
    is looked for in this folder. If `folder` itself names a checkpoint, that is the only one.
    Raises `PermissionError` if the folder may not be read, and `errors.UserError` as `named`.
    """
    one = named(folder)
    if one and not os.path.isdir(folder):
        return [one]
    try:
        entries = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        entries = []
    steps = sorted((int(match.group(1)) for match in map(_INDEX.match, entries) if match),
                   reverse=True)
    paths = [os.path.join(folder, f'{NAME}-{step}') for step in steps]
    try:
        state = tf.train.get_checkpoint_state(folder)  # None if there is no such file.
    except ValueError:  # It is damaged.
        state = None
    if state:
        paths.insert(0, os.path.join(folder, re.split(r'[/\\]', state.model_checkpoint_path)[-1]))
    return [path for path in dict.fromkeys(paths) if named(path)]


def named(path: str) -> str | None:
    """The checkpoint that a path names, with or without the ending of one of its files, or None.

    Raises `errors.UserError` if TensorFlow would take the path for a pattern: training there would
    remove checkpoints of other runs.
    """
    if not (set('*?[\\') - {os.sep}).isdisjoint(path):
        raise errors.UserError(f'{path} contains one of * ? [ \\: TensorFlow would read it as a '
                               'pattern. Rename it, or choose another folder')
    path = re.sub(r'\.(index|meta|data-\d{5}-of-\d{5})$', '', path)
    if os.path.isfile(path + '.index') or os.path.isfile(path):
        return os.path.join(os.path.dirname(path) or os.curdir, os.path.basename(path))
    return None


def read(path: str) -> dict[str, np.ndarray]:
    """The values of all variables in a checkpoint by name.

    Raises `errors.UserError` if its files are damaged, or were removed while being read.
    """
    try:
        reader = tf.train.NewCheckpointReader(path)
        return {name: np.asarray(reader.get_tensor(name))
                for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, FileNotFoundError, ValueError, RuntimeError, IndexError,
            MemoryError) as error:
        # MemoryError: a damaged index may give exabytes as a size.
        raise errors.UserError(f'{path} is damaged, or was just removed '
                                f'({errors.one_line(error)})') from error


def step(found: Found) -> int:
    """The global step of a checkpoint. The original multi-GPU script stored a float.

    Scripts of 2015 and 2016 may name the step differently; then the number in the file's name
    counts. Raises `errors.UserError` if both are missing or it is not a whole number.
    """
    value = found.values.get('global_step')
    in_name = re.search(r'-(\d+)$', found.path)
    if value is None and in_name:
        return int(in_name.group(1))
    if value is None or value.shape or not (0 <= value < 2 ** 63 and value == np.floor(value)):
        raise errors.UserError(f'{found.path} is not a checkpoint of a training run: its '
                                f'global_step is {value}; expected a whole number')
    return int(value)


def check_fit(found: Found, variables: Mapping[str, tf.Variable], advice: str) -> None:
    """Checks that a checkpoint has all values of some variables, and that they are finite.

    Args:
        found: the checkpoint.
        variables: by their names in the checkpoint.
        advice: what the user can do; ends the error's message.

    Raises `errors.UserError` that names variables that are missing, have a different shape or are
    not finite; of many, as ResNet-23 has, the first ones.
    """
    faults = []
    for name, variable in sorted(variables.items()):
        value = found.values.get(name)
        shape = variable.shape.as_list()
        if value is None:
            faults.append(f'{name} is missing')
        elif list(value.shape) != shape:
            faults.append(f'{name} has shape {list(value.shape)}; expected {shape}')
        elif not np.isfinite(value).all():
            faults.append(f'{name} is not finite')
    if faults:
        listed = textwrap.shorten('; '.join(faults), 500, placeholder=' ...')
        raise errors.UserError(f'{found.path} does not fit this network: {listed}. {advice}')
