"""Reads checkpoints: which step, whether they fit, and their values into variables."""
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


def load(path, variables, session):
    """Gives variables the values that a checkpoint holds, converted to their types.

    What else the checkpoint holds is ignored.

    Args:
        path: of the checkpoint, without `.index`.
        variables: dictionary from name in the checkpoint to variable.
        session: the session whose variables are set.

    Raises:
        app.UsageError: variables are missing in the checkpoint or have another shape there; names
        them all.
    """
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    faults = [f'{name} is missing' for name in sorted(variables) if name not in shapes]
    faults += [f'{name} has shape {shapes[name]}, wanted {variables[name].shape.as_list()}'
               for name in sorted(variables)
               if name in shapes and shapes[name] != variables[name].shape.as_list()]
    if faults:
        hint = ('. --use_moving_averages=false does without averages'
                if 'ExponentialMovingAverage is missing' in faults[-1] else '')
        raise app.UsageError(f'{path} does not fit this network: {"; ".join(faults)}{hint}')
    for name, variable in variables.items():
        dtype = variable.dtype.base_dtype.as_numpy_dtype
        variable.load(reader.get_tensor(name).astype(dtype), session)

