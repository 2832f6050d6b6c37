"""Where workers meet: they say who they are, agree, and from then on watch over one another.

    with rendezvous.join(cluster, facts) as workers:         # waits until all are there
        workers.agree('the gradients', {'shapes': digest})   # waits until all have come so far
        ...
        workers.agree('the end')
        workers.leave()

Worker 0 listens at `cluster.meeting`, and each of the others keeps a connection to it. They
exchange JSON objects, one a line. Nothing that comes is ever executed, lines have a limit, and a
stranger is dropped; but nothing is encrypted, and TensorFlow's own ports, which come next, obey
anybody who reaches them. The network between workers must be a trusted one.

Why not leave it to TensorFlow's errors? They seldom say which worker failed, and a frozen one ends
a step only by a time limit, as would a worker 0 that takes long to validate. Here a thread sends
signs of life, however long a step takes, and worker 0 tells all the others whom it misses.
"""
import contextlib
import selectors
import time

from absl import app

from workers import cluster as cluster_
from workers import connection as connection_
from workers import watch

_PROTOCOL = 'cifar10-workers-1'
_PAUSE = 0.2  # Seconds between attempts to reach worker 0.

# Worker 0 gives up before the others do, so that they hear from it who is missing.
_LEADERS_SHARE = 0.8


def join(cluster, facts):
    """Waits until all workers are there, and compares what they bring.

    Args:
        cluster: a `Cluster` of several workers.
        facts: dictionary from name to JSON value: what must be the same for all workers.

    Returns:
        A `watch.Meeting`.

    Raises:
        app.UsageError: workers are missing after --start_timeout, are there twice, count each other
            differently, bring other facts, or have a problem; the same line for all who are there.
    """
    return _follow(cluster, facts) if cluster.rank else _lead(cluster, facts)


# Worker 0.


def _lead(cluster, facts):
    """Awaits the others, and tells them either who all are or what is wrong."""
    deadline = time.monotonic() + _LEADERS_SHARE * cluster.timeouts.start
    listener = _listen(cluster.meeting)
    port = None if cluster.hosts else connection_.reserve()
    arrivals = _Arrivals(cluster, listener)
    try:
        line = arrivals.wait(deadline) or arrivals.fault(facts)
    finally:
        arrivals.close()  # Where addresses are given, TensorFlow's server has the port next.
    if line:
        arrivals.answer(error=line)
        raise app.UsageError(line)
    own = cluster.meeting if cluster.hosts else (
        f'{cluster.meeting.split(":")[0]}:{port.getsockname()[1]}')
    connections = {hello['rank']: connection for connection, hello in arrivals.hellos.items()}
    addresses = {hello['rank']: hello['address'] for hello in arrivals.hellos.values()}
    peers = _seen_from_outside([own] + [addresses[rank] for rank in range(1, cluster.size)])
    arrivals.answer(peers=peers)
    return watch.Meeting(cluster.rank, peers, connections, port, cluster.timeouts)


def _listen(address):
    host, port = cluster_.split_address(address)
    try:
        listener = connection_.reserve(port, host if host.startswith('127.') else '')
        listener.listen(1024)
    except OSError as error:
        raise app.UsageError(f'worker 0 cannot await the others at {address}: '
                             f'{error.strerror}; is another training run using it?') from error
    return listener


def _seen_from_outside(addresses):
    """Addresses that serve everybody, from those by which workers came to worker 0.

    Who came over loopback is on worker 0's machine, and is reached from others as worker 0 is.
    """
    hosts = [address.split(':')[0] for address in addresses]
    local = [host.startswith('127.') for host in hosts]
    if all(local[1:]):
        return addresses
    return [f'{hosts[0]}:{address.split(":")[1]}' if is_local else address
            for address, is_local in zip(addresses, local)]


class _Arrivals:
    """Those who come to worker 0.

    Attributes:
        hellos: dictionary from connection to what it said.
    """

    def __init__(self, cluster, listener):
        self.hellos = {}
        self._cluster = cluster
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def wait(self, deadline):
        """Waits until as many have come as anybody expects; the line to end with, or None."""
        while len(self.hellos) + 1 < max([self._cluster.size] + [
                hello['size'] for hello in self.hellos.values()]):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            for key, _ in self._selector.select(remaining):
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                line = self._hear(key.fileobj)
                if line:
                    return line
        return None

    def _accept(self):
        socket_, _ = self._listener.accept()
        socket_.settimeout(connection_.REACH_SECONDS)
        self._selector.register(connection_.Connection(socket_), selectors.EVENT_READ)

    def _hear(self, connection):
        """Takes what one says; the line to end with if a worker went away again."""
        try:
            for message in connection.receive():
                if connection not in self.hellos:
                    self._check_hello(message)
                    self.hellos[connection] = message
        except (OSError, ValueError) as error:
            self._selector.unregister(connection)
            hello = self.hellos.pop(connection, None)
            if hello is None and isinstance(error, ValueError):
                self._send(connection, error=f'worker 0 turned this one away: {error}')
            connection.close()
            if hello is not None:
                name = watch.name_of(hello['rank'], hello['address'])
                return f'{name} ended while others still came'
        return None

    def _check_hello(self, hello):
        if hello.get('protocol') != _PROTOCOL:
            raise ValueError(f'it does not speak {_PROTOCOL}')
        if hello.get('job') != self._cluster.job:
            raise ValueError('it belongs to another job')
        for key, kind in (('rank', int), ('size', int), ('address', str), ('facts', dict)):
            if not isinstance(hello.get(key), kind):
                raise ValueError(f'its {key} is missing')
        cluster_.split_address(hello['address'])

    def fault(self, facts):
        """What is wrong with those who have come, in a line, or None."""
        size = self._cluster.size
        names = {0: 'worker 0'}
        for hello in sorted(self.hellos.values(), key=lambda hello: hello['rank']):
            rank, name = hello['rank'], watch.name_of(hello['rank'], hello['address'])
            if hello['size'] != size:
                return f'{name} counts {hello["size"]} workers, worker 0 counts {size}'
            if hello.get('problem'):
                return f'{name}: {connection_.text(hello["problem"])}'
            if rank in names:
                return f'{name} is there twice: {names[rank]} came as well'
            if not 0 < rank < size:
                return f'{name} is there, but {size} workers are 0 to {size - 1}'
            names[rank] = name
            line = watch.difference(name, hello['facts'], facts)
            if line:
                return line
        missing = [rank for rank in range(size) if rank not in names]
        if not missing:
            return None
        hosts = self._cluster.hosts or [''] * size
        shown = ', '.join(watch.name_of(rank, hosts[rank]) for rank in missing[:5])
        return (f'{shown}{" and more" * (len(missing) > 5)} did not come to worker 0 at '
                f'{self._cluster.meeting} in time; see --start_timeout')

    def answer(self, **message):
        for connection in self.hellos:
            self._send(connection, **message)

    def _send(self, connection, **message):
        with contextlib.suppress(OSError):  # Gone: that shows when it is read from.
            connection.send(**message)

    def close(self):
        """Forgets those who never said who they are."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in self.hellos:
                key.fileobj.close()
        self._selector.close()


# The others.


def _follow(cluster, facts):
    """Goes to worker 0, as often as it takes, and hears who all are or what is wrong."""
    deadline = time.monotonic() + cluster.timeouts.start
    port, problem = None, None
    try:
        port = connection_.reserve(cluster_.split_address(cluster.hosts[cluster.rank])[1]
                                   if cluster.hosts else 0)
    except OSError as error:
        problem = f'its port cannot be had: {error.strerror}'
    reason = None
    while time.monotonic() < deadline:
        try:
            connection = connection_.reach(cluster.meeting, deadline)
            address = cluster.hosts[cluster.rank] if cluster.hosts else (
                f'{connection.socket.getsockname()[0]}:{port.getsockname()[1]}')
            connection.send(protocol=_PROTOCOL, job=cluster.job, rank=cluster.rank,
                            size=cluster.size, address=address, facts=facts, problem=problem)
            peers = _welcomed(connection.receive_one(deadline), cluster.size)
            return watch.Meeting(cluster.rank, peers, {0: connection}, port, cluster.timeouts)
        except (OSError, ValueError) as error:
            reason = getattr(error, 'strerror', None) or error
            time.sleep(_PAUSE)
    raise app.UsageError(
        f'worker {cluster.rank} has waited {cluster.timeouts.start:g} seconds for worker 0 at '
        f'{cluster.meeting}: {connection_.text(reason)}')


def _welcomed(answer, size):
    """Every worker's address, from worker 0's answer."""
    if 'error' in answer:
        raise app.UsageError(connection_.text(answer['error']))
    peers = answer.get('peers')
    if not isinstance(peers, list) or len(peers) != size:
        raise ValueError('what answers there is no worker 0')
    for peer in peers:
        cluster_.split_address(str(peer))
    return peers
