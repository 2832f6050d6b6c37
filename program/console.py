"""What the user sees: lines on standard output and standard error, and progress on a terminal.

All output of the scripts goes through this module, which makes it printable first: names of files
and classes, and what a server answers, may hold escape sequences.

If standard output is lost (a closed terminal, a pipe whose reader has ended, a full disk), nothing
is shown from then on, and the process gets SIGHUP, as from a closing terminal: a trainer saves and
stops, or continues if it was started with `nohup`. A script whose purpose is its output calls
`require`, and `Gone` is raised instead.
"""
import contextlib
import os
import shutil
import signal
import sys

_CLEAR = '\r\x1b[K'  # To the line's beginning, and erase what is there.
_progress_shown = False
_required = False


class Gone(Exception):
    """Standard output cannot be written; `__cause__` is the `OSError`.

    Not an `OSError` itself: those are about the folders that a script writes in.
    """


def open_closed():
    """Points those of standard input, output and error that are closed at /dev/null.

    Call it before anything else. A file that is opened while they are closed gets their number, and
    whatever is printed then goes into that file.
    """
    for number, (name, mode) in enumerate((('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w'))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number, which is this one.
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def require():
    """From now on raises `Gone` if a line cannot be shown, instead of SIGHUP."""
    global _required
    _required = True


def line(text):
    """Prints a line; the progress, if it is shown, is overwritten until it is shown again."""
    global _progress_shown
    _show((_CLEAR if _progress_shown else '') + printable(text))
    _progress_shown = False


def note(text):
    """Writes a line to standard error; works from any thread, and if nobody reads it any more."""
    encoding = _encoding(sys.stderr)
    with contextlib.suppress(OSError):
        os.write(2, printable(text, sys.stderr).encode(encoding, 'replace') + b'\n')


def end():
    """Goes on below the progress, if it is shown: something else is to be printed, by others."""
    global _progress_shown
    if _progress_shown:
        _show('')
    _progress_shown = False


def progress(text, keep=False):
    """Shows how far something is, in place of what was shown before; on a terminal only.

    Args:
        text: what to show; what is wider than the terminal is cut off.
        keep: whether to leave it there and go on in the next line.
    """
    global _progress_shown
    if not shows_progress():
        return
    width = shutil.get_terminal_size().columns
    _show(_CLEAR + printable(text)[:width - 1], end='\n' if keep else '')
    _progress_shown = not keep


def shows_progress():
    """Whether standard output is a terminal on which `progress` can draw."""
    # mpirun gives its children a terminal without columns where it has none itself.
    return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0


def _show(text, end='\n'):
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # In place of the console, since what could not be written is tried again at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if _required:
            raise Gone(error.strerror) from error
        note('')
        note(f'The console is gone: {error.strerror}.')
        signal.raise_signal(signal.SIGHUP)


def printable(text, stream=None):
    """Text without what a console would take for a command, or cannot encode: "?" stands there.

    Args:
        text: str; may hold the surrogates that stand for undecodable bytes of a file's name.
        stream: where it is to be shown; standard output by default.
    """
    shown = ''.join(sign if sign.isprintable() else '?' for sign in text)
    encoding = _encoding(stream or sys.stdout)
    return shown.encode(encoding, 'replace').decode(encoding)


def _encoding(stream):
    return getattr(stream, 'encoding', None) or 'utf-8'  # A stream of text alone has none.
