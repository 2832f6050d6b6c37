"""The files that a run leaves for people: `metrics.csv`, `params.h5`, and `best/`."""
import csv
import glob
import io
import itertools
import json
import os
import re

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from program import console
from program import files
from runs import checkpoints

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'images_per_second')

# The names of all files that these functions write, for `--restart`.
FILES = r'metrics\.csv(\.part|\.old)?|params\.h5(\.part)?|timeline-\d+\.json'
BEST_FILES = r'params\.h5(\.part)?|error\.json(\.part)?|checkpoint(\.tmp.*)?|model\.ckpt-\d+\..*'
_RECORD_FRAME = 16  # Bytes around an event: its length, a checksum of that, and one of the event.
_CHECKPOINT_FILES = re.compile(r'model\.ckpt-(\d+)\..*')


class Metrics:
    """`metrics.csv`: a row for each stretch of steps, without gap or double over all starts.

    A row's step is the number of steps made by then; its training figures are means over the steps
    since the row before. `wall_time` is in seconds since 1970; empty is what was not measured.
    """

    def __init__(self, folder, step):
        """Goes on with the file in a folder, or makes it.

        Rows of steps that were made after the checkpoint at `step`, and are to be made again, are
        dropped, and so are lines that are no rows: one that a crash has cut short, or what a
        spreadsheet saved. A line says so, and the file as it was stays as `metrics.csv.old`.

        Args:
            folder: where the file is.
            step: at which the run starts.
        """
        self._path = os.path.join(folder, 'metrics.csv')
        rows = read_metrics(self._path)
        if _count_lines(self._path) > 1 + len(rows):
            os.replace(self._path, self._path + '.old')
            console.line(f'{self._path} has lines that are no rows of a run: as it was it is now '
                         f'{self._path}.old.')
        rows = [row for row in rows if row['step'] <= step]
        out = io.StringIO(newline='')
        writer = csv.DictWriter(out, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows({name: _text(name, row[name]) for name in COLUMNS} for row in rows)
        _write(self._path, out.getvalue().encode())

    def append(self, **row):
        """Adds a row, by column; None where there is no figure."""
        with open(self._path, 'a') as stream:
            stream.write(','.join(_text(name, row[name]) for name in COLUMNS) + '\n')


def _count_lines(path):
    """The number of whole lines of a file, 0 where there is none."""
    try:
        with open(path, 'rb') as stream:
            return sum(line.endswith(b'\n') for line in stream)
    except FileNotFoundError:
        return 0


def read_metrics(path):
    """The whole rows of a `metrics.csv`, none where there is no file.

    Returns:
        List of dictionaries from column to int (`step`), float, or None where there is no figure.
    """
    try:
        with open(path, errors='replace') as stream:  # A crash may leave any bytes.
            lines = stream.readlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in (line[:-1] for line in lines[1:] if line.endswith('\n')):
        try:
            values = [float(word) if word else None for word in line.split(',')]
            rows.append({**dict(zip(COLUMNS, values, strict=True)), 'step': int(values[0])})
        except (ValueError, TypeError, OverflowError):  # No line that a run of ours has finished.
            continue
    return rows


def read_scalars(folder, tag):
    """A curve of the event files in a folder, in the order of their time; other files are ignored.

    Where a file is damaged, the points before count, and a line names the file.

    Returns:
        Dictionary from step to float, by step; empty where there is none.
    """
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), 'events.out.tfevents.*'))):
        records = _count_records(path)
        try:
            for event in itertools.islice(tf.train.summary_iterator(path), records):
                for value in event.summary.value:
                    if value.tag == tag:
                        found[event.step] = value.simple_value
        except (tf.errors.OpError, message.DecodeError):
            console.line(f'{path} is damaged; using what comes before the damage.')
    return dict(sorted(found.items()))


def _count_records(path):
    """How many records of an event file are there in full, by the lengths in front of them.

    The last one is cut short while a process writes the file. TensorFlow's reader allocates
    whatever a record gives as its length, and crashes where that fails.
    """
    count = 0
    with files.regular_file(path) as stream:
        rest = os.fstat(stream.fileno()).st_size
        while rest >= _RECORD_FRAME:
            length = int.from_bytes(stream.read(8), 'little')
            rest -= _RECORD_FRAME + length
            if rest >= 0:
                count += 1
                stream.seek(_RECORD_FRAME - 8 + length, os.SEEK_CUR)
    return count


def _text(name, value):
    """A figure as the file has it: as many digits as a float32 holds, times to a millisecond."""
    if value is None:
        return ''
    if name == 'step':
        return str(value)
    return f'{value:.3f}' if name == 'wall_time' else f'{value:.7g}'


def _write(path, data):
    """Writes a file whole or not at all."""
    with open(path + '.part', 'wb') as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + '.part', path)


def write_parameters(path, variables, session):
    """Writes variables to an HDF5 file.

    `weights/NAME` are the trainable variables, `averages/NAME` their moving averages,
    `statistics/NAME` those of batch norms, each by the variable's name; the attribute `global_step`
    is the number of steps. What an optimizer keeps is left out.

    Args:
        path: of the file; written whole or not at all.
        variables: list of variables.
        session: where their values are.
    """
    import h5py  # Here, because it takes a while to load.
    values = session.run({variable.op.name: variable for variable in variables})
    trainable = {variable.op.name for variable in variables if variable.trainable}
    average = '/ExponentialMovingAverage'
    with h5py.File(path + '.part', 'w') as stream:
        for name, value in values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name in trainable:
                stream[f'weights/{name}'] = value
            elif name.endswith(average):
                stream[f'averages/{name.removesuffix(average)}'] = value
            elif name.rpartition('/')[2] in ('moving_mean', 'moving_variance'):
                stream[f'statistics/{name}'] = value
    os.replace(path + '.part', path)


def parameters_step(path):
    """The number of steps behind an HDF5 file of `write_parameters`; None where there is none."""
    import h5py
    try:
        with h5py.File(path) as stream:
            return int(stream.attrs['global_step'])
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):  # Missing, or damaged.
        return None


class Best:
    """The checkpoint with the lowest validation error so far, in the folder `best`.

    `error.json` tells which it is and its error; `params.h5` holds its variables.
    """

    def __init__(self, train_dir, variables):
        """Looks for what an earlier start has left.

        Args:
            train_dir: folder of the run.
            variables: list of the variables that a checkpoint holds.
        """
        self._folder = os.path.join(train_dir, 'best')
        self._variables = variables
        self._saver = tf.train.Saver(  # `offer` removes them.
            variables, max_to_keep=None, save_relative_paths=True)
        self.error, self.step = self._read()

    def _read(self):
        """Error and step of the best so far; (infinity, None) where there is none that is whole."""
        try:
            with open(os.path.join(self._folder, 'error.json')) as stream:
                found = json.load(stream)
            error, step = float(found['error']), int(found['step'])
        except (OSError, ValueError, TypeError, KeyError):
            return np.inf, None
        damaged = checkpoints.fault(os.path.join(self._folder, f'model.ckpt-{step}'))
        return (np.inf, None) if damaged else (error, step)

    def offer(self, session, step, error, averaged_error):
        """Keeps the variables if their error is lower than any before.

        The new checkpoint is whole before `error.json` names it, and the one before is removed only
        then: whenever the process is killed, the file names a checkpoint that is there.

        Args:
            session: where the variables' values are.
            step: the global step.
            error: float, 0 to 1, on the whole test set.
            averaged_error: the same with the variables' moving averages.
        """
        if error >= self.error:
            return
        os.makedirs(self._folder, exist_ok=True)
        self._saver.save(session, os.path.join(self._folder, 'model.ckpt'), global_step=step,
                         write_meta_graph=False)
        write_parameters(os.path.join(self._folder, 'params.h5'), self._variables, session)
        found = {'step': step, 'error': error, 'averaged_error': averaged_error,
                 'checkpoint': f'model.ckpt-{step}'}
        _write(os.path.join(self._folder, 'error.json'), (json.dumps(found) + '\n').encode())
        self.error, self.step = error, step
        for entry in os.scandir(self._folder):
            match = _CHECKPOINT_FILES.fullmatch(entry.name)
            if match and int(match.group(1)) != step:
                os.remove(entry.path)
