"""Flags that name files and folders.

`~` is expanded, since a shell leaves `--train_dir=~/run` as it is. What TensorFlow cannot open is
refused.
"""
import os

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls these functions.


def define(name, default, text, flag_values=flags.FLAGS):
    """Defines a flag whose value is the path of a file or folder, or None."""
    parser = _Path()
    flags.DEFINE(parser, name, default, text, flag_values, flags.ArgumentSerializer())
    parser.check = _checked


def define_list(name, default, text, flag_values=flags.FLAGS):
    """Defines a flag whose value is a list of paths, given with commas between them."""
    parser = _Paths()
    flags.DEFINE(parser, name, default, text, flag_values, flags.CsvListSerializer(','))
    parser.check = _checked


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
    check = staticmethod(lambda path: path)  # Of defaults, which are parsed, too.

    def parse(self, argument):
        return self.check(super().parse(argument))


class _Paths(flags.ListParser):
    check = _Path.check

    def parse(self, argument):
        return [self.check(path) for path in super().parse(argument)]
