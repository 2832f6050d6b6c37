"""What a user is told of a failure: one line under the script's name."""
import os
import re
import sys

from program import console


class DataError(ValueError):
    """A data folder, file or archive is not as it should be; the message is a line for the user."""


def one_line(error):
    """What an exception says, on one line; of an operation's error the reason alone."""
    message = getattr(error, 'message', None)
    if isinstance(message, str):  # TensorFlow's '... Node: 'name'\nreason\n...'
        reason = re.search(r"^Node: .*\n(.*)", message, re.MULTILINE)
        return reason.group(1) if reason else ''.join(message.splitlines()[:1])
    return ' '.join(str(error).split())


def say(line):
    """Writes a line under the script's name to standard error; from any thread, at any time, also
    where nobody reads it any more."""
    console.note(f'{script()}: {line}')


def script():
    """The name of the script that runs, without its folder."""
    return os.path.basename(sys.argv[0])
