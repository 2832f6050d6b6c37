"""Writes lines to standard output and standard error, and draws progress on a terminal.

All output is made printable here: names and server responses may contain escape sequences.

If standard output fails (closed terminal, pipe without a reader, full disk), later output is
discarded and the process receives SIGHUP, as from a closing terminal: a trainer saves and stops, or
continues if it was started with `nohup`.
"""
import contextlib
import errno
import os
import signal
import sys
from typing import TextIO

# A closing terminal sends SIGHUP. Windows lacks it, and nobody sends SIGTERM there.
HANGUP = getattr(signal, 'SIGHUP', signal.SIGTERM)
_CLOSED_PIPE = 141  # The exit code of a process that SIGPIPE ended.
_CLEAR = '\r\x1b[K'  # Return to the start of the line and erase it.
_progress_shown = False
_must_fail = False


def fail_if_stdout_closes() -> None:
    """Ends the process if standard output fails: for a script whose purpose is its output."""
    global _must_fail
    _must_fail = True


def line(text: str) -> None:
    """Prints a line, replacing the progress line."""
    global _progress_shown
    _show((_CLEAR if _progress_shown else '') + printable(text))
    _progress_shown = False


def note(text: str) -> None:
    """Writes a line to standard error, from any thread; failures are ignored."""
    with contextlib.suppress(OSError):
        os.write(2, f'{printable(text, sys.stderr)}\n'.encode())


def end() -> None:
    """Keeps the progress line: other output starts on the next one."""
    global _progress_shown
    if _progress_shown:
        _show('')
    _progress_shown = False


def progress(text: str) -> None:
    """Replaces the progress line, cut to the terminal's width, if standard output is a terminal."""
    global _progress_shown
    if shows_progress():
        # `shutil` would prefer $COLUMNS, which may describe another terminal.
        width = os.get_terminal_size(sys.stdout.fileno()).columns - 1
        shown = printable(text)
        while len(shown) > width and ', ' in shown:  # Half a number would be wrong.
            shown = shown.rpartition(', ')[0]
        _show(_CLEAR + shown[:width], end='')
        _progress_shown = True


def shows_progress() -> bool:
    """Whether standard output is a terminal on which `progress` can draw."""
    # Without a terminal, mpirun gives its children a pseudo-terminal of 0 columns.
    try:
        return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    except OSError:  # On Windows, the null device claims to be a terminal.
        return False


def _show(text, end='\n'):
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        with open(os.devnull, 'w') as nowhere:  # Python retries the failed write at exit.
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if _must_fail:
            if error.errno == errno.EPIPE:  # Without a reader, as in `... | head`: needs no words.
                sys.exit(_CLOSED_PIPE)
            sys.exit(f'{os.path.basename(sys.argv[0])}: cannot write to standard output: '
                     f'{error.strerror}')
        note('')
        note(f'The console is gone: {error.strerror}.')
        signal.raise_signal(HANGUP)


def printable(text: str, stream: TextIO | None = None) -> str:
    """Returns text with "?" for each control character and each character that cannot be encoded.

    Surrogates, which stand for undecodable bytes of a file name, are such characters. `stream` is
    where the text will be shown; by default, standard output.
    """
    shown = ''.join(character if character.isprintable() else '?' for character in text)
    encoding = (stream or sys.stdout).encoding or 'utf-8'  # `io.StringIO` has None.
    return shown.encode(encoding, 'replace').decode(encoding)
