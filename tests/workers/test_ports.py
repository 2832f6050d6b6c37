"""Real sockets; another machine is another network namespace."""
import contextlib
import socket

import networks
import pytest
import spawn

from cifar10_lib.workers import ports


@pytest.mark.parametrize('host, hosts, expected', [
    ('localhost', ['127.0.0.1', 'localhost', '127.0.1.1'], 'lo'),
    ('127.0.1.1', ['127.0.1.1', '203.0.113.77'], None),  # Reserved for documentation.
    ('203.0.113.77', ['203.0.113.77'], None), ('127.0.0.1', ['nowhere.invalid'], None),
    ('nowhere.invalid', ['203.0.113.77'], None)])
def test_the_device_of_loopback_or_of_no_address_of_this_machine(host, hosts, expected):
    assert ports.device_of(host, hosts) == expected


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
        assert ports.bind(port, 'lo')
        assert [device(listener) for listener in listeners] == [b'lo'] * len(listeners)
        assert device(other) == b''
        for address in ['127.0.0.1', '::1'][:len(listeners) - 1]:
            stack.enter_context(socket.create_connection((address, port), spawn.PATIENCE))


# Listens at ports 2222 and 3333; on a line from standard input with addresses, its own first, binds
# 2222 to the device.
PROGRAM = '''
import socket, sys; sys.path.insert(0, sys.argv[1])
from cifar10_lib.workers import ports
listeners = [socket.create_server(('', port)) for port in (2222, 3333)]
print('listening', flush=True)
hosts = sys.stdin.readline().split()
device = ports.device_of(hosts[0], hosts)
print(device, bool(device) and ports.bind(2222, device), flush=True)
sys.stdin.readline()
'''


@contextlib.contextmanager
def listening(name):
    """Runs `PROGRAM` in a network namespace; yields a function of addresses that binds the port."""
    process = networks.start(name, ['-c', PROGRAM, spawn.ROOT])

    def bind(*hosts):
        process.stdin.write(' '.join(hosts) + '\n')
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        assert process.stdout.readline() == 'listening\n'
        yield bind
        process.stdin.close()


@networks.with_networks
@pytest.mark.parametrize('address', ['10.99.0.1', '10.99.0.7'])
def test_the_other_networks_of_a_machine_cannot_connect(address):
    """It has two network cards, of which the first has two addresses."""
    with networks.linked() as (names, (own, other)):
        networks.ip('link add name other netns', names[0], 'type veth peer name other netns',
                    names[1])
        for name, number in zip(names, (1, 2)):
            networks.ip('-n', name, f'addr add 10.98.0.{number}/24 dev other')
            networks.ip('-n', name, 'link set other up')
        networks.ip('-n', names[0], 'addr add 10.99.0.7/24 dev', networks.DEVICE)
        with listening(names[0]) as bind:
            assert networks.connects(names[1], '10.98.0.1', 2222)
            assert bind(address, other) == f'{networks.DEVICE} True'
            for reachable in (own, '10.99.0.7'):
                assert networks.connects(names[1], reachable, 2222)
                assert networks.connects(names[0], reachable, 2222)  # A worker on its machine.
            assert not networks.connects(names[1], '10.98.0.1', 2222)
            assert not networks.connects(names[0], '127.0.0.1', 2222)
            assert networks.connects(names[1], '10.98.0.1', 3333)
