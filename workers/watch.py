"""Workers that have met watch over one another, and agree."""
import contextlib
import os
import selectors
import signal
import sys
import threading
import time

from program import errors
from workers import connection as connection_

# Shares of --step_timeout: between signs of life; until a silent worker counts as lost; and for
# coming out of a step by oneself once somebody is, which takes for ever if that one is frozen.
_BEAT, _SILENCE, _GRACE = 0.05, 0.5, 0.25

_INTERRUPTED = 128 + signal.SIGINT  # Exit code.


class Meeting:
    """Workers that watch over one another.

    If one is lost, a step that waits for it may never end. So whoever hears of a loss has some
    seconds to come out of its step, see `end`; then its process ends with the line that tells who
    was lost, and exit code 1; or 130 if that one was interrupted by Ctrl-C.

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
        self._lost, self._code = None, 1
        self._gone = set()  # Peers that have said their last word.
        self._over = False
        # What each has said, and when; not yet looked at.
        self._stages = {peer: [] for peer in connections}
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
        elif isinstance(error, KeyboardInterrupt):  # One Ctrl-C often reaches several workers.
            if self._lost:
                self.end('interrupted', _INTERRUPTED)
            self._tell_end(f'{self._name(self.rank)} was interrupted', _INTERRUPTED)
        elif self._lost:
            self.end(self._lost, self._code)
        else:
            line = errors.one_line(error) or kind.__name__
            self._tell_end(f'{self._name(self.rank)} failed: {line}')

    def agree(self, stage, facts=None, tell=None):
        """Waits until all workers have come to the same stage.

        A worker that is lost ends the wait, see above. One that is alive but does not come ends it
        `timeouts.stage` seconds after the first worker came.

        Args:
            stage: name of the stage, such as 'the gradients'.
            facts: dictionary from name to JSON value, to be the same for all.
            tell: JSON value; worker 0's is returned to all workers.

        Raises:
            ConnectionError: facts differ, a worker was lost, or did not come; the message names it.
        """
        message = {'stage': stage, 'facts': facts or {}}
        if self.rank == 0:
            line = self._absent(stage, self._timeouts.stage) or self._differences(message)
            if line:
                self._lose(line)
                raise ConnectionError(line)
            self._send_all(**message, told=tell)
            return tell
        self._send_all(**message)
        # Worker 0 gives up first, since it knows which worker did not come.
        line = self._absent(stage, self._timeouts.stage + self.patience)
        if line:
            raise ConnectionError(line)
        return self._next(0).get('told')

    def _absent(self, stage, seconds):
        """Waits for all peers; the line that names one which did not come, or None."""
        with self._changed:
            now = time.monotonic()
            first = min([now, *(said[0][0] for said in self._stages.values() if said)])
            self._changed.wait_for(lambda: all(self._stages.values()) or self._lost,
                                   max(0.0, first + seconds - now))
            if self._lost:
                raise ConnectionError(self._lost)
            return next((
                f'{self._name(peer)} is alive, but did not come to {stage} within '
                f'--stage_timeout={self._timeouts.stage:g} seconds'
                for peer, said in self._stages.items() if not said), None)

    def _next(self, peer):
        """What a peer has said of its stage."""
        with self._changed:
            return self._stages[peer].pop(0)[1]

    def _differences(self, ours):
        for peer in self._connections:
            name, message = self._name(peer), self._next(peer)
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

    def _tell_end(self, line, code=1):
        """Tells all the others why this worker ends; worker 0 passes it on to all."""
        with self._changed:
            self._over = True
        self._send_all(error=line, code=code)
        self._await_gone(1.0)

    def leave(self):
        """Says goodbye: that the connection closes now is no loss."""
        with self._changed:
            self._over = True
        self._send_all(bye=True)
        if self.rank == 0:
            self._await_gone(2.0)

    def _await_gone(self, seconds):
        """Who closes a connection first could cut off what the other has not read yet."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._gone) == len(self._connections), seconds)

    def end(self, line, code=1):
        """Ends the process with a line on standard error and an exit code.

        At once: TensorFlow's session and server cannot be relied on to close while they wait for a
        worker that is gone. What is saved is safe, checkpoints appear under their names when they
        are whole.
        """
        with contextlib.suppress(OSError):  # Nothing may keep it here, not a console that is gone.
            sys.stdout.flush()
        errors.say(line)
        os._exit(code)

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
            if not connection.ready or self._take(peer, connection):  # What came with the welcome.
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
                self._heed(peer, message)
            if connection.ready:  # To raise what ended it.
                connection.receive()
        except (OSError, ValueError) as error:
            if peer not in self._gone:
                self._lose(f'{self._name(peer)} was lost: it ended without a word '
                           f'({connection_.text(getattr(error, "strerror", None) or error)})')
            self._set(lambda: self._gone.add(peer))
            return False
        return True

    def _heed(self, peer, message):
        if 'error' in message:
            self._lose(connection_.text(message['error']),
                       _INTERRUPTED if message.get('code') == _INTERRUPTED else 1)
        if 'error' in message or 'bye' in message:
            self._set(lambda: self._gone.add(peer))
        elif 'stage' in message:
            self._set(lambda: self._stages[peer].append((time.monotonic(), message)))

    def _set(self, change):
        with self._changed:
            change()
            self._changed.notify_all()

    def _lose(self, line, code=1):
        """Notes the first loss, passes it on, and sees to it that this process ends."""
        with self._changed:
            if self._lost or self._over:
                return
            self._lost, self._code = line, code
            self._changed.notify_all()
        if self.rank == 0:
            self._send_all(error=line, code=code)
        timer = threading.Timer(_GRACE * self._timeouts.step, self.end, [line, code])
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
