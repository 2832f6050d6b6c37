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
import json
import os
import selectors
import socket
import sys
import threading
import time

from absl import app
from absl import flags

from program import errors
from workers import cluster as cluster_

FLAGS = flags.FLAGS

_PROTOCOL = 'cifar10-workers-1'
_LONGEST_LINE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.
_PAUSE = 0.2  # Seconds between attempts to reach worker 0.
_REACH_SECONDS = 5.0  # For a connection to a port that is known to be open.

# Worker 0 gives up before the others do, so that they hear from it who is missing.
_LEADERS_SHARE = 0.8

# Shares of --step_timeout: between signs of life; until a silent worker counts as lost; and for
# coming out of a step by oneself once somebody is, which takes for ever if that one is frozen.
_BEAT, _SILENCE, _GRACE = 0.05, 0.5, 0.25


def join(cluster, facts):
    """Waits until all workers are there, and compares what they bring.

    Args:
        cluster: a `Cluster` of several workers.
        facts: dictionary from name to JSON value: what must be the same for all workers.

    Returns:
        A `Meeting`.

    Raises:
        app.UsageError: workers are missing after --start_timeout, are there twice, count each other
            differently, bring other facts, or have a problem; the same line for all who are there.
    """
    deadline = time.monotonic() + FLAGS.start_timeout
    if cluster.rank == 0:
        return _lead(cluster, facts, time.monotonic() + _LEADERS_SHARE * FLAGS.start_timeout)
    return _follow(cluster, facts, deadline)


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


class _Connection:
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


def _text(value):
    """What a peer sent, fit for a terminal and one line of a message."""
    return ''.join(c if c.isprintable() else ' ' for c in str(value))[:500]


def _name(rank, address):
    return f'worker {rank} ({address})' if address else f'worker {rank}'


# Worker 0.


def _lead(cluster, facts, deadline):
    """Awaits the others, and tells them either who all are or what is wrong."""
    listener = _listen(cluster.meeting)
    port = None if cluster.hosts else reserve()
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
    return Meeting(cluster.rank, peers, connections, port)


def _listen(address):
    host, port = cluster_.split_address(address)
    try:
        listener = reserve(port, host if host.startswith('127.') else '')
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
        socket_.settimeout(_REACH_SECONDS)
        self._selector.register(_Connection(socket_), selectors.EVENT_READ)

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
                return f'{_name(hello["rank"], hello["address"])} ended while others still came'
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
            rank, name = hello['rank'], _name(hello['rank'], hello['address'])
            if hello['size'] != size:
                return f'{name} counts {hello["size"]} workers, worker 0 counts {size}'
            if hello.get('problem'):
                return f'{name}: {_text(hello["problem"])}'
            if rank in names:
                return f'{name} is there twice: {names[rank]} came as well'
            if not 0 < rank < size:
                return f'{name} is there, but {size} workers are 0 to {size - 1}'
            names[rank] = name
            line = _difference(name, hello['facts'], facts)
            if line:
                return line
        missing = [rank for rank in range(size) if rank not in names]
        if not missing:
            return None
        hosts = self._cluster.hosts or [''] * size
        shown = ', '.join(_name(rank, hosts[rank]) for rank in missing[:5])
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


def _difference(name, theirs, ours):
    """Line that tells how the facts of a worker differ from worker 0's, or None."""
    for key in [*ours, *sorted({*theirs} - {*ours})]:
        if theirs.get(key) != ours.get(key):
            return (f'{name} differs from worker 0: {_text(key)} is {_text(theirs.get(key))}, not '
                    f'{_text(ours.get(key))}')
    return None


# The others.


def _follow(cluster, facts, deadline):
    """Goes to worker 0, as often as it takes, and hears who all are or what is wrong."""
    port, problem = None, None
    try:
        port = reserve(cluster_.split_address(cluster.hosts[cluster.rank])[1]
                       if cluster.hosts else 0)
    except OSError as error:
        problem = f'its port cannot be had: {error.strerror}'
    reason = None
    while time.monotonic() < deadline:
        try:
            connection = _reach(cluster.meeting, deadline)
            address = cluster.hosts[cluster.rank] if cluster.hosts else (
                f'{connection.socket.getsockname()[0]}:{port.getsockname()[1]}')
            connection.send(protocol=_PROTOCOL, job=cluster.job, rank=cluster.rank,
                            size=cluster.size, address=address, facts=facts, problem=problem)
            return _welcomed(cluster, connection, connection.receive_one(deadline), port)
        except (OSError, ValueError) as error:
            reason = getattr(error, 'strerror', None) or error
            time.sleep(_PAUSE)
    raise app.UsageError(
        f'worker {cluster.rank} has waited {FLAGS.start_timeout:g} seconds for worker 0 at '
        f'{cluster.meeting}: {_text(reason)}')


def _reach(address, deadline=None):
    """A connection to 'host:port'; by IPv4, as TensorFlow's server listens for it everywhere."""
    host, port = cluster_.split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    seconds = _REACH_SECONDS if deadline is None else min(
        _REACH_SECONDS, max(0.01, deadline - time.monotonic()))
    socket_ = socket.create_connection((host, port), seconds)
    if socket_.getsockname() == socket_.getpeername():  # Linux may connect a free port to itself.
        socket_.close()
        raise ConnectionRefusedError('nobody listens')
    return _Connection(socket_)


def _welcomed(cluster, connection, answer, port):
    if 'error' in answer:
        raise app.UsageError(_text(answer['error']))
    peers = answer.get('peers')
    if not isinstance(peers, list) or len(peers) != cluster.size:
        raise ValueError('what answers there is no worker 0')
    for peer in peers:
        cluster_.split_address(str(peer))
    return Meeting(cluster.rank, peers, {0: connection}, port)


# All of them, from then on.


class Meeting:
    """Workers that watch over one another.

    If one is lost, a step that waits for it may never end. So whoever hears of a loss has some
    seconds to come out of its step, see `end`; then its process ends with the line that tells who
    was lost, and exit code 1.

    Attributes:
        rank: int, which worker this is.
        addresses: list of every worker's 'host:port' for TensorFlow's server.
    """

    def __init__(self, rank, addresses, connections, port):
        self.rank = rank
        self.addresses = addresses
        self._port = port
        self._connections = connections
        self._changed = threading.Condition()
        self._lost = None
        self._left = set()
        self._over = False
        self._stages = {peer: [] for peer in connections}  # What each has said, not yet looked at.
        for connection in connections.values():
            connection.socket.settimeout(_REACH_SECONDS)
            connection.heard = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        """Tells the others of an exception; ends the process if one of them was the cause."""
        if self._over:
            return
        if error is None:
            self.leave()
        elif self._lost:
            self.end(self._lost)
        else:
            self.fail(errors.one_line(error) or kind.__name__)

    def agree(self, stage, facts=None):
        """Waits, as long as it takes, until all workers have come to the same stage.

        Args:
            stage: name of the stage, such as 'the gradients'.
            facts: dictionary from name to JSON value, to be the same for all.

        Raises:
            ConnectionError: they are not the same, or a worker was lost; tells which.
        """
        message = {'stage': stage, 'facts': facts or {}}
        if self.rank == 0:
            line = self._differences(message, [self._next(peer) for peer in self._connections])
            if line:
                self._lose(line)
                raise ConnectionError(line)
            self._send_all(**message)
        else:
            self._send_all(**message)
            self._next(0)

    def _next(self, peer):
        """What a peer says of its stage."""
        with self._changed:
            self._changed.wait_for(lambda: self._stages[peer] or self._lost)
            if self._lost:
                raise ConnectionError(self._lost)
            return self._stages[peer].pop(0)

    def _differences(self, ours, theirs):
        for peer, message in zip(self._connections, theirs):
            name = self._name(peer)
            if message['stage'] != ours['stage']:
                return f'{name} is at {_text(message["stage"])}, worker 0 at {ours["stage"]}'
            line = _difference(name, message.get('facts', {}), ours['facts'])
            if line:
                return line
        return None

    def reach_all(self):
        """Tries the port of every other worker, when all have their servers.

        Raises:
            ConnectionError: one does not answer; tells which.
        """
        for peer, address in enumerate(self.addresses):
            if peer == self.rank:
                continue
            try:
                _reach(address).close()
            except OSError as error:
                raise ConnectionError(
                    f'cannot reach {self._name(peer)}: {error.strerror or error}') from error

    def release_port(self):
        """Gives back the reserved port, once TensorFlow's server listens there."""
        if self._port:
            self._port.close()

    def lost(self, seconds=0.0):
        """The line that tells which worker was lost and how, or None.

        Args:
            seconds: how long to wait for one. After an error that a peer may have caused, signs of
                life must have had the time to stay away: see `patience`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost, seconds)
            return self._lost

    @property
    def patience(self):
        """Seconds after which a worker that has failed is known to be lost."""
        return (_SILENCE + 2 * _BEAT) * FLAGS.step_timeout

    def fail(self, line):
        """Tells all the others why this worker ends."""
        line = f'{self._name(self.rank)} failed: {line}'
        if self.rank == 0:
            self._over = True
            self._send_all(error=line)
        else:
            self._send_all(error=line)
            self.lost(1.0)  # Worker 0 answers all of them: then it has heard.

    def leave(self):
        """Says goodbye: that the connection closes now is no loss."""
        with self._changed:
            self._over = True
        self._send_all(bye=True)
        if self.rank == 0:  # Who closes first could cut off what the others have not read yet.
            with self._changed:
                self._changed.wait_for(lambda: len(self._left) == len(self._connections), 2.0)

    def end(self, line):
        """Ends the process with a line on standard error and exit code 1.

        At once: TensorFlow's session and server cannot be relied on to close while they wait for a
        worker that is gone. What is saved is safe, checkpoints appear under their names when they
        are whole.
        """
        with contextlib.suppress(OSError):  # Nothing may keep it here, not a console that is gone.
            sys.stdout.flush()
        errors.say(line)
        os._exit(1)

    def _name(self, peer):
        return _name(peer, self.addresses[peer])

    def _send_all(self, **message):
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # Gone: that shows when it is read from.
                connection.send(**message)

    def _watch(self):
        """Listens, sends signs of life, and misses those of others, until the process ends."""
        beat, silence = _BEAT * FLAGS.step_timeout, _SILENCE * FLAGS.step_timeout
        selector = selectors.DefaultSelector()
        for peer, connection in self._connections.items():
            selector.register(connection, selectors.EVENT_READ, peer)
        sent = looked = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(beat):
                if not self._take(key.data, key.fileobj):
                    selector.unregister(key.fileobj)
            now = time.monotonic()
            if now - looked > silence / 2:  # It was this process that stood still.
                for connection in self._connections.values():
                    connection.heard = now
            looked = now
            if now - sent >= beat:
                self._send_all(alive=True)
                sent = now
            for key in selector.get_map().values():
                if now - key.fileobj.heard > silence:
                    self._lose(f'{self._name(key.data)} was lost: no sign of life for '
                               f'{silence:g} seconds; it is frozen, or the network is cut')

    def _take(self, peer, connection):
        """Takes what a peer sent; whether it may send more."""
        try:
            for message in connection.receive():
                if 'error' in message:
                    self._lose(_text(message['error']))
                elif 'bye' in message:
                    self._set(lambda: self._left.add(peer))
                elif 'stage' in message:
                    self._set(lambda message=message: self._stages[peer].append(message))
        except (OSError, ValueError) as error:
            if peer not in self._left:
                self._lose(f'{self._name(peer)} was lost: it ended without a word '
                           f'({_text(getattr(error, "strerror", None) or error)})')
            return False
        return True

    def _set(self, change):
        with self._changed:
            change()
            self._changed.notify_all()

    def _lose(self, line):
        """Notes the first loss, passes it on, and sees to it that this process ends."""
        with self._changed:
            if self._lost or self._over:
                return
            self._lost = line
            self._changed.notify_all()
        if self.rank == 0:
            self._send_all(error=line)
        timer = threading.Timer(_GRACE * FLAGS.step_timeout, self.end, [line])
        timer.daemon = True
        timer.start()
