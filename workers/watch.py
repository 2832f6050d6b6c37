"""Workers that have met watch over one another, and agree."""
import contextlib
import os
import selectors
import sys
import threading
import time

from program import errors
from workers import connection as connection_

# Shares of --step_timeout: between signs of life; until a silent worker counts as lost; and for
# coming out of a step by oneself once somebody is, which takes for ever if that one is frozen.
_BEAT, _SILENCE, _GRACE = 0.05, 0.5, 0.25


class Meeting:
    """Workers that watch over one another.

    If one is lost, a step that waits for it may never end. So whoever hears of a loss has some
    seconds to come out of its step, see `end`; then its process ends with the line that tells who
    was lost, and exit code 1.

    Attributes:
        rank: int, which worker this is.
        addresses: list of every worker's 'host:port' for TensorFlow's server.
    """

    def __init__(self, rank, addresses, connections, port, timeouts):
        self.rank = rank
        self.addresses = addresses
        self._port = port
        self._timeouts = timeouts
        self._connections = connections
        self._changed = threading.Condition()
        self._lost = None
        self._left = set()
        self._over = False
        self._stages = {peer: [] for peer in connections}  # What each has said, not yet looked at.
        for connection in connections.values():
            connection.socket.settimeout(connection_.REACH_SECONDS)
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
                return (f'{name} is at {connection_.text(message["stage"])}, worker 0 at '
                        f'{ours["stage"]}')
            line = difference(name, message.get('facts', {}), ours['facts'])
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
                connection_.reach(address).close()
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
        return (_SILENCE + 2 * _BEAT) * self._timeouts.step

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
        return name_of(peer, self.addresses[peer])

    def _send_all(self, **message):
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # Gone: that shows when it is read from.
                connection.send(**message)

    def _watch(self):
        """Listens, sends signs of life, and misses those of others, until the process ends."""
        beat, silence = _BEAT * self._timeouts.step, _SILENCE * self._timeouts.step
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
                    self._lose(connection_.text(message['error']))
                elif 'bye' in message:
                    self._set(lambda: self._left.add(peer))
                elif 'stage' in message:
                    self._set(lambda message=message: self._stages[peer].append(message))
        except (OSError, ValueError) as error:
            if peer not in self._left:
                self._lose(f'{self._name(peer)} was lost: it ended without a word '
                           f'({connection_.text(getattr(error, "strerror", None) or error)})')
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
        timer = threading.Timer(_GRACE * self._timeouts.step, self.end, [line])
        timer.daemon = True
        timer.start()


def name_of(rank, address):
    return f'worker {rank} ({address})' if address else f'worker {rank}'


def difference(name, theirs, ours):
    """Line that tells how the facts of a worker differ from worker 0's, or None."""
    for key in [*ours, *sorted({*theirs} - {*ours})]:
        if theirs.get(key) != ours.get(key):
            came, wanted = (connection_.text(facts.get(key)) for facts in (theirs, ours))
            return f'{name} differs from worker 0: {connection_.text(key)} is {came}, not {wanted}'
    return None
