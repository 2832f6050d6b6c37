"""The figures of a run in `metrics.csv`: one row per interval of steps, without gaps or duplicates
over all starts.

`step` is the number of steps made so far, and training figures are means over the steps since the
row before. `wall_time` is in seconds since 1970. A figure that was not measured is empty.
"""
import os
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from cifar10_lib.program import console, errors, files

COLUMNS = ('step', 'epoch', 'wall_time', 'learning_rate', 'training_loss', 'training_error',
           'validation_error', 'validation_error_averaged', 'images_per_second')
_HEADER = ','.join(COLUMNS) + '\n'


def start(path: str, step: int) -> None:
    """Continues the file at `path`, or creates it.

    Drops rows after `step`, the checkpoint from which the run continues. A file that is not one of
    ours is renamed, and a new one created.
    """
    try:
        rows = read(path)
    except errors.DataError as error:
        kept = f'{path}.{time.strftime("%Y%m%d-%H%M%S")}'
        os.replace(path, kept)
        console.line(f'{error}; it is kept as {kept}.')
        rows = []
    with files.new_file(path) as stream:
        stream.write(_HEADER.encode())
        for row in rows:
            if row['step'] <= step:
                write(stream, row)


def write(stream: BinaryIO, row: Mapping[str, float | None]) -> None:
    """Writes the figures of a row by column; a column may be missing."""
    formats = {'step': 'd', 'wall_time': '.3f'}  # The others have the digits of a float32.
    stream.write((','.join(
        '' if row.get(name) is None else format(row[name], formats.get(name, '.7g'))
        for name in COLUMNS) + '\n').encode())


def read(path: str) -> list[dict[str, Any]]:
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
            step, *rest = line.rstrip('\n').split(',')
            figures = [float(figure) if figure else None for figure in rest]
            found.append(dict(zip(COLUMNS, [int(step), *figures], strict=True)))
        return found
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise errors.DataError(f'{path} is not a table that a run wrote ({error})') from error
