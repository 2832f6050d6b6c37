"""Who may join a job: workers that know its secret or, without one, connect from their hosts.

A proof is an HMAC of the other side's nonce and of the message. Its key is the job's secret, which
itself is never sent.
"""
import contextlib
import functools
import hmac
import json
import socket

from cifar10_lib.workers import cluster as cluster_
from cifar10_lib.workers import connection as connection_

PROTOCOL = 'cifar10-workers-4'

# What a worker sends first, besides its proof and perhaps a problem.
_HELLO = {'rank': int, 'size': int, 'address': str, 'nonce': str, 'facts': dict}


def proof(cluster, nonce, message):
    """Proves to the peer that chose the nonce that the sender knows the secret; hex digits."""
    key = f'{cluster.job}\n{cluster.secret}'.encode(errors='surrogateescape')
    text = json.dumps([nonce, message], sort_keys=True)
    return hmac.new(key, text.encode(), 'sha256').hexdigest()


def is_proven(cluster, nonce, message):
    """Whether the `proof` in a message matches its other values."""
    rest = {name: value for name, value in message.items() if name != 'proof'}
    try:
        return hmac.compare_digest(ascii(message.get('proof')), ascii(proof(cluster, nonce, rest)))
    except RecursionError:  # Nested deeply, but not too deeply to be parsed.
        return False


def check(cluster, connection, hello):
    """Raises ValueError or OSError unless this is a worker of the job, on one of its hosts."""
    if hello.get('protocol') != PROTOCOL:
        raise ValueError(f'it does not speak {PROTOCOL}: use the same version everywhere')
    if not is_proven(cluster, connection.nonce, hello):
        raise ValueError('it belongs to another job or has another secret '
                         f'({cluster_.SECRET_VARIABLE}, --secret_file)')
    for key, kind in _HELLO.items():
        if not isinstance(hello.get(key), kind):
            raise ValueError(f'its {key} is missing')
    connection_.split_address(hello['address'])
    if not cluster.secret:
        _check_origin(cluster, connection.socket.getpeername()[0], hello['rank'])


def _addresses_of(host):
    """The IPv4 addresses of a host, a set."""
    return {info[4][0] for info in socket.getaddrinfo(
        host, None, socket.AF_INET, socket.SOCK_STREAM)}


_addresses_once = functools.cache(_addresses_of)


def _check_origin(cluster, address, rank):
    """Raises OSError unless a worker connects from an address of its host."""
    hosts, unknown = cluster.hosts_of(rank), None
    # A single host is resolved again at each attempt: it may be a pod that DNS does not know yet.
    addresses = _addresses_of if len(hosts) == 1 else _addresses_once
    for host in hosts:
        try:
            if _is_one_of(address, addresses(host)):
                return
        except OSError as error:
            unknown = OSError(f'{host} does not resolve: {error.strerror}')
    if hosts:
        raise unknown or OSError(
            f'worker {rank} connected from {address}, which is not an address of '
            f'{", ".join(hosts[:5])}{", ..." * (len(hosts) > 5)}: correct that, or give all '
            f'workers the same {cluster_.SECRET_VARIABLE} or --secret_file')


def _is_one_of(address, expected):
    """Whether an IPv4 address is in a set; all addresses of this machine count as the same.

    A machine's own name often resolves to loopback, but its connections come from another address.
    """
    return address in expected or (_is_local(address) and any(map(_is_local, expected)))


def _is_local(address):
    if address.startswith('127.'):
        return True
    with socket.socket(type=socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))  # Sends nothing. Linux uses a local address as its own source.
        return probe.getsockname()[0] == address
    return False
