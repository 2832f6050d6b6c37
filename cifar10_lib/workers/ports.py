"""Reserves ports, and closes TensorFlow's to networks that the workers do not use.

`tf.train.Server` listens on every interface, regardless of its address, and executes every graph
that it receives. Neither TensorFlow nor gRPC has a setting for that. So its listening sockets are
bound afterwards to the network device that owns the worker's address; Linux then refuses
connections through all others. Since Linux 5.7 any user may do this.
"""
import array
import contextlib
import os
import pathlib
import re
import socket
import struct
from collections.abc import Iterable

from absl import app

from cifar10_lib.program import json_files

_SIOCGIFCONF = 0x8912  # linux/sockios.h: the addresses of all devices.
_ENTRY = '16s4x4s16x'  # Device, address; linux/if.h.


def split_address(address: str, source: str = 'address') -> tuple[str, int]:
    """Splits 'host:port'; raises `app.UsageError` for anything else, also for IPv6, since
    TensorFlow's cluster addresses do not support brackets."""
    match = re.fullmatch(r'((?:[\w-]{1,63}\.)*[\w-]{1,63}\.?):(\d{1,5})', address, re.ASCII)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise app.UsageError(f'{source}: {json_files.shown(address)} is not HOST:PORT')
    if not match.group(1).strip('0.'):
        raise app.UsageError(f'{source}: {address} is not the address of one machine: give the one '
                             'by which the other workers reach it')
    return match.group(1), int(match.group(2))


def reserve(port: int = 0, host: str = '') -> socket.socket:
    """Reserves a port, by default any free one, for a server that this process starts later.

    The socket is bound with SO_REUSEADDR, and does not listen. Linux then gives the port only to
    processes that ask for it by number, as TensorFlow's server does. `host` is the IPv4 address of
    an interface, or '' for all of them, as TensorFlow uses. Returns the socket, to keep open until
    the server listens; raises `OSError` if the port is in use.
    """
    socket_ = socket.socket()
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    socket_.bind((host, port))
    return socket_


def device_of(host: str, hosts: Iterable[str]) -> str | None:
    """The name of the network device through which the workers at `hosts` reach this one at `host`.

    It is 'lo' if all workers are on this machine; None if it is unknown, as behind a translation of
    addresses, or if this machine's own name is a loopback address here.
    """
    if not hasattr(socket, 'SO_BINDTODEVICE'):  # Only Linux has it.
        return None
    import fcntl  # Windows has no such module.
    try:
        if all(socket.gethostbyname(other).startswith('127.') for other in hosts):
            return 'lo'
        address = socket.inet_aton(socket.gethostbyname(host))
        room = array.array('B', bytes(1 << 16))
        with socket.socket() as any_socket:
            used, _ = struct.unpack('iP', fcntl.ioctl(
                any_socket, _SIOCGIFCONF, struct.pack('iP', len(room), room.buffer_info()[0])))
    except OSError:  # A name is unknown, for one.
        return None
    found = {owned: name.split(b'\0')[0].split(b':')[0].decode()
             for name, owned in struct.iter_unpack(_ENTRY, room[:used])}
    return found.get(address) if found.get(address) != 'lo' else None


def bind(port: int, device: str | None) -> bool:
    """Binds the sockets of this process that listen at a port to a network device.

    Call it before the server answers requests: connections from the milliseconds before stay open.
    Returns whether the sockets are bound; False if the device is None. Linux then refuses
    connections through all other devices. gVisor also binds them, but still accepts connections.
    """
    if device is None:
        return False
    with contextlib.ExitStack() as stack:
        listeners = _listeners(port, stack)
        try:
            for listener in listeners:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            return bool(listeners)
        except OSError:
            return False


def _listeners(port, stack):
    """The sockets of this process that listen at a port: list of copies, closed by the stack."""
    found = []
    for number in [path.name for path in pathlib.Path('/proc/self/fd').iterdir()
                   if path.is_socket()]:
        with contextlib.suppress(OSError):  # It has been closed meanwhile.
            item = stack.enter_context(socket.socket(fileno=os.dup(int(number))))
            if (item.family in (socket.AF_INET, socket.AF_INET6)
                    and item.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and item.getsockname()[1] == port):
                found.append(item)
    return found
