import contextlib
import dataclasses
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import networks
import pytest
import spawn
from absl import app

from workers import cluster
from workers import connection
from workers import rendezvous
from workers import watch


def together(*calls):
    """What each function returns or raises, all running at once in threads."""
    results = [None] * len(calls)

    def run(index, call):
        try:
            results[index] = call()
        except Exception as error:
            results[index] = error
    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def workers(size, **changes):
    """A `Cluster` for each rank, with the changes that are given for `w0`, `w1` ..."""
    address = f'127.0.0.1:{networks.free_port()}'
    common = {'size': size, 'meeting': address, 'job': 'j'}
    return [cluster.Cluster(**{**common, 'rank': rank, **changes.get(f'w{rank}', {})})
            for rank in range(size)]


def meet(clusters, facts=None, seconds=5.0):
    """Lets workers meet; returns their `Meeting`s or what they raised."""
    facts = facts or [{'net': 'tutorial'}] * len(clusters)
    clusters = [dataclasses.replace(one, timeouts=cluster.Timeouts(start=seconds))
                for one in clusters]
    return together(*[
        lambda pair=pair: rendezvous.join(*pair) for pair in zip(clusters, facts)])


def lines(errors):
    """The one line that all workers ended with."""
    assert [type(error) for error in errors] == [app.UsageError] * len(errors), errors
    texts = {str(error) for error in errors}
    assert len(texts) == 1, texts
    return texts.pop()


def test_all_hear_where_all_are_and_agree():
    met = meet(workers(3))
    assert [worker.rank for worker in met] == [0, 1, 2]
    assert met[0].addresses == met[1].addresses == met[2].addresses
    assert len(set(met[0].addresses)) == 3
    assert all(address.startswith('127.0.0.1:') for address in met[0].addresses)
    assert together(*[lambda w=w: w.agree('one', {'x': 1}) for w in met]) == [None] * 3
    order = []

    def late(worker):
        if worker.rank == 1:
            time.sleep(0.5)
            order.append('late')
        worker.agree('two')
        order.append(worker.rank)
    assert together(*[lambda w=w: late(w) for w in met]) == [None] * 3
    assert order[0] == 'late'
    assert together(*[w.leave for w in met]) == [None] * 3
    time.sleep(0.3)
    assert [w.lost() for w in met] == [None] * 3


def test_given_addresses_are_kept_and_worker_0s_port_is_free_after_the_meeting():
    ports = [networks.free_port(), networks.free_port()]
    hosts = tuple(f'127.0.0.1:{port}' for port in ports)
    met = meet([cluster.Cluster(rank, 2, rank, hosts[0], hosts) for rank in range(2)])
    assert tuple(met[0].addresses) == tuple(met[1].addresses) == hosts
    with connection.reserve(ports[0]) as server:  # While connections that came by it are open.
        server.listen()
    together(*[worker.leave for worker in met])


def test_a_reserved_port_can_be_had_by_who_asks_for_it():
    with connection.reserve() as port:
        number = port.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match='in use'):
            stranger.bind(('', number))
        with connection.reserve(number) as server:
            server.listen()
            with pytest.raises(OSError, match='in use'):
                connection.reserve(number)


def test_other_facts():
    facts = [{'--batch_size': size, 'net': 'a'} for size in (64, 64, 32)]
    line = lines(meet(workers(3), facts))
    assert 'worker 2 (127.0.0.1:' in line
    assert line.endswith('differs from worker 0: --batch_size is 32, not 64')


def test_another_size():
    line = lines(meet(workers(2, w1={'size': 3, 'rank': 2}), seconds=1.0))
    assert line.startswith('worker 2 (127.0.0.1:')
    assert line.endswith('counts 3 workers, worker 0 counts 2')


def test_the_same_rank_twice():
    line = lines(meet(workers(3, w2={'rank': 1})))
    assert line.startswith('worker 1 (127.0.0.1:')
    assert 'is there twice: worker 1 (127.0.0.1:' in line


def test_a_rank_that_is_none():
    line = lines(meet(workers(2, w1={'rank': 2})))
    assert line.endswith('is there, but 2 workers are 0 to 1')


def test_one_is_missing():
    started = time.monotonic()
    line = lines(meet(workers(3)[:2], seconds=3.0))
    assert time.monotonic() - started < 3 + 10  # For a busy machine.
    assert line.startswith('worker 2 did not come to worker 0 at 127.0.0.1:')


def test_worker_0_is_missing():
    started = time.monotonic()
    line = lines(meet(workers(2)[1:], seconds=1.0))
    assert 0.9 < time.monotonic() - started < 1 + 10
    assert line.startswith('worker 1 has waited 1 seconds for worker 0 at 127.0.0.1:')
    assert line.endswith('Connection refused')


def test_a_host_that_does_not_resolve():
    line = lines(meet(workers(2, w1={'meeting': 'no-such-host.invalid:2222'})[1:], seconds=1.0))
    assert 'worker 0 at no-such-host.invalid:2222: ' in line
    assert line.endswith(('not known', 'name resolution', 'No address associated with hostname'))


def test_worker_0s_port_is_in_use():
    clusters = workers(2)
    with connection.reserve(int(clusters[0].meeting.split(':')[1])) as other:
        other.listen()
        first, second = meet(clusters, seconds=1.0)
    assert 'cannot await the others at 127.0.0.1:' in str(first)
    assert 'Address already in use' in str(first)
    assert 'worker 1 has waited 1 seconds' in str(second)


def test_another_workers_port_is_in_use():
    with connection.reserve() as other:
        other.listen()
        hosts = (f'127.0.0.1:{networks.free_port()}', f'127.0.0.1:{other.getsockname()[1]}')
        line = lines(meet([cluster.Cluster(rank, 2, rank, hosts[0], hosts) for rank in range(2)]))
    assert line == f'worker 1 ({hosts[1]}): its port cannot be had: Address already in use'


def test_a_worker_of_another_job_is_turned_away_and_harms_nobody():
    clusters = workers(3, w2={'job': 'other', 'rank': 1})[1:]
    clusters.insert(0, cluster.Cluster(0, 2, 0, clusters[0].meeting, job='j'))
    clusters[1] = cluster.Cluster(1, 2, 1, clusters[0].meeting, job='j')
    results = together(
        lambda: rendezvous.join(clusters[0], {}),
        lambda: time.sleep(1.0) or rendezvous.join(clusters[1], {}),
        lambda: rendezvous.join(clusters[2], {}))
    assert isinstance(results[0], watch.Meeting)
    assert isinstance(results[1], watch.Meeting)
    assert str(results[2]).startswith('worker 0 turned this one away: it belongs to another job')
    together(results[0].leave, results[1].leave)


HOSTS = ('127.0.0.1:%d', '192.0.2.7:%d')  # The second is on no network.


def at_hosts(**changes):
    """Two workers with `HOSTS`: worker 1 comes from an address that is not its host's."""
    hosts = tuple(host % networks.free_port() for host in HOSTS)
    return [cluster.Cluster(rank, 2, 0, hosts[0], hosts, **changes) for rank in range(2)]


def test_a_worker_from_another_address_is_turned_away():
    alone, turned_away = meet(at_hosts(), seconds=3.0)
    assert re.fullmatch(
        r'worker 0 turned this one away: worker 1 came from 127\.0\.0\.1, which is not an address '
        r'of 192\.0\.2\.7: correct that, or give all workers the same CIFAR10_JOB_SECRET or '
        r'--secret_file', str(turned_away)), turned_away
    assert 'did not come to worker 0' in str(alone)


def test_with_a_secret_a_worker_may_come_from_anywhere():
    met = meet(at_hosts(secret='16 or more characters'))
    assert [worker.rank for worker in met] == [0, 1]
    together(*[worker.leave for worker in met])


def test_a_host_has_several_addresses_of_this_machine():
    hosts = ('localhost:%d' % networks.free_port(), '127.0.1.1:%d' % networks.free_port())
    met = meet([cluster.Cluster(rank, 2, 0, hosts[0], hosts) for rank in range(2)])
    assert [worker.rank for worker in met] == [0, 1]
    together(*[worker.leave for worker in met])


@pytest.mark.parametrize('nodes, joins', [
    (('192.0.2.7', 'localhost'), True), (('192.0.2.7', '192.0.2.8'), False),
    (('no-such-host.invalid',), False), (('no-such-host.invalid', 'localhost'), True)])
def test_a_worker_must_come_from_a_node_of_the_job(nodes, joins):
    met = meet(workers(2, w0={'nodes': nodes}), seconds=10.0 if joins else 3.0)
    if joins:
        assert [worker.rank for worker in met] == [0, 1]
        together(*[worker.leave for worker in met])
    else:
        assert 'worker 0 turned this one away: ' in str(met[1])
        assert ('192.0.2.8' if len(nodes) > 1 else 'no-such-host.invalid does not resolve'
                ) in str(met[1])


@pytest.mark.parametrize('secret', ['', 'another secret for worker 1'])
def test_another_secret(secret):
    clusters = workers(2, w0={'secret': 'the secret of worker 0'}, w1={'secret': secret})
    alone, turned_away = meet(clusters, seconds=3.0)
    assert str(turned_away) == (
        'worker 0 turned this one away: it belongs to another job, or has another secret '
        '(CIFAR10_JOB_SECRET, --secret_file)')
    assert 'did not come to worker 0' in str(alone)


def played_worker_0(me, answer):
    """Plays worker 0 once, as far as the greeting; `answer` makes the bytes that follow from it.

    Returns:
        What `join` returns or raises for worker 1, and what worker 1 said.
    """
    said = []
    with connection.reserve(int(me.meeting.split(':')[1])) as listener:
        listener.listen()

        def play():
            socket_, _ = listener.accept()
            listener.close()
            peer = connection.Connection(socket_)
            peer.send(protocol=rendezvous._PROTOCOL, nonce='n')
            said.append(peer.receive_one(time.monotonic() + 30))
            socket_.sendall(answer(said[0]))
            socket_.close()
        met, _ = together(lambda: rendezvous.join(me, {}), play)
    return met, said[0]


def test_a_false_worker_0_learns_no_secret_and_is_not_believed():
    secret = 'a secret that nobody else knows'
    me = dataclasses.replace(workers(2)[1], secret=secret, timeouts=cluster.Timeouts(start=3.0))
    met, said = played_worker_0(me, lambda hello: json.dumps(
        {'peers': ['127.0.0.1:1', '127.0.0.1:2'], 'proof': hello['proof']}).encode() + b'\n')
    assert secret not in json.dumps(said)
    assert str(met).startswith('worker 1 has waited 3 seconds for worker 0')


def test_what_comes_with_the_welcome_counts_also_if_the_connection_then_closes():
    me = dataclasses.replace(workers(2)[1], timeouts=cluster.Timeouts(start=30.0, step=1e6))

    def answer(hello):
        peers = {'peers': ['127.0.0.1:1', '127.0.0.1:2']}
        proof = rendezvous._proof(me, hello['nonce'], peers)
        return b''.join(json.dumps(message).encode() + b'\n' for message in (
            {**peers, 'proof': proof}, {'error': 'worker 0 failed: disk full'}))
    met, _ = played_worker_0(me, answer)
    assert met.lost(30.0) == 'worker 0 failed: disk full'


def test_messages_count_that_came_before_the_end_of_a_connection():
    ours, theirs = socket.socketpair()
    receiver = connection.Connection(ours)
    theirs.sendall(b'{"a": 1}\n{"a": 2}\n{"a": 3}\nnonsense\n')
    theirs.close()
    assert receiver.receive_one(time.monotonic() + 30) == {'a': 1}
    assert receiver.ready
    assert receiver.receive() == [{'a': 2}, {'a': 3}]
    assert receiver.ready
    with pytest.raises(ValueError, match='not JSON'):
        receiver.receive()
    receiver.close()


def test_a_worker_that_lives_but_does_not_come_is_named():
    timeouts = cluster.Timeouts(start=30.0, step=1e6, stage=1.0)
    met = together(*[lambda me=me: rendezvous.join(dataclasses.replace(me, timeouts=timeouts), {})
                     for me in workers(3)])
    found = together(*[lambda w=w: w.agree('the data') for w in met[:2]])
    assert [type(error) for error in found] == [ConnectionError] * 2, found
    assert str(found[0]) == str(found[1]) == (
        f'worker 2 ({met[0].addresses[2]}) is alive, but did not come to the data within '
        '--stage_timeout=1 seconds')


def test_a_worker_0_that_lives_but_does_not_come_is_named():
    timeouts = cluster.Timeouts(start=30.0, step=4.0, stage=1.0)
    met = together(*[lambda me=me: rendezvous.join(dataclasses.replace(me, timeouts=timeouts), {})
                     for me in workers(2)])
    with pytest.raises(ConnectionError, match=r'^worker 0 \(127.0.0.1:\d+\) is alive, but did not'):
        met[1].agree('the end')
    together(*[worker.leave for worker in met])


def test_worker_0_tells_something_to_all():
    met = meet(workers(3))
    found = together(*[lambda w=w: w.agree('one', tell={'step': 10 * w.rank + 7}) for w in met])
    assert found == [{'step': 7}] * 3
    together(*[worker.leave for worker in met])


WORKER_0 = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import resource
from workers import cluster, rendezvous
files = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
me = cluster.Cluster(0, 2, 0, '127.0.0.1:' + sys.argv[1], timeouts=cluster.Timeouts(start=300))
print('ready', flush=True)
with rendezvous.join(me, {}) as workers:
    workers.agree('end')
    workers.leave()
print('done')
'''


@pytest.mark.slow
@pytest.mark.parametrize('files, count', [(64, 300), (1024, 1100)])
def test_silent_connections_keep_nobody_out(files, count):
    """Neither if worker 0 can open no more files nor by their number, and they are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    port = networks.free_port()
    process = subprocess.Popen(
        [sys.executable, '-c', WORKER_0, spawn.ROOT, str(port), str(files)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=spawn.environment())
    silent = []
    try:
        assert process.stdout.readline() == 'ready\n'
        for _ in range(count):
            silent.append(reached(('127.0.0.1', port)))
        met = rendezvous.join(cluster.Cluster(1, 2, 0, f'127.0.0.1:{port}',
                                              timeouts=cluster.Timeouts(start=240)), {})
        met.agree('end')
        met.leave()
        out, error = process.communicate(timeout=spawn.PATIENCE)
        assert (process.returncode, out) == (0, 'done\n'), error
    finally:
        process.kill()
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_silent_connection_is_closed_while_worker_0_still_waits():
    clusters = [dataclasses.replace(one, timeouts=cluster.Timeouts(start=120.0))
                for one in workers(2)]
    closed = threading.Event()

    def stranger():
        address = cluster.split_address(clusters[0].meeting)
        with reached(address) as socket_:
            socket_.settimeout(90.0)
            while socket_.recv(100):  # The greeting.
                pass
            closed.set()
    met = together(lambda: rendezvous.join(clusters[0], {}), stranger,
                   lambda: closed.wait(90.0) and rendezvous.join(clusters[1], {}))
    assert met[1] is None, met[1]
    assert isinstance(met[0], watch.Meeting) and isinstance(met[2], watch.Meeting), met
    together(met[0].leave, met[2].leave)


def reached(address):
    """A connection to a port on which somebody listens soon."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(address, 5.0)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def proven(**message):
    """A message of a worker of the job 'j' that has the nonce from worker 0's greeting."""
    def bytes_(nonce):
        proof = rendezvous._proof(cluster.Cluster(job='j'), nonce, message)
        return json.dumps({**message, 'proof': proof}).encode() + b'\n'
    return bytes_


HELLO = {'protocol': rendezvous._PROTOCOL, 'rank': 1, 'size': 2, 'address': 'a:1', 'nonce': 'n',
         'facts': {}}


@pytest.mark.parametrize('sent', [
    b'GET / HTTP/1.1\r\n\r\n', b'\xff\xfe\n', b'[1]\n', b'[' * 100000 + b'\n', b'{}\n',
    b'x' * (2 << 20),
    json.dumps({'protocol': rendezvous._PROTOCOL, 'job': 'j', 'rank': 'x'}).encode() + b'\n',
    json.dumps({'protocol': rendezvous._PROTOCOL, 'job': 'j', 'rank': 1, 'size': 2,
                         'address': 'a:b', 'facts': {}}).encode() + b'\n', b'',
    proven(**{**HELLO, 'rank': 'x'}), proven(**{**HELLO, 'address': 'a:b'}),
    proven(**{**HELLO, 'facts': 1}), lambda nonce: proven(**HELLO)('another nonce')])
def test_strangers_are_dropped(sent):
    """Before the last worker comes."""
    clusters = workers(2)
    dropped = threading.Event()

    def stranger():
        time.sleep(0.2)
        with socket.create_connection(cluster.split_address(clusters[0].meeting), 30.0) as socket_:
            with contextlib.suppress(ConnectionError):
                nonce = json.loads(socket_.makefile().readline())['nonce']
                socket_.sendall(sent(nonce) if callable(sent) else sent)
                while sent and socket_.recv(100):
                    pass
        dropped.set()
    results = together(lambda: rendezvous.join(clusters[0], {}), stranger,
                       lambda: dropped.wait(30.0) and rendezvous.join(clusters[1], {}))
    assert isinstance(results[0], watch.Meeting), results
    assert results[1] is None
    assert isinstance(results[2], watch.Meeting)
    together(results[0].leave, results[2].leave)


def test_brackets_within_brackets_end_nobody():
    """As many as can just be read, but not be written again to compare the proof."""
    clusters = [dataclasses.replace(one, timeouts=cluster.Timeouts(start=60.0))
                for one in workers(2)]

    def stranger():
        for depth in range(850, 1000):
            with reached(cluster.split_address(clusters[0].meeting)) as socket_:
                socket_.sendall(json.dumps(HELLO)[:-1].encode() + b', "x": '
                                + b'[' * depth + b']' * depth + b'}\n')
                with contextlib.suppress(ConnectionError):
                    while socket_.recv(1000):
                        pass
        return rendezvous.join(clusters[1], {})
    met = together(lambda: rendezvous.join(clusters[0], {}), stranger)
    assert [type(one) for one in met] == [watch.Meeting] * 2, met
    together(*[worker.leave for worker in met])


def test_what_answers_is_no_worker_0():
    clusters = workers(2)
    with connection.reserve(int(clusters[0].meeting.split(':')[1])) as listener:
        listener.listen()

        def answer():
            socket_, _ = listener.accept()
            socket_.sendall(b'SSH-2.0-OpenSSH_9.2\r\n')
            time.sleep(0.5)
            socket_.close()
        results = together(lambda: meet(clusters[1:], seconds=1.5)[0], answer)
    assert 'worker 1 has waited 1.5 seconds for worker 0' in str(results[0])


def test_addresses_seen_from_outside():
    """Who came over loopback is on worker 0's machine."""
    seen = rendezvous._seen_from_outside
    assert seen(['a:1', '127.0.0.1:2']) == ['a:1', '127.0.0.1:2']
    assert seen(['a:1', '127.0.1.1:2', '10.0.0.2:3']) == ['a:1', 'a:2', '10.0.0.2:3']


# What follows a loss ends processes: those of a program of three workers.
PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import os, time
from workers import cluster, rendezvous
rank, port, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
try:
    me = cluster.Cluster(rank, 3, rank, '127.0.0.1:' + port, timeouts=cluster.Timeouts(60, 4))
    with rendezvous.join(me, {}) as workers:
        workers.agree('start')
        print('started', workers.addresses[rank], flush=True)
        if what == 'differ':
            workers.agree('the gradients', {'shapes': rank // 2})
        if what == 'fail' and rank == 1:
            raise OSError('No space left\\non device')
        if what == 'interrupt' and rank == 0:
            raise KeyboardInterrupt
        if what == 'interrupt' and rank == 1:
            workers.lost(60.0)
            raise KeyboardInterrupt
        if what == 'reach' and rank == 1:
            workers.addresses[0] = '127.0.0.1:1'
            workers.reach_all()
        if what == 'long':
            for _ in range(3):
                time.sleep(3.0 if rank == 1 else 0.1)
                workers.agree('a step')
        else:
            time.sleep(30)
        workers.agree('end')
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


def ends(processes, seconds):
    """Exit code and last line of standard error of each, within so many seconds."""
    deadline = time.monotonic() + seconds
    found = []
    for process in processes:
        _, error = process.communicate(timeout=deadline - time.monotonic())
        own = [line for line in error.splitlines() if line.startswith('-')]
        assert len(own) <= 1, error
        found.append((process.returncode, own[0] if own else ''))
    return found


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
@pytest.mark.parametrize('number, words', [
    (signal.SIGKILL, 'was lost: it ended without a word'),
    (signal.SIGSTOP, 'was lost: no sign of life for 2 seconds; it is frozen')])
def test_a_lost_worker_ends_the_others_by_name(victim, number, words):
    processes, addresses = start_three('sleep')
    processes[victim].send_signal(number)
    try:
        others = [process for process in processes if process is not processes[victim]]
        for code, line in ends(others, 4 + 20):
            assert code == 1
            assert f'worker {victim} ({addresses[victim]}) {words}' in line
        processes[victim].send_signal(signal.SIGCONT)  # It finds that the others have gone.
        code, line = ends([processes[victim]], 4 + 20)[0]
        assert code == (1 if number == signal.SIGSTOP else -signal.SIGKILL)
    finally:
        processes[victim].kill()


@pytest.mark.slow
@pytest.mark.parametrize('what, words', [
    ('fail', 'worker 1 (ADDRESS) failed: No space left on device'),
    ('reach', 'worker 1 (ADDRESS) failed: cannot reach worker 0 (127.0.0.1:1): Connection refused'),
    ('differ', 'worker 2 (ADDRESS2) differs from worker 0: shapes is 1, not 0')])
def test_a_workers_failure_is_told_to_all(what, words):
    processes, addresses = start_three(what)
    words = words.replace('ADDRESS2', addresses[2]).replace('ADDRESS', addresses[1])
    found = ends(processes, 4 + 20)
    assert [code for code, _ in found] == [1, 1, 1]
    own = 1 if what != 'differ' else None
    for rank, (_, line) in enumerate(found):
        assert line.endswith(words.split(' failed: ')[-1] if rank == own else words), line


@pytest.mark.slow
def test_ctrl_c_is_no_failure_of_a_worker():
    """Of worker 0, and then of worker 1, which has heard of it; worker 2 gets none."""
    processes, addresses = start_three('interrupt')
    assert ends(processes, spawn.PATIENCE) == [
        (130, ''), (130, '-c: interrupted'),
        (130, f'-c: worker 0 ({addresses[0]}) was interrupted')]


@pytest.mark.slow
def test_who_takes_long_is_not_lost():
    """3 seconds for a step, where 2 of silence would be too many."""
    processes, _ = start_three('long')
    assert ends(processes, spawn.PATIENCE) == [(0, '')] * 3


@pytest.mark.slow
def test_a_job_that_stood_still_as_a_whole_goes_on():
    processes, _ = start_three('long')
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(4.0)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    assert ends(processes, spawn.PATIENCE) == [(0, '')] * 3


MPI_PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
from program import startup; from workers import cluster, rendezvous
def main():
    me = cluster.resolve()
    odd = me.rank % 2 if sys.argv[1:] == ['--step_timeout=9'] else 0
    with rendezvous.join(me, {'odd': odd}) as w:
        w.agree('end')
        w.leave()
    print(f'{me.rank} of {me.size}, {me.local_rank} here: {len(set(w.addresses))} addresses')
startup.run(main, [startup, cluster])
'''


def mpirun(*arguments, options=()):
    """Runs the program by the real Open MPI, where there is one."""
    return subprocess.run(
        [*spawn.mpirun(3), *options, sys.executable, '-c', MPI_PROGRAM,
         spawn.ROOT, *arguments], capture_output=True, text=True, timeout=spawn.PATIENCE,
        env=spawn.environment())


@pytest.mark.slow
@pytest.mark.parametrize('hostfile', [False, True])
def test_workers_of_mpirun_meet(tmp_path, hostfile):
    path = tmp_path / 'hosts'
    path.write_text('localhost slots=3\n')
    done = mpirun(*[f'--hostfile={path}'] * hostfile, options=['--hostfile', path] * hostfile)
    assert done.returncode == 0, done.stderr
    found = [re.fullmatch(r'(\d) of 3, (\d) here: 3 addresses', line).groups()
             for line in done.stdout.splitlines()]
    for numbers in zip(*found):  # Ranks on the machine need not be in the order of ranks.
        assert sorted(numbers) == ['0', '1', '2']


@pytest.mark.slow
def test_a_wrong_start_by_mpirun_is_one_line():
    done = mpirun('--step_timeout=9')
    assert done.returncode == 1
    lines_ = {line for line in done.stderr.splitlines() if line.startswith('-c: ')}
    assert len(lines_) == 1
    assert lines_.pop().endswith('differs from worker 0: odd is 1, not 0')
