"""Where workers meet, wait for one another, and notice that one of them is lost.

    with meeting.join(cluster) as peers:                      # Waits until all workers have joined.
        peers.barrier('the settings', {'--batch_size': 128})  # Also compares facts.

Worker 0 listens at `cluster.address` until all workers have joined. Every other worker keeps its
connection to worker 0:

    worker 1            {"job": ..., "rank": 1, "address": ...}
    worker 0            {"hosts": [...]} when all have joined, or {"error": ..., "code": ...}

Then a thread sends heartbeats, however long a step takes, and worker 0 announces which worker is
lost. TensorFlow's own errors rarely name it, and a time limit for steps cannot distinguish a frozen
worker from a worker 0 that is still validating.

A message is JSON after its length. Nothing that arrives is executed; a connection with anything
else, or a message that is too long or too slow, is closed. But nothing is encrypted, and
TensorFlow's own ports, which open next, obey anyone who can reach them: the network between the
workers must be trusted.
"""
import contextlib
import json
import multiprocessing.connection
import os
import queue
import signal
import socket
import struct
import threading
import time
import types
from collections.abc import Mapping
from typing import Any

from absl import app

from cifar10_lib.program import errors, json_files
from cifar10_lib.workers import ports
from cifar10_lib.workers.cluster import Cluster

LOST = 75  # EX_TEMPFAIL, the exit code after another worker was lost: starting again may help.

_IO_SECONDS = 5  # To connect to an open port, and to send or receive a message.
_LONGEST_MESSAGE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.
_LONGEST_HELLO = 1 << 12  # The first message of a worker, before it is known to be one.

_PROTOCOL = 'cifar10-workers-7 '  # Before the name of the job.
_PAUSE = 0.2  # Seconds between attempts to reach worker 0, and between looks at who has joined.
_FAREWELL = 2.0  # Seconds in which the others read a last message.

# Worker 0 gives up before the others do, so that it can send them the names of the missing ones.
_LEADERS_SHARE = 0.8

# Fractions of --step_timeout: the interval of heartbeats; and the time in which workers can leave
# their step, which may hang, when one is lost.
_BEAT, _TIME_TO_LEAVE_A_STEP = 0.05, 0.25
_SILENT_BEATS = 10  # A worker counts as lost after more of them without a message.

# A job may be suspended while a worker waits for others at a stage: that costs it one part.
_PARTS_OF_A_WAIT = 20


_Greeting = tuple[socket.socket, dict[str, Any]]  # A connection and its first message.


class Lost(ConnectionError):
    """Another worker, or the connection to it, was lost or is frozen; the exit code is `LOST`."""


def join(cluster: Cluster) -> 'Meeting':
    """Waits until all workers have joined.

    Raises `app.UsageError` if a port is in use or two workers have the same index, and `Lost` if
    some are missing after --start_timeout.
    """
    own = cluster.hosts[cluster.rank]
    host, number = ports.split_address(cluster.address)
    is_local = host == 'localhost' or host.startswith('127.')  # Others then cannot connect.
    try:
        port = ports.reserve(ports.split_address(own)[1] if own else 0)
        if cluster.rank == 0:
            listener = ports.reserve(number, host if is_local else '')
            listener.listen(1024)
    except OSError as error:
        raise app.UsageError(f'worker {cluster.rank} cannot listen at {own or cluster.address}: '
                             f'{error.strerror}; is another training run using it?') from error
    own_port = port.getsockname()[1]
    if cluster.rank == 0:
        connections, hosts = _lead(cluster, own_port, listener)
    else:
        connections, hosts = _follow(cluster, own_port)
    return Meeting(cluster, hosts, connections, port)


def _lead(cluster, port, listener):
    """Waits for the other workers, and sends them all addresses or an error.

    Returns their connections, a dictionary by rank, and the list of all addresses. `port` is this
    worker's for TensorFlow.
    """
    with listener:  # Closed at the end: TensorFlow's server may need its port.
        joined = _accepted(cluster, listener)
    try:
        hosts = _addresses(cluster, port, [hello for _, hello in joined])
    except (app.UsageError, Lost) as error:
        for connection, _ in joined:
            _send(connection, error=str(error), code=_code(error))
        raise
    for connection, _ in joined:
        _send(connection, hosts=hosts)
    return {hello['rank']: connection for connection, hello in joined}, hosts


def _accepted(cluster, listener):
    """Accepts workers until all have joined, or it is too late.

    A thread receives each first message, so that a silent connection keeps nobody waiting. Returns
    the connection and the first message of each worker, a list.
    """
    deadline = time.monotonic() + _LEADERS_SHARE * cluster.start_timeout
    listener.setblocking(False)  # A connection may have ended before it is accepted.
    arrived: queue.SimpleQueue[_Greeting] = queue.SimpleQueue()
    joined: list[_Greeting] = []
    while len(joined) + 1 < cluster.size and time.monotonic() < deadline:
        if multiprocessing.connection.wait([listener], _PAUSE):
            with contextlib.suppress(OSError, RuntimeError):  # It left, or resources ran out.
                connection, _ = listener.accept()
                connection.settimeout(_IO_SECONDS)
                threading.Thread(target=_greet, args=(connection, cluster.job, arrived),
                                 daemon=True).start()
        while not arrived.empty():
            joined.append(arrived.get())
        # Workers that wait send nothing: what could be read is their end.
        ended = multiprocessing.connection.wait([connection for connection, _ in joined], 0)
        joined = [each for each in joined if each[0] not in ended]
    return joined


def _greet(connection, job, arrived):
    """Puts a connection and its first message into the queue `arrived`.

    Closes the connection unless the message is that of a worker of the job.
    """
    hello = _received(connection, _LONGEST_HELLO)
    try:
        ports.split_address(hello['address'])
        is_worker = hello['job'] == _PROTOCOL + job and type(hello['rank']) is int
    except (KeyError, TypeError, app.UsageError):
        is_worker = False
    if is_worker:
        arrived.put((connection, hello))
    else:
        connection.close()


def _addresses(cluster, port, hellos):
    """The list of all addresses by rank, from the first messages of the other workers.

    Raises `app.UsageError` if two workers have the same index, and `Lost` if some are missing.
    """
    own = cluster.hosts[0] or f'{cluster.address.split(":")[0]}:{port}'
    hosts = [own, *[''] * (cluster.size - 1)]
    for hello in hellos:
        if not 0 <= hello['rank'] < cluster.size or hosts[hello['rank']]:
            raise app.UsageError(
                f'{_name(hello["rank"], hello["address"])} does not fit: worker 0 expects one '
                f'worker for each index from 0 to {cluster.size - 1}')
        hosts[hello['rank']] = hello['address']
    missing = [_name(rank, cluster.hosts[rank]) for rank, host in enumerate(hosts) if not host]
    if missing:
        named = ', '.join(missing[:5])
        if len(missing) > 5:
            named += ' and others'
        raise Lost(f'{named} did not connect to worker 0 at {cluster.address} in time: check that '
                   'all workers were started, or raise --start_timeout')
    return hosts


def _follow(cluster, port):
    """Tries to join worker 0 until it sends addresses or an error; returns what `_lead` does."""
    deadline = time.monotonic() + cluster.start_timeout
    while True:
        try:
            connection = reach(cluster.address)
            host = connection.getsockname()[0]
            if host.startswith('127.'):  # The others reach worker 0's machine by this name.
                host = cluster.address.split(':')[0]
            _send(connection, job=_PROTOCOL + cluster.job, rank=cluster.rank,
                  address=cluster.hosts[cluster.rank] or f'{host}:{port}')
            if not multiprocessing.connection.wait(
                    [connection], max(0.0, deadline - time.monotonic())):
                raise TimeoutError('worker 0 sent no answer')
            answer = _received(connection)
            if 'hosts' in answer or answer.keys() >= {'error', 'code'}:
                break
            raise ConnectionError(answer.get('end', 'the server there is not worker 0'))
        except OSError as error:
            if time.monotonic() > deadline:
                raise Lost(
                    f'worker {cluster.rank} could not join worker 0 at {cluster.address} within '
                    f'--start_timeout={cluster.start_timeout:g} seconds: '
                    f'{error.strerror or error}; worker 0 may not have been started, may belong to '
                    'another job, or may have started training already') from error
            time.sleep(_PAUSE)
    if 'error' in answer:
        if answer['code'] == LOST:
            raise Lost(answer['error'])
        raise app.UsageError(answer['error'])
    return {0: connection}, answer['hosts']


class Meeting(contextlib.AbstractContextManager['Meeting']):
    """Workers that have met, and watch one another.

    When a worker is lost, a step that waits for it may never end. So the processes of the others
    end soon after, with a line that names the lost worker and the exit code 75; with 1, if it
    reported an error; or with 130, if it was interrupted by Ctrl-C.

    Attributes:
        hosts: every worker's 'host:port' for TensorFlow's server.
        port: the socket that reserves this worker's port; close it when the server listens.
        patience: seconds after which a worker that has failed counts as lost everywhere.
    """

    def __init__(self, cluster: Cluster, hosts: list[str], connections: dict[int, socket.socket],
                 port: socket.socket) -> None:
        """Starts the thread; `connections`, by rank, are to all others, or only to worker 0."""
        self.hosts, self.port = hosts, port
        self.patience = (_SILENT_BEATS + 2) * _BEAT * cluster.step_timeout
        self._rank, self._cluster = cluster.rank, cluster
        self._names = [_name(rank, address) for rank, address in enumerate(hosts)]
        self._connections = connections  # To peers that have not left.
        self._changed = threading.Condition()
        self._loss: tuple[str, int] | None = None  # The first: line, and exit code.
        self._over = False
        # The time and message of the stage that each peer has reached, by rank.
        self._arrived: dict[int, tuple[float, dict[str, Any]]] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: types.TracebackType | None) -> None:
        """Reports an exception to the others; ends the process if a lost worker was the cause."""
        if self._over:
            return
        name = self._names[self._rank]
        if error is None:
            self.leave()
        elif self._loss:
            self._exit(*self._loss)
        elif isinstance(error, KeyboardInterrupt):
            self.leave(error=f'{name} was interrupted', code=128 + signal.SIGINT)
        else:
            self.leave(error=f'{name} failed: {errors.one_line(error) or type(error).__name__}',
                       code=_code(error))

    def barrier(self, stage: str, must_match: Mapping[str, Any] | None = None,
                value: Any = None) -> Any:
        """Waits until all workers have reached the same stage.

        Args:
            stage: name of the stage, such as 'the data'.
            must_match: JSON values by name, the same for all workers that have the name.
            value: JSON value; all workers get worker 0's.

        Raises:
            ConnectionError: stages or values differ, a worker was lost, or is alive but did not
                arrive within --stage_timeout of the first; the message names it.
        """
        facts = {'stage': stage, **(must_match or {})}
        if self._rank:
            self._send_all(facts=facts)
            # Worker 0 gives up earlier, and announces which worker did not arrive.
            return self._await(stage, self._cluster.stage_timeout + self.patience)[0]['value']
        try:
            for rank, message in self._await(stage, self._cluster.stage_timeout).items():
                for name, ours in facts.items():
                    theirs = message['facts'].get(name, ours)
                    if ours != theirs:
                        raise ConnectionError(
                            f'{self._names[rank]} differs from worker 0: {name} is {theirs}, not '
                            f'{ours}: start all workers with the same code, data and flags')
        except ConnectionError as error:
            self._lose(str(error), 1)
            raise
        self._send_all(facts=facts, value=value)
        return value

    def _await(self, stage, seconds):
        """Waits for the next stage of every peer; returns a dictionary from rank to message."""
        with self._changed:
            now = time.monotonic()
            first = min([now, *(time_ for time_, _ in self._arrived.values())])
            for _ in range(_PARTS_OF_A_WAIT):
                if self._changed.wait_for(
                        lambda: self._loss or self._arrived.keys() >= self._connections.keys(),
                        max(0.0, first + seconds - now) / _PARTS_OF_A_WAIT):
                    break
            if self._loss:
                raise ConnectionError(self._loss[0])
            for rank in self._connections.keys() - self._arrived.keys():
                raise ConnectionError(
                    f'{self._names[rank]} is alive, but did not reach {stage} within '
                    f'--stage_timeout={self._cluster.stage_timeout:g} seconds')
            arrived, self._arrived = self._arrived, {}
            return {rank: message for rank, (_, message) in arrived.items()}

    def reach_all(self) -> None:
        """Raises `Lost` if this worker cannot connect to a server; call it when all listen.

        If a firewall blocks a port, TensorFlow would wait for it in a step, in some cases forever,
        and never name it.
        """
        for rank, address in enumerate(self.hosts):
            try:
                if rank != self._rank:
                    reach(address).close()
            except OSError as error:
                raise Lost(f'cannot connect to {self._names[rank]}: {error.strerror or error}; '
                           'does a firewall block it?') from error

    def wait_for_loss(self, seconds: float) -> bool:
        """Waits until a worker is lost, for at most some seconds; returns whether one is.

        After an error that a peer may have caused, give `patience`: a frozen worker counts as lost
        only after some silence.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loss or not self._connections, seconds)
            return self._loss is not None

    def leave(self, **message: Any) -> None:
        """Ends the meeting: connections that close from now on are not a loss.

        Sends a last message, such as an error, and waits until the others have read it.
        """
        with self._changed:
            self._over = True
            self._send_all(bye=True, **message)
            # Closing a connection too early could discard what was sent.
            self._changed.wait_for(lambda: not self._connections, _FAREWELL)

    def _send_all(self, **message):
        with self._changed:
            for connection in self._connections.values():
                _send(connection, **message)

    def _watch(self):
        """Sends heartbeats and takes messages until all peers have left, or one is lost.

        It counts heartbeats rather than seconds: a process that was stopped counts none.
        """
        beat = _BEAT * self._cluster.step_timeout
        silent = dict.fromkeys(self._connections, 0)  # Own heartbeats since the last message.
        due = time.monotonic() + beat
        while self._connections and not self._loss:
            ready = multiprocessing.connection.wait(
                self._connections.values(), max(0.0, due - time.monotonic()))
            for rank in [rank for rank, each in self._connections.items() if each in ready]:
                silent[rank] = 0
                self._take(rank, _received(self._connections[rank]))
            if time.monotonic() < due:
                continue
            due = time.monotonic() + beat
            self._send_all(alive=True)
            for rank in self._connections:
                silent[rank] += 1
                if silent[rank] > _SILENT_BEATS:
                    self._lose(f'{self._names[rank]} was lost: no heartbeat for '
                               f'{_SILENT_BEATS * beat:g} seconds; it is frozen, or the network is '
                               'down', LOST)
        if self._loss:
            time.sleep(_TIME_TO_LEAVE_A_STEP * self._cluster.step_timeout)
            if not self._over:
                self._exit(*self._loss)

    def _take(self, rank, message):
        """Handles the message of a peer."""
        with self._changed:
            if 'facts' in message:
                self._arrived[rank] = time.monotonic(), message
            elif 'alive' not in message:  # Its last message.
                self._connections.pop(rank).close()
            if 'end' in message:
                self._lose(f'{self._names[rank]} was lost: it ended unexpectedly '
                           f'({message["end"]})', LOST)
            if 'error' in message:
                self._lose(message['error'], message['code'])
            self._changed.notify_all()

    def _lose(self, line, code):
        """Records the first loss, and announces it; soon, `_watch` ends this process."""
        with self._changed:
            if self._loss or self._over:
                return
            if self._rank == 0:  # Announce it first: `_watch` ends this process once it knows.
                self._send_all(error=line, code=code)
            self._loss = line, code
            self._changed.notify_all()

    def _exit(self, line, code):
        """Ends the process with the line of the loss on standard error, and its exit code.

        It does not close TensorFlow's session and server, which may wait for the lost worker.
        Checkpoints are safe, since they get their names only when they are complete.
        """
        with self._changed:  # Only one thread gets past it.
            errors.say(line)  # Standard output is not flushed: its reader may have stopped.
            os._exit(code)


def reach(address: str) -> socket.socket:
    """A socket connected to 'host:port' by IPv4, on which TensorFlow's server always listens.

    Each of its operations may take `_IO_SECONDS`. Raises `OSError` if nothing accepts the
    connection within them, or the host is unknown.
    """
    host, port = ports.split_address(address)
    return socket.create_connection((socket.gethostbyname(host), port), _IO_SECONDS)


def _send(connection, **message):
    """Sends an object. If the peer is gone, whoever reads the connection next will notice."""
    text = json.dumps(message).encode()
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack('!I', len(text)) + text)


def _received(connection, longest=_LONGEST_MESSAGE):
    """The next object; {'end': reason} if the peer is gone, too slow, or sent anything else."""
    deadline = time.monotonic() + _IO_SECONDS
    try:
        size, = struct.unpack('!I', _read(connection, 4, deadline))
        if size > longest:
            raise ValueError('it sent something else')
        return json_files.parse(_read(connection, size, deadline), 'a message')
    except (OSError, ValueError) as error:
        return {'end': getattr(error, 'strerror', None) or str(error)}


def _read(connection, size, deadline):
    """The next bytes of a connection; raises `OSError` if they do not arrive in time."""
    data = b''
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError('it closed the connection')
        data += part
        if len(data) < size and time.monotonic() > deadline:
            raise TimeoutError('its message stopped halfway')
    return data


def _code(error):
    """The exit code of the other workers after a worker's exception."""
    if isinstance(error, Lost):
        return LOST
    return 1


def _name(rank, address):
    if address:
        return f'worker {rank} ({address})'
    return f'worker {rank}'
