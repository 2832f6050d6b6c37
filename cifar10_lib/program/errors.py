"""Reports failures to the user: one line that starts with the script's name."""
import os
import re
import sys

from cifar10_lib.program import console


class DataError(ValueError):
    """A data folder, file or archive is invalid; the message is one line for the user."""


class MissingFile(DataError, FileNotFoundError):
    """A record file is missing. The tutorial raises `ValueError`, which this is, too."""


def one_line(error: BaseException | str) -> str:
    """Returns an exception's message, or a text, on one line.

    If TensorFlow reports a failed operation, returns only the reason.
    """
    message = getattr(error, 'message', None)
    if isinstance(message, str):  # TensorFlow's errors have it.
        # '... Node: 'name'\nreason\n...', or a list '  (0) CODE: reason\n...' of several, or the
        # reason alone, with or without a title. A server adds a line about itself.
        message = re.sub(r'^Graph execution error:\n+|From /job:\S+:\n', '', message)
        for pattern in (r'^  \(0\) [A-Z_]+: (.*)', r'^Node: .*\n(.*)'):
            reason = re.search(pattern, message, re.MULTILINE)
            if reason:
                return reason.group(1)
        return ''.join(message.splitlines()[:1])
    return re.sub(r'^\[(Errno|WinError) -?\d+\] ', '', ' '.join(str(error).split()))


def say(line: str) -> None:
    """Writes 'SCRIPT: line' to standard error, as `console.note` does."""
    console.note(f'{os.path.basename(sys.argv[0])}: {line}')
