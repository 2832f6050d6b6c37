"""Runs scripts for the drills, and checks how they ended and what they left on disk."""
import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import records

# Runs root's processes without its privileges, so that permissions apply to them.
UNPRIVILEGED = ('setpriv', '--bounding-set=-all') if os.getuid() == 0 else ()


def run_script(script, *arguments, prefix=()):
    """Runs a script to its end: a `subprocess.CompletedProcess`.

    Args:
        script: name of the file.
        *arguments: its command line.
        prefix: command to run it with, such as `UNPRIVILEGED`.
    """
    return subprocess.run(
        [*prefix, sys.executable, str(records.ROOT / script), *arguments], text=True,
        capture_output=True, check=False, timeout=records.PATIENCE, env=records.environment())


def train(folder, *flags, **options):
    """Trains in the folders `data` and `train` of a folder; see `run_script`."""
    return run_script('cifar10_train.py', *train_flags(folder), *flags, **options)


def train_flags(folder):
    """Flags of a trainer for the folders `data` and `train` of a folder, and small batches."""
    return [f'--data_dir={folder}/data', f'--train_dir={folder}/train', '--batch_size=8',
            '--log_frequency=1']


class Running:
    """A script that runs until the `with` block ends, started as from a terminal."""

    def __init__(self, script, *arguments):
        self._out, self._error = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, str(records.ROOT / script), *arguments], stdout=self._out,
            stderr=self._error, env=records.environment(), preexec_fn=_default_signals)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._error.close()

    def has_ended(self):
        return self.process.poll() is not None

    def out(self):
        """Standard output so far."""
        return _text(self._out)

    def error(self):
        """Standard error so far."""
        return _text(self._error)

    def await_text(self, text, count=1):
        """Waits until standard output contains a text `count` times."""
        end = time.monotonic() + records.PATIENCE
        while self.out().count(text) < count:
            assert not self.has_ended() and time.monotonic() < end, (
                f'no "{text}" in\n{self.out()[-2000:]}{self.error()[-2000:]}')
            time.sleep(0.005)

    def result(self):
        """Waits for the end: a `subprocess.CompletedProcess`."""
        code = self.process.wait(timeout=records.PATIENCE)
        return subprocess.CompletedProcess(self.process.args, code, self.out(), self.error())


def _text(file):
    """All of a file that another process is writing; does not move its position."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def _default_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def expect_one_line(done, *words):
    """Checks that a script ended with exit code 1 and one line that contains these words.

    Each worker of `--num_workers` may add a line of its own.
    """
    lines = collections.Counter(
        re.match(r'(\[worker \d+\] )?', line).group() for line in done.stderr.splitlines())
    first = next((line for line in done.stderr.splitlines() if not line.startswith('[worker ')), '')
    assert (done.returncode == 1 and set(lines.values()) == {1} and '' in lines
            and all(word in first for word in words)), (
        f'exit code {done.returncode}; expected 1 and one line with {words}:\n'
        f'{done.stderr[-3000:]}')


def contents(folder):
    """Dictionary from each path below a folder to a file's bytes, a link's target, or the mode of
    anything else."""
    found = {}
    for place, folders, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in [*folders, *names]):
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, 'rb') as stream:
                    found[path] = stream.read()
            else:
                found[path] = os.lstat(path).st_mode
    return found
