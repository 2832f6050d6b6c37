"""Flags whose values are paths.

A leading `~` is expanded, since shells do not expand it in `--train_dir=~/run`. Rejects URLs, and
paths that TensorFlow cannot open.
"""
import os
import re

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls these functions.


def define(name, default, text):
    """Defines a flag whose value is a path or None."""
    flags.DEFINE(_Checked(default, flags.ArgumentParser()), name, default, text,
                 serializer=flags.ArgumentSerializer())


def define_list(name, default, text):
    """Defines a flag whose value is a list of paths, separated by commas."""
    flags.DEFINE(_Checked(default, flags.ListParser()), name, default, text,
                 serializer=flags.CsvListSerializer(','))


_URL = re.compile('[A-Za-z][A-Za-z0-9+.-]*://')


class _Checked(flags.ArgumentParser):
    """Expands and checks the paths of a given value; the default does not need it."""

    def __init__(self, default, parser):
        super().__init__()
        self._default, self._parser = default, parser
        self.syntactic_help = parser.syntactic_help

    def parse(self, argument):
        value = self._parser.parse(argument)
        if argument == self._default:
            return value
        return [_expand(path) for path in value] if isinstance(value, list) else _expand(value)


def _expand(path):
    """Expands a leading `~`.

    Raises:
        ValueError: the path is a URL, which TensorFlow would open but Python would not; the user
            does not exist; TensorFlow cannot open the path; or the path is relative and the current
            folder was removed.
    """
    if _URL.match(path):
        raise ValueError(f'{path} is a URL; expected the path of a file or folder: mount it, or '
                         'copy it')
    expanded = os.path.expanduser(path)
    if expanded.startswith('~'):
        raise ValueError(f'user {expanded.partition("/")[0][1:]} does not exist; write ./~ for a '
                         'name that begins with ~')
    try:
        if expanded:
            os.path.abspath(expanded).encode()
    except UnicodeEncodeError as error:
        raise ValueError('TensorFlow opens only files and folders whose path is UTF-8: rename '
                         'them, or choose others') from error
    except FileNotFoundError as error:
        raise ValueError('the current folder was removed: change to another one') from error
    return expanded
