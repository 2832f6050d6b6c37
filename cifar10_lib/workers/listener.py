"""Worker 0's port: accepts workers that identify themselves, and drops all other connections."""
import errno
import multiprocessing.connection
import time

from absl import app

from cifar10_lib.workers import connection as connection_
from cifar10_lib.workers import identity
from cifar10_lib.workers import ports
from cifar10_lib.workers import watch

# How many unidentified connections are kept, and for how many seconds.
_STRANGERS, STRANGERS_SECONDS = 256, 5.0

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Accepts the workers of a job.

    Attributes:
        hellos: dictionary from the `Connection` of a worker to the message by which it identified
            itself; the caller owns these connections.
        no_room: why connections could not be accepted (too many open files), or None.
    """

    def __init__(self, cluster):
        """Listens at `cluster.meeting`: on loopback if the host is 127.*, else on all interfaces.

        Raises:
            OSError: the port is in use.
        """
        host, port = connection_.split_address(cluster.meeting)
        self.hellos = {}
        self.no_room = None
        self._cluster = cluster
        self._strangers = {}  # From connection to when it was accepted, the oldest first.
        self._socket = ports.reserve(port, host if host.startswith('127.') else '')
        self._socket.setblocking(False)  # A peer may be gone again before `accept`.
        self._socket.listen(1024)

    def wait(self, seconds):
        """Waits for connections and messages, for at most some seconds.

        Raises:
            app.UsageError: a worker in `hellos` ended; the message names it.
        """
        for ready in multiprocessing.connection.wait(
                [self._socket, *self._strangers, *self.hellos], seconds):
            if ready is self._socket:
                self._accept()
            elif ready in self._strangers or ready in self.hellos:  # Not dropped to make room.
                self._receive(ready)
        self._drop_strangers()

    def close(self):
        """Stops listening, and closes all connections except those in `hellos`."""
        self._drop_strangers(0)
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
        connection = connection_.Connection(socket_)
        self._strangers[connection] = time.monotonic()
        connection.send(protocol=identity.PROTOCOL, nonce=connection.nonce)

    def _receive(self, connection):
        try:
            for message in connection.receive():
                if connection in self._strangers:
                    identity.check(self._cluster, connection, message)
                    self.hellos[connection] = message
                    del self._strangers[connection]
        except (OSError, ValueError) as error:
            if connection in self._strangers:
                connection.send(rejected=f'worker 0 rejected this worker: {error}')
                self._drop(connection)
            else:
                hello = self.hellos.pop(connection)
                raise app.UsageError(f'{watch.name_of(hello["rank"], hello["address"])} ended '
                                     'before all workers had joined') from error

    def _drop_strangers(self, most=_STRANGERS):
        """Drops the oldest. A real worker identifies itself at once, and reconnects if dropped."""
        for connection, accepted in list(self._strangers.items()):
            if len(self._strangers) > most or time.monotonic() - accepted > STRANGERS_SECONDS:
                self._drop(connection)

    def _drop(self, connection):
        del self._strangers[connection]
        connection.close()
