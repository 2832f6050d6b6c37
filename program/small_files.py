"""Small files, and the JSON objects in them, that anybody may have edited or damaged."""
import json

from program import errors
from program import files

MAX_BYTES = 1 << 20  # Such files take a few kilobytes.
_MAX_NAME = 255  # Characters; Linux lets no folder or file have more.
_SHOWN = 80  # Characters of a value that a message quotes.


def read_text(path):
    """Reads a text file.

    Args:
        path: of the file.

    Returns:
        str.

    Raises:
        OSError: the file cannot be read, or is a pipe or a device.
        errors.DataError: it is larger than `MAX_BYTES`, or not UTF-8.
    """
    with files.regular_file(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise errors.DataError(f'{path} is larger than {MAX_BYTES >> 20} MB')
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise errors.DataError(f'{path} is not text in UTF-8 ({error.reason})') from error


def read_json(path):
    """Reads a file that holds a JSON object.

    Args:
        path: of the file.

    Returns:
        dict.

    Raises:
        OSError: the file cannot be read.
        errors.DataError: it is larger than `MAX_BYTES`, or does not hold a JSON object.
    """
    return parse_json(read_text(path), path)


def parse_json(text, source):
    """Reads a JSON object from text.

    Args:
        text: str.
        source: where the text comes from, such as a path: begins the error's message.

    Returns:
        dict.

    Raises:
        errors.DataError: it is not a JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise errors.DataError(f'{source} is not JSON: {error}') from error
    except RecursionError as error:
        raise errors.DataError(f'{source} is not JSON: nested too deeply') from error
    if not isinstance(found, dict):
        raise errors.DataError(f'{source} holds {shown(found)}, expected a JSON object')
    return found


def is_name(value):
    """Whether a JSON value can be a name: short text that a console shows as it is."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def shown(value):
    """A JSON value as a message quotes it: printable, on one line, cut off where it is long."""
    try:
        text = json.dumps(value)
    except RecursionError:  # Writing gives up at fewer levels than reading does.
        text = f'a deeply nested {type(value).__name__}'
    return text if len(text) <= _SHOWN else text[:_SHOWN] + '...'
