"""`params.h5`: the variables of a run for other programs."""
import io
import operator

from cifar10_lib.program import files
from cifar10_lib.runs import names


def write(path, values, trainable):
    """Writes an HDF5 file with the values of variables.

    `weights/NAME` are the trainable variables, `statistics/NAME` the moving statistics of batch
    norms, and `averages/NAME` the averages of both. The attribute `global_step` is the number of
    steps. The state of the optimizer is left out. `values` is {name: array}, including
    `global_step`; `trainable` has the names of the trainable variables.
    """
    import h5py  # Here, because the import is slow.
    image = io.BytesIO()  # HDF5 opens files by name, and hides the error of a full disk.
    with h5py.File(image, 'w') as stream:
        for name, value in values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name in trainable:
                stream[f'weights/{name}'] = value
            elif name.endswith(names.AVERAGE):
                stream[f'averages/{name.removesuffix(names.AVERAGE)}'] = value
            elif names.is_statistic(name):
                stream[f'statistics/{name}'] = value
    with files.new_file(path) as stream:
        stream.write(image.getbuffer())


def step(path):
    """The global step in a file from `write`; None if the file is missing or damaged."""
    import h5py
    try:
        with h5py.File(path) as stream:
            return operator.index(stream.attrs['global_step'])  # TypeError if not an integer.
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, MemoryError):
        return None
