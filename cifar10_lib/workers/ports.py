"""Reserves ports, and closes TensorFlow's to other machines if all workers meet on loopback.

`tf.train.Server` listens on every interface, regardless of its address, and executes every graph
that it receives. Neither TensorFlow nor gRPC has a setting for that. So the listening socket is
bound to the loopback device afterwards; Linux then refuses connections to all other addresses.
Since Linux 5.7 any user may do this. A filter on the socket (SO_ATTACH_FILTER) would work as well,
but newer kernels allow it only to privileged users.
"""
import contextlib
import ipaddress
import os
import pathlib
import socket
import struct

_CONNECTING_OR_OPEN = {'01', '03', '08'}  # ESTABLISHED, SYN_RECV, CLOSE_WAIT; net/tcp_states.h.


def reserve(port=0, host=''):
    """Reserves a port for a server that this process starts later.

    The socket is bound with SO_REUSEADDR, and does not listen. Linux then gives the port only to
    processes that ask for it by number, as TensorFlow's server does.

    Args:
        port: its number, or 0 for any free one.
        host: IPv4 address of the interface, or '' for all of them, as TensorFlow uses.

    Returns:
        A socket; keep it open until the server listens.

    Raises:
        OSError: the port is in use.
    """
    socket_ = socket.socket()
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        socket_.bind((host, port))
    except OSError:
        socket_.close()
        raise
    return socket_


def on_loopback(hosts):
    """Whether all of these names or IPv4 addresses are loopback, so all workers run here."""
    try:
        return all(socket.gethostbyname(host).startswith('127.') for host in hosts)
    except OSError:  # A name is unknown.
        return False


def close_to_others(port):
    """Closes a port where this process listens, on all interfaces except loopback.

    Call it before the server answers requests: earlier connections stay open.

    Returns:
        Whether the port is closed; False if the system cannot do that.

    Raises:
        ConnectionError: another machine has already connected; the message names it.
    """
    with contextlib.ExitStack() as stack:
        listeners = _listeners(port, stack)
        try:
            for listener in listeners:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')
            if not listeners or not _binding_a_listener_works():
                return False
        except OSError:
            return False
    for peer in _other_machines_at(port):
        raise ConnectionError(f"{peer} connected to TensorFlow's port {port} before it was closed "
                              'to other machines; start again')
    return True


def notice(addresses, loopback):
    """A line that warns that ports at these addresses are open to other machines.

    If the addresses are on loopback, the system failed to close them.
    """
    shown = ', '.join(addresses[:4]) + f' and {len(addresses) - 4} more' * (len(addresses) > 4)
    if loopback:
        return (f"Warning: this system cannot close the workers' ports ({shown}) to other "
                'machines. TensorFlow executes whatever it is sent there: use a private network.')
    return (f"TensorFlow listens on all interfaces of the workers' machines ({shown}) and executes "
            'whatever it is sent: use a private network.')


def _listeners(port, stack):
    """The sockets of this process that listen at a port: list of copies, closed by the stack."""
    numbers = [int(path.name) for path in pathlib.Path('/proc/self/fd').iterdir()
               if path.is_socket()]
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):  # It has been closed meanwhile.
            item = stack.enter_context(socket.socket(fileno=os.dup(number)))
            if (item.family in (socket.AF_INET, socket.AF_INET6)
                    and item.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and item.getsockname()[1] == port):
                found.append(item)
    return found


def _binding_a_listener_works():
    """Whether binding a socket that already listens to a device has an effect.

    gVisor stores the device and continues to accept. So this binds a listener on loopback to
    another device, and tries to connect. It raises OSError if the system refuses to bind it.
    """
    others = [name for _, name in socket.if_nameindex() if name != 'lo']
    if not others:
        return True  # No other machine can connect.
    with socket.create_server(('127.0.0.1', 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, others[0].encode())
        try:
            socket.create_connection(listener.getsockname(), 5.0).close()
        except ConnectionRefusedError:
            return True
    return False


def _other_machines_at(port):
    """Addresses of other machines that have a connection to a port, half-open ones included."""
    for name in ('tcp', 'tcp6'):
        with contextlib.suppress(FileNotFoundError):
            table = pathlib.Path('/proc/self/net', name).read_text(encoding='ascii')
            for line in table.splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                (own, own_port), (peer, _) = local.split(':'), remote.split(':')
                # From this machine, both ends have the same address, or both are on loopback:
                # Debian gives the machine's name 127.0.1.1, and connects to it from 127.0.0.1.
                if (int(own_port, 16) == port and state in _CONNECTING_OR_OPEN and own != peer
                        and not _address(peer).is_loopback):
                    yield _address(peer)


def _address(digits):
    """Parses an IP address of /proc/net/tcp: words in the machine's byte order."""
    words = [int(digits[k:k + 8], 16) for k in range(0, len(digits), 8)]
    address = ipaddress.ip_address(struct.pack(f'={len(words)}I', *words))
    return getattr(address, 'ipv4_mapped', None) or address
