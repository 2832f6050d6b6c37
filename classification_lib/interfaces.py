"""Network interfaces: by which one the workers on other machines reach this one."""
import contextlib
import os
import socket
from collections.abc import Collection, Sequence

from cifar10_lib import errors

import psutil
import tensorflow.compat.v1 as tf


def own_host(interface: str | None, machines: Collection[str]) -> str:
    """The IPv4 address by which the other machines, of these names, reach this one: that of the
    device `interface`, or of the route to them. Raises `errors.UserError` without one."""
    devices = {name: each.address for name, addresses in psutil.net_if_addrs().items()
               for each in addresses if each.family == socket.AF_INET}
    here = socket.gethostname()
    if interface:
        if interface not in devices:
            raise errors.UserError(f'--interface={interface} is not a device with an IPv4 address '
                                    f'of {here}, which has {", ".join(devices)}')
        return devices[interface]
    other = next(machine for machine in machines if machine != here)
    with socket.socket(type=socket.SOCK_DGRAM) as route, contextlib.suppress(OSError):
        route.connect((other, 9))  # Sends nothing.
        host = route.getsockname()[0]
        if not host.startswith('127.'):
            return host
    raise errors.UserError(f'{here} knows no route to {other} by this name: add it to /etc/hosts, '
                            f'or give --interface=DEVICE, one of {", ".join(devices)}')


def device_of(host: str, hosts: Collection[str]) -> str | None:
    """The network device through which the workers at `hosts` reach this one at `host`, or None."""
    try:
        own, *numbers = map(socket.gethostbyname, [host, *hosts])
    except OSError:
        return None
    if all(number.startswith('127.') for number in numbers):
        return 'lo'
    for name, addresses in psutil.net_if_addrs().items():
        if name != 'lo' and own in [each.address for each in addresses]:
            return name.partition(':')[0]  # 'eth0:1' is a second address of eth0.
    return None  # Behind a translation of addresses, for example.


def bind(port: int, device: str | None) -> bool:
    """Binds the sockets of this process that listen at a port to a network device.

    `tf.train.Server` listens on every device, executes every graph that it receives, and has no
    setting for that. Linux (since 5.7 for any user) then refuses connections through other devices.
    Call it before the server answers: earlier connections stay open. Returns whether it succeeded.
    """
    if device is None or not hasattr(socket, 'SO_BINDTODEVICE'):
        return False
    listeners = [each for each in psutil.Process().net_connections('tcp')
                 if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    try:
        for each in listeners:
            with socket.socket(fileno=os.dup(each.fd)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    except OSError:
        return False
    return bool(listeners)


def connect(names: Sequence[str], addresses: Sequence[str]) -> None:
    """Raises `tf.errors.UnavailableError`, which names the first worker whose server at 'host:port'
    cannot be reached."""
    for name, address in zip(names, addresses):
        host, _, port = address.rpartition(':')
        try:
            # By IPv4, on which TensorFlow's server always listens.
            socket.create_connection((socket.gethostbyname(host), int(port)), 5.0).close()
        except OSError as error:
            raise tf.errors.UnavailableError(None, None, (
                f'cannot connect to {name} at {address}: {error.strerror or error}')) from error
