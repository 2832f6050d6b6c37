"""Flags whose values are paths.

A leading `~` is expanded, since shells do not expand it in `--train_dir=~/run`. Rejects URLs, and
paths that TensorFlow cannot open.
"""
import os
import re

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls these functions.

_URL = re.compile('[A-Za-z][A-Za-z0-9+.-]*://')


def define(name, default, text):
    """Defines a flag whose value is a path or None."""
    flags.DEFINE(_Path(), name, default, text, serializer=flags.ArgumentSerializer())


def define_list(name, default, text):
    """Defines a flag whose value is a list of paths, separated by commas."""
    flags.DEFINE(_Paths(), name, default, text, serializer=flags.CsvListSerializer(','))


class _Path(flags.ArgumentParser):
    def parse(self, argument):
        return _expand(argument)


class _Paths(flags.ListParser):
    def parse(self, argument):
        paths = super().parse(argument)
        if '' in paths:
            raise ValueError(f'"{argument}" has a comma without a path beside it: remove the comma')
        return [_expand(path) for path in paths]


def _expand(path):
    """Expands a leading `~`; raises `ValueError` for a URL, which only TensorFlow would open, and
    for what TensorFlow cannot open."""
    if _URL.match(path):
        raise ValueError(f'{path} is a URL; expected the path of a file or folder: mount it, or '
                         'copy it')
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ValueError('TensorFlow opens only files and folders whose path is UTF-8: rename '
                         'them, or choose others') from error
    expanded = os.path.expanduser(path)
    if expanded.startswith('~'):
        raise ValueError(f'the home folder in {path} is not known: write out its path, or '
                         f'./{path} for a folder of that name')
    return expanded
