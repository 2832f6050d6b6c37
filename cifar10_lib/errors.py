"""A user's mistake, and how it is reported: one line."""
import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator


class UserError(ValueError):
    """A user's mistake. The message is one line: what came, what was expected, how to fix it."""


def note(text: str) -> None:
    """Writes the line 'SCRIPT: text' to standard error."""
    print(f'{os.path.basename(sys.argv[0])}: {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def reader_may_be_gone() -> Iterator[None]:
    """What the block prints at the end may have no reader: Ctrl-C ends `| tee`, too."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, open until the process ends.


def one_line(error: BaseException) -> str:
    """The message of an exception on one line; of a failed operation of TensorFlow, its reason."""
    message = getattr(error, 'message', None)
    if not isinstance(message, str):
        message = str(error)
        return re.sub(r'^\[Errno -?\d+\] ', '', ' '.join(message.split()))
    # 'Graph execution error:\n\n... Node: 'name'\nreason\n...', a list '  (0) CODE: reason\n...',
    # or the reason alone.
    for pattern in (r'^  \(0\) [A-Z_]+: (.*)', r'^Node: .*\n(?:From /job:.*\n)?(.*)'):
        reason = re.search(pattern, message, re.MULTILINE)
        if reason:
            return reason.group(1)
    frame = re.compile(r'Graph execution error:|From /job:|=+$|Detected at node|$')
    return next((line for line in message.splitlines() if not frame.match(line)), message)
