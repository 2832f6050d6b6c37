"""Where workers meet: they say who they are, agree, and from then on watch over one another.

    with rendezvous.join(cluster, facts) as workers:         # waits until all are there
        workers.agree('the gradients', {'shapes': digest})   # waits until all have come so far
        ...
        workers.agree('the end')
        workers.leave()

Worker 0 listens at `cluster.meeting`, and each of the others keeps a connection to it. They
exchange JSON objects, one a line:

    worker 0            {"protocol": ..., "nonce": ...}
    worker 1            {"rank": 1, ..., "nonce": ..., "proof": ...}
    worker 0            {"peers": [...], "proof": ...}, when all are there, or {"error": ...}

A proof is an HMAC of the other side's nonce and of the message, with the job's secret as the key:
the secret itself is never sent. Without a secret, a worker must come from the host it is expected
on. Nothing that arrives is ever executed, and lines, silent connections and waiting times have
limits. But nothing is encrypted, and TensorFlow's own ports, which come next, obey anybody who
reaches them. The network between workers must be a trusted one.

Why not leave it to TensorFlow's errors? They seldom say which worker failed, and a frozen one ends
a step only by a time limit, as would a worker 0 that takes long to validate. Here a thread sends
signs of life, however long a step takes, and worker 0 tells all the others whom it misses.
"""
import contextlib
import errno
import hmac
import json
import secrets
import selectors
import time

from absl import app

from workers import cluster as cluster_
from workers import connection as connection_
from workers import watch

_PROTOCOL = 'cifar10-workers-2'
_PAUSE = 0.2  # Seconds between attempts to reach worker 0.

# How many connections that have not introduced themselves worker 0 keeps, and how many seconds.
_STRANGERS, _STRANGERS_SECONDS = 256, 5.0

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

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


def _proof(cluster, nonce, message):
    """Shows whoever chose the nonce that the sender of the message knows the job's secret."""
    key = f'{cluster.job}\n{cluster.secret}'.encode(errors='surrogateescape')
    text = json.dumps([nonce, message], sort_keys=True)
    return hmac.new(key, text.encode(), 'sha256').hexdigest()


def _is_proven(cluster, nonce, message):
    """Whether the `proof` in a message is that of its other values."""
    rest = {name: value for name, value in message.items() if name != 'proof'}
    try:
        return hmac.compare_digest(ascii(message.get('proof')), ascii(_proof(cluster, nonce, rest)))
    except RecursionError:  # Brackets within brackets, just few enough to be read.
        return False


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
        listener.setblocking(False)  # Who has come may be gone before `accept`.
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
        self._strangers = {}  # From connection to (when it came, its nonce), the oldest first.
        self._no_room = None
        self._addresses = {}  # Of hosts.
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def wait(self, deadline):
        """Waits until as many have come as anybody expects; the line to end with, or None."""
        while len(self.hellos) + 1 < max([self._cluster.size] + [
                hello['size'] for hello in self.hellos.values()]):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            for key, _ in self._selector.select(min(remaining, 1.0)):
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                line = self._hear(key.fileobj)
                if line:
                    return line
            self._drop_strangers()
        return None

    def _accept(self):
        try:
            socket_, _ = self._listener.accept()
        except OSError as error:  # It may be gone again, or there are too many open files.
            if error.errno in _NO_ROOM:
                self._no_room = error.strerror
                self._drop_strangers(len(self._strangers) - 1)
                time.sleep(0.01)  # Nothing to drop: the listener stays readable.
            return
        socket_.settimeout(connection_.REACH_SECONDS)
        connection, nonce = connection_.Connection(socket_), secrets.token_hex(16)
        self._strangers[connection] = time.monotonic(), nonce
        self._selector.register(connection, selectors.EVENT_READ)
        self._send(connection, protocol=_PROTOCOL, nonce=nonce)

    def _drop_strangers(self, most=_STRANGERS):
        """Drops the oldest. A worker introduces itself at once, and comes again if dropped."""
        for connection, (came, _) in list(self._strangers.items()):
            if len(self._strangers) > most or time.monotonic() - came > _STRANGERS_SECONDS:
                self._drop(connection)

    def _drop(self, connection):
        self._strangers.pop(connection, None)
        if connection.fileno() >= 0:
            self._selector.unregister(connection)
            connection.close()

    def _hear(self, connection):
        """Takes what one says; the line to end with if a worker went away again."""
        try:
            for message in connection.receive():
                if connection in self._strangers:
                    self._check_hello(connection, message)
                    self.hellos[connection] = message
                    del self._strangers[connection]
            if connection.ready:
                connection.receive()
        except (OSError, ValueError) as error:
            hello = self.hellos.pop(connection, None)
            if hello is None:  # What does not resolve yet may do so later.
                key = 'error' if isinstance(error, ValueError) else 'later'
                self._send(connection, **{key: f'worker 0 turned this one away: {error}'})
            self._drop(connection)
            if hello is not None:
                name = watch.name_of(hello['rank'], hello['address'])
                return f'{name} ended while others still came'
        return None

    def _check_hello(self, connection, hello):
        if hello.get('protocol') != _PROTOCOL:
            raise ValueError(f'it does not speak {_PROTOCOL}')
        if not _is_proven(self._cluster, self._strangers[connection][1], hello):
            raise ValueError('it belongs to another job, or has another secret '
                             f'({cluster_.SECRET_VARIABLE}, --secret_file)')
        for key, kind in (('rank', int), ('size', int), ('address', str), ('nonce', str),
                          ('facts', dict)):
            if not isinstance(hello.get(key), kind):
                raise ValueError(f'its {key} is missing')
        cluster_.split_address(hello['address'])
        self._check_origin(connection.socket.getpeername()[0], hello['rank'])

    def _check_origin(self, address, rank):
        """Without a secret, compares where a worker comes from with where it is expected.

        Raises:
            ValueError: these differ.
            OSError: the name of a host does not resolve.
        """
        hosts = self._cluster.hosts_of(rank)
        if self._cluster.secret or not hosts:
            return
        unknown = None
        for host in hosts:
            try:
                if host not in self._addresses or len(hosts) == 1:  # A pod's may have changed.
                    self._addresses[host] = connection_.addresses(host)
                if connection_.is_one_of(address, self._addresses[host]):
                    return
            except OSError as error:
                unknown = OSError(f'{host} does not resolve: {error.strerror}')
        raise unknown or ValueError(
            f'worker {rank} came from {address}, which is not an address of '
            f'{", ".join(hosts[:5])}{", ..." * (len(hosts) > 5)}: correct that, or give all '
            f'workers the same {cluster_.SECRET_VARIABLE} or --secret_file')

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
        no_room = f' (which says: {self._no_room})' * bool(self._no_room)
        return (f'{shown}{" and more" * (len(missing) > 5)} did not come to worker 0 at '
                f'{self._cluster.meeting}{no_room} in time; see --start_timeout')

    def answer(self, **message):
        for connection, hello in self.hellos.items():
            proof = _proof(self._cluster, hello['nonce'], message)
            self._send(connection, **message, proof=proof)

    def _send(self, connection, **message):
        with contextlib.suppress(OSError):  # Gone: that shows when it is read from.
            connection.send(**message)

    def close(self):
        """Forgets those who never said who they are."""
        for connection in list(self._strangers):
            self._drop(connection)
        self._selector.close()
        self._listener.close()


# The others.


class _NotYet(ConnectionError):
    """Worker 0 cannot take this worker now, and says why."""


def _follow(cluster, facts):
    """Goes to worker 0, as often as it takes, and hears who all are or what is wrong."""
    deadline = time.monotonic() + cluster.timeouts.start
    port, problem = None, None
    try:
        port = connection_.reserve(cluster_.split_address(cluster.hosts[cluster.rank])[1]
                                   if cluster.hosts else 0)
    except OSError as error:
        if not cluster.hosts:
            raise
        problem = f'its port cannot be had: {error.strerror}'
    reason = None
    while time.monotonic() < deadline:
        connection = None
        try:
            connection = connection_.reach(cluster.meeting, deadline)
            peers = _introduce(cluster, connection, facts, port, problem, deadline)
            return watch.Meeting(cluster.rank, peers, {0: connection}, port, cluster.timeouts)
        except (OSError, ValueError) as error:
            if connection:
                connection.close()
            if not isinstance(reason, _NotYet):  # Worker 0's own words say more than what follows.
                reason = error
            time.sleep(_PAUSE)
    reason = getattr(reason, 'strerror', None) or reason
    raise app.UsageError(
        f'worker {cluster.rank} has waited {cluster.timeouts.start:g} seconds for worker 0 at '
        f'{cluster.meeting}: {connection_.text(reason)}')


def _introduce(cluster, connection, facts, port, problem, deadline):
    """Says who this is; every worker's address, from worker 0's answer."""
    challenge = connection.receive_one(min(deadline, time.monotonic() + _STRANGERS_SECONDS))
    if challenge.get('protocol') != _PROTOCOL:
        raise ValueError('what answers there is no worker 0')
    nonce = secrets.token_hex(16)
    address = cluster.hosts[cluster.rank] if cluster.hosts else (
        f'{connection.socket.getsockname()[0]}:{port.getsockname()[1]}')
    hello = {'protocol': _PROTOCOL, 'rank': cluster.rank, 'size': cluster.size, 'address': address,
             'facts': facts, 'problem': problem, 'nonce': nonce}
    connection.send(**hello, proof=_proof(cluster, challenge.get('nonce'), hello))
    answer = connection.receive_one(deadline)
    if 'error' in answer:
        raise app.UsageError(connection_.text(answer['error']))
    if 'later' in answer:
        raise _NotYet(answer['later'])
    peers = answer.get('peers')
    if not isinstance(peers, list) or len(peers) != cluster.size:
        raise ValueError('what answers there is no worker 0')
    if not _is_proven(cluster, nonce, answer):
        raise ValueError('what answers there belongs to another job, or has another secret')
    for peer in peers:
        cluster_.split_address(str(peer))
    return peers
