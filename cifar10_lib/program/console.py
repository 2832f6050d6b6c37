"""Writes lines to standard output and standard error, and draws progress on a terminal.

All output of the scripts is made printable here: file names, class names and server responses may
contain escape sequences.

If standard output fails (closed terminal, pipe without a reader, full disk), later output is
discarded and the process receives SIGHUP, as from a closing terminal: a trainer saves and stops, or
continues if it was started with `nohup`. After `fail_if_stdout_closes`, it raises `Gone` instead.
"""
import contextlib
import os
import shutil
import signal
import sys

_CLEAR = '\r\x1b[K'  # Return to the start of the line and erase it.
_progress_shown = False
_must_fail = False


class Gone(Exception):
    """Standard output cannot be written; `__cause__` is the `OSError`.

    Not an `OSError` itself, because callers attribute those to the folders they write in.
    """


def open_closed():
    """Opens /dev/null in place of each closed standard stream; call it before anything else.

    Otherwise the next file to be opened gets the free descriptor, and all printed text.
    """
    for number, (name, mode) in enumerate((('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w'))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number, which is this one.
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def fail_if_stdout_closes():
    """Makes a failure of standard output raise `Gone`: for a script whose purpose is its output."""
    global _must_fail
    _must_fail = True


def line(text):
    """Prints a line, replacing the progress line."""
    global _progress_shown
    _show((_CLEAR if _progress_shown else '') + printable(text))
    _progress_shown = False


def note(text):
    """Writes a line to standard error, from any thread; failures are ignored."""
    encoding = _encoding(sys.stderr)
    with contextlib.suppress(OSError):
        os.write(2, printable(text, sys.stderr).encode(encoding, 'replace') + b'\n')


def end():
    """Keeps the progress line: other output starts on the next one."""
    global _progress_shown
    if _progress_shown:
        _show('')
    _progress_shown = False


def progress(text, keep=False):
    """Replaces the progress line, unless standard output is not a terminal.

    Cuts the text to the terminal's width. With `keep`, later output starts on the next line.
    """
    global _progress_shown
    if shows_progress():
        width = shutil.get_terminal_size().columns
        _show(_CLEAR + printable(text)[:width - 1], end='\n' if keep else '')
        _progress_shown = not keep


def shows_progress():
    """Whether standard output is a terminal on which `progress` can draw."""
    # Without a terminal, mpirun gives its children a pseudo-terminal of 0 columns.
    return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0


def _show(text, end='\n'):
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # Python retries the failed write at exit: send it to /dev/null.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if _must_fail:
            raise Gone(error.strerror) from error
        note('')
        note(f'The console is gone: {error.strerror}.')
        signal.raise_signal(signal.SIGHUP)


def printable(text, stream=None):
    """Returns text with "?" for each control character and each character that cannot be encoded.

    Surrogates, which stand for undecodable bytes of a file name, are such characters. `stream` is
    where the text will be shown; by default, standard output.
    """
    shown = ''.join(character if character.isprintable() else '?' for character in text)
    encoding = _encoding(stream or sys.stdout)
    return shown.encode(encoding, 'replace').decode(encoding)


def _encoding(stream):
    return getattr(stream, 'encoding', None) or 'utf-8'  # `io.StringIO` has None.
