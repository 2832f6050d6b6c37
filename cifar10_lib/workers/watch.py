"""Workers that have met: they watch one another, and wait for one another at barriers.

TensorFlow's own errors rarely name the worker that failed. Nor can a time limit for steps
distinguish a frozen worker from a worker 0 that is still validating. So a thread sends heartbeats,
however long a step takes, and worker 0 announces which worker is lost.
"""
import contextlib
import multiprocessing.connection
import os
import signal
import sys
import threading
import time

from cifar10_lib.program import errors
from cifar10_lib.workers import connection as connection_

# Fractions of --step_timeout: the interval of heartbeats; and how long workers then have to leave
# their step, which may hang, when one is lost, before they end.
_BEAT, _GRACE = 0.05, 0.25

_SILENT_BEATS = 10  # A worker counts as lost after more of them without a message.
_FAREWELL = 2.0  # Seconds in which the others read a last message.
_INTERRUPTED = 128 + signal.SIGINT  # Exit code.


class Meeting:
    """Workers that watch one another.

    When a worker is lost, a step that waits for it may never end. So the processes of the others
    end soon after, with exit code 1 and a line that names the lost worker; or with 130, if it was
    interrupted by Ctrl-C.

    Attributes:
        rank: int, the index of this worker.
        addresses: list of every worker's 'host:port' for TensorFlow's server.
        port: socket that reserves this worker's port; close it when the server listens.
    """

    def __init__(self, rank, addresses, connections, port, timeouts):
        """Starts watching.

        Args:
            connections: dictionary from rank to `Connection`: to all others for worker 0, and to
                worker 0 for the others.
            timeouts: the `cluster.Timeouts`.
        """
        self.rank = rank
        self.addresses = addresses
        self.port = port
        self._connections = dict(connections)  # To peers that have not left.
        self._timeouts = timeouts
        self._changed = threading.Condition()
        self._lost, self._code = None, 1
        self._over = False
        self._stages = {peer: [] for peer in connections}  # (time, message), not yet awaited.
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        """Reports an exception to the others; ends the process if a lost worker was the cause."""
        interrupted = isinstance(error, KeyboardInterrupt)
        if self._over:
            return
        if error is None:
            self.leave()
        elif self._lost and interrupted:  # One Ctrl-C often reaches several workers.
            self._end('interrupted', _INTERRUPTED)
        elif self._lost:
            self._end(self._lost, self._code)
        elif interrupted:
            self._part(error=f'{self.name(self.rank)} was interrupted', code=_INTERRUPTED)
        else:
            line = errors.one_line(error) or kind.__name__
            self._part(error=f'{self.name(self.rank)} failed: {line}', code=1)

    def name(self, rank):
        return name_of(rank, self.addresses[rank])

    def agree(self, stage, facts=None, value=None):
        """Waits until all workers have reached the same stage.

        Args:
            stage: name of the stage, such as 'the gradients'.
            facts: dictionary from name to JSON value, which must be the same for all workers.
            value: JSON value; worker 0's is returned to all workers.

        Raises:
            ConnectionError: facts or stages differ, a worker was lost, or is alive but did not
                arrive within `timeouts.stage` seconds of the first; the message names it.
        """
        facts = {'stage': stage, **(facts or {})}
        if self.rank:
            self._send_all(facts=facts)
            # Worker 0 gives up earlier, and announces which worker did not arrive.
            return self._await(stage, self._timeouts.stage + self.patience)[0]['value']
        try:
            for peer, message in self._await(stage, self._timeouts.stage).items():
                line = difference(self.name(peer), message['facts'], facts)
                if line:
                    raise ConnectionError(line)
        except ConnectionError as error:
            self._lose(str(error))
            raise
        self._send_all(facts=facts, value=value)
        return value

    def _await(self, stage, seconds):
        """Waits for the next stage of every peer; returns a dictionary from peer to message."""
        with self._changed:
            now = time.monotonic()
            first = min([now, *(came[0][0] for came in self._stages.values() if came)])
            self._changed.wait_for(lambda: self._lost or all(self._stages.values()),
                                   max(0.0, first + seconds - now))
            if self._lost:
                raise ConnectionError(self._lost)
            for peer, came in self._stages.items():
                if not came:
                    raise ConnectionError(
                        f'{self.name(peer)} is alive, but did not reach {stage} within '
                        f'--stage_timeout={self._timeouts.stage:g} seconds')
            return {peer: came.pop(0)[1] for peer, came in self._stages.items()}

    def lost(self, seconds=0.0):
        """A line that says which worker was lost, and how; or None.

        Args:
            seconds: how long to wait for a loss. After an error that a peer may have caused, give
                `patience`: a frozen worker counts as lost only after some silence.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost or not self._connections, seconds)
            return self._lost

    @property
    def patience(self):
        """Seconds after which a worker that has failed counts as lost everywhere."""
        return (_SILENT_BEATS + 2) * _BEAT * self._timeouts.step

    def leave(self):
        """Ends the meeting: connections that close from now on are not a loss."""
        self._part(bye=True)

    def _part(self, **message):
        """Sends a last message, and waits until the others have read it."""
        with self._changed:
            self._over = True
            self._send_all(**message)
            # Closing a connection too early could discard what was sent.
            self._changed.wait_for(lambda: not self._connections, _FAREWELL)

    def _end(self, line, code):
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

    def _watch(self):
        """Sends heartbeats and takes messages until all peers have left.

        It counts heartbeats rather than seconds: a process that was stopped counts none.
        """
        beat = _BEAT * self._timeouts.step
        silent = dict.fromkeys(self._connections, 0)  # Own heartbeats since the last message.
        due = time.monotonic() + beat
        while self._connections:
            peers = {connection: peer for peer, connection in self._connections.items()}
            for connection in multiprocessing.connection.wait(
                    list(peers), max(0.0, due - time.monotonic())):
                silent[peers[connection]] = 0
                self._take(peers[connection], connection)
            if time.monotonic() < due:
                continue
            due = time.monotonic() + beat
            self._send_all(alive=True)
            for peer in self._connections:
                silent[peer] += 1
                if silent[peer] > _SILENT_BEATS:
                    self._lose(f'{self.name(peer)} was lost: no heartbeat for '
                               f'{_SILENT_BEATS * beat:g} seconds; it is frozen, or the network '
                               'is down')

    def _take(self, peer, connection):
        try:
            for message in connection.receive():
                self._handle(peer, message)
        except (OSError, ValueError) as error:
            reason = getattr(error, 'strerror', None) or error
            self._handle(peer, {
                'error': f'{self.name(peer)} was lost: it ended unexpectedly ({reason})'})

    def _handle(self, peer, message):
        if 'error' in message:
            self._lose(connection_.text(message['error']), message.get('code', 1))
        with self._changed:
            if 'facts' in message:
                self._stages[peer].append((time.monotonic(), message))
            elif 'alive' not in message:  # Its last message.
                self._connections.pop(peer, None)
            self._changed.notify_all()

    def _lose(self, line, code=1):
        """Records the first loss, announces it, and soon ends this process unless it has ended."""
        with self._changed:
            if self._lost or self._over:
                return
            if self.rank == 0:  # First: knowing it, this process may end at any time.
                self._send_all(error=line, code=code)
            self._lost, self._code = line, code
            self._changed.notify_all()
        timer = threading.Timer(_GRACE * self._timeouts.step, self._end, [line, code])
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
