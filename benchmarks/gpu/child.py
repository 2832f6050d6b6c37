"""Processes with a time limit, and what `nvidia-smi` says; nothing here imports TensorFlow."""
import contextlib
import os
import signal
import subprocess
import sys

from benchmarks import children


class Failed(RuntimeError):
    """A process ended with another exit code than 0, or was ended after its time limit."""


def start(words, environment=None):
    """Starts Python in a new session, in the repository's folder: a `subprocess.Popen`."""
    return subprocess.Popen(
        [sys.executable, *words], cwd=children.ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}, start_new_session=True)


def end(process):
    """Ends a process of `start` with all of its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(words, limit, environment=None):
    """Runs Python; returns its standard output.

    Args:
        words: arguments of Python.
        limit: seconds after which the process is ended with all of its children.
        environment: variables to add to the environment.

    Raises:
        Failed: see there; the message has the end of the standard error.
    """
    with start(words, environment) as process:
        try:
            out, error = process.communicate(timeout=max(1, limit))
        except subprocess.TimeoutExpired:
            raise Failed(f'{words}: ended after {limit:.0f} seconds') from None
        finally:
            end(process)
    if process.returncode:
        raise Failed(f'{words}: exit code {process.returncode}: {(error or out).strip()[-3000:]}')
    return out


def nvidia_smi(fields):
    """The answer of `nvidia-smi` to a query, one line per GPU; [] without it."""
    try:
        done = subprocess.run(
            ['nvidia-smi', f'--query-gpu={",".join(fields)}', '--format=csv,noheader'],
            stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
