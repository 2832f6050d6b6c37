"""JSON objects over a socket, one a line; and ports for servers that start later."""
import contextlib
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
        self._messages = []
        self._end = None  # The exception to raise when all messages have been taken.
        self._sending = threading.Lock()

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def send(self, **message):
        """Raises OSError where nobody can take it."""
        with self._sending:
            self.socket.sendall(json.dumps(message).encode() + b'\n')

    @property
    def ready(self):
        """Whether `receive` has an answer already; the socket does not become readable for it."""
        return bool(self._messages or self._end)

    def receive(self):
        """Waits for data, unless it is `ready`.

        Returns:
            List of the objects that are complete now.

        Raises:
            OSError: nothing came in time, or nothing will come any more.
            ValueError: what came is not a JSON object, or too long. Objects that came before it
                are returned first.
        """
        if not self.ready:
            self._read()
        if not self._messages and self._end:
            raise self._end
        messages, self._messages = self._messages, []
        return messages

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

    def receive_one(self, deadline):
        """The next object; what comes along with it is left for `receive`."""
        while not self._messages:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            self._messages = self.receive()
        return self._messages.pop(0)


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


def is_here(address):
    """Whether an IPv4 address is one of this machine's."""
    if address.startswith('127.'):
        return True
    with socket.socket(type=socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))  # Sends nothing. Linux reaches its own addresses from them.
        return probe.getsockname()[0] == address
    return False


def addresses(host):
    """The IPv4 addresses of a host, a set.

    Raises:
        socket.gaierror: its name does not resolve.
    """
    return {info[4][0] for info in socket.getaddrinfo(
        host, None, socket.AF_INET, socket.SOCK_STREAM)}


def is_one_of(address, expected):
    """Whether an address is among others; all those of this machine count as one.

    A machine's own name is often a loopback address, from which nothing comes over the network.
    """
    return address in expected or (is_here(address) and any(map(is_here, expected)))


def text(value):
    """What a peer sent, fit for a terminal and one line of a message."""
    return ''.join(c if c.isprintable() else ' ' for c in str(value))[:500]
