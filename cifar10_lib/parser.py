"""`cifar10.parser`, to which programs of 2017 add their arguments before they call `parse_args`."""
import argparse
import sys

from absl import flags


class Parser(argparse.ArgumentParser):
    """Parses a program's own arguments; the others as flags, whose values it returns, too."""

    def parse_known_args(self, args=None, namespace=None):
        """Returns the values, and the arguments that are neither the program's nor flags."""
        values, rest = super().parse_known_args(args, namespace)
        rest = flags.FLAGS([sys.argv[0], *rest], known_only=True)[1:]
        for name, value in flags.FLAGS.flag_values_dict().items():
            if not hasattr(values, name):
                setattr(values, name, value)
        if args is None:
            sys.argv[1:] = rest  # `tf.app.run` parses the command line again.
        return values, rest
