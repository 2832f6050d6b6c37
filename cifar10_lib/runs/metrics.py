"""The figures of a run in `metrics.csv`."""
import contextlib
import itertools
import os

import numpy as np

from cifar10_lib.program import console, files
from cifar10_lib.runs import names

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'validation_error_averaged', 'images_per_second')
_EARLIER_COLUMNS = tuple(name for name in COLUMNS if name != 'validation_error_averaged')
_HEADER = ','.join(COLUMNS) + '\n'

_MAX_STEP = 2 ** 53  # A float can hold every whole number up to this.
_MAX_FIGURE = float(np.finfo(np.float32).max)


class Metrics:
    """`metrics.csv`: one row per interval of steps, without gaps or duplicates over all starts.

    `step` is the number of steps made so far, and training figures are means over the steps since
    the row before. `wall_time` is in seconds since 1970. A figure that was not measured is empty.
    """

    def __init__(self, folder, step):
        """Continues the file in a run's folder, or creates it.

        Drops rows after `step`, the checkpoint from which the run continues. Also drops lines that
        are not rows, as a spreadsheet may have written; the file is then kept as `metrics.csv.old`,
        `metrics.csv.old.1` and so on.
        """
        self._path = os.path.join(folder, names.METRICS)
        rows, others = _read_lines(self._path)
        if others:
            kept = _unused(self._path + '.old')
            os.rename(self._path, kept)
            console.line(f'{self._path} has lines that a run did not write; the file is kept as '
                         f'{kept}.')
        with files.new_file(self._path) as stream:
            lines = [_HEADER, *(_line(row) for row in rows if row['step'] <= step)]
            stream.write(''.join(lines).encode())

    def append(self, **row):
        """Adds a row, given by column; None for a missing figure."""
        with open(self._path, 'a') as stream:
            if not stream.tell():  # The file was removed or emptied during training.
                stream.write(_HEADER)
            stream.write(_line(row))


def _line(row):
    return ','.join(_text(name, row[name]) for name in COLUMNS) + '\n'


def _text(name, value):
    """A figure with the digits of a float32; times to the millisecond."""
    if value is None:
        return ''
    if name == 'step':
        return str(value)
    return f'{value:.3f}' if name == 'wall_time' else f'{value:.7g}'


def _unused(path):
    """The first of PATH, PATH.1, PATH.2 and so on that does not exist."""
    paths = itertools.chain([path], (f'{path}.{number}' for number in itertools.count(1)))
    return next(each for each in paths if not os.path.lexists(each))


def read(path):
    """The rows of a `metrics.csv`, dictionaries from column to int (`step`), float or None.

    Skips lines that a run cannot have written, such as those with a fraction as step, or with a
    figure that exceeds float32. The file may be missing.
    """
    return _read_lines(path)[0]


def _read_lines(path):
    """The rows of a `metrics.csv`, and whether it has lines that are neither row nor header.

    Skips a line without an end: a crash cut it short. If somebody added columns to the file of an
    earlier version, its rows are as long as today's, and none is read.
    """
    rows, others, has_more_columns = [], False, False
    with contextlib.suppress(FileNotFoundError), files.regular_file(path) as stream:
        for line in stream:
            words = tuple(line.decode('ascii', 'replace').rstrip('\r\n').split(','))
            if line.endswith(b'\n') and words not in (COLUMNS, _EARLIER_COLUMNS):
                has_more_columns |= words[:len(_EARLIER_COLUMNS)] == _EARLIER_COLUMNS
                row = None if has_more_columns else _row(words)
                rows += [row] * (row is not None)
                others |= row is None
    return rows, others


def _row(words):
    """The row in the words of a line, or None if a run cannot have written it."""
    columns = COLUMNS if len(words) == len(COLUMNS) else _EARLIER_COLUMNS
    try:
        values = [float(word) if word else None for word in words]
        row = dict.fromkeys(COLUMNS) | dict(zip(columns, values, strict=True))
    except ValueError:
        return None
    if row['step'] is None or not 0 <= row['step'] <= _MAX_STEP or row['step'] % 1:
        return None
    if not all(value is None or abs(value) <= _MAX_FIGURE for value in values):  # False for NaN.
        return None
    return {**row, 'step': int(row['step'])}
