"""Flags that name files and folders.

`~` is expanded, since a shell leaves `--train_dir=~/run` as it is. What TensorFlow cannot open is
refused.
"""
import os

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls these functions.


def define(name, default, text, flag_values=flags.FLAGS):
    """Defines a flag whose value is the path of a file or folder, or None."""
    flags.DEFINE(_Path(default), name, default, text, flag_values, flags.ArgumentSerializer())


def define_list(name, default, text, flag_values=flags.FLAGS):
    """Defines a flag whose value is a list of paths, given with commas between them."""
    flags.DEFINE(_Paths(default), name, default, text, flag_values, flags.CsvListSerializer(','))


def _checked(path):
    """A path with `~` expanded.

    Raises:
        ValueError: there is no such user, TensorFlow cannot open it, or it lies below a current
            folder that was removed.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith('~'):
        raise ValueError(f'there is no user {expanded.partition("/")[0][1:]}; write ./~ for a name '
                         'that begins with ~')
    try:
        if expanded:
            os.path.abspath(expanded).encode()
    except UnicodeEncodeError as error:
        raise ValueError('TensorFlow opens only files and folders whose path is UTF-8: rename '
                         'them, or name others') from error
    except FileNotFoundError as error:
        raise ValueError('the current folder was removed: change to another one') from error
    return expanded


class _Path(flags.ArgumentParser):
    """Checks what is given; the default is ours, and needs no current folder."""

    def __init__(self, default):
        super().__init__()
        self._default = default

    def parse(self, argument):
        path = super().parse(argument)
        return path if path == self._default else _checked(path)


class _Paths(flags.ListParser):
    def __init__(self, default):
        super().__init__()
        self._default = default

    def parse(self, argument):
        paths = super().parse(argument)
        return paths if argument == self._default else [_checked(path) for path in paths]
