"""JSON messages between workers, and their addresses."""
import contextlib
import json
import multiprocessing.connection
import os
import re
import socket
import struct
import threading
import time

from cifar10_lib.program import json_files

SECONDS = 5.0  # To connect to a port that is known to be open, or to send.
LOST = os.EX_TEMPFAIL  # 75, the exit code after another worker was lost: starting again may help.

_LONGEST_MESSAGE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.


class Lost(ConnectionError):
    """Another worker was lost, is frozen or cannot be reached; the exit code is `LOST`."""


def exit_code(error):
    """The exit code of a process that an exception ends."""
    return LOST if isinstance(error, Lost) else 1


def split_address(address):
    """Splits 'host:port' into str and int; raises `ValueError` for anything else, also for IPv6,
    since TensorFlow's cluster addresses do not support brackets."""
    match = re.fullmatch('([A-Za-z0-9._-]+):([0-9]{1,5})', address)
    if not match or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(f'{json_files.shown(address)} is not HOST:PORT')
    return match.group(1), int(match.group(2))


def reach(address, deadline=float('inf')):
    """A socket connected to 'host:port' by IPv4, on which TensorFlow's server always listens.

    Raises:
        OSError: nothing accepted the connection within `SECONDS` or until the deadline, by
            `time.monotonic`; or the host does not resolve.
    """
    host, port = split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    seconds = min(SECONDS, max(0.01, deadline - time.monotonic()))
    socket_ = socket.create_connection((host, port), seconds)
    if socket_.getsockname() == socket_.getpeername():  # Linux may connect a free port to itself.
        socket_.close()
        raise ConnectionRefusedError('nothing listens there')
    return socket_


def text(value):
    """A value that a peer sent, made safe for a terminal and for one line of a message."""
    return ''.join(c if c.isprintable() else ' ' for c in str(value))[:500]


class Connection:
    """JSON objects over a socket; a thread reads them.

    So a peer that stalls in the middle of a message delays nobody else.

    Attributes:
        host: this machine's IPv4 address, as the peer sees it.
        peer: the peer's IPv4 address.
    """

    def __init__(self, socket_):
        """Takes the socket over; call `listen` next."""
        self.host, self.peer = socket_.getsockname()[0], socket_.getpeername()[0]
        socket_.settimeout(None)
        self._socket = socket_
        self._limit(socket.SO_SNDTIMEO, SECONDS)
        self._pipe = multiprocessing.connection.Connection(socket_.fileno())
        self._sending = threading.Lock()

    def listen(self, inbox, seconds=0):
        """Starts to put (this connection, object) into a queue; at the end, with the exception.

        `seconds`, if not 0, limits the time until the first object.
        """
        self._limit(socket.SO_RCVTIMEO, seconds)
        threading.Thread(target=self._read, args=[inbox], daemon=True).start()

    def send(self, **message):
        """Sends an object. If the peer is gone or does not read, the connection ends."""
        with self._sending:
            try:
                self._pipe.send_bytes(json.dumps(message).encode())
            except OSError:
                self.close()

    def close(self):
        """Ends the connection, and so the thread, which closes the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _limit(self, option, seconds):
        self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack('ll', int(seconds), 0))

    def _read(self, inbox):
        try:
            while True:
                data = self._pipe.recv_bytes(_LONGEST_MESSAGE)
                self._limit(socket.SO_RCVTIMEO, 0)
                inbox.put((self, json_files.parse(data, 'a message')))
        except EOFError:
            end = ConnectionResetError('the connection was closed')
        except (OSError, ValueError) as error:
            end = error
        with self._sending:  # Afterwards, its number may belong to another file.
            self._socket.detach()
            self._pipe.close()
        inbox.put((self, end))
