import contextlib
import dataclasses
import re
import signal
import socket
import struct
import time
from concurrent import futures

import networks
import pytest
import spawn
from absl import app

from cifar10_lib.workers import cluster, meeting, ports


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
    """A `Cluster` for each rank, with these values of its fields."""
    common = {'address': f'127.0.0.1:{networks.free_port()}', 'hosts': ('',) * size, 'job': 'j',
              'start_timeout': spawn.PATIENCE, **changes}
    return [cluster.Cluster(rank, size, **common) for rank in range(size)]


def meet(clusters):
    """Makes workers meet; returns their `Meeting`s, or the exceptions that they raised."""
    return together(*[lambda me=me: meeting.join(me) for me in clusters])


def line(errors, kind):
    """The one line with which all workers ended."""
    assert [type(error) for error in errors] == [kind] * len(errors), errors
    text, = {str(error) for error in errors}
    return text


def leave(met):
    together(*[worker.leave for worker in met])


def test_all_learn_the_addresses_and_agree():
    met = meet(workers(3))
    assert met[0].hosts == met[1].hosts == met[2].hosts
    assert len(set(met[0].hosts)) == 3
    assert all(address.startswith('127.0.0.1:') for address in met[0].hosts)
    found = together(*[lambda w=w, k=k: w.barrier('one', {'x': 1}, 10 * k + 7)
                       for k, w in enumerate(met)])
    assert found == [7] * 3  # Worker 0's value.
    passed = []

    def last():
        return met[0].wait_for_loss(0.2), list(passed), met[1].barrier('two')
    found = together(last, lambda: passed.append(met[0].barrier('two', value=5)),
                     lambda: passed.append(met[2].barrier('two')))
    assert found == [(False, [], 5), None, None]  # The others waited for worker 1.
    assert passed == [5, 5]
    assert together(*[w.leave for w in met]) == [None] * 3
    assert [w.wait_for_loss(0) for w in met] == [False] * 3


def test_workers_on_worker_0s_machine_give_the_name_by_which_others_reach_it():
    """Not 127.0.0.1, from which they come."""
    met = meet(workers(2, address=f'localhost:{networks.free_port()}'))
    assert [address.split(':')[0] for address in met[1].hosts] == 2 * ['localhost']
    leave(met)


def test_two_workers_with_the_same_index():
    first, second, _ = workers(3)
    text = line(meet([first, second, second]), app.UsageError)
    assert re.fullmatch(r'worker 1 \(127\.0\.0\.1:\d+\) does not fit: worker 0 expects one worker '
                        'for each index from 0 to 2', text)


@pytest.mark.parametrize('present, start_timeout, words', [
    (slice(2), 10.0,  # Worker 1 has 8 seconds to join.
     'worker 2 did not connect to worker 0 at 127.0.0.1:PORT in time: check that all workers were '
     'started, or raise --start_timeout'),
    (slice(1, 2), 3.0,
     'worker 1 could not join worker 0 at 127.0.0.1:PORT within --start_timeout=3 seconds: '
     'Connection refused; worker 0 may not have been started, may belong to another job, '
     'or may have started training already')])
def test_a_worker_is_absent_at_the_start(present, start_timeout, words):
    clusters = workers(3, start_timeout=start_timeout)
    text = line(meet(clusters[present]), meeting.Lost)
    assert text == words.replace('127.0.0.1:PORT', clusters[0].address)


def test_a_worker_that_ends_while_it_waits_may_come_again():
    """As if a container was started again."""
    first, second, third = workers(3)
    in_between = dataclasses.replace(second, start_timeout=0.5)

    def follow():
        with pytest.raises(meeting.Lost):
            meeting.join(in_between)
        return together(lambda: meeting.join(second), lambda: meeting.join(third))
    leader, (*others,) = together(lambda: meeting.join(first), follow)
    assert [type(met) for met in [leader, *others]] == [meeting.Meeting] * 3
    leave([leader, *others])


@pytest.mark.parametrize('rank', [0, 1])
def test_a_port_that_is_in_use(rank):
    with ports.reserve() as other:
        other.listen()
        hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
        hosts[rank] = f'127.0.0.1:{other.getsockname()[1]}'
        me = workers(2, address=hosts[0], hosts=tuple(hosts))[rank]
        assert line(meet([me]), app.UsageError) == (
            f'worker {rank} cannot listen at {hosts[rank]}: Address already in use; is another '
            'training run using it?')


def framed(text):
    """A message: its length, 4 bytes, and the text."""
    return struct.pack('!i', len(text)) + text.encode()


def hello(job='j', rank='1', address='"127.0.0.1:1"', more=''):
    """The first message of a worker, of JSON values."""
    return framed(f'{{"job": "cifar10-workers-7 {job}", "rank": {rank}, "address": {address}{more}'
                  '}')


def meet_although(first, follow):
    """Worker 0 meets the worker that `follow` returns after it has done something else."""
    met = together(lambda: meeting.join(first), follow)
    assert [type(one) for one in met] == [meeting.Meeting] * 2, met
    leave(met)


@pytest.mark.parametrize('sent', [
    b'GET / HTTP/1.1\r\n\r\n', b'x' * (2 << 20), struct.pack('!i', 100) + b'{"job": ',
    framed('[]'), framed('{"job": "cifar10-workers-7 j"}'), hello(job='k'), hello(rank='"1"'),
    hello(rank='1.0'), hello(rank='true'), hello(rank='null'), hello(address='null'),
    hello(address='"a"'), hello(more=', "x": "' + 4096 * 'x' + '"')])
def test_anything_else_at_the_port_is_closed_and_does_not_disturb_the_job(sent):
    """Also a message that stops halfway, and another job."""
    first, second = workers(2)

    def stranger():
        with reached(first.address) as socket_:
            with contextlib.suppress(ConnectionError):
                socket_.sendall(sent)
                while socket_.recv(100):
                    pass
        return meeting.join(second)
    meet_although(first, stranger)


def test_silent_connections_do_not_keep_workers_out():
    """One after another, with 5 seconds for each, they would keep them out for 200 seconds."""
    first, second = workers(2, start_timeout=100.0)

    def follow():
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(reached(first.address))
            return meeting.join(second)
    meet_although(first, follow)


def test_a_slow_stranger_does_not_extend_the_time_to_start():
    first, _ = workers(2, start_timeout=4.0)

    def stranger():
        deadline = time.monotonic() + 60
        with reached(first.address) as socket_, contextlib.suppress(ConnectionError):
            socket_.sendall(struct.pack('!i', 4000))
            while time.monotonic() < deadline:
                socket_.sendall(b' ')
                time.sleep(0.5)
            return 'worker 0 still reads'
        return 'closed'
    found, closed = together(lambda: meeting.join(first), stranger)
    assert (type(found), closed) == (meeting.Lost, 'closed')


def reached(address):
    """A connection to a port where a listener will appear soon."""
    deadline = time.monotonic() + spawn.PATIENCE
    while True:
        try:
            return socket.create_connection(ports.split_address(address), spawn.PATIENCE)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost'])
def test_a_meeting_on_this_machine_is_closed_to_other_networks(host):
    """As 127.0.0.2 is: a listener on all interfaces would accept there, too."""
    port = networks.free_port()
    first, second = workers(2, address=f'{host}:{port}')

    def follow():
        reached(f'127.0.0.1:{port}').close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.2', port), 5.0)
        return meeting.join(second)
    leave(together(lambda: meeting.join(first), follow))


def test_a_live_worker_that_does_not_reach_a_stage_is_named():
    met = meet(workers(3, step_timeout=1e6, stage_timeout=5.0))

    def wait_for_both():
        time.sleep(0.5)
        met[0].barrier('the data')
    found = together(wait_for_both, lambda: met[1].barrier('the data'))
    assert line(found, ConnectionError) == (
        f'worker 2 ({met[0].hosts[2]}) is alive, but did not reach the data within '
        '--stage_timeout=5 seconds')


# A loss ends processes, so these are three workers in processes of their own.
PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
import time
from cifar10_lib.workers import cluster, meeting
rank, port, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
own = cluster.Cluster(rank, 3, address='127.0.0.1:' + port, hosts=('',) * 3, step_timeout=10.0,
                      stage_timeout=12.0 if what == 'long' else 300.0)
try:
    with meeting.join(own) as workers:
        print('started', workers.hosts[rank], flush=True)
        workers.barrier('start')  # What ends the others comes after they have printed.
        if what == 'differ':
            workers.barrier('the gradients', {'shapes': rank // 2})
        if what == 'fail' and rank == 1:
            raise OSError('No space left\\non device')
        if what == 'interrupt' and rank == 0:
            raise KeyboardInterrupt
        if what != 'long':
            time.sleep(300)
        for _ in range(9):
            time.sleep(rank == 1)
            workers.barrier('a step')
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


@pytest.mark.parametrize('what, code, words', [
    ('fail', 1, 'worker 1 (ADDRESS1) failed: No space left on device'),
    ('differ', 1, 'worker 2 (ADDRESS2) differs from worker 0: shapes is 1, not 0: start all '
     'workers with the same code, data and flags'),
    ('interrupt', 130, 'worker 0 (ADDRESS0) was interrupted')])
def test_all_report_what_ended_a_worker(what, code, words):
    processes, addresses = start_three(what)
    for rank, address in enumerate(addresses):
        words = words.replace(f'ADDRESS{rank}', address)
    own = {'fail': (1, '-: No space left on device\n'), 'interrupt': (0, '')}.get(what, (None, ''))
    for rank, (found, _, error) in enumerate(spawn.all_ended(processes)):
        assert (found, error) == (code, own[1] if rank == own[0] else f'-c: {words}\n')


def test_a_job_that_was_stopped_as_a_whole_continues():
    """Its steps take a second, and it is stopped for longer than workers may be silent, 5 seconds,
    or wait for one another, 12."""
    processes, _ = start_three('long')
    time.sleep(0.5)  # All are in a step.
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(13.0)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    assert spawn.all_ended(processes) == [(0, 'done\n', '')] * 3
