"""Accepts connections for worker 0; drops those that stay silent, and the oldest of too many."""
import errno
import selectors
import time

from workers import connection as connection_
from workers import ports

# How many unidentified connections are kept, and for how many seconds.
_STRANGERS, STRANGERS_SECONDS = 256, 5.0

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Accepts connections, and drops those that do not identify themselves in time.

    Attributes:
        no_room: why connections could not be accepted (too many open files), or None.
    """

    def __init__(self, address, **greeting):
        """Listens at 'host:port': on loopback if the host is 127.*, else on all interfaces.

        Args:
            address: str.
            **greeting: message to every new connection, sent together with its `nonce`.

        Raises:
            OSError: the port is in use.
        """
        host, port = connection_.split_address(address)
        self.no_room = None
        self._greeting = greeting
        self._strangers = {}  # From connection to when it was accepted, the oldest first.
        self._socket = ports.reserve(port, host if host.startswith('127.') else '')
        self._socket.setblocking(False)  # A peer may be gone again before `accept`.
        self._socket.listen(1024)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def receive(self, seconds):
        """Waits for messages, for at most some seconds.

        Yields:
            connection: a `Connection`; if it is a new one, either `keep` or `drop` it.
            message: dictionary that it sent; or, for a kept connection that ended, the OSError or
                ValueError. Others are dropped.
        """
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._socket:
                self._accept()
                continue
            for message in key.fileobj.take():
                if isinstance(message, Exception) and key.fileobj in self._strangers:
                    self.drop(key.fileobj)
                if key.fileobj.fileno() >= 0:  # Not dropped, perhaps for an earlier message.
                    yield key.fileobj, message
        self._drop_strangers()

    def keep(self, connection):
        """Keeps a connection that has identified itself."""
        del self._strangers[connection]

    def drop(self, connection, **message):
        """Closes a connection, with a last message."""
        if connection.fileno() < 0:
            return
        if message:
            connection.send(**message)
        self._strangers.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def close(self):
        """Stops listening, and closes all connections that were not kept."""
        for connection in list(self._strangers):
            self.drop(connection)
        self._selector.close()
        self._socket.close()

    def _accept(self):
        try:
            socket_, _ = self._socket.accept()
        except OSError as error:  # The peer is gone again, or too many files are open.
            if error.errno in _NO_ROOM:
                self.no_room = error.strerror
                self._drop_strangers(len(self._strangers) - 1)
                time.sleep(0.01)  # With nothing to drop, the socket stays readable.
            return
        socket_.settimeout(connection_.REACH_SECONDS)
        connection = connection_.Connection(socket_)
        self._strangers[connection] = time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ)
        connection.send(**self._greeting, nonce=connection.nonce)

    def _drop_strangers(self, most=_STRANGERS):
        """Drops the oldest. A real worker identifies itself at once, and reconnects if dropped."""
        for connection, accepted in list(self._strangers.items()):
            if len(self._strangers) > most or time.monotonic() - accepted > STRANGERS_SECONDS:
                self.drop(connection)
