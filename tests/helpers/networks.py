"""Free ports, and connections from network namespaces."""
import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys

import pytest
import spawn


# Ports that Linux does not assign by itself; each pytest process has 2,000 of its own.
_PROCESS = int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0').removeprefix('gw'))
_FIRST = 10000 + 2000 * (_PROCESS % 10)
_START = random.randrange(2000)
_numbers = itertools.count()


def free_port():
    """A loopback port that is free, and that no other process gets by chance."""
    while True:
        port = _FIRST + (_START + next(_numbers)) % 2000
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(('127.0.0.1', port))
            return port


with_networks = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which('ip'),
    reason='network namespaces require root and iproute2')

def start(network, arguments):
    """Starts Python in a network namespace: a `subprocess.Popen`."""
    return subprocess.Popen(
        ['ip', 'netns', 'exec', network, sys.executable, *arguments], env=spawn.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def connects(network, address, port):
    """Whether a connection from a network namespace to a port succeeds within 5 seconds."""
    program = f'import socket; socket.create_connection(({address!r}, {port}), 5)'
    with start(network, ['-c', program]) as process:
        process.communicate()
    return process.returncode == 0
