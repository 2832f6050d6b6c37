"""The figures of a run in `metrics.csv`."""
import contextlib
import itertools
import os
import shutil

import numpy as np

from cifar10_lib.program import console, files
from cifar10_lib.runs import names

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'validation_error_averaged', 'images_per_second')
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
            shutil.copy(self._path, kept)  # A full disk must not leave it without its rows.
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
    return format(value, {'step': 'd', 'wall_time': '.3f'}.get(name, '.7g'))


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

    Skips a line without an end: a crash cut it short.
    """
    found = []
    with contextlib.suppress(FileNotFoundError), files.regular_file(path) as stream:
        for line in stream:
            words = tuple(line.decode('ascii', 'replace').rstrip('\r\n').split(','))
            if line.endswith(b'\n') and words != COLUMNS:
                found.append(_row(words))
    return [row for row in found if row], None in found


def _row(words):
    """The row in the words of a line, or None if a run cannot have written it."""
    try:
        step, figures = int(words[0]), [float(word) if word else None for word in words[1:]]
        row = dict(zip(COLUMNS, [step, *figures], strict=True))
    except ValueError:
        return None
    fits = all(value is None or abs(value) <= _MAX_FIGURE for value in figures)  # False for NaN.
    return row if fits and 0 <= step <= _MAX_STEP else None
