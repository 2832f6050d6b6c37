"""JSON objects over a socket, one per line."""
import contextlib
import json
import re
import secrets
import socket
import threading
import time

from program import small_files

HOST = '[A-Za-z0-9._-]+'  # A regular expression.
REACH_SECONDS = 5.0  # To connect to a port that is known to be open, or to send.

_LONGEST_LINE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.


def split_address(address):
    """Splits 'host:port'.

    Returns:
        host: str.
        port: int, 1 to 65535.

    Raises:
        ValueError: the address is malformed. That includes IPv6 addresses, since TensorFlow's
            cluster addresses do not support brackets.
    """
    match = re.fullmatch(rf'({HOST}):([0-9]{{1,5}})', address)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(f'{small_files.shown(address)} is not HOST:PORT')
    return match.group(1), int(match.group(2))


def reach(address, deadline=None):
    """Connects to 'host:port' by IPv4, on which TensorFlow's server always listens.

    Args:
        address: str.
        deadline: when to give up, by `time.monotonic`, if that is sooner than REACH_SECONDS.

    Returns:
        A `Connection`.

    Raises:
        OSError: nothing accepted the connection in time, or the host does not resolve.
    """
    host, port = split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    seconds = REACH_SECONDS if deadline is None else min(
        REACH_SECONDS, max(0.01, deadline - time.monotonic()))
    socket_ = socket.create_connection((host, port), seconds)
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
        heard: when data last arrived, by `time.monotonic`.
        nonce: random str; the other side proves that it knows a secret by an HMAC of it.
    """

    def __init__(self, socket_):
        self.socket = socket_
        self.heard = time.monotonic()
        self.nonce = secrets.token_hex(16)
        self._bytes = b''
        self._messages = []
        self._end = None  # The exception to raise when all messages have been taken.
        self._sending = threading.Lock()

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def send(self, **message):
        """Sends an object. If the peer is gone, the next `receive` raises the error."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b'\n')

    @property
    def ready(self):
        """Whether `receive` returns or raises at once, though the socket may not be readable."""
        return bool(self._messages or self._end)

    def receive(self):
        """Waits for data, unless the connection is `ready`.

        Returns:
            List of the objects that are complete by now.

        Raises:
            OSError: no data arrived in time, or the connection was closed.
            ValueError: a line is not a JSON object, or too long. Objects that arrived before it
                are returned first.
        """
        if not self.ready:
            self._read()
        if not self._messages and self._end:
            raise self._end
        messages, self._messages = self._messages, []
        return messages

    def take(self):
        """Yields the objects of `receive`, then the OSError or ValueError that ended it, if any."""
        try:
            yield from self.receive()
            if self.ready:
                self.receive()
        except (OSError, ValueError) as error:
            yield error

    def receive_one(self, deadline):
        """Waits for the next object; leaves later ones to `receive`, and raises its errors."""
        while not self._messages:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            self._messages = self.receive()
        return self._messages.pop(0)

    def _read(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError('the connection was closed')
        self.heard = time.monotonic()
        *lines, self._bytes = (self._bytes + data).split(b'\n')
        try:
            for line in lines:
                self._messages.append(_parse(line))
            if len(self._bytes) > _LONGEST_LINE:
                raise ValueError('a line is too long')
        except ValueError as error:
            self._end = error


def _parse(line):
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: a thousand brackets.
        raise ValueError('a line is not JSON') from error
    if not isinstance(message, dict):
        raise ValueError('a line is not a JSON object')
    return message
