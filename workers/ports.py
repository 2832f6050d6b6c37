"""Closes TensorFlow's port to other machines when all workers are on this one.

`tf.train.Server` listens on every interface, whatever its address says, and executes whatever it is
sent. Neither TensorFlow nor gRPC has a setting for that. So the listening socket gets a filter with
which Linux drops all packets except those of the loopback device. Connections inherit it. Any user
may set such a filter; gVisor accepts and ignores it.
"""
import contextlib
import ctypes
import os
import pathlib
import socket
import struct

from workers import connection as connection_

_SO_ATTACH_FILTER = _SO_GET_FILTER = 26  # asm-generic/socket.h


def on_this_machine(hosts):
    """Whether each of these names or IPv4 addresses means this machine."""
    return all(_is_this_machine(host) for host in set(hosts))


def _is_this_machine(host):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # Sends nothing: it only looks up the route.
            here, there = probe.getsockname()[0], probe.getpeername()[0]
    except OSError:
        return False
    return here == there or there.startswith('127.')


def close_to_others(port):
    """Closes a port, where this process listens, to other machines.

    Call it before the server answers requests: a connection that was made earlier stays open.

    Args:
        port: int.

    Returns:
        Whether the port is closed; False if the kernel has no such filters.

    Raises:
        ConnectionError: another machine has connected already; the message names it.
    """
    with contextlib.ExitStack() as stack:
        listeners = [item for item in _sockets(port, stack) if _listens(item)]
        try:
            closed = [_accept_loopback_only(item) for item in listeners]
        except OSError:
            return False
        if not closed or not all(closed):
            return False
        for listener in listeners:
            for connection in _waiting(listener, stack):
                _check_is_local(connection, port)
        for connection in _sockets(port, stack):
            _check_is_local(connection, port)
    return True


def notice(addresses, one_machine):
    """A line that warns of ports that are open to other machines.

    Args:
        addresses: list of every worker's 'host:port'.
        one_machine: whether all workers are on this machine.
    """
    shown = ', '.join(addresses[:4]) + f' and {len(addresses) - 4} more' * (len(addresses) > 4)
    if one_machine:
        return (f"Warning: this system cannot close the workers' ports ({shown}) to other "
                'machines. TensorFlow executes whatever it is sent there: use a private network.')
    return (f"TensorFlow listens on all interfaces of the workers' machines ({shown}) and executes "
            'whatever it is sent: use a private network.')


def _sockets(port, stack):
    """This process's TCP sockets with a local port: list of copies that the stack closes."""
    numbers = [int(path.name) for path in pathlib.Path('/proc/self/fd').iterdir()
               if path.is_socket()]
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):  # It was closed in the meantime.
            item = stack.enter_context(socket.socket(fileno=os.dup(number)))
            if item.family in (socket.AF_INET, socket.AF_INET6) and (
                    item.type == socket.SOCK_STREAM and item.getsockname()[1] == port):
                found.append(item)
    return found


def _listens(item):
    return bool(item.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _accept_loopback_only(listener):
    """Attaches the filter; returns whether the kernel has it now.

    Raises:
        OSError: the kernel refuses it.
    """
    # Classic BPF, linux/filter.h: (operation, skip if true, skip if false, operand).
    instructions = [
        (0x20, 0, 0, 0xfffff000 + 8),  # Load the index of the interface (SKF_AD_IFINDEX).
        (0x15, 0, 1, socket.if_nametoindex('lo')),  # If it is that of loopback,
        (0x06, 0, 0, 0xffffffff),  # accept the packet,
        (0x06, 0, 0, 0)]  # else drop it.
    program = b''.join(struct.pack('HBBI', *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(program)
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                        struct.pack('HP', len(instructions), ctypes.addressof(buffer)))
    # The kernel returns the length in instructions, so Python keeps only that many bytes.
    found = listener.getsockopt(socket.SOL_SOCKET, _SO_GET_FILTER, len(program))
    return found == program[:len(instructions)]


def _waiting(listener, stack):
    """Takes the connections that nobody has accepted yet."""
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            yield stack.enter_context(listener.accept()[0])


def _check_is_local(connection, port):
    try:
        peer, own = connection.getpeername()[0], connection.getsockname()[0]
    except OSError:  # It is not connected.
        return
    if peer != own and not connection_.is_here(peer.removeprefix('::ffff:')):
        raise ConnectionError(
            f"{peer.removeprefix('::ffff:')} connected to TensorFlow's port {port} before it was "
            'closed to other machines; start again')
