"""Free ports, and network namespaces that stand in for machines; those require root and iproute2.

    with networks.linked() as (names, addresses):
        networks.start(names[0], ['-c', ...])
"""
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
    not shutil.which('ip') or subprocess.run(
        ['unshare', '--net', '--mount', 'true'], capture_output=True, check=False).returncode != 0,
    reason='network namespaces require root and iproute2')

DEVICE = 'link'


@contextlib.contextmanager
def linked():
    """Yields the names of two linked network namespaces, and their IPv4 addresses on the link."""
    names = [f'cifar10-{os.getpid()}-{end}' for end in 'ab']
    addresses = ['10.99.0.1', '10.99.0.2']
    with contextlib.ExitStack() as stack:
        for name in names:
            ip('netns add', name)
            stack.callback(ip, 'netns del', name)
        ip('link add name', DEVICE, 'netns', names[0], 'type veth peer name', DEVICE, 'netns',
           names[1])
        for name, address in zip(names, addresses):
            ip('-n', name, f'addr add {address}/24 dev', DEVICE)
            for device in ('lo', DEVICE):
                ip('-n', name, 'link set up dev', device)
        yield names, addresses


def ip(*words):
    """Runs `ip` with these words, each of which may hold several."""
    subprocess.run(['ip', *' '.join(words).split()], check=True)


def start(network, arguments):
    """Starts Python in a network namespace: a `subprocess.Popen`."""
    return spawn.until_the_end(subprocess.Popen(
        ['ip', 'netns', 'exec', network, sys.executable, *arguments], env=spawn.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


def connects(network, address, port):
    """Whether a connection from a network namespace to a port succeeds within 5 seconds."""
    program = f'import socket; socket.create_connection(({address!r}, {port}), 5)'
    with start(network, ['-c', program]) as process:
        process.communicate()
    return process.returncode == 0
