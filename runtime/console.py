"""Lines on the console, and on a terminal a line below them that tells how far a run is."""
import shutil
import sys

_CLEAR = '\r\x1b[K'  # To the line's beginning, and erase what is there.
_progress_shown = False


def line(text):
    """Prints a line; the progress, if it is shown, is overwritten until it is shown again."""
    global _progress_shown
    print((_CLEAR if _progress_shown else '') + text, flush=True)
    _progress_shown = False


def end():
    """Goes on below the progress, if it is shown: something else is to be printed, by others."""
    global _progress_shown
    if _progress_shown:
        print(flush=True)
    _progress_shown = False


def progress(text, keep=False):
    """Shows how far something is, in place of what was shown before; on a terminal only.

    Args:
        text: what to show; what is wider than the terminal is cut off.
        keep: whether to leave it there and go on in the next line.
    """
    global _progress_shown
    if not sys.stdout.isatty():
        return
    width = shutil.get_terminal_size().columns
    print(_CLEAR + text[:width - 1], end='\n' if keep else '', flush=True)
    _progress_shown = not keep
