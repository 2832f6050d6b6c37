"""The figures of a run in `metrics.csv`."""
import os
import time

from cifar10_lib.program import console, errors, files
from cifar10_lib.runs import names

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'validation_error_averaged', 'images_per_second')
_HEADER = ','.join(COLUMNS) + '\n'


class Metrics:
    """`metrics.csv`: one row per interval of steps, without gaps or duplicates over all starts.

    `step` is the number of steps made so far, and training figures are means over the steps since
    the row before. `wall_time` is in seconds since 1970. A figure that was not measured is empty.
    """

    def __init__(self, folder, step):
        """Continues the file in a run's folder, or creates it.

        Drops rows after `step`, the checkpoint from which the run continues. A file that is not
        one of ours is renamed, and a new one created.
        """
        self._path = os.path.join(folder, names.METRICS)
        try:
            rows = read(self._path)
        except errors.DataError as error:
            kept = f'{self._path}.{time.strftime("%Y%m%d-%H%M%S")}'
            os.rename(self._path, kept)
            console.line(f'{error}; it is kept as {kept}.')
            rows = []
        with files.new_file(self._path) as stream:
            lines = [_HEADER, *(_line(row) for row in rows if row['step'] <= step)]
            stream.write(''.join(lines).encode())

    def append(self, **row):
        """Adds a row, given by column; None for a missing figure."""
        with open(self._path, 'a') as stream:
            stream.write(_line(row))


def _line(row):
    """A row with the digits of a float32; times to the millisecond."""
    formats = {'step': 'd', 'wall_time': '.3f'}
    return ','.join('' if row[name] is None else format(row[name], formats.get(name, '.7g'))
                    for name in COLUMNS) + '\n'


def read(path):
    """The rows of a `metrics.csv`, dictionaries from column to int (`step`), float or None.

    Drops a last line without an end, which a crash cut short. The file may be missing. Raises
    `errors.DataError` if it has another header, or a line that is not a row.
    """
    try:
        with open(path, encoding='ascii') as stream:
            header, *lines = [line for line in stream if line.endswith('\n')] or [_HEADER]
        if header != _HEADER:
            raise ValueError(f'its header is not {_HEADER.strip()}')
        found = []
        for line in lines:
            step, *figures = line.rstrip('\n').split(',')
            figures = [float(figure) if figure else None for figure in figures]
            found.append(dict(zip(COLUMNS, [int(step), *figures], strict=True)))
        return found
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise errors.DataError(f'{path} is not a table that a run wrote ({error})') from error
