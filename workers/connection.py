"""JSON objects over a socket, one a line; and ports for servers that start later."""
import json
import socket
import threading
import time

from workers import cluster

_LONGEST_LINE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.
REACH_SECONDS = 5.0  # For a connection to a port that is known to be open.


def reserve(port=0, host=''):
    """Takes a port for a server that is started later, in this process.

    Bound but not listening, and reusable: Linux then gives the port to nobody who does not ask for
    it by number, and TensorFlow's server can have it as if it were free.

    Args:
        port: its number, or 0 for any that is free.
        host: IPv4 address of the interface, or '' for all of them, as TensorFlow has it.

    Returns:
        A socket. Keep it until the server listens.

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


class Connection:
    """JSON objects over a socket.

    Attributes:
        heard: when something last came, in the time of `time.monotonic`.
    """

    def __init__(self, socket_):
        self.socket = socket_
        self.heard = time.monotonic()
        self._bytes = b''
        self._unread = []
        self._sending = threading.Lock()

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def send(self, **message):
        """Raises OSError where nobody can take it."""
        with self._sending:
            self.socket.sendall(json.dumps(message).encode() + b'\n')

    def receive(self):
        """Waits for data; returns a list of the objects that are complete now.

        Raises:
            OSError: nothing came in time, or nothing will come any more.
            ValueError: they are no JSON objects, or too long.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError('the connection was closed')
        self.heard = time.monotonic()
        *lines, self._bytes = (self._bytes + data).split(b'\n')
        if len(self._bytes) > _LONGEST_LINE:
            raise ValueError('a line is too long')
        messages, self._unread = self._unread + [_parse(line) for line in lines], []
        return messages

    def receive_one(self, deadline):
        """The next object; what comes along with it is left for `receive`."""
        while True:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            messages = self.receive()
            if messages:
                self._unread = messages[1:]
                return messages[0]


def _parse(line):
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:  # Or a thousand brackets.
        raise ValueError('what came is not JSON') from error
    if not isinstance(message, dict):
        raise ValueError('a line is no JSON object')
    return message


def reach(address, deadline=None):
    """A connection to 'host:port'; by IPv4, as TensorFlow's server listens for it everywhere."""
    host, port = cluster.split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    seconds = REACH_SECONDS if deadline is None else min(
        REACH_SECONDS, max(0.01, deadline - time.monotonic()))
    socket_ = socket.create_connection((host, port), seconds)
    if socket_.getsockname() == socket_.getpeername():  # Linux may connect a free port to itself.
        socket_.close()
        raise ConnectionRefusedError('nobody listens')
    return Connection(socket_)


def text(value):
    """What a peer sent, fit for a terminal and one line of a message."""
    return ''.join(c if c.isprintable() else ' ' for c in str(value))[:500]
