"""The files that a run leaves for people: `metrics.csv`, `params.h5`, and `best/`."""
import contextlib
import glob
import io
import itertools
import json
import operator
import os
import re

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from program import console
from program import files
from program import small_files
from runs import checkpoints

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'images_per_second')
_HEADER = ','.join(COLUMNS) + '\n'

# The names of all files that these functions write, for `--restart`.
FILES = r'metrics\.csv(\.old(\.\d+)?)?|params\.h5|timeline-\d+\.json'
BEST_FILES = r'params\.h5|error\.json|checkpoint|model\.ckpt-\d+\..*'
_MAX_LINE = 1000  # Bytes; a row has some hundred.
_MAX_STEP = 2 ** 53  # Up to here a float holds every whole number.
_MAX_FIGURE = float(np.finfo(np.float32).max)
_RECORD_FRAME = 16  # Bytes around an event: its length, a checksum of that, and one of the event.
_CHECKPOINT_FILES = re.compile(r'model\.ckpt-(\d+)\..*')


class Metrics:
    """`metrics.csv`: a row for each stretch of steps, without gap or double over all starts.

    A row's step is the number of steps made by then; its training figures are means over the steps
    since the row before. `wall_time` is in seconds since 1970; empty is what was not measured.
    """

    def __init__(self, folder, step):
        """Continues the file in a folder, or makes it.

        Rows of steps after the checkpoint at `step` are dropped: these steps are made again. So are
        lines that are not rows, such as those that a spreadsheet saved; the file as it was is then
        kept as `metrics.csv.old`, `metrics.csv.old.1` and so on.

        Args:
            folder: where the file is.
            step: at which the run starts.
        """
        self._path = os.path.join(folder, 'metrics.csv')
        rows, others = _read_lines(self._path)
        if others:
            kept = _unused(self._path + '.old')
            os.rename(self._path, kept)
            console.line(f'{self._path} has lines that are not rows of a run; the file as it was '
                         f'is now {kept}.')
        rows = [row for row in rows if row['step'] <= step]
        _write(self._path, ''.join([_HEADER, *map(_line, rows)]).encode())

    def append(self, **row):
        """Adds a row, by column; None where there is no figure."""
        with open(self._path, 'a') as stream:
            if not stream.tell():  # Somebody has removed or emptied it while training.
                stream.write(_HEADER)
            stream.write(_line(row))


def _line(row):
    return ','.join(_text(name, row[name]) for name in COLUMNS) + '\n'


def _unused(path):
    """A path where nothing is yet: PATH, PATH.1, PATH.2 and so on."""
    paths = itertools.chain([path], (f'{path}.{number}' for number in itertools.count(1)))
    return next(each for each in paths if not os.path.lexists(each))


def read_metrics(path):
    """The rows of a `metrics.csv`, none where there is no file.

    Lines that no run has written are left out: among others those with a step that is not a whole
    number, or with a figure beyond what float32 holds.

    Returns:
        List of dictionaries from column to int (`step`), float, or None where there is no figure.
    """
    return _read_lines(path)[0]


def _read_lines(path):
    """The rows of a `metrics.csv`, and how many lines it has that are neither row nor header."""
    rows, others = [], 0
    for number, line in enumerate(_lines(path)):
        row = _row(line)
        if row:
            rows.append(row)
        else:
            others += number > 0 or line != _HEADER.rstrip().encode()
    return rows, others


def _lines(path):
    """Yields the lines of a file as bytes; one that is too long for a row as an empty one.

    A line without an end was cut short by a crash, and is left out.
    """
    with contextlib.suppress(FileNotFoundError), files.regular_file(path) as stream:
        is_continued = False
        for piece in iter(lambda: stream.readline(_MAX_LINE), b''):
            is_end = piece.endswith(b'\n')
            if is_end:
                yield b'' if is_continued else piece.rstrip(b'\r\n')
            is_continued = not is_end


def _row(line):
    """The row in a line of a `metrics.csv`; None if it is not one that a run has finished."""
    try:
        values = [float(word) if word else None for word in line.decode('ascii').split(',')]
        row = dict(zip(COLUMNS, values, strict=True))
    except ValueError:
        return None
    if row['step'] is None or not 0 <= row['step'] <= _MAX_STEP or row['step'] % 1:
        return None
    if not all(value is None or abs(value) <= _MAX_FIGURE for value in values):  # Nor if NaN.
        return None
    return {**row, 'step': int(row['step'])}


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
    """Writes a file completely or not at all."""
    with files.new_file(path) as stream:
        stream.write(data)


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
    image = io.BytesIO()  # Not the file: HDF5 opens by name, and hides a full disk's error.
    with h5py.File(image, 'w') as stream:
        for name, value in values.items():
            if name == 'global_step':
                stream.attrs[name] = int(value)
            elif name in trainable:
                stream[f'weights/{name}'] = value
            elif name.endswith(average):
                stream[f'averages/{name.removesuffix(average)}'] = value
            elif name.rpartition('/')[2] in ('moving_mean', 'moving_variance'):
                stream[f'statistics/{name}'] = value
    _write(path, image.getbuffer())


def parameters_step(path):
    """The number of steps behind an HDF5 file of `write_parameters`; None where there is none."""
    import h5py
    try:
        with h5py.File(path) as stream:
            return operator.index(stream.attrs['global_step'])  # TypeError: it is no integer.
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, MemoryError):
        return None  # Missing, or damaged.


class Best:
    """The checkpoint with the lowest validation error so far, in the folder `best`.

    The error is that of the moving averages: by default, they are what `--best` evaluates,
    predicts with and exports. `error.json` holds step and errors; `params.h5` the variables.
    """

    def __init__(self, train_dir, variables, images='test'):
        """Looks for what an earlier start has left.

        Args:
            train_dir: folder of the run.
            variables: list of the variables that a checkpoint holds.
            images: what the errors are measured on, 'test' or 'held_out': errors on others do not
                compare, so that a best one by them does not count.
        """
        self._images = images
        self._folder = os.path.join(train_dir, 'best')
        self._variables = variables
        self._saver = tf.train.Saver(  # `offer` removes them.
            variables, max_to_keep=None, save_relative_paths=True)
        self.error, self.step = self._read()

    def _read(self):
        """Error and step of the best so far; (infinity, None) where there is none that is whole."""
        try:
            found = small_files.read_json(os.path.join(self._folder, 'error.json'))
            error, step = float(found['averaged_error']), int(found['step'])
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            return np.inf, None
        if not 0 <= error <= 1 or found.get('validated_on', 'test') != self._images:
            return np.inf, None
        damaged = checkpoints.fault(os.path.join(self._folder, f'model.ckpt-{step}'))
        return (np.inf, None) if damaged else (error, step)

    def offer(self, session, step, error, averaged_error):
        """Keeps the variables if the error of their moving averages is lower than any before.

        The new checkpoint is whole before `error.json` names it, and the one before is removed only
        then: whenever the process is killed, the file names a checkpoint that is there.

        Args:
            session: where the variables' values are.
            step: the global step.
            error: float, 0 to 1, of the raw weights.
            averaged_error: the same of their moving averages.
        """
        if averaged_error >= self.error:
            return
        files.own_folder(self._folder)
        self._saver.save(session, os.path.join(self._folder, 'model.ckpt'), global_step=step,
                         write_meta_graph=False)
        write_parameters(os.path.join(self._folder, 'params.h5'), self._variables, session)
        found = {'step': step, 'error': error, 'averaged_error': averaged_error,
                 'validated_on': self._images, 'checkpoint': f'model.ckpt-{step}'}
        _write(os.path.join(self._folder, 'error.json'), (json.dumps(found) + '\n').encode())
        self.error, self.step = averaged_error, step
        for entry in os.scandir(self._folder):
            match = _CHECKPOINT_FILES.fullmatch(entry.name)
            if match and int(match.group(1)) != step:
                os.remove(entry.path)
