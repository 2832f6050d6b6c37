"""Real sockets; another machine is another network namespace."""
import contextlib
import re
import socket
import subprocess
import sys

import networks
import pytest
import spawn

import link
from cifar10_lib.workers import ports


@pytest.mark.parametrize('hosts, expected', [
    (['127.0.0.1', 'localhost', '127.0.1.1'], True),
    (['127.0.0.1', '203.0.113.77'], False),  # Reserved for documentation.
    (['nowhere.invalid'], False)])
def test_whether_all_hosts_are_on_loopback(hosts, expected):
    assert ports.on_loopback(hosts) == expected


def device(listener):
    """The device to which a socket is bound; empty if to none."""
    return listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b'\0')


def test_all_listeners_of_a_port_are_bound_and_loopback_stays_open():
    with contextlib.ExitStack() as stack:
        def listen(family, address, port=0):
            return stack.enter_context(
                socket.create_server((address, port), family=family, reuse_port=True))

        first = listen(socket.AF_INET, '0.0.0.0')
        port = first.getsockname()[1]
        listeners = [first, listen(socket.AF_INET, '0.0.0.0', port)]
        if socket.has_dualstack_ipv6():
            listeners.append(listen(socket.AF_INET6, '::', port))
        other = listen(socket.AF_INET, '0.0.0.0')
        stack.enter_context(socket.create_connection(('127.0.0.1', port)))
        assert ports.close_to_others(port)
        assert [device(listener) for listener in listeners] == [b'lo'] * len(listeners)
        assert device(other) == b''
        for address in ['127.0.0.1', '::1'][:len(listeners) - 1]:
            stack.enter_context(socket.create_connection((address, port), spawn.PATIENCE))


def test_a_connection_between_two_addresses_of_this_machine_counts_as_local():
    """Debian gives the machine's name 127.0.1.1, and connects to it from 127.0.0.1."""
    with socket.create_server(('127.0.1.1', 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, source_address=('127.0.0.1', 0)) as connection:
            assert connection.getsockname()[0] != connection.getpeername()[0]
            listener.setblocking(False)
            assert ports.close_to_others(address[1])


def test_a_port_without_a_listener_counts_as_open():
    assert not ports.close_to_others(networks.free_port())


def test_notices_are_one_line():
    addresses = [f'node{k}:2222' for k in range(9)]
    for loopback in (False, True):
        line = ports.notice(addresses, loopback)
        assert '(node0:2222, node1:2222, node2:2222, node3:2222 and 5 more)' in line
        assert '\n' not in line
    assert '(a:1, b:2)' in ports.notice(['a:1', 'b:2'], False)


# Listens at ports 2222 and 3333, and closes 2222 on a line from standard input.
PROGRAM = '''
import socket, sys; sys.path.insert(0, sys.argv[1])
from cifar10_lib.workers import ports
listeners = [socket.create_server(('', port)) for port in (2222, 3333)]
print('listening', flush=True)
sys.stdin.readline()
if sys.argv[2] == 'accepted':
    connection, _ = listeners[0].accept()
try:
    print(ports.close_to_others(2222), flush=True)
except ConnectionError as error:
    print(error, flush=True)
sys.stdin.readline()
'''


@contextlib.contextmanager
def listening(name, when='never'):
    """Runs `PROGRAM` in a network namespace; yields a function that closes the port."""
    process = subprocess.Popen(
        ['ip', 'netns', 'exec', name, sys.executable, '-c', PROGRAM, spawn.ROOT, when],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close():
        process.stdin.write('\n')
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        assert process.stdout.readline() == 'listening\n'
        yield close
        process.stdin.close()


@networks.with_networks
def test_another_machine_cannot_connect_but_this_one_can_over_loopback():
    with link.networks() as (names, (own, _)):
        with listening(names[0]) as close:
            assert close() == 'True'
            assert networks.connects(names[0], '127.0.0.1', 2222)
            assert networks.connects(names[1], own, 3333)
            assert not networks.connects(names[1], own, 2222)


@networks.with_networks
@pytest.mark.parametrize('when', ['accepted', 'waiting'])
def test_an_earlier_connection_from_another_machine_is_an_error(when):
    with link.networks() as (names, (own, other)), listening(names[0], when) as close:
        with networks.connected(names[1], own, 2222):
            assert close() == TOO_LATE.format(other)


TOO_LATE = ("{} connected to TensorFlow's port 2222 before it was closed to other machines; start "
            'again')


@pytest.mark.slow
@networks.with_networks
def test_a_half_open_connection_from_another_machine_is_an_error():
    """Its last packet would open it even after the port is closed to new connections."""
    with link.networks() as (names, (own, other)), listening(names[0]) as close:
        # The answer gets lost: it goes to a network card that does not exist.
        subprocess.run(['ip', '-n', names[0], 'neigh', 'replace', other, 'lladdr',
                        '02:00:00:00:00:99', 'dev', link.DEVICE], check=True)
        with networks.connecting(names[1], own, 2222):
            table = ''
            while not re.search(':08AE [0-9A-F:]+ 03 ', table):
                table = subprocess.run(
                    ['ip', 'netns', 'exec', names[0], 'cat', '/proc/net/tcp', '/proc/net/tcp6'],
                    capture_output=True, text=True, check=True).stdout
            assert close() == TOO_LATE.format(other)


@networks.with_networks
def test_a_system_that_cannot_close_the_port_reports_it():
    """Here it has no device named lo."""
    with link.networks() as (names, _):
        for change in (['down'], ['name', 'loop'], ['up']):
            device_ = 'loop' if change == ['up'] else 'lo'
            subprocess.run(['ip', '-n', names[0], 'link', 'set', device_, *change], check=True)
        with listening(names[0]) as close:
            assert close() == 'False'
