"""Where workers meet: they identify themselves, compare facts, and learn each other's addresses.

    with rendezvous.join(cluster, facts) as peers:         # Waits until all workers have joined.
        peers.agree('the gradients', {'shapes': digest})   # A barrier that also compares facts.

Worker 0 listens at `cluster.meeting`, and every other worker keeps a connection to it. They
exchange JSON objects, one per line:

    worker 0            {"protocol": ..., "nonce": ...}
    worker 1            {"rank": 1, ..., "nonce": ..., "proof": ...}
    worker 0            {"peers": [...], "proof": ...} when all have joined, or {"error": ...}

Nothing that arrives is executed, and the length of lines, the number of unidentified connections
and all waiting times are limited. But nothing is encrypted, and TensorFlow's own ports, which open
next, obey anyone who can reach them: the network between the workers must be trusted.
"""
import contextlib
import time

from absl import app

from cifar10_lib.workers import connection as connection_
from cifar10_lib.workers import identity
from cifar10_lib.workers import listener as listener_
from cifar10_lib.workers import ports
from cifar10_lib.workers import watch

_PAUSE = 0.2  # Seconds between attempts to reach worker 0.

# Worker 0 gives up before the others do, so that it can send them the names of the missing ones.
_LEADERS_SHARE = 0.8


def join(cluster, facts):
    """Waits until all workers have joined, and compares their facts.

    Args:
        cluster: a `Cluster` of several workers.
        facts: dictionary from name to JSON value, which must be the same for all workers.

    Returns:
        A `watch.Meeting`.

    Raises:
        app.UsageError: after --start_timeout workers are missing, or some have the same index,
            expect a different number of workers, have different facts, or report a problem; all
            workers that have joined raise the same line.
    """
    return _follow(cluster, facts) if cluster.rank else _lead(cluster, facts)


# Worker 0.


def _lead(cluster, facts):
    """Waits for the other workers; sends them either all addresses or an error."""
    deadline = time.monotonic() + _LEADERS_SHARE * cluster.timeouts.start
    try:
        port = ports.reserve(cluster.own_port())
        listener = listener_.Listener(cluster)
    except OSError as error:
        raise app.UsageError(f'worker 0 cannot listen at {cluster.meeting}: {error.strerror}; is '
                             'another training run using it?') from error
    with contextlib.closing(listener):  # TensorFlow's server may need its port.
        try:
            _await_all(cluster, listener, deadline)
            peers = _addresses(cluster, listener, facts, port)
        except app.UsageError as error:
            _answer(cluster, listener.hellos, error=str(error))
            raise
    _answer(cluster, listener.hellos, peers=peers)
    connections = {hello['rank']: connection for connection, hello in listener.hellos.items()}
    return watch.Meeting(0, peers, connections, port, cluster.timeouts)


def _await_all(cluster, listener, deadline):
    """Waits until there are as many workers as any of them expects, or until the deadline."""
    hellos = listener.hellos
    while (left := deadline - time.monotonic()) > 0 and len(hellos) + 1 < max(
            [cluster.size, *(hello['size'] for hello in hellos.values())]):
        listener.wait(min(left, 1.0))


def _addresses(cluster, listener, facts, port):
    """All workers' addresses, a list; raises app.UsageError if one is missing or does not fit."""
    found = {0: _own_address(cluster, cluster.meeting, port)}
    for hello in sorted(listener.hellos.values(), key=lambda hello: hello['rank']):
        line = _objection(cluster, found, hello, facts)
        if line:
            raise app.UsageError(line)
        found[hello['rank']] = hello['address']
    missing = [watch.name_of(rank, cluster.address_of(rank))
               for rank in range(cluster.size) if rank not in found]
    if missing:
        raise app.UsageError(
            f'{", ".join(missing[:5])}{" and others" * (len(missing) > 5)} did not connect to '
            f'worker 0 at {cluster.meeting} in time'
            f'{f" (worker 0 reports: {listener.no_room})" * bool(listener.no_room)}: check that '
            'all workers were started, or raise --start_timeout')
    return list(found.values())


def _objection(cluster, peers, hello, facts):
    """A line that says why a worker does not fit worker 0 or `peers`, the lower ranks; or None."""
    rank, size = hello['rank'], hello['size']
    name = watch.name_of(rank, hello['address'])
    if size != cluster.size:
        return (f'{name} expects {size} workers, but worker 0 expects {cluster.size}: start all '
                'with the same number')
    if hello.get('problem'):
        return f'{name}: {connection_.text(hello["problem"])}'
    if rank in peers:
        other = watch.name_of(rank, peers[rank])
        return f'{name} has the same index as {other}: start one worker per index'
    if not 0 < rank < size:
        return f'{name} is not one of the workers 0 to {size - 1}'
    return watch.difference(name, hello['facts'], facts)


def _answer(cluster, hellos, **message):
    for connection, hello in hellos.items():
        connection.send(**message, proof=identity.proof(cluster, hello['nonce'], message))


# The others.


def _follow(cluster, facts):
    """Tries to join worker 0 until it sends all addresses or an error."""
    deadline = time.monotonic() + cluster.timeouts.start
    problem, reason = None, None
    try:
        port = ports.reserve(cluster.own_port())
    except OSError as error:
        port, problem = ports.reserve(), f'cannot listen on its port: {error.strerror}'
    while time.monotonic() < deadline:
        connection = None
        try:
            connection = connection_.reach(cluster.meeting, deadline)
            peers = _introduce(cluster, connection, facts, port, problem, deadline)
            return watch.Meeting(cluster.rank, peers, {0: connection}, port, cluster.timeouts)
        except (OSError, ValueError) as error:
            if connection:
                connection.close()
            # What a server answered explains more than that it did not answer.
            if isinstance(error, ValueError) or not isinstance(reason, ValueError):
                reason = error
            time.sleep(_PAUSE)
    reason = getattr(reason, 'strerror', None) or reason
    raise app.UsageError(
        f'worker {cluster.rank} could not join worker 0 at {cluster.meeting} within '
        f'--start_timeout={cluster.timeouts.start:g} seconds: {connection_.text(reason)}')


def _introduce(cluster, connection, facts, port, problem, deadline):
    """Identifies this worker; returns the addresses of all from worker 0's answer."""
    greeting = connection.receive_one(min(deadline, time.monotonic() + listener_.STRANGERS_SECONDS))
    if greeting.get('protocol') != identity.PROTOCOL:
        raise ValueError('the server there is not worker 0')
    host = connection.socket.getsockname()[0]
    if host.startswith('127.'):  # On worker 0's machine, which the others reach by this name.
        host = cluster.meeting
    hello = {'protocol': identity.PROTOCOL, 'rank': cluster.rank, 'size': cluster.size,
             'address': _own_address(cluster, host, port), 'facts': facts, 'problem': problem,
             'nonce': connection.nonce}
    connection.send(**hello, proof=identity.proof(cluster, greeting.get('nonce'), hello))
    answer = connection.receive_one(deadline)
    if 'rejected' in answer:
        raise ValueError(answer['rejected'])  # Perhaps only for now.
    if not identity.is_proven(cluster, connection.nonce, answer):
        raise ValueError('the server there belongs to another job or has another secret')
    if 'error' in answer:
        raise app.UsageError(connection_.text(answer['error']))
    return answer['peers']


def _own_address(cluster, host, port):
    """The address of this worker for TensorFlow: as given, or else a host and its reserved port."""
    return cluster.address_of(cluster.rank) or f'{host.split(":")[0]}:{port.getsockname()[1]}'
