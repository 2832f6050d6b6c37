"""Where workers meet, wait for one another, and notice that one of them is lost.

    with meeting.join(cluster) as peers:                      # Waits until all workers have joined.
        peers.barrier('the settings', {'--batch_size': 128})  # Also compares facts.

Worker 0 listens at `cluster.address` until all workers have joined. Every other worker keeps its
connection to worker 0:

    worker 1            {"protocol": ..., "job": ..., "rank": 1, "size": 2, "address": ...}
    worker 0            {"addresses": [...]} when all have joined, or {"error": ..., "code": ...}

Then a thread sends heartbeats, however long a step takes, and worker 0 announces which worker is
lost. TensorFlow's own errors rarely name it. Nor can a time limit for steps distinguish a frozen
worker from a worker 0 that is still validating.

A message is JSON after its length. Nothing that arrives is executed; a message that is too long,
stops halfway or is not JSON closes its connection. But nothing is encrypted, and TensorFlow's own
ports, which open next, obey anyone who can reach them: the network between the workers must be
trusted.
"""
import contextlib
import json
import multiprocessing.connection
import os
import signal
import socket
import struct
import sys
import threading
import time

from absl import app

from cifar10_lib.program import errors, small_files
from cifar10_lib.workers import cluster as cluster_, ports

LOST = os.EX_TEMPFAIL  # 75, the exit code after another worker was lost: starting again may help.
_INTERRUPTED = 128 + signal.SIGINT

SECONDS = 5  # To connect to a port that is open, to send a message, or to receive the rest of one.
_LONGEST_MESSAGE = 1 << 20  # Bytes. The addresses of a thousand workers take 30,000.

_PROTOCOL = 'cifar10-workers-6'
_PAUSE = 0.2  # Seconds between attempts to reach worker 0.
_FAREWELL = 2.0  # Seconds in which the others read a last message.

# Worker 0 gives up before the others do, so that it can send them the names of the missing ones.
_LEADERS_SHARE = 0.8

# Fractions of --step_timeout: the interval of heartbeats; and how long workers then have to leave
# their step, which may hang, when one is lost, before they end.
_BEAT, _TIME_TO_LEAVE_A_STEP = 0.05, 0.25
_SILENT_BEATS = 10  # A worker counts as lost after more of them without a message.


class Lost(ConnectionError):
    """Another worker was lost, is frozen or cannot be reached; the exit code is `LOST`."""


def join(cluster):
    """Waits until all workers have joined; returns a `Meeting`.

    Args:
        cluster: a `Cluster` of several workers.

    Raises:
        app.UsageError: a port is in use, or some workers have the same index or expect a different
            number of workers.
        Lost: after --start_timeout workers are missing.
    """
    own = cluster.address_of(cluster.rank)
    host, number = cluster_.split_address(cluster.address)
    is_local = host == 'localhost' or host.startswith('127.')  # Other machines cannot connect.
    try:
        port = ports.reserve(cluster_.split_address(own)[1] if own else 0)
        if cluster.rank == 0:
            listener = ports.reserve(number, host if is_local else '')
            listener.listen(1024)
    except OSError as error:
        raise app.UsageError(f'worker {cluster.rank} cannot listen at {own or cluster.address}: '
                             f'{error.strerror}; is another training run using it?') from error
    own_port = port.getsockname()[1]
    connections, addresses = (
        _follow(cluster, own_port) if cluster.rank else _lead(cluster, own_port, listener))
    return Meeting(cluster, addresses, connections, port)


def _lead(cluster, port, listener):
    """Waits for the other workers, and sends them all addresses or an error.

    Returns their connections, a dictionary by rank, and the list of all addresses. `port` is this
    worker's for TensorFlow.
    """
    deadline = time.monotonic() + _LEADERS_SHARE * cluster.start_timeout
    joined, unknown = {}, []  # Connections; `joined` has the first message of each.
    try:
        with listener:  # TensorFlow's server may need its port.
            while ((left := deadline - time.monotonic()) > 0
                   and len(joined) + 1 < cluster.size):
                for ready in multiprocessing.connection.wait([listener, *unknown, *joined], left):
                    if ready is listener:
                        unknown.append(_connection(listener.accept()[0]))
                    elif ready in joined:  # It waits for an answer, and sends nothing more.
                        raise Lost(f'{_name(**joined.pop(ready))} ended before all workers had '
                                   'joined')
                    else:
                        unknown.remove(ready)
                        hello = _received(ready)
                        if (hello.get('protocol'), hello.get('job')) == (_PROTOCOL, cluster.job):
                            joined[ready] = hello
                        else:
                            ready.close()
        found = {0: cluster.address_of(0) or f'{cluster.address.split(":")[0]}:{port}'}
        for hello in sorted(joined.values(), key=lambda hello: hello['rank']):
            rank, size = hello['rank'], hello['size']
            if size != cluster.size:
                raise app.UsageError(f'{_name(**hello)} differs from worker 0: the number of '
                                     f'workers is {size}, not {cluster.size}')
            if rank in found:
                raise app.UsageError(f'{_name(**hello)} has the same index as '
                                     f'{_name(rank, found[rank])}: start one worker per index')
            found[rank] = hello['address']
        missing = [_name(rank, cluster.address_of(rank))
                   for rank in range(cluster.size) if rank not in found]
        if missing:
            raise Lost(f'{", ".join(missing[:5])}{" and others" * (len(missing) > 5)} did not '
                       f'connect to worker 0 at {cluster.address} in time: check that all workers '
                       'were started, or raise --start_timeout')
    except (app.UsageError, Lost) as error:
        for connection in joined:
            _send(connection, error=str(error), code=_exit_code(error))
        raise
    finally:
        for connection in unknown:
            connection.close()
    addresses = list(found.values())
    for connection in joined:
        _send(connection, addresses=addresses)
    return {hello['rank']: connection for connection, hello in joined.items()}, addresses


def _follow(cluster, port):
    """Tries to join worker 0 until it sends all addresses or an error; returns what `_lead` does.
    """
    deadline = time.monotonic() + cluster.start_timeout
    while True:
        try:
            socket_ = reach(cluster.address, deadline)
            host = socket_.getsockname()[0]
            if host.startswith('127.'):  # The others reach worker 0's machine by this name.
                host = cluster.address.split(':')[0]
            connection = _connection(socket_)
            _send(connection, protocol=_PROTOCOL, job=cluster.job, rank=cluster.rank,
                  size=cluster.size, address=cluster.address_of(cluster.rank) or f'{host}:{port}')
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError('worker 0 sent no answer')
            answer = _received(connection)
            if 'end' in answer:
                raise ConnectionError(answer['end'])
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise Lost(
                    f'worker {cluster.rank} could not join worker 0 at {cluster.address} within '
                    f'--start_timeout={cluster.start_timeout:g} seconds: '
                    f'{error.strerror or error}; worker 0 may not have been started, may belong to '
                    'another job, or may have started training already') from error
            time.sleep(_PAUSE)
    if 'error' in answer:
        raise (Lost if answer['code'] == LOST else app.UsageError)(answer['error'])
    return {0: connection}, answer['addresses']


class Meeting:
    """Workers that have met, and watch one another.

    When a worker is lost, a step that waits for it may never end. So the processes of the others
    end soon after, with a line that names the lost worker and the exit code 75; with 1, if it
    reported an error; or with 130, if it was interrupted by Ctrl-C.

    Attributes:
        addresses: list of every worker's 'host:port' for TensorFlow's server.
        port: socket that reserves this worker's port; close it when the server listens.
    """

    def __init__(self, cluster, addresses, connections, port):
        """Starts the thread; `connections`, by rank, are to all others, or only to worker 0."""
        self.addresses, self.port = addresses, port
        self._rank, self._cluster = cluster.rank, cluster
        self._connections = connections  # To peers that have not left.
        self._changed = threading.Condition()
        self._loss = None  # The first: (line, exit code).
        self._over = False
        self._stages = {rank: [] for rank in connections}  # (time, message), not yet awaited.
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        """Reports an exception to the others; ends the process if a lost worker was the cause."""
        if self._over:
            return
        name = self._name(self._rank)
        if error is None:
            self.leave()
        elif self._loss:
            self._exit()
        elif isinstance(error, KeyboardInterrupt):
            self._say_goodbye(error=f'{name} was interrupted', code=_INTERRUPTED)
        else:
            self._say_goodbye(error=f'{name} failed: {errors.one_line(error) or kind.__name__}',
                              code=_exit_code(error))

    def barrier(self, stage, must_match=None, value=None):
        """Waits until all workers have reached the same stage.

        Args:
            stage: name of the stage, such as 'the data'.
            must_match: dictionary from name to JSON value, the same for all workers.
            value: JSON value; worker 0's is returned to all workers.

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
                for name in {**facts, **message['facts']}:
                    ours, theirs = facts.get(name), message['facts'].get(name)
                    if ours != theirs:
                        raise ConnectionError(f'{self._name(rank)} differs from worker 0: {name} '
                                              f'is {theirs}, not {ours}')
        except ConnectionError as error:
            self._lose(str(error), 1)
            raise
        self._send_all(facts=facts, value=value)
        return value

    def _await(self, stage, seconds):
        """Waits for the next stage of every peer; returns a dictionary from rank to message."""
        with self._changed:
            now = time.monotonic()
            first = min([now, *(came[0][0] for came in self._stages.values() if came)])
            self._changed.wait_for(lambda: self._loss or all(self._stages.values()),
                                   max(0.0, first + seconds - now))
            if self._loss:
                raise ConnectionError(self._loss[0])
            for rank, came in self._stages.items():
                if not came:
                    raise ConnectionError(
                        f'{self._name(rank)} is alive, but did not reach {stage} within '
                        f'--stage_timeout={self._cluster.stage_timeout:g} seconds')
            return {rank: came.pop(0)[1] for rank, came in self._stages.items()}

    def reach_all(self):
        """Raises `Lost` if this worker cannot connect to a server; call it when all listen.

        If a firewall blocks a port, TensorFlow would wait for it in a step, in some cases forever,
        and never name it.
        """
        for rank, address in enumerate(self.addresses):
            try:
                if rank != self._rank:
                    reach(address).close()
            except OSError as error:
                raise Lost(f'cannot connect to {self._name(rank)}: {error.strerror or error}; does '
                           'a firewall block it?') from error

    def wait_for_loss(self, seconds):
        """A line that says which worker was lost, and how; None if none is within some seconds.

        After an error that a peer may have caused, give `patience`: a frozen worker counts as lost
        only after some silence.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._loss or not self._connections, seconds)
            return self._loss and self._loss[0]

    @property
    def patience(self):
        """Seconds after which a worker that has failed counts as lost everywhere."""
        return (_SILENT_BEATS + 2) * _BEAT * self._cluster.step_timeout

    def leave(self):
        """Ends the meeting: connections that close from now on are not a loss."""
        self._say_goodbye(bye=True)

    def _say_goodbye(self, **message):
        """Sends a last message, and waits until the others have read it."""
        with self._changed:
            self._over = True
            self._send_all(**message)
            # Closing a connection too early could discard what was sent.
            self._changed.wait_for(lambda: not self._connections, _FAREWELL)

    def _name(self, rank):
        return _name(rank, self.addresses[rank])

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
            for ready in multiprocessing.connection.wait(
                    self._connections.values(), max(0.0, due - time.monotonic())):
                rank = next(rank for rank, each in self._connections.items() if each is ready)
                silent[rank] = 0
                self._take(rank, _received(ready))
            if time.monotonic() < due:
                continue
            due = time.monotonic() + beat
            self._send_all(alive=True)
            for rank in self._connections:
                silent[rank] += 1
                if silent[rank] > _SILENT_BEATS:
                    self._lose(f'{self._name(rank)} was lost: no heartbeat for '
                               f'{_SILENT_BEATS * beat:g} seconds; it is frozen, or the network is '
                               'down', LOST)
        if self._loss:
            time.sleep(_TIME_TO_LEAVE_A_STEP * self._cluster.step_timeout)
            if not self._over:
                self._exit()

    def _take(self, rank, message):
        """Handles the message of a peer."""
        with self._changed:
            if 'facts' in message:
                self._stages[rank].append((time.monotonic(), message))
            elif 'alive' not in message:  # Its last message.
                self._connections.pop(rank).close()
            if 'end' in message:
                self._lose(f'{self._name(rank)} was lost: it ended unexpectedly '
                           f'({message["end"]})', LOST)
            if 'error' in message:
                self._lose(message['error'], message['code'])
            self._changed.notify_all()

    def _lose(self, line, code):
        """Records the first loss, and announces it; soon, `_watch` ends this process."""
        with self._changed:
            if self._loss or self._over:
                return
            if self._rank == 0:  # First: knowing it, this process may end at any time.
                self._send_all(error=line, code=code)
            self._loss = line, code
            self._changed.notify_all()

    def _exit(self):
        """Ends the process with the line of the loss on standard error, and its exit code.

        It does not close TensorFlow's session and server, which may wait for the lost worker.
        Checkpoints are safe, since they get their names only when they are complete.
        """
        with self._changed:  # Only one thread.
            with contextlib.suppress(OSError):  # Not even a closed console may keep it here.
                sys.stdout.flush()
            line, code = self._loss
            errors.say(line)
            os._exit(code)


def reach(address, deadline=float('inf')):
    """A socket connected to 'host:port' by IPv4, on which TensorFlow's server always listens.

    Raises:
        OSError: nothing accepted the connection within `SECONDS` or until the deadline, by
            `time.monotonic`; or the host does not resolve.
    """
    host, port = cluster_.split_address(address)
    host = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    seconds = min(SECONDS, max(0.01, deadline - time.monotonic()))
    socket_ = socket.create_connection((host, port), seconds)
    if socket_.getsockname() == socket_.getpeername():  # Linux may connect a free port to itself.
        socket_.close()
        raise ConnectionRefusedError('nothing listens there')
    return socket_


def _connection(socket_):
    """Takes over a socket: a `multiprocessing.connection.Connection`, which sends bytes after their
    length. Sending and receiving have a time limit."""
    socket_.settimeout(None)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        socket_.setsockopt(socket.SOL_SOCKET, option, struct.pack('ll', SECONDS, 0))
    return multiprocessing.connection.Connection(socket_.detach())


def _send(connection, **message):
    """Sends an object. If the peer is gone, whoever reads the connection next will notice."""
    with contextlib.suppress(OSError):
        connection.send_bytes(json.dumps(message).encode())


def _received(connection):
    """The next object; {'end': reason} if the peer is gone or sent anything else."""
    try:
        return small_files.parse_json(connection.recv_bytes(_LONGEST_MESSAGE), 'a message')
    except EOFError:
        return {'end': 'the connection was closed'}
    except (OSError, ValueError) as error:
        return {'end': getattr(error, 'strerror', None) or str(error)}


def _name(rank, address, **_):
    return f'worker {rank} ({address})' if address else f'worker {rank}'


def _exit_code(error):
    """The exit code of a process that an exception ends."""
    return LOST if isinstance(error, Lost) else 1
