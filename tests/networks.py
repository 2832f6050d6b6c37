"""Free ports, and connections from network namespaces."""
import contextlib
import os
import shutil
import socket
import subprocess
import sys

import pytest


def free_port():
    """A port of loopback that nobody uses now."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


with_networks = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which('ip'),
    reason='network namespaces take root and iproute2')

_CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5):
    print('connected', flush=True)
    sys.stdin.read()
"""


def connecting(network, address, port):
    """Starts to connect to a port from a network namespace, for 5 seconds: a `subprocess.Popen`."""
    return subprocess.Popen(
        ['ip', 'netns', 'exec', network, sys.executable, '-c', _CONNECT, address, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def connected(network, address, port):
    """Connects to a port from a network namespace; yields whether that worked."""
    with connecting(network, address, port) as process:
        yield process.stdout.readline() == 'connected\n'


def connects(network, address, port):
    """Whether a connection from a network namespace to a port is made within 5 seconds."""
    with connected(network, address, port) as done:
        return done
