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

# Enters a network namespace before it runs a program, as `ip netns exec` does.
_INSIDE = """
import ctypes, os, sys
namespace = os.open('/run/netns/' + sys.argv.pop(1), os.O_RDONLY)
if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
    raise OSError(ctypes.get_errno(), 'setns failed')
os.close(namespace)
exec(sys.argv.pop(1))
"""


def inside(network, arguments):
    """Python's arguments for a program, `-c` and its own, that runs in a network namespace.

    A process started so can be a fork (tests/helpers/forks.py). Its own children can be in another
    namespace: use `ip netns exec` for a launcher.
    """
    option, *rest = arguments
    assert option == '-c'
    return ['-c', _INSIDE, network, *rest]


def connects(network, address, port):
    """Whether a connection from a network namespace to a port succeeds within 5 seconds."""
    program = f'import socket; socket.create_connection(({address!r}, {port}), 5)'
    return not subprocess.run(['ip', 'netns', 'exec', network, sys.executable, '-c', program],
                              stderr=subprocess.DEVNULL).returncode
