"""Flags whose values are paths.

A leading `~` is expanded, since shells do not expand it in `--train_dir=~/run`. URLs are rejected.
"""
import os
import re

from absl import flags

flags.disclaim_key_flags()  # A flag belongs to the module that calls `define`.


def define(name, default, text):
    """Defines a flag whose value is a path or None."""
    flags.DEFINE(_Path(), name, default, text, serializer=flags.ArgumentSerializer())


class _Path(flags.ArgumentParser):
    def parse(self, argument):
        if re.match('[A-Za-z][A-Za-z0-9+.-]*://', argument):  # TensorFlow alone would open it.
            raise ValueError(f'{argument} is a URL; expected the path of a file or folder: mount '
                             'it, or copy it')
        return os.path.expanduser(argument)
