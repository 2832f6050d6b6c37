"""JSON objects over a socket, one per line."""
import contextlib
import json
import re
import secrets
import socket
import threading
import time

from cifar10_lib.program import small_files

HOST = '[A-Za-z0-9._-]+'  # A regular expression.
_SECONDS = 5.0  # To connect to a port that is known to be open, or to send.

_LONGEST_LINE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.


def split_address(address):
    """Splits 'host:port' into str and int.

    Raises:
        ValueError: the address is malformed. That includes IPv6 addresses, since TensorFlow's
            cluster addresses do not support brackets.
    """
    match = re.fullmatch(rf'({HOST}):([0-9]{{1,5}})', address)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(f'{small_files.shown(address)} is not HOST:PORT')
    return match.group(1), int(match.group(2))


def reach(address, deadline=float('inf')):
    """A `Connection` to 'host:port' by IPv4, on which TensorFlow's server always listens.

    It gives up after `_SECONDS`, or at a deadline by `time.monotonic` if that is sooner.

    Raises:
        OSError: nothing accepted the connection in time, or the host does not resolve.
        ValueError: the address is malformed.
    """
    host, port = split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    socket_ = socket.create_connection((host, port), min(_SECONDS, _until(deadline)))
    if socket_.getsockname() == socket_.getpeername():  # Linux may connect a free port to itself.
        socket_.close()
        raise ConnectionRefusedError('nothing listens there')
    return Connection(socket_)


def text(value):
    """A value that a peer sent, made safe for a terminal and for one line of a message."""
    return ''.join(c if c.isprintable() else ' ' for c in str(value))[:500]


class Connection:
    """JSON objects over a socket.

    Attributes:
        socket: the socket.
        nonce: random str; the other side proves that it knows a secret by an HMAC of it.
    """

    def __init__(self, socket_):
        self.socket = socket_
        self.socket.settimeout(_SECONDS)
        self.nonce = secrets.token_hex(16)
        self._rest = b''  # The start of a line, of which more will arrive.
        self._sending = threading.Lock()

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def send(self, **message):
        """Sends an object. If the peer is gone, the next `receive` raises the error."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b'\n')

    def receive(self, most=1 << 16):
        """Waits for data, at most a number of bytes, and yields the objects that it completes.

        Raises:
            OSError: no data arrived in time, or the connection was closed.
            ValueError: a line is not a JSON object, or too long. Objects before it are yielded.
        """
        data = self.socket.recv(most)
        if not data:
            raise ConnectionResetError('the connection was closed')
        *lines, self._rest = (self._rest + data).split(b'\n')
        for line in lines:
            yield small_files.parse_json(line, 'a line')
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError('a line is too long')

    def receive_one(self, deadline):
        """Waits for one object, and leaves what follows it in the socket; raises as `receive`."""
        found = []
        while not found:
            self.socket.settimeout(_until(deadline))
            line, end, _ = self.socket.recv(1 << 16, socket.MSG_PEEK).partition(b'\n')
            found = list(self.receive(len(line + end) or 1))
        self.socket.settimeout(_SECONDS)
        return found[0]


def _until(deadline):
    return max(0.01, deadline - time.monotonic())
