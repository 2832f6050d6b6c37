"""Reads JSON that users may have edited, and checks its values."""
import json
from collections.abc import Callable, Mapping
from typing import Any

from cifar10_lib.program import errors, files


def read(path: str) -> dict[str, Any]:
    """Reads a file with a JSON object. Raises `OSError`, or see `parse`."""
    with files.regular_file(path) as stream:
        return parse(stream.read(), path)


def parse(text: str | bytes, source: str) -> dict[str, Any]:
    """Parses a JSON object; the message of an `errors.DataError` starts with `source`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # It is not UTF-8 or JSON, or nested too deeply.
        raise errors.DataError(f'{source} is not JSON: {error}') from error
    if not isinstance(found, dict):
        raise errors.DataError(f'{source} holds {shown(found)}; expected a JSON object')
    return found


def check_fields(found: Mapping[str, object],
                 fields: Mapping[str, tuple[Callable[[Any], bool], str]], source: str) -> None:
    """Raises `errors.DataError`, naming `source` and field, if a value is invalid.

    `fields` is {name: (function that checks the value, None if missing; description)}.
    """
    for field, (is_valid, expected) in fields.items():
        value = found.get(field)
        if not is_valid(value):
            raise errors.DataError(f'{source}: "{field}" is {shown(value)}; expected {expected}')


def is_name(value: object) -> bool:
    """Whether a JSON value can serve as a name: 1 to 255 printable characters, as of a file."""
    return isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()


def shown(value: object) -> str:
    """Returns a JSON value as messages quote it: printable, on one line, at most 83 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + '...'
