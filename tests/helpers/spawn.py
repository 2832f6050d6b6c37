"""Runs scripts, and programs given as text, in processes of their own.

As a pytest plugin, it ends the processes that a test leaves.
"""
import functools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

import pytest
import tensorflow.compat.v1 as tf

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELPERS = ROOT / 'tests' / 'helpers'

# Seconds to wait for something that takes a few: other processes may use most of the cores.
PATIENCE = 300

# Two lines before the first step, which no log level hides.
_OF_OLDER_TENSORFLOW = re.compile(
    r'^(WARNING: All log messages before absl::InitializeLog.*|'
    r'I0000.* MLIR V1 optimization pass is not enabled)\n', re.MULTILINE)


def environment(**variables):
    """This process's environment, and these variables."""
    return {**os.environ, **variables}


def gently(name, change=''):
    """Python's arguments for a trainer as in `conftest.half_bright`, after the code `change`."""
    return ['-c', f'''
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from cifar10_lib import quiet
import cifar10, cifar10_input
cifar10.INITIAL_LEARNING_RATE = 0.03
cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 80
{change}
sys.argv[0] = {str(ROOT / name)!r}
runpy.run_path(sys.argv[0], run_name='__main__')
''']


def run_script(name, *arguments, **options):
    """Runs a script in a process of its own, as a user does: a `subprocess.CompletedProcess`."""
    return run([ROOT / name, *arguments], **options)


def run(arguments, timeout=PATIENCE, **options):
    """Runs Python in a process of its own: a `subprocess.CompletedProcess`, with its output."""
    process = start(arguments, **options)
    out, error = process.communicate(timeout=timeout)
    return _completed(process.args, process.returncode, out, error)


def _completed(arguments, code, out, error):
    if error and tf.version.VERSION.startswith(('2.18.', '2.19.', '2.20.')):
        error = _OF_OLDER_TENSORFLOW.sub('', error)
    return subprocess.CompletedProcess(arguments, code, out, error)


def fork_script(name, *arguments, **options):
    """As `run_script`, in a `fork`."""
    return fork([ROOT / name, *arguments], **options)


def fork(arguments, cwd='.', server=None, **variables):
    """As `run`, with these variables in the environment, but in a fork of a process that has
    imported TensorFlow: for tests of what a program does, not of how it starts. On Linux only."""
    if server is None:
        server = _shared_server()
    words = [os.fspath(word) for word in arguments]
    request = {'words': words, 'folder': os.path.abspath(cwd),
               'variables': environment(**variables)}
    with open(os.devnull) as nothing, tempfile.TemporaryFile('w+') as out, \
            tempfile.TemporaryFile('w+') as error:
        socket.send_fds(server, [json.dumps(request).encode()],
                        [each.fileno() for each in (nothing, out, error)])
        code = int(server.recv(16))
        out.seek(0)
        error.seek(0)
        return _completed(words, code, out.read(), error.read())


def fork_server(*launcher, **variables):
    """Starts a process of helpers/forks.py by a launcher's words: its socket, with whose end it
    ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([*launcher, sys.executable, HELPERS / 'forks.py', ROOT], stdin=theirs,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env=environment(**variables))
    return ours


_shared_server = functools.cache(fork_server)


def start(arguments, **options):
    """Starts Python, until the end of the test at most: a `subprocess.Popen` with text pipes."""
    options = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True, **options}
    return until_the_end(subprocess.Popen([sys.executable, *arguments], **options))


_started = []


def until_the_end(process):
    """Kills a `subprocess.Popen` at the end of the test, if it runs then; returns it."""
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _processes_end_with_their_test():
    """Otherwise, they would slow down all later tests."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()


def read_until(process, text):
    """Reads standard output up to the line with a text; returns what was read."""
    read = ''
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f'no "{text}" in\n{read[-2000:]}{process.stderr.read()[-2000:]}')


def ended(process, *codes):
    """Waits for a process, which must end with one of these exit codes; returns its output."""
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode in codes, (process.returncode, error)
    return out, error


def all_ended(processes):
    """Waits until all have ended: list of (exit code, standard output, standard error)."""
    texts = [process.communicate(timeout=PATIENCE) for process in processes]
    return [(process.returncode, *text) for process, text in zip(processes, texts)]


def expect_one_line(done, *words):
    """Checks that a script ended with exit code 1 and one line that contains these words."""
    assert (done.returncode == 1 and done.stderr.count('\n') == 1
            and all(word in done.stderr for word in words)), (
        f'exit code {done.returncode}; expected 1 and one line with {words}:\n'
        f'{done.stderr[-3000:]}')
