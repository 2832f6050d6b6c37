import contextlib
import json
import re
import signal
import subprocess
import time

import networks
import numpy as np
import pytest
import spawn
import tensorflow.compat.v1 as tf
from placement import inputs_of

from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import collectives


def test_on_gpus_buckets_go_one_after_another():
    """Otherwise, two workers whose GPUs take them in different orders would wait forever."""
    gradients = [(tf.zeros([size]), tf.get_variable(name, [size]))
                 for name, size in (('a', 13), ('b', 2**19), ('c', 7))]
    collectives.all_reduce_mean(gradients, Worker(0, 2), 1 << 20, on_gpu=True)
    first, second, third = (op for op in tf.get_default_graph().get_operations()
                            if op.type == 'CollectiveReduceV2')
    assert first.name in inputs_of(second)
    assert second.name in inputs_of(third)
    assert first.device == '/device:GPU:0'
    assert first.get_attr('communication_hint') == b'nccl'


# What TensorFlow 2.21 raised once after a job was suspended: seldom, and of another class than
# errors of the network.
ABORTED = 'Collective ops is aborted by: Delete called on non-empty BufRendezvous'

PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
from cifar10_lib.program import quiet
quiet.import_tensorflow()
import contextlib, json, os, socket, time
import numpy as np
import tensorflow.compat.v1 as tf
from cifar10_lib.program import devices, startup
from cifar10_lib.workers import cluster, collectives, connected, launch
tf.disable_v2_behavior()
tf.enable_resource_variables()
what, bucket_bytes = sys.argv.pop(1), int(sys.argv.pop(1))
workers = cluster.Cluster(**json.loads(sys.argv.pop(1)))

def means(me):
    """Gradients in several buckets, integers, and a variable that the loss does not depend on."""
    shapes = [[13], [7, 3], [99], [1, 2]]
    gradients = [(tf.fill(shape, (me.rank + 1.0) * (k + 1)), tf.get_variable(f'v{k}', shape))
                 for k, shape in enumerate(shapes)]
    gradients.insert(2, (None, tf.get_variable('unused', [5])))
    reduced = collectives.all_reduce_mean(gradients, me, bucket_bytes)
    losses = me.mean_losses({'b': tf.constant(10 * me.rank), 'a': tf.constant(0.5 * me.rank)})
    return [mean for mean, _ in reduced], losses

def values(me):
    """Two types; a negative zero, and an integer that float32 cannot represent."""
    start = [-0.0, np.inf, 1e-40] if me.rank == 0 else [5.0, 6.0, 7.0]
    variables = [
        tf.get_variable('a', initializer=np.array(start, np.float32), use_resource=True),
        tf.get_variable('b', initializer=np.full([2, 2], me.rank + 1.0, np.float32)),
        tf.get_variable('c', initializer=np.int64(2**53 + 1 + me.rank), use_resource=True)]
    return [tf.bitcast(variables[0].read_value(), tf.int32), variables[1].read_value(),
            variables[2].read_value()]

def cut():
    """Breaks all connections of this process but the one to where the workers have met."""
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):  # Most are not connected sockets.
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.getpeername()[1] != int(workers.address.split(':')[1]):
                    found.shutdown(socket.SHUT_RDWR)

def work(workers):
    devices.choose('cpu')
    with connected.joined(workers, dict) as me:
        tf.add_to_collection('errors', tf.constant(0.5))
        fetches = values(me) if what == 'values' else means(me)
        with me.session(tf.train.Scaffold(), []) as session:
            me.start(session)
            me._peers.patience = 2.0  # After a step fails. No test here loses a worker.
            for step in range(3 if what in ('means', 'values') else 1000):
                if what == f'slow {step - 1}' or what == 'suspended' and step == 3:
                    me.step_seconds = 5.0  # Those before may take longer on a busy machine.
                # The first step has no limit.
                options = me.step().options if step and what not in ('means', 'values') else None
                found = session.run(fetches, options=options)
                if me.rank == 1 and what == f'slow {step}':
                    time.sleep(100)
                if me.rank == 1 and step >= 2 and what == 'cut':
                    time.sleep(1)  # Worker 0 asks for data in the meantime.
                    cut()
                if me.rank == 1 and step == 2 and what == 'aborted':
                    raise tf.errors.InternalError(None, None, {aborted!r})
                print(step, flush=True)
                if me.rank == 1 and what == 'suspended':
                    for _ in range(10):  # In parts: a suspension costs only one.
                        time.sleep(0.1)
        print(json.dumps(found, default=lambda x: x.tolist()), flush=True)
        me.end()
startup.run(lambda: launch.run(work, workers))
'''.replace('{aborted!r}', repr(ABORTED))


def start(hosts, what, bucket_bytes=0, networks_=None, environment=None, **options):
    """Starts a worker at each of these addresses; `options` are fields of its `Cluster`."""
    for rank, _ in enumerate(hosts):
        workers = {'rank': rank, 'size': len(hosts), 'address': hosts[0], 'hosts': hosts, **options}
        words = ['-c', PROGRAM, spawn.ROOT, what, str(bucket_bytes), json.dumps(workers)]
        yield networks.start(networks_[rank], words) if networks_ else spawn.start(
            words, env={**spawn.environment(), **(environment or {})})


def results(size, what, **options):
    """The object that each worker printed; all must succeed."""
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(size)]
    ended = spawn.all_ended(list(start(hosts, what, **options)))
    assert [(code, error) for code, _, error in ended] == [(0, '')] * size
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]


@pytest.mark.parametrize('size', [2, 3])
def test_means_by_hand(size):
    """Worker r has (r + 1)(k + 1) for the k-th variable: the mean of r + 1 is (n + 1) / 2."""
    for gradients, losses in results(size, 'means', bucket_bytes=100):
        for k, (gradient, shape) in enumerate(zip(gradients, [[13], [7, 3], [99], [1, 2]])):
            np.testing.assert_array_equal(gradient, np.full(shape, (k + 1) * (size + 1) / 2))
        assert losses == {'a': 0.5 * (size - 1) / 2, 'b': 10 * (size - 1) / 2}


def test_the_values_of_worker_0_at_the_start_are_exact():
    """Even if the environment names an Internet proxy."""
    bits = np.array([-0.0, np.inf, 1e-40], np.float32).view(np.int32).tolist()
    proxy = 'http://127.0.0.1:9'
    for found in results(
            3, 'values', environment={'http_proxy': proxy, 'https_proxy': proxy}):
        assert found == [bits, [[1.0, 1.0], [1.0, 1.0]], 2**53 + 1]


@pytest.mark.parametrize('step, code', [(0, 1), (1, 75)])
def test_a_live_worker_that_runs_no_step(step, code):
    """Steps are counted from the first one with a limit, 1."""
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
    first, second = start(hosts, f'slow {step}', step_timeout=30.0)
    _, error = spawn.ended(first, code)
    line = error.removeprefix('-c: ')
    assert re.fullmatch(
        r'a step failed although all workers send heartbeats \(.*\): if the job was not suspended, '
        'check the network between the workers; if steps take longer than --step_timeout=30 '
        'seconds, raise it\n', line)
    _, error = spawn.ended(second, code)
    assert error == f'-c: worker 0 ({hosts[0]}) failed: {line}'


def test_a_job_that_was_suspended_for_longer_than_a_step_may_take_can_be_started_again():
    """Again and again, until that happens during a step of worker 0, as it nearly always does."""
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
    processes = list(start(hosts, 'suspended', step_timeout=30.0))
    for process in processes:
        assert [process.stdout.readline() for _ in range(3)] == ['0\n', '1\n', '2\n']
    while processes[0].poll() is None:
        time.sleep(0.5)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[0].wait(10)
    for code, _, error in spawn.all_ended(processes):
        assert code == 75, error
        assert 'a step failed although all workers send heartbeats (' in error
        assert error.count('\n') == 1


def test_a_step_that_the_collectives_aborted():
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
    for code, _, error in spawn.all_ended(list(start(hosts, 'aborted', step_timeout=30.0))):
        assert code == 75, error
        assert f'a step failed although all workers send heartbeats ({ABORTED})' in error
        assert error.count('\n') == 1


def test_a_connection_that_breaks_between_live_workers():
    address = f'127.0.0.1:{networks.free_port()}'
    processes = list(start(['', ''], 'cut', address=address, step_timeout=30.0))
    for code, out, error in spawn.all_ended(processes):
        assert code == 75, (out, error)
        assert 'a step failed although all workers send heartbeats (' in error
        assert error.count('\n') == 1, error


@networks.with_networks
def test_a_firewall_in_front_of_a_server_is_reported_with_its_address():
    """Worker 0 cannot reach worker 1's server: its packets go to a card that does not exist."""
    with networks.linked() as (names, addresses):
        hosts = [f'{address}:222{rank}' for rank, address in enumerate(addresses)]
        for command in ('rule add ipproto tcp dport 2221 table 9',
                        f'neigh replace 10.99.0.99 lladdr 02:00:00:00:00:99 dev {networks.DEVICE}',
                        f'route add default via 10.99.0.99 dev {networks.DEVICE} table 9'):
            networks.ip('-n', names[0], command)
        processes = list(start(hosts, 'means', networks_=names, step_timeout=40.0))
        codes, _, errors = zip(*spawn.all_ended(processes))
    line = f'cannot connect to worker 1 ({hosts[1]}): timed out; does a firewall block it?\n'
    assert errors == (f'-c: {line}', f'-c: worker 0 ({hosts[0]}) failed: {line}')
    assert codes == (75, 75)
