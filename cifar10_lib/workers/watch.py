"""Workers that have met: they watch one another, and wait for one another at barriers.

TensorFlow's own errors rarely name the worker that failed. Nor can a time limit for steps
distinguish a frozen worker from a worker 0 that is still validating. So a thread sends heartbeats,
however long a step takes, and worker 0 announces which worker is lost.
"""
import contextlib
import os
import queue
import signal
import sys
import threading
import time

from cifar10_lib.program import errors
from cifar10_lib.workers import connection as connection_

_INTERRUPTED = 128 + signal.SIGINT

# Fractions of --step_timeout: the interval of heartbeats; and how long workers then have to leave
# their step, which may hang, when one is lost, before they end.
_BEAT, _TIME_TO_LEAVE_A_STEP = 0.05, 0.25

_SILENT_BEATS = 10  # A worker counts as lost after more of them without a message.
_FAREWELL = 2.0  # Seconds in which the others read a last message.


class Meeting:
    """Workers that watch one another.

    When a worker is lost, a step that waits for it may never end. So the processes of the others
    end soon after, with a line that names the lost worker and the exit code 75; with 1, if it
    reported an error; or with 130, if it was interrupted by Ctrl-C.

    Attributes:
        rank: int, the index of this worker.
        addresses: list of every worker's 'host:port' for TensorFlow's server.
        timeouts: the `cluster.Timeouts`.
        port: socket that reserves this worker's port; close it when the server listens.
    """

    def __init__(self, cluster, addresses, connections, inbox, port):
        """Starts watching.

        Args:
            cluster: this worker's `Cluster`.
            connections: dictionary from rank to `Connection`: to all others for worker 0, and to
                worker 0 for the others.
            inbox: queue of their messages.
        """
        self.rank = cluster.worker.rank
        self.addresses = addresses
        self.port = port
        self._connections = dict(connections)  # To peers that have not left.
        self.timeouts = cluster.timeouts
        self._changed = threading.Condition()
        self._loss = None  # The first: (line, exit code).
        self._over = False
        self._stages = {peer: [] for peer in connections}  # (time, message), not yet awaited.
        threading.Thread(target=self._watch, args=[inbox], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        """Reports an exception to the others; ends the process if a lost worker was the cause."""
        if self._over:
            return
        if error is None:
            self.leave()
        elif self._loss:
            self._exit(*self._loss)
        elif isinstance(error, KeyboardInterrupt):
            self._say_goodbye(error=f'{self.name(self.rank)} was interrupted', code=_INTERRUPTED)
        else:
            line = errors.one_line(error) or kind.__name__
            self._say_goodbye(error=f'{self.name(self.rank)} failed: {line}',
                              code=connection_.exit_code(error))

    def name(self, rank):
        return name_of(rank, self.addresses[rank])

    def barrier(self, stage, must_match=None, value=None):
        """Waits until all workers have reached the same stage.

        Args:
            stage: name of the stage, such as 'the gradients'.
            must_match: dictionary from name to JSON value, the same for all workers.
            value: JSON value; worker 0's is returned to all workers.

        Raises:
            ConnectionError: stages or values differ, a worker was lost, or is alive but did not
                arrive within `timeouts.stage` seconds of the first; the message names it.
        """
        facts = {'stage': stage, **(must_match or {})}
        if self.rank:
            self._send_all(facts=facts)
            # Worker 0 gives up earlier, and announces which worker did not arrive.
            return self._await(stage, self.timeouts.stage + self.patience)[0]['value']
        try:
            for peer, message in self._await(stage, self.timeouts.stage).items():
                line = difference(self.name(peer), message['facts'], facts)
                if line:
                    raise ConnectionError(line)
        except ConnectionError as error:
            self._announce_loss(str(error), 1)
            raise
        self._send_all(facts=facts, value=value)
        return value

    def _await(self, stage, seconds):
        """Waits for the next stage of every peer; returns a dictionary from peer to message."""
        with self._changed:
            now = time.monotonic()
            first = min([now, *(came[0][0] for came in self._stages.values() if came)])
            self._changed.wait_for(lambda: self._loss or all(self._stages.values()),
                                   max(0.0, first + seconds - now))
            if self._loss:
                raise ConnectionError(self._loss[0])
            for peer, came in self._stages.items():
                if not came:
                    raise ConnectionError(
                        f'{self.name(peer)} is alive, but did not reach {stage} within '
                        f'--stage_timeout={self.timeouts.stage:g} seconds')
            return {peer: came.pop(0)[1] for peer, came in self._stages.items()}

    def reach_all(self):
        """Raises `connection.Lost` if this worker cannot connect to a server; call it when all
        listen.

        If a firewall blocks a port, TensorFlow would wait for it in a step, in some cases forever,
        and never name it.
        """
        for rank, address in enumerate(self.addresses):
            try:
                if rank != self.rank:
                    connection_.reach(address).close()
            except OSError as error:
                raise connection_.Lost(
                    f'cannot connect to {self.name(rank)}: {error.strerror or error}; does a '
                    'firewall block it?') from error

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
        return (_SILENT_BEATS + 2) * _BEAT * self.timeouts.step

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

    def _exit(self, line, code):
        """Ends the process with a line on standard error and an exit code.

        It does not close TensorFlow's session and server, which may wait for the lost worker.
        Checkpoints are safe, since they get their names only when they are complete.
        """
        with contextlib.suppress(OSError):  # Not even a closed console may keep it here.
            sys.stdout.flush()
        errors.say(line)
        os._exit(code)

    def _send_all(self, **message):
        for connection in list(self._connections.values()):
            connection.send(**message)

    def _watch(self, inbox):
        """Sends heartbeats and takes messages until all peers have left.

        It counts heartbeats rather than seconds: a process that was stopped counts none.
        """
        beat = _BEAT * self.timeouts.step
        peers = {connection: peer for peer, connection in self._connections.items()}
        silent = dict.fromkeys(self._connections, 0)  # Own heartbeats since the last message.
        due = time.monotonic() + beat
        while self._connections:
            with contextlib.suppress(queue.Empty):
                connection, message = inbox.get(timeout=max(0.0, due - time.monotonic()))
                if connection in peers:  # Others were dropped when the workers met.
                    silent[peers[connection]] = 0
                    self._take(peers[connection], message)
            if time.monotonic() < due:
                continue
            due = time.monotonic() + beat
            self._send_all(alive=True)
            for peer in self._connections:
                silent[peer] += 1
                if silent[peer] > _SILENT_BEATS:
                    self._announce_loss(
                        f'{self.name(peer)} was lost: no heartbeat for {_SILENT_BEATS * beat:g} '
                        'seconds; it is frozen, or the network is down', connection_.LOST)

    def _take(self, peer, message):
        """Handles a message, or the exception that ended a peer's connection."""
        if isinstance(message, Exception):
            reason = getattr(message, 'strerror', None) or message
            message = {'error': f'{self.name(peer)} was lost: it ended unexpectedly ({reason})',
                       'code': connection_.LOST}
        if 'error' in message:
            self._announce_loss(connection_.text(message['error']), message['code'])
        with self._changed:
            if 'facts' in message:
                self._stages[peer].append((time.monotonic(), message))
            elif 'alive' not in message:  # Its last message.
                self._connections.pop(peer, None)
            self._changed.notify_all()

    def _announce_loss(self, line, code):
        """Records the first loss, announces it, and soon ends this process unless it has ended."""
        with self._changed:
            if self._loss or self._over:
                return
            if self.rank == 0:  # First: knowing it, this process may end at any time.
                self._send_all(error=line, code=code)
            self._loss = line, code
            self._changed.notify_all()
        timer = threading.Timer(
            _TIME_TO_LEAVE_A_STEP * self.timeouts.step, self._exit, [line, code])
        timer.daemon = True
        timer.start()


def name_of(rank, address):
    return f'worker {rank} ({address})' if address else f'worker {rank}'


def difference(name, theirs, ours):
    """A line that says how the facts of a worker differ from worker 0's, or None."""
    for key in [*ours, *sorted({*theirs} - {*ours})]:
        if theirs.get(key) != ours.get(key):
            value, expected = (connection_.text(facts.get(key)) for facts in (theirs, ours))
            return (f'{name} differs from worker 0: {connection_.text(key)} is {value}, not '
                    f'{expected}')
    return None
