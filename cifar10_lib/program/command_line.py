"""The command line: flags whose values are paths, and `cifar10.parser`.

The last version of the tutorial parsed its command line with `argparse`, and its scripts added
their arguments:

    parser = cifar10.parser
    parser.add_argument('--max_steps', type=int, default=1000000)
    FLAGS = parser.parse_args()
"""
import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls `define_path`.


def define_path(name: str, default: str | None, text: str) -> None:
    """Defines a flag whose value is a path or None.

    A leading `~` is expanded, since shells do not expand it in `--train_dir=~/run`. URLs are
    rejected. For a default below /tmp, see `default_folder`.
    """
    if default and default.startswith('/tmp/'):
        default = default_folder(default)
    flags.DEFINE(_Path(), name, default, text, serializer=flags.ArgumentSerializer())


def default_folder(path: str) -> str:
    """A path below /tmp or, where there is no /tmp, as on Windows, below the temporary folder."""
    if os.path.isdir('/tmp'):
        return path
    return os.path.join(tempfile.gettempdir(), os.path.basename(path))


class _Path(flags.ArgumentParser):
    def parse(self, argument: str) -> str:
        # TensorFlow alone would open it. A single letter is a drive.
        if re.match('[A-Za-z][A-Za-z0-9+.-]+://', argument):
            raise ValueError(f'{argument} is a URL; expected the path of a file or folder: mount '
                             'it, or copy it')
        return os.path.expanduser(argument)


class _Parsed(flags.ArgumentParser):
    """Repeats the value that argparse made: `tf.app.run` parses the command line again."""

    def __init__(self, value: object) -> None:
        self._value = value

    def parse(self, argument: str) -> object:
        return self._value


class Parser(argparse.ArgumentParser):
    """Parses a program's own arguments, then the flags; each value is in `flags.FLAGS`."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)

    # Any: `FLAGS` is not an `argparse.Namespace`, but has the values as attributes, too.
    def parse_known_args(self, args: Iterable[str] | None = None,
                         namespace: Any = None) -> tuple[Any, list[str]]:
        """Returns (`flags.FLAGS`, the arguments that are neither the program's nor flags)."""
        values, rest = super().parse_known_args(args, namespace)
        rest = flags.FLAGS([sys.argv[0], *rest], known_only=True)[1:]
        without_value = {action.dest for action in self._actions if action.nargs == 0}
        for name, value in vars(values).items():
            flags.DEFINE(_Parsed(value=value), name, None, 'An argument of the program.',
                         allow_override=True)
            flags.FLAGS[name].value = value
            flags.FLAGS[name].boolean = name in without_value
        return flags.FLAGS, rest
