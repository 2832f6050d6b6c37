"""Reads small text and JSON files that users may have edited or damaged."""
import json

from cifar10_lib.program import errors, files

MAX_BYTES = 1 << 20  # Such files take a few kilobytes.
_MAX_NAME = 255  # Characters: Linux's limit for the name of a file.
_SHOWN = 80  # Characters of a value that a message quotes.


def read_text(path):
    """Reads a text file; raises `errors.DataError` if it is larger than `MAX_BYTES` or not UTF-8,
    or `OSError`, also for a pipe or a device."""
    with files.regular_file(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise errors.DataError(f'{path} is larger than {MAX_BYTES >> 20} MB')
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise errors.DataError(f'{path} is not text in UTF-8 ({error.reason})') from error


def read_json(path):
    """Reads a file with a JSON object, see `read_text` and `parse_json`; returns a dict."""
    return parse_json(read_text(path), path)


def parse_json(text, source):
    """Parses a JSON object; returns a dict, or raises `errors.DataError` with a message that starts
    with `source`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else 'nested too deeply'
        raise errors.DataError(f'{source} is not JSON: {reason}') from error
    if not isinstance(found, dict):
        raise errors.DataError(f'{source} holds {shown(found)}; expected a JSON object')
    return found


def check_fields(found, fields, source):
    """Raises `errors.DataError` if a value of a JSON object, a dict, is invalid.

    `fields` is {name: (function that checks the value or None, description of a valid value)}; the
    message starts with `source` and names the field.
    """
    for field, (is_valid, expected) in fields.items():
        value = found.get(field)
        if not is_valid(value):
            raise errors.DataError(f'{source}: "{field}" is {shown(value)}; expected {expected}')


def is_name(value):
    """Whether a JSON value can serve as a name: short text of printable characters."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def shown(value):
    """Returns a JSON value as messages quote it: printable, on one line, shortened if long."""
    try:
        text = json.dumps(value)
    except RecursionError:  # `dumps` supports fewer levels than `loads`.
        text = f'a deeply nested {type(value).__name__}'
    return text if len(text) <= _SHOWN else text[:_SHOWN] + '...'
