"""Reads checkpoints: which step, whether they fit, and their values into variables."""
import numpy as np
import tensorflow.compat.v1 as tf
from absl import app


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
    for name, variable in variables.items():
        variable.load(values[name].astype(variable.dtype.base_dtype.as_numpy_dtype), session)

