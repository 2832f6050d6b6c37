"""Reads checkpoints: of which run and step, whether they fit, and their values into variables."""
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app


def write_run(folder, run):
    """Notes in a run's folder what run it is.

    Args:
        folder: of the checkpoints.
        run: dictionary of what JSON can hold: `net`, `dataset`, and the dictionary `settings`.
    """
    path = os.path.join(folder, 'run.json')
    with open(path + '.part', 'w') as stream:
        json.dump(run, stream, indent=2, sort_keys=True)
        stream.write('\n')
    os.replace(path + '.part', path)


def check_run(folder, net, dataset, advice):
    """The settings of the run noted in a folder, or None if nothing is noted.

    Args:
        folder: of the checkpoints.
        net, dataset: what the run is to be of.
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
    except (ValueError, TypeError, KeyError) as error:
        raise app.UsageError(f'{path} is damaged ({error!r}): remove it to go on, or {advice}'
                             ) from error
    if earlier != (net, dataset):
        raise app.UsageError(
            f'{folder} holds a run with --net={earlier[0]} --dataset={earlier[1]}, not with '
            f'--net={net} --dataset={dataset}: {advice}')
    return settings


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

