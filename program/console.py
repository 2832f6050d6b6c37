"""Lines on the console, and on a terminal a line below them that tells how far a run is.

A console that is gone, as a terminal that was closed or a pipe whose reader has ended, is told to
the process as a closed terminal is, by SIGHUP: a trainer then saves, or goes on if it was started
by `nohup`. Nothing is shown from then on. The system and the shell send SIGHUP as well.
"""
import contextlib
import os
import shutil
import signal
import sys

_CLEAR = '\r\x1b[K'  # To the line's beginning, and erase what is there.
_progress_shown = False


def line(text):
    """Prints a line; the progress, if it is shown, is overwritten until it is shown again."""
    global _progress_shown
    _show((_CLEAR if _progress_shown else '') + text)
    _progress_shown = False


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
    if not sys.stdout.isatty() or not os.get_terminal_size(sys.stdout.fileno()).columns:
        return  # mpirun gives its children a terminal without columns where it has none itself.
    width = shutil.get_terminal_size().columns
    _show(_CLEAR + text[:width - 1], end='\n' if keep else '')
    _progress_shown = not keep


def _show(text, end='\n'):
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # In place of the console, since what could not be written is tried again at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        with contextlib.suppress(OSError):  # It may have gone the same way.
            print(f'\nThe console is gone: {error.strerror}.', file=sys.stderr, flush=True)
        signal.raise_signal(signal.SIGHUP)


def printable(text):
    """Text without what a console would take for a command, or cannot encode: "?" stands there."""
    encoding = sys.stdout.encoding or 'ascii'
    shown = ''.join(sign if sign.isprintable() else '?' for sign in text)
    return shown.encode(encoding, 'replace').decode(encoding)
