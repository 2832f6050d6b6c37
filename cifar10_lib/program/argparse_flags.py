"""`cifar10.parser`: the flags as an `argparse` parser, for code written against it.

The last version of the tutorial parsed its command line so, and its scripts added their arguments:

    parser = cifar10.parser
    parser.add_argument('--max_steps', type=int, default=1000000)
    FLAGS = parser.parse_args()
"""
import argparse
import sys

from absl import flags


class _Parsed(flags.ArgumentParser):
    """Repeats the value that argparse made: `tf.app.run` parses the command line again."""

    def __init__(self, value):
        self._value = value

    def parse(self, argument):
        return self._value


class Parser(argparse.ArgumentParser):
    """Parses a program's own arguments, then the flags; each value is in `flags.FLAGS`."""

    def __init__(self):
        super().__init__(allow_abbrev=False)

    def parse_known_args(self, args=None, namespace=None):
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
