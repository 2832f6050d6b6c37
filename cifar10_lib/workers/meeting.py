"""Where workers meet: they compare facts, and learn each other's addresses.

    with meeting.join(cluster, facts) as peers:              # Waits until all workers have joined.
        peers.barrier('the gradients', {'shapes': digest})   # Also compares facts.

Worker 0 listens at `cluster.meeting`, and every other worker keeps a connection to it:

    worker 1            {"protocol": ..., "job": ..., "rank": 1, ...}
    worker 0            {"peers": [...]} when all have joined, {"error": ..., "code": ...} if they
                        cannot train together, or {"rejected": ...}, after which it may try again

Nothing that arrives is executed, and the length of messages, the number of unidentified connections
and all waiting times are limited. But nothing is encrypted, and TensorFlow's own ports, which open
next, obey anyone who can reach them: the network between the workers must be trusted.
"""
import contextlib
import queue
import socket
import threading
import time

from absl import app

from cifar10_lib.program import errors
from cifar10_lib.workers import connection as connection_, ports, watch

PROTOCOL = 'cifar10-workers-5'
_HELLO = {'rank': int, 'address': str, 'facts': dict}

_STRANGERS, _STRANGERS_SECONDS = 256, 5  # Limits for connections that do not identify themselves.
_PAUSE = 0.2  # Seconds between attempts to reach worker 0.

# Worker 0 gives up before the others do, so that it can send them the names of the missing ones.
_LEADERS_SHARE = 0.8


def join(cluster, facts):
    """Waits until all workers have joined, and compares their facts; returns a `watch.Meeting`.

    Args:
        cluster: a `Cluster` of several workers.
        facts: dictionary from name to JSON value, which must be the same for all workers.

    Raises:
        app.UsageError: some workers have the same index, expect a different number of workers,
            have different facts, or report a problem; all that have joined raise the same line.
        connection.Lost: after --start_timeout workers are missing.
    """
    facts = {'the number of workers': cluster.worker.size, **facts}
    return _lead(cluster, facts) if cluster.worker.leads else _follow(cluster, facts)


# Worker 0.


def _lead(cluster, facts):
    """Waits for the other workers; sends them either all addresses or an error."""
    deadline = time.monotonic() + _LEADERS_SHARE * cluster.timeouts.start
    try:
        port = ports.reserve(cluster.own_port())
        door = _Door(cluster)
    except OSError as error:
        raise app.UsageError(f'worker 0 cannot listen at {cluster.meeting}: {error.strerror}; is '
                             'another training run using it?') from error
    try:
        while ((left := deadline - time.monotonic()) > 0
               and len(door.hellos) + 1 < cluster.worker.size):
            door.wait(left)
        peers = _addresses(cluster, door, facts, port)
    except (app.UsageError, connection_.Lost) as error:
        door.answer(error=str(error), code=connection_.exit_code(error))
        raise
    finally:
        door.close()  # TensorFlow's server may need its port.
    door.answer(peers=peers)
    connections = {hello['rank']: connection for connection, hello in door.hellos.items()}
    return watch.Meeting(cluster, peers, connections, door.inbox, port)


class _Door:
    """Worker 0's port: accepts workers that identify themselves, and drops all other connections.

    A thread only accepts connections, and hands them over in the queue of messages.

    Attributes:
        hellos: dictionary from the `Connection` of a worker to its first message.
        inbox: queue of the messages of all connections.
        trouble: why the last worker or connection was not accepted, or ''.
    """

    def __init__(self, cluster):
        """Listens at `cluster.meeting`: for `localhost` or 127.*, only this machine can connect.

        Raises `OSError` if the port is in use.
        """
        host, port = connection_.split_address(cluster.meeting)
        self.hellos, self.inbox, self.trouble = {}, queue.SimpleQueue(), ''
        self._job = cluster.job
        self._strangers = []  # The unidentified connections, the oldest first.
        self._rejected = set()  # IPv4 addresses of rejected workers.
        is_local = host == 'localhost' or host.startswith('127.')
        self._socket = ports.reserve(port, host if is_local else '')
        self._socket.listen(1024)
        self._open = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wait(self, seconds):
        """Waits for a connection or a message, for at most some seconds.

        Raises `connection.Lost` if a worker in `hellos` ended.
        """
        with contextlib.suppress(queue.Empty):
            connection, message = self.inbox.get(timeout=seconds)
            if connection is None:
                self._let_in(message)
            elif connection in self.hellos:  # It waits for an answer, and sends nothing more.
                hello = self.hellos.pop(connection)
                raise connection_.Lost(f'{watch.name_of(hello["rank"], hello["address"])} ended '
                                       'before all workers had joined')
            elif connection in self._strangers:  # Otherwise, it was dropped.
                self._strangers.remove(connection)
                self._identify(connection, message)

    def answer(self, **message):
        for connection in self.hellos:
            connection.send(**message)

    def close(self):
        """Stops listening, and closes all connections except those in `hellos`."""
        self._open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread up.
        self._thread.join()
        self._socket.close()
        self._drop_oldest(0)

    def _let_in(self, accepted):
        """Takes a new connection, or the exception if there was no room for one."""
        try:
            if isinstance(accepted, OSError):
                raise accepted
            connection = connection_.Connection(accepted)
            connection.listen(self.inbox, _STRANGERS_SECONDS)
            self._strangers.append(connection)
            self._drop_oldest(_STRANGERS)
        except OSError as error:  # Too many files are open, or the peer is gone again.
            self.trouble = error.strerror
            self._drop_oldest(len(self._strangers) - 1)

    def _identify(self, connection, hello):
        try:
            if isinstance(hello, dict):
                _check(hello, self._job)
                self.hellos[connection] = hello
                return
        except ValueError as error:
            connection.send(rejected=f'worker 0 rejected this worker: {error}')
            self.trouble = f'it rejected a worker from {connection.peer}: {error}'
            if connection.peer not in self._rejected:  # They try again and again.
                self._rejected.add(connection.peer)
                errors.say(f'rejected a worker from {connection.peer}: {error}')
        connection.close()

    def _drop_oldest(self, most):
        """Drops connections; a real worker identifies itself at once, and reconnects if dropped."""
        while len(self._strangers) > max(0, most):
            self._strangers.pop(0).close()

    def _accept(self):
        while self._open:
            try:
                self.inbox.put((None, self._socket.accept()[0]))
            except OSError as error:
                self.inbox.put((None, error))
                time.sleep(0.01)  # With nothing to drop, the socket stays readable.


def _check(hello, job):
    """Raises ValueError unless this is how a worker of the job identifies itself."""
    if hello.get('protocol') != PROTOCOL:
        raise ValueError(f'it does not speak {PROTOCOL}: use the same version everywhere')
    if hello.get('job') != job:
        raise ValueError('it belongs to another job')
    for key, kind in _HELLO.items():
        if not isinstance(hello.get(key), kind):
            raise ValueError(f'its {key} is missing')
    connection_.split_address(hello['address'])


def _addresses(cluster, door, facts, port):
    """All workers' addresses, a list; raises an error if one is missing or does not fit."""
    found = {0: _own_address(cluster, cluster.meeting, port)}
    for hello in sorted(door.hellos.values(), key=lambda hello: hello['rank']):
        rank, name = hello['rank'], watch.name_of(hello['rank'], hello['address'])
        line = watch.difference(name, hello['facts'], facts)
        if hello.get('problem'):
            line = f'{name}: {connection_.text(hello["problem"])}'
        elif rank in found and not line:
            line = (f'{name} has the same index as {watch.name_of(rank, found[rank])}: start one '
                    'worker per index')
        if line:
            raise app.UsageError(line)
        found[rank] = hello['address']
    missing = [watch.name_of(rank, cluster.address_of(rank))
               for rank in range(cluster.worker.size) if rank not in found]
    if missing:
        trouble = f' (worker 0 reports: {door.trouble})' * bool(door.trouble)
        raise connection_.Lost(
            f'{", ".join(missing[:5])}{" and others" * (len(missing) > 5)} did not connect to '
            f'worker 0 at {cluster.meeting} in time{trouble}: check that all workers were started, '
            'or raise --start_timeout')
    return list(found.values())


# The others.


def _follow(cluster, facts):
    """Tries to join worker 0 until it sends all addresses or an error."""
    deadline = time.monotonic() + cluster.timeouts.start
    problem, reason = None, None
    try:
        port = ports.reserve(cluster.own_port())
    except OSError as error:
        port, problem = ports.reserve(), f'cannot listen on its port: {error.strerror}'
    hello = {'protocol': PROTOCOL, 'job': cluster.job, 'rank': cluster.worker.rank,
             'facts': facts, 'problem': problem}
    while time.monotonic() < deadline:
        inbox = queue.SimpleQueue()
        try:
            connection = connection_.Connection(connection_.reach(cluster.meeting, deadline))
            connection.listen(inbox)
            answer = _introduce(cluster, connection, hello, port, inbox, deadline)
        except (OSError, ValueError) as error:
            # A rejection explains more than that nothing answered. It may be only for now.
            if isinstance(error, ValueError) or not isinstance(reason, ValueError):
                reason = error
            time.sleep(_PAUSE)
            continue
        if 'error' in answer:
            kind = connection_.Lost if answer['code'] == connection_.LOST else app.UsageError
            raise kind(connection_.text(answer['error']))
        return watch.Meeting(cluster, answer['peers'], {0: connection}, inbox, port)
    line = (f'worker {cluster.worker.rank} could not join worker 0 at {cluster.meeting} within '
            f'--start_timeout={cluster.timeouts.start:g} seconds: '
            f'{connection_.text(getattr(reason, "strerror", None) or reason)}')
    if isinstance(reason, ValueError):
        raise app.UsageError(line)
    raise connection_.Lost(f'{line}; worker 0 may not have been started, or the job may have '
                           'started already: it then accepts no more workers')


def _introduce(cluster, connection, hello, port, inbox, deadline):
    """Identifies this worker; returns worker 0's answer."""
    host = connection.host
    if host.startswith('127.'):  # On worker 0's machine, which the others reach by this name.
        host = cluster.meeting
    connection.send(**hello, address=_own_address(cluster, host, port))
    try:
        _, answer = inbox.get(timeout=max(0.01, deadline - time.monotonic()))
    except queue.Empty:
        connection.close()
        raise TimeoutError('timed out') from None
    if isinstance(answer, Exception):
        raise OSError(f'the server there is not worker 0: {answer}')
    if 'rejected' in answer:
        raise ValueError(answer['rejected'])
    return answer


def _own_address(cluster, host, port):
    """The address of this worker for TensorFlow: as given, or else a host and its reserved port."""
    return (cluster.address_of(cluster.worker.rank)
            or f'{host.split(":")[0]}:{port.getsockname()[1]}')
