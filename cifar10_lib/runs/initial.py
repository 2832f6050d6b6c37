"""The weights of another run with which a new run starts: `--initial_checkpoint`."""
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app

from cifar10_lib.runs import checkpoints, names, run_folder

_ADVICE = 'choose another --initial_checkpoint'


def find(given: str, train_dir: str, restart: bool) -> checkpoints.Found:
    """The checkpoint that --initial_checkpoint names; the arguments are the values of the flags.

    Raises `app.UsageError` if there isn't one, or `--restart` would remove it.
    """
    named, folder = checkpoints.named(given), os.path.realpath(train_dir)
    if named:
        found = checkpoints.Found(named, checkpoints.read(named))
    elif newest := checkpoints.newest(given):
        found = newest
    else:
        raise app.UsageError(f'No checkpoint in --initial_checkpoint={given}; expected the folder '
                             'of another run: choose one')
    if restart and os.path.dirname(os.path.realpath(found.path)) in (
            folder, os.path.join(folder, names.BEST)):
        raise app.UsageError(f'--restart would remove --initial_checkpoint={given}: choose another '
                             '--train_dir')
    return found


def values_for(found: checkpoints.Found, variables: Sequence[tf.Variable], net: str,
               classes: Sequence[str]) -> dict[str, np.ndarray]:
    """The values with which the variables of a new run's graph start, by their names.

    Weights and their averages start with the averages in the checkpoint. Layers of another shape,
    the last one if its run had other classes, the step and the state of the optimizer start anew.

    Args:
        found: the checkpoint.
        variables: the graph's variables, in the order of the network.
        net, classes: names of the new run's network and of its classes.

    Raises `app.UsageError` if no weights fit, or values are not finite.
    """
    trained = {each.op.name: each for each in variables if each.trainable}
    run = _run(found)
    new_layer = None  # The last one, if that run had other classes.
    if run and run['classes'] != list(classes):
        new_layer = list(trained)[-1].rpartition('/')[0]
    values = {}
    for variable in variables:
        base = variable.op.name.removesuffix(names.AVERAGE)
        if names.is_state(base, trained) or base.rpartition('/')[0] == new_layer:
            continue
        value = found.values.get(base + names.AVERAGE, found.values.get(base))
        if value is not None and list(value.shape) == variable.shape.as_list():
            values[variable.op.name] = value.astype(variable.dtype.base_dtype.as_numpy_dtype)
    if not all(np.isfinite(value).all() for value in values.values()):
        raise app.UsageError(f'{found.path} has values that are not finite: {_ADVICE}')
    if values.keys().isdisjoint(trained):
        _refuse(found, run, trained, net, classes)
    return values


def _refuse(found, run, trained, net, classes):
    """Raises an error that names the other run's network, or the weights that do not fit."""
    if run:
        run_folder.check_net(os.path.dirname(found.path), run, net, _ADVICE)
    wanted = trained
    if found.values.keys().isdisjoint(trained):
        wanted = {name + names.AVERAGE: each for name, each in trained.items()}
    checkpoints.values_for(
        found.path, wanted, f'--net={net} expects these for {len(classes)} classes: {_ADVICE}',
        found.values)


def lines(found: checkpoints.Found, values: Mapping[str, np.ndarray],
          variables: Sequence[tf.Variable], validate_on: str) -> list[str]:
    """Lines that say which layers start with `values`, of `values_for`, and warn of held-out images
    if the new run has `validate_on` and the other one did not hold out any."""
    trained = {each.op.name for each in variables if each.trainable}
    kept = sorted({name.split('/')[0] for name in trained & values.keys()})
    new = sorted(trained - values.keys())
    shown = [f'Starting with {", ".join(kept)} of {found.path}; new: {", ".join(new) or "none"}.']
    run = _run(found)
    if run and validate_on not in ('test', run['settings'].get('validate_on')):
        shown.append('Warning: that run did not hold out images. If it had the same ones, '
                     'validations of this run look better than they are.')
    return shown


def _run(found: checkpoints.Found) -> dict[str, Any] | None:
    return run_folder.read_run(os.path.dirname(found.path), _ADVICE)
