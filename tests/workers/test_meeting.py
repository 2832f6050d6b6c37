import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent import futures

import networks
import pytest
import spawn
from absl import app

import link
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, connection, meeting, ports, watch


def together(*calls):
    """What each function returns or raises, all running at once in threads."""
    def run(call):
        try:
            return call()
        except Exception as error:
            return error
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def workers(size, **changes):
    """A `Cluster` for each rank; `w0`, `w1` ... are dictionaries of changes."""
    common = {'meeting': f'127.0.0.1:{networks.free_port()}', 'job': 'j',
              'timeouts': cluster.Timeouts(start=spawn.PATIENCE)}
    return [cluster.Cluster(**{**common, 'worker': Worker(rank, size),
                               **changes.get(f'w{rank}', {})}) for rank in range(size)]


def meet(clusters, facts=None, **timeouts):
    """Makes workers meet; returns their `Meeting`s, or the exceptions that they raised."""
    facts = facts or [{'net': 'tutorial'}] * len(clusters)
    timeouts = cluster.Timeouts(**{'start': spawn.PATIENCE, **timeouts})
    return together(*[
        lambda me=me, own=own: meeting.join(dataclasses.replace(me, timeouts=timeouts), own)
        for me, own in zip(clusters, facts)])


def with_enough_time(check):
    """Runs check(seconds), at first with few seconds; a busy machine gets more of them."""
    for seconds in (1.0, 10.0):
        with contextlib.suppress(AssertionError):
            return check(seconds)
    return check(100.0)


def lines(errors, kind=app.UsageError):
    """The one line with which all workers ended."""
    assert [type(error) for error in errors] == [kind] * len(errors), errors
    texts = {str(error) for error in errors}
    assert len(texts) == 1, texts
    return texts.pop()


def test_all_learn_the_addresses_and_agree():
    met = meet(workers(3))
    assert [worker.rank for worker in met] == [0, 1, 2]
    assert met[0].addresses == met[1].addresses == met[2].addresses
    assert len(set(met[0].addresses)) == 3
    assert all(address.startswith('127.0.0.1:') for address in met[0].addresses)
    found = together(*[lambda w=w: w.barrier('one', {'x': 1}, 10 * w.rank + 7) for w in met])
    assert found == [7] * 3  # Worker 0's value.
    passed = []

    def last():
        return met[0].wait_for_loss(0.2), list(passed), met[1].barrier('two')
    found = together(last, *[lambda w=w: passed.append(w.barrier('two', value=w.rank))
                             for w in (met[0], met[2])])
    assert found == [(None, [], 0), None, None]  # The others waited for worker 1.
    assert passed == [0, 0]
    assert together(*[w.leave for w in met]) == [None] * 3
    assert [w.wait_for_loss(0) for w in met] == [None] * 3


def test_workers_on_worker_0s_machine_give_the_name_by_which_others_reach_it():
    """Not 127.0.0.1, from which they come."""
    meeting = f'localhost:{networks.free_port()}'
    met = meet(workers(2, w0={'meeting': meeting}, w1={'meeting': meeting}))
    assert [address.split(':')[0] for address in met[1].addresses] == 2 * ['localhost']
    together(*[worker.leave for worker in met])


def test_a_server_that_does_not_listen_is_named():
    met = meet(workers(2))
    with pytest.raises(ConnectionError, match=(
            f'cannot connect to worker 1 .{met[0].addresses[1]}.: Connection refused; ')):
        met[0].reach_all()
    together(*[worker.leave for worker in met])


def test_only_a_process_that_asks_for_a_reserved_port_gets_it():
    with ports.reserve() as port:
        number = port.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match='in use'):
            stranger.bind(('', number))
        with ports.reserve(number) as server:
            server.listen()
            with pytest.raises(OSError, match='in use'):
                ports.reserve(number)


@pytest.mark.parametrize('facts, change, words', [
    ([64, 64, 32], {}, r'worker 2 \(ADDRESS\) differs from worker 0: --batch_size is 32, not 64'),
    ([64] * 3, {'worker': Worker(2, 4)},
     r'worker 2 \(ADDRESS\) differs from worker 0: the number of workers is 4, not 3'),
    ([64] * 3, {'worker': Worker(1, 3)},
     r'worker 1 \(ADDRESS\) has the same index as worker 1 \(ADDRESS\): .*')])
def test_workers_that_do_not_agree(facts, change, words):
    facts = [{'--batch_size': size, 'net': 'a'} for size in facts]
    line = lines(meet(workers(3, w2=change), facts))
    assert re.fullmatch(words.replace('ADDRESS', r'127\.0\.0\.1:\d+'), line), line


def test_a_worker_is_missing():
    def check(seconds):
        started = time.monotonic()
        line = lines(meet(workers(3)[:2], start=seconds), connection.Lost)
        assert time.monotonic() - started < seconds + 10
        assert line.startswith('worker 2 did not connect to worker 0 at 127.0.0.1:')
    with_enough_time(check)


def test_worker_0_is_missing():
    def check(seconds):
        started = time.monotonic()
        line = lines(meet(workers(2)[1:], start=seconds), connection.Lost)
        assert 0.9 * seconds < time.monotonic() - started < seconds + 10
        assert re.fullmatch(r'worker 1 could not join worker 0 at 127\.0\.0\.1:\d+ within '
                            f'--start_timeout={seconds:g} seconds: Connection refused; worker 0 '
                            'may not have been started, or the job may have started already: it '
                            'then accepts no more workers', line)
    with_enough_time(check)


def test_a_host_that_does_not_resolve():
    line = lines(meet(workers(2, w1={'meeting': 'no-such-host.invalid:2222'})[1:], start=1.0),
                 connection.Lost)
    assert 'worker 0 at no-such-host.invalid:2222 within --start_timeout=1 seconds: ' in line
    assert re.search('not known;|name resolution;|No address associated with hostname;', line)


def test_worker_0s_port_is_in_use():
    clusters = workers(2)
    with ports.reserve(int(clusters[0].meeting.split(':')[1])) as other:
        other.listen()
        first, second = meet(clusters, start=1.0)
    assert 'worker 0 cannot listen at 127.0.0.1:' in str(first)
    assert 'Address already in use' in str(first)
    assert 'worker 1 could not join worker 0' in str(second)


def test_another_workers_port_is_in_use():
    with ports.reserve() as other:
        other.listen()
        hosts = (f'127.0.0.1:{networks.free_port()}', f'127.0.0.1:{other.getsockname()[1]}')
        line = lines(meet([cluster.Cluster(Worker(rank, 2), hosts[0], hosts)
                           for rank in range(2)]))
    assert line == f'worker 1 ({hosts[1]}): cannot listen on its port: Address already in use'


REJECTED = r'worker 1 could not join worker 0 at 127\.0\.0\.1:\d+ within .*: worker 0 rejected '


def test_a_worker_of_another_job_is_rejected_and_harms_nobody(capfd):
    def check(seconds):
        first, second = workers(2)
        other = dataclasses.replace(second, job='other', timeouts=cluster.Timeouts(start=seconds))
        rejected = threading.Event()

        def reject():
            reached(connection.split_address(first.meeting)).close()
            try:
                meeting.join(other, {})
            finally:
                rejected.set()
        results = together(lambda: meeting.join(first, {}), reject,
                           lambda: rejected.wait() and meeting.join(second, {}))
        assert isinstance(results[0], watch.Meeting)
        assert isinstance(results[2], watch.Meeting)
        together(results[0].leave, results[2].leave)
        assert re.match(REJECTED + 'this worker: it belongs to another job', str(results[1]))
        assert capfd.readouterr().err.count(
            'rejected a worker from 127.0.0.1: it belongs to another job\n') == 1
    with_enough_time(check)


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost'])
def test_a_meeting_on_this_machine_is_closed_to_other_networks(host):
    """As 127.0.0.2 is: a listener on all interfaces would accept there, too."""
    port = networks.free_port()
    first, second = (dataclasses.replace(one, meeting=f'{host}:{port}') for one in workers(2))

    def follow():
        reached(('127.0.0.1', port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.2', port), 5.0)
        return meeting.join(second, {})
    met = together(lambda: meeting.join(first, {}), follow)
    together(*[worker.leave for worker in met])


def test_a_rejected_worker_tries_again_and_worker_0_reports_it():
    """As if a worker 0 of an earlier job still had the port."""
    first, second = workers(2)
    earlier = dataclasses.replace(first, job='i', timeouts=cluster.Timeouts(start=1.5))

    def lead():
        with pytest.raises(connection.Lost, match=(
                r'worker 1 did not connect to worker 0 at .* in time \(worker 0 reports: it '
                r'rejected a worker from 127\.0\.0\.1: it belongs to another job\): check that')):
            meeting.join(earlier, {})
        return meeting.join(first, {})
    met = together(lead, lambda: meeting.join(second, {}))
    assert [type(one) for one in met] == [watch.Meeting] * 2, met
    together(*[worker.leave for worker in met])


def frame(message, more=0):
    """A message as it is sent, after its length; `more` is added to the length."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack('!i', len(data) + more) + data


def meet_a_server_that_sends(data, **timeouts):
    """What worker 1 returns or raises if a server at worker 0's port sends some bytes, and ends."""
    _, me = workers(2)
    with ports.reserve(connection.split_address(me.meeting)[1]) as listener:
        listener.listen()

        def answer():
            socket_, _ = listener.accept()
            socket_.sendall(data)
            socket_.recv(1 << 16)
            socket_.close()
        (found,), _ = together(lambda: meet([me], **timeouts), answer)
    return found


def test_messages_right_after_the_addresses_count_even_if_the_connection_then_closes():
    met = meet_a_server_that_sends(
        frame({'peers': ['127.0.0.1:1', '127.0.0.1:2']})
        + frame({'error': 'worker 0 failed: disk full', 'code': 1}), step=1e6)
    assert met.wait_for_loss(spawn.PATIENCE) == 'worker 0 failed: disk full'


def test_a_server_that_is_not_worker_0():
    found = meet_a_server_that_sends(b'SSH-2.0-OpenSSH_9.2\r\n', start=1.5)
    assert 'worker 1 could not join worker 0' in str(found)


def pair():
    """Two connected TCP sockets, of which the first is in a `Connection`."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        return connection.Connection(listener.accept()[0]), theirs


@pytest.mark.parametrize('end, words', [
    (b'', 'the connection was closed'), (frame(b'nonsense'), 'a message is not JSON'),
    (frame(b'\xff'), 'not JSON'), (frame(b'[1]'), 'a message holds '),
    (frame(b'[' * 100000), 'nested too deeply'), (struct.pack('!i', (1 << 20) + 1), 'bad message'),
    (struct.pack('!iQ', -1, 1 << 40), 'bad message'), (struct.pack('!i', -5), 'not JSON')])
def test_messages_from_before_the_end_of_a_connection_count(end, words):
    ours, theirs = pair()
    inbox = queue.SimpleQueue()
    theirs.sendall(frame({'a': 1}) + frame({'a': 2}) + end)
    ours.listen(inbox)
    if not end:
        theirs.close()
    *objects, error = [inbox.get(timeout=spawn.PATIENCE)[1] for _ in range(3)]
    assert objects == [{'a': 1}, {'a': 2}]
    assert isinstance(error, Exception) and words in str(error)
    theirs.close()


def test_a_peer_that_stalls_in_a_message_delays_no_other():
    inbox = queue.SimpleQueue()
    pairs = [pair() for _ in range(2)]
    pairs[0][1].sendall(frame(b'{"a": ', more=100))
    for ours, _ in pairs:
        ours.listen(inbox)
    pairs[1][1].sendall(frame({'b': 2}))
    assert inbox.get(timeout=spawn.PATIENCE) == (pairs[1][0], {'b': 2})
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_live_worker_that_does_not_reach_a_stage_is_named():
    met = meet(workers(3), step=1e6, stage=1.0)

    def agree_second():
        while not met[0]._stages[1]:  # Otherwise, worker 1 would have a second to arrive.
            time.sleep(0.01)
        met[0].barrier('the data')
    found = together(agree_second, lambda: met[1].barrier('the data'))
    assert [type(error) for error in found] == [ConnectionError] * 2, found
    assert str(found[0]) == str(found[1]) == (
        f'worker 2 ({met[0].addresses[2]}) is alive, but did not reach the data within '
        '--stage_timeout=1 seconds')


@pytest.mark.slow
def test_a_live_worker_0_that_does_not_reach_a_stage_is_named():
    met = meet(workers(2), step=4.0, stage=1.0)
    with pytest.raises(ConnectionError, match=r'^worker 0 \(127.0.0.1:\d+\) is alive, but did not'):
        met[1].barrier('the end')
    together(*[worker.leave for worker in met])


def test_worker_0_announces_a_loss_before_it_can_end():
    """Here sending to worker 2 takes some seconds, since it does not read."""
    pairs = [pair() for _ in range(3)]
    copy = socket.socket(fileno=os.dup(pairs[1][0]._socket.fileno()))
    with contextlib.suppress(BlockingIOError):
        while True:
            copy.send(bytes(1 << 16), socket.MSG_DONTWAIT)
    inbox = queue.SimpleQueue()
    for ours, _ in pairs:
        ours.listen(inbox)
    me = cluster.Cluster(Worker(0, 4), timeouts=cluster.Timeouts(step=1e6))
    met = watch.Meeting(me, [''] * 4, {rank: ours for rank, (ours, _) in enumerate(pairs, 1)},
                        inbox, None)
    pairs[0][1].close()
    assert met.wait_for_loss(spawn.PATIENCE).startswith('worker 1 was lost: it ended unexpectedly')
    pairs[2][1].setblocking(False)
    assert b'worker 1 was lost' in pairs[2][1].recv(1000)
    for socket_ in (pairs[1][1], pairs[2][1]):
        socket_.close()


WORKER_0 = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import resource
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, meeting
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
me = cluster.Cluster(Worker(0, 2), '127.0.0.1:' + sys.argv[1], timeouts=cluster.Timeouts(start=300))
print('ready', flush=True)
with meeting.join(me, {}) as workers:
    workers.barrier('end')
    workers.leave()
print('done')
'''


@pytest.mark.slow
def test_silent_connections_keep_no_worker_out():
    """300 use up the file descriptors of worker 0, which may have 64."""
    port = networks.free_port()
    process = spawn.start(['-c', WORKER_0, spawn.ROOT, str(port)])
    assert process.stdout.readline() == 'ready\n'
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(reached(('127.0.0.1', port)))
        met = meeting.join(cluster.Cluster(Worker(1, 2), f'127.0.0.1:{port}',
                                           timeouts=cluster.Timeouts(start=240)), {})
        met.barrier('end')
        met.leave()
        out, _ = spawn.ended(process, 0)
    assert out == 'done\n'


def reached(address):
    """A connection to a port where a listener will appear soon."""
    deadline = time.monotonic() + spawn.PATIENCE
    while True:
        try:
            return socket.create_connection(address, spawn.PATIENCE)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


HELLO = {'protocol': meeting.PROTOCOL, 'job': 'j', 'rank': 1, 'address': 'a:1', 'facts': {}}


@pytest.mark.parametrize('sent', [
    b'GET / HTTP/1.1\r\n\r\n', frame(b'\xff\xfe'), frame(b'[1]'), frame(b'[' * 100000),
    frame(b'{}'), b'x' * (2 << 20), frame(b'x' * (2 << 20)), struct.pack('!i', -5),
    pytest.param(b'', marks=pytest.mark.slow),  # After five seconds.
    *(frame({**HELLO, **change}) for change in (
        {'protocol': 4}, {'job': 'k'}, {'job': None}, {'rank': 'x'}, {'rank': None},
        {'address': 'a:b'}, {'address': 1}, {'facts': 1}))])
def test_strangers_are_dropped(sent):
    """Before the last worker connects."""
    clusters = workers(2)
    dropped = threading.Event()

    def stranger():
        with reached(connection.split_address(clusters[0].meeting)) as socket_:
            with contextlib.suppress(ConnectionError):
                socket_.sendall(sent)
                while socket_.recv(100):
                    pass
        dropped.set()
    results = together(lambda: meeting.join(clusters[0], {}), stranger,
                       lambda: dropped.wait(spawn.PATIENCE) and meeting.join(clusters[1], {}))
    assert isinstance(results[0], watch.Meeting), results
    assert results[1] is None
    assert isinstance(results[2], watch.Meeting)
    together(results[0].leave, results[2].leave)


MACHINES_PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import socket
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, connection, meeting
rank = int(sys.argv[1])
with meeting.join(cluster.Cluster(Worker(rank, 3), 'head:2222'), {}) as workers:
    with socket.create_server(('', int(workers.addresses[rank].split(':')[1]))):
        workers.port.close()
        workers.barrier('the servers')
        for address in workers.addresses:
            connection.reach(address).close()
        workers.barrier('the end')
    print(*[address.split(':')[0] for address in workers.addresses])
'''


@pytest.mark.slow
@networks.with_networks
def test_other_machines_reach_a_worker_that_shares_worker_0s_machine():
    """Workers 0 and 1 are on one machine, whose name is a loopback address there, as on Debian."""
    with link.networks() as (names, (head, other)), contextlib.ExitStack() as stack:
        for name, line in zip(names, ['127.0.1.1 head', f'{head} head']):
            folder = pathlib.Path('/etc/netns', name)  # `ip netns exec` mounts it over /etc.
            folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, folder)
            (folder / 'hosts').write_text(f'127.0.0.1 localhost\n{line}\n')
        processes = [subprocess.Popen(
            ['ip', 'netns', 'exec', names[rank // 2], sys.executable, '-c', MACHINES_PROGRAM,
             spawn.ROOT, str(rank)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=spawn.environment()) for rank in range(3)]
        for process in processes:
            assert process.communicate(timeout=spawn.PATIENCE) == (f'head head {other}\n', '')


# A loss ends processes, so these are three workers in processes of their own.
PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import os, time
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, connection, meeting
rank, port, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
try:
    me = cluster.Cluster(Worker(rank, 3), '127.0.0.1:' + port, timeouts=cluster.Timeouts(60, 4))
    with meeting.join(me, {}) as workers:
        workers.barrier('start')
        print('started', workers.addresses[rank], flush=True)
        if what == 'differ':
            workers.barrier('the gradients', {'shapes': rank // 2})
        if what == 'fail' and rank == 1:
            raise OSError('No space left\\non device')
        if what == 'interrupt' and rank == 0:
            raise KeyboardInterrupt
        if what == 'interrupt' and rank == 1:
            workers.wait_for_loss(60.0)
            raise KeyboardInterrupt
        if what == 'long':
            for _ in range(3):
                time.sleep(3.0 if rank == 1 else 0.1)
                workers.barrier('a step')
        else:
            time.sleep(300)
        workers.barrier('end')
        workers.leave()
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    sys.exit('-: ' + str(error).replace(chr(10), ' '))
print('done')
'''


def start_three(what):
    port = str(networks.free_port())
    processes = [spawn.start(['-c', PROGRAM, spawn.ROOT, str(rank), port, what])
                 for rank in range(3)]
    return processes, [process.stdout.readline().split()[-1] for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
@pytest.mark.parametrize('number, words', [
    (signal.SIGKILL, 'was lost: it ended unexpectedly'),
    (signal.SIGSTOP, 'was lost: no heartbeat for 2 seconds; it is frozen')])
def test_a_lost_worker_ends_the_others_by_name(victim, number, words):
    processes, addresses = start_three('sleep')
    lost = processes.pop(victim)
    lost.send_signal(number)
    for code, _, error in spawn.all_ended(processes, 4 + 60):
        assert code == 75
        assert error.startswith(f'-c: worker {victim} ({addresses[victim]}) {words}')
        assert error.count('\n') == 1
    lost.send_signal(signal.SIGCONT)  # It finds that the others are gone.
    spawn.ended(lost, 75 if number == signal.SIGSTOP else -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize('what, words', [
    ('fail', 'worker 1 (ADDRESS) failed: No space left on device'),
    ('differ', 'worker 2 (ADDRESS2) differs from worker 0: shapes is 1, not 0')])
def test_all_report_the_failure_of_a_worker(what, words):
    processes, addresses = start_three(what)
    words = words.replace('ADDRESS2', addresses[2]).replace('ADDRESS', addresses[1])
    for rank, (code, _, error) in enumerate(spawn.all_ended(processes, 4 + 60)):
        own = what == 'fail' and rank == 1
        assert error.endswith(f': {words.split(" failed: ")[-1] if own else words}\n')
        assert (code, error.count('\n')) == (1, 1)


@pytest.mark.slow
def test_ctrl_c_is_not_a_failure_of_a_worker():
    """Worker 0 gets it, then worker 1, which already knows; worker 2 does not get it."""
    processes, addresses = start_three('interrupt')
    assert [(code, error) for code, _, error in spawn.all_ended(processes)] == [
        (130, ''), *2 * [(130, f'-c: worker 0 ({addresses[0]}) was interrupted\n')]]


@pytest.mark.slow
def test_a_job_of_slow_steps_that_was_stopped_as_a_whole_continues():
    """Its steps take 3 seconds, and it is stopped for 4; a silence of 2 would be too long."""
    processes, _ = start_three('long')
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(4.0)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    assert spawn.all_ended(processes) == [(0, 'done\n', '')] * 3
