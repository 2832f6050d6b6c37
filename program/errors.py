"""Reports failures to the user: one line that starts with the script's name."""
import os
import re
import sys

from program import console

_ERROR_NUMBER = re.compile(r'^\[Errno -?\d+\] ')  # As Python writes it; the words after it suffice.


class DataError(ValueError):
    """A data folder, file or archive is invalid; the message is one line for the user."""


class MissingFile(DataError, FileNotFoundError):
    """A record file is missing. The tutorial raises `ValueError`, which this is, too."""


def one_line(error):
    """Returns an exception's message on one line; for a TensorFlow operation, only the reason."""
    message = getattr(error, 'message', None)
    if isinstance(message, str):  # TensorFlow's '... Node: 'name'\nreason\n...'
        reason = re.search(r"^Node: .*\n(.*)", message, re.MULTILINE)
        return reason.group(1) if reason else ''.join(message.splitlines()[:1])
    return _ERROR_NUMBER.sub('', ' '.join(str(error).split()))


def say(line):
    """Writes 'SCRIPT: line' to standard error, as `console.note` does."""
    console.note(f'{script()}: {line}')


def script():
    """Returns the name of the running script, without its folder."""
    return os.path.basename(sys.argv[0])
