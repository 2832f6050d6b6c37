import json
import subprocess

import networks
import numpy as np
import pytest
import spawn
import tensorflow.compat.v1 as tf
from placement import inputs_of

import link
import cifar10
from cifar10_lib.program import cores
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import collectives, team


def pairs(*shapes, dtypes=None):
    """(gradient, variable) pairs of zeros, named v0, v1 ..."""
    dtypes = dtypes or [tf.float32] * len(shapes)
    return [(tf.zeros(shape, dtype), tf.get_variable(f'v{k}', shape, dtype))
            for k, (shape, dtype) in enumerate(zip(shapes, dtypes))]


def names(buckets):
    return [[variable.op.name for _, variable in bucket] for bucket in buckets]


MB = 2**18  # float32 elements.


@pytest.mark.parametrize('megabytes, bucket_mb, expected', [
    ([3, 2, 6, 1], 5, [['v0', 'v1'], ['v2'], ['v3']]),
    ([3, 2, 6, 1], 12, [['v0', 'v1', 'v2', 'v3']]),
    ([3, 2, 6, 1], 0, [['v0'], ['v1'], ['v2'], ['v3']]),
    ([6, 1, 1, 1, 1], 2, [['v0'], ['v1', 'v2'], ['v3', 'v4']]),
    ([], 4, [])])
def test_buckets(megabytes, bucket_mb, expected):
    assert names(collectives.buckets(pairs(*[[size * MB] for size in megabytes]),
                                     bucket_mb)) == expected


def test_a_bucket_ends_at_a_layer():
    """Only a layer that is larger than a bucket is divided."""
    gradients = []
    for scope, sizes in [('a', [2, 1]), ('b', [1, 2]), ('c', [4, 2, 1]), ('d', [1])]:
        with tf.variable_scope(scope):
            gradients += pairs(*[[size * MB] for size in sizes])
    assert names(collectives.buckets(gradients, 5)) == [
        ['a/v0', 'a/v1'], ['b/v0', 'b/v1'], ['c/v0'], ['c/v1', 'c/v2', 'd/v0']]


def test_the_bucket_of_local3_does_not_wait_for_conv2():
    """The tutorial's layers from the top to local3 have 3.8 MB; conv2's bias has 256 bytes."""
    logits = cifar10.inference(tf.zeros([1, 24, 24, 3]))
    gradients = cifar10.compute_gradients(cifar10.loss(logits, tf.zeros([1], tf.int32)))
    collectives.all_reduce_mean(gradients, Worker(0, 2))
    top, bottom = reductions(tf.get_default_graph())
    assert top.inputs[0].shape.num_elements() == 1068298 - 4864 - 102464  # conv1's and conv2's.
    conv2 = {gradient.op.name for gradient, variable in gradients
             if variable.op.name.startswith('conv2')}
    assert len(conv2) == 2
    assert not conv2 & inputs_of(top)
    assert conv2 <= inputs_of(bottom)


def test_a_bucket_has_one_type_whose_bytes_count():
    gradients = pairs([MB], [2 * MB], [MB], dtypes=[tf.float32, tf.float16, tf.float16])
    assert names(collectives.buckets(gradients, 2)) == [['v0'], ['v1', 'v2']]


def graph_of(worker, **options):
    graph = tf.Graph()
    with graph.as_default():
        collectives.all_reduce_mean(pairs([13], [2 * MB], [7]), worker, 1.0, **options)
    return graph


def reductions(graph):
    return [op for op in graph.get_operations() if op.type == 'CollectiveReduceV2']


def test_the_last_layer_goes_first_and_depends_on_nothing_else():
    first, second, third = reductions(graph_of(Worker(0, 2)))
    assert [op.inputs[0].shape.as_list() for op in (first, second, third)] == [[7], [2 * MB], [13]]
    assert 'zeros_2' in inputs_of(first)
    assert not {'zeros', 'zeros_1'} & inputs_of(first)
    assert not {'zeros', 'zeros_2', first.name} & inputs_of(second)


def test_without_overlap_each_bucket_waits_for_all_gradients():
    for op in reductions(graph_of(Worker(0, 2), overlap=False)):
        assert {'zeros', 'zeros_1', 'zeros_2'} <= inputs_of(op)


def test_on_gpus_buckets_go_one_after_another():
    first, second, third = reductions(graph_of(Worker(0, 2), on_gpu=True))
    assert first.name in inputs_of(second)
    assert second.name in inputs_of(third)
    assert first.device == '/device:GPU:0'
    assert first.get_attr('communication_hint') == b'nccl'


def test_settings():
    config = tf.ConfigProto()
    team.configure(config, Worker(1, 2, 5), gpus=4)
    assert config.gpu_options.visible_device_list == '1'
    assert config.experimental.collective_nccl
    assert list(config.device_filters) == ['/job:worker/task:1']
    config = tf.ConfigProto()
    team.configure(config, Worker(0, 2), gpus=1)
    assert config.gpu_options.visible_device_list == ''


@pytest.mark.parametrize('visible, by_quota, threads',
                         [(1, 0, 2), (8, 1, 2), (8, 0, 0), (8, 4, 4)])
def test_a_single_core_gets_a_second_thread(monkeypatch, visible, by_quota, threads):
    monkeypatch.setattr(cores, 'visible', lambda: visible)
    config = tf.ConfigProto(inter_op_parallelism_threads=by_quota)
    team.configure(config, Worker(0, 2))
    assert config.inter_op_parallelism_threads == threads


PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
from cifar10_lib.program import devices, startup
import json, os, time
import numpy as np
import tensorflow.compat.v1 as tf
from cifar10_lib.training.worker import Worker
from cifar10_lib.workers import cluster, collectives, launch, team as team_

rank, hosts, what = int(sys.argv[1]), tuple(sys.argv[2].split(',')), sys.argv[3]
size = len(hosts)
del sys.argv[1:4]
worker = Worker(rank, size, rank)

def means():
    """Gradients in several buckets, integers, and a variable that the loss does not depend on."""
    FLAGS = tf.app.flags.FLAGS
    shapes = [[13], [7, 3], [99], [1, 2]]
    graph = tf.Graph()
    with graph.as_default():
        gradients = [(tf.fill(shape, (rank + 1.0) * (k + 1)), tf.get_variable(f'v{k}', shape))
                     for k, shape in enumerate(shapes)]
        gradients.insert(2, (None, tf.get_variable('unused', [5])))
        reduced = collectives.all_reduce_mean(gradients, worker, FLAGS.bucket_mb, FLAGS.overlap)
        losses = collectives.mean_losses(
            {'b': tf.constant(10 * rank), 'a': tf.constant(0.5 * rank)}, worker)
    yield graph, ([mean for mean, _ in reduced], losses), 3

def many():
    """Sixty buckets that are complete in a different order on each worker; worker 0 runs more."""
    count = 60
    graph = tf.Graph()
    with graph.as_default():
        def late(k):
            time.sleep(0.002 * (k if rank == 0 else count - k))
            return np.full([3], k + rank, np.float32)
        gradients = []
        for k in range(count):
            gradient = tf.numpy_function(late, [k], tf.float32)
            gradient.set_shape([3])
            gradients.append((gradient, tf.get_variable(f'v{k}', [3])))
        reduced = [mean for mean, _ in collectives.all_reduce_mean(gradients, worker, 0.0)]
        more = [tf.constant(1.0)] if rank == 0 else []
    yield graph, (tf.stack(reduced)[:, 0], more), 3

def values():
    """Two types; a negative zero, and an integer that float32 cannot represent."""
    graph = tf.Graph()
    with graph.as_default():
        start = [-0.0, np.inf, 1e-40] if rank == 0 else [5.0, 6.0, 7.0]
        variables = [
            tf.get_variable('a', initializer=np.array(start, np.float32), use_resource=True),
            tf.get_variable('b', initializer=np.full([2, 2], rank + 1.0, np.float32)),
            tf.get_variable('c', initializer=np.int64(2**53 + 1 + rank), use_resource=True)]
        with tf.control_dependencies([collectives.broadcast(variables, worker)]):
            read = [tf.bitcast(variables[0].read_value(), tf.int32), variables[1].read_value(),
                    variables[2].read_value()]
    yield graph, read, 2

def endless():
    graph = tf.Graph()
    with graph.as_default():
        step = tf.train.get_or_create_global_step()
        gradients = [(tf.ones([1000]), tf.get_variable(f'v{k}', [1000])) for k in range(9)]
        reduced = collectives.all_reduce_mean(gradients, worker, 0.0)
        yield graph, [mean[0] for mean, _ in reduced], 10**9

def run(team, target, config, graph, fetches, times):
    with tf.Session(target, graph=graph, config=config) as session:
        with graph.as_default():
            session.run(tf.global_variables_initializer())
        for _ in range(times):
            # The first step has no limit: on a busy machine, it may take long.
            found = session.run(fetches, options=team.options() if _ else None)
            if what == 'endless' and _ == 20:
                print('running', flush=True)
            if what == 'slow' and _ == 2 and rank == 1:
                time.sleep(100)
        return found

def main(_):
    me = cluster.Cluster(worker, os.environ.get('MEETING', hosts[0]), hosts,
                         timeouts=cluster.Timeouts(step=tf.app.flags.FLAGS.step_timeout))
    with team_.joined(me, {}) as team:
        config = devices.session_config()
        team_.configure(config, worker)
        target = team.serve(config)
        team.await_servers()
        programs = dict(means=means, many=many, values=values, endless=endless,
                        slow=endless)
        for item in programs[what]():
            found = run(team, target, config, *item)
            print(json.dumps(found, default=lambda x: x.tolist()), flush=True)
        team.end()
startup.run(lambda: launch.run(main))
'''


def start(size, what, *arguments, **environment):
    hosts = ','.join(f'127.0.0.1:{networks.free_port()}' for _ in range(size))
    return [start_one(rank, hosts, what, *arguments, **environment) for rank in range(size)]


def start_one(rank, hosts, what, *arguments, network=None, **environment):
    arguments = ['-c', PROGRAM, spawn.ROOT, str(rank), hosts, what, *arguments]
    if network:
        arguments = networks.inside(network, arguments)
    return spawn.start(arguments, env={**spawn.environment(), **environment})


def results(processes):
    """The objects that each process printed; all must succeed."""
    ended = spawn.all_ended(processes)
    assert [(code, error) for code, _, error in ended] == [(0, '')] * len(processes)
    return [[json.loads(line) for line in out.splitlines()] for _, out, _ in ended]


@pytest.mark.slow
@pytest.mark.parametrize('size, bucket_mb, overlap', [
    (2, 4, 'true'), (3, 0.0001, 'true'), (3, 0, 'true'), (2, 0.0001, 'false')])
def test_means_by_hand(size, bucket_mb, overlap):
    """Worker r has (r + 1)(k + 1) for the k-th variable: the mean of r + 1 is (n + 1) / 2."""
    arguments = [f'--bucket_mb={bucket_mb}', f'--overlap={overlap}']
    for (gradients, losses), in results(start(size, 'means', *arguments)):
        for k, (gradient, shape) in enumerate(zip(gradients, [[13], [7, 3], [99], [1, 2]])):
            np.testing.assert_array_equal(gradient, np.full(shape, (k + 1) * (size + 1) / 2))
        assert losses == {'a': 0.5 * (size - 1) / 2, 'b': 10 * (size - 1) / 2}


@pytest.mark.slow
def test_sixty_buckets_in_a_different_order_on_each_worker():
    for (found, _), in results(start(3, 'many')):
        np.testing.assert_array_equal(found, np.arange(60) + 1.0)  # k + the mean of 0, 1, 2.


@pytest.mark.slow
def test_broadcast_is_exact():
    """Even if the environment names an Internet proxy."""
    bits = np.array([-0.0, np.inf, 1e-40], np.float32).view(np.int32).tolist()
    proxy = 'http://127.0.0.1:9'
    for found in results(start(3, 'values', http_proxy=proxy, https_proxy=proxy)):
        assert found == [[bits, [[1.0, 1.0], [1.0, 1.0]], 2**53 + 1]]


@pytest.mark.slow
def test_a_live_worker_that_runs_no_step():
    first, second = start(2, 'slow', '--step_timeout=4')
    _, error = spawn.ended(first, 1)
    assert 'a step took longer than --step_timeout=4' in error
    assert error.count('\n') == 1
    _, error = spawn.ended(second, 1)
    assert error.startswith('-c: worker 0 (127.0.0.1:')
    assert 'failed: a step took longer' in error


def block(name, port):
    """Drops TCP packets from a network namespace to a port: its network card does not exist."""
    for command in (f'rule add ipproto tcp dport {port} table 9',
                    f'neigh replace 10.99.0.99 lladdr 02:00:00:00:00:99 dev {link.DEVICE}',
                    f'route add default via 10.99.0.99 dev {link.DEVICE} table 9'):
        subprocess.run(['ip', '-n', name, *command.split()], check=True)


@pytest.mark.slow
@networks.with_networks
@pytest.mark.parametrize('blocked', [0, 1])
def test_a_firewall_in_front_of_a_server_is_reported_with_its_address(blocked):
    """The worker `blocked` cannot reach the other's server; they can meet at another port."""
    other = 1 - blocked
    with link.networks() as (names, addresses):
        hosts = [f'{address}:222{rank}' for rank, address in enumerate(addresses)]
        block(names[blocked], 2220 + other)
        processes = [start_one(
            rank, ','.join(hosts), 'means', '--step_timeout=40', MEETING=f'{addresses[0]}:2229',
            network=name) for rank, name in enumerate(names)]
        codes, _, errors = zip(*spawn.all_ended(processes))
    line = (f'cannot connect to worker {other} ({hosts[other]}): timed out; does a firewall block '
            'it?\n')
    assert errors[blocked] == f'-c: {line}'
    assert errors[other] == f'-c: worker {blocked} ({hosts[blocked]}) failed: {line}'
    assert codes == (75, 75)


@pytest.mark.slow
@networks.with_networks
def test_a_link_that_breaks_during_a_step_is_not_taken_for_slowness():
    """Worker 2 can still send heartbeats to worker 0, but nobody can send to worker 2's server."""
    with link.networks() as (names, addresses):
        hosts = [f'{addresses[0]}:2220', f'{addresses[0]}:2221', f'{addresses[1]}:2222']
        processes = [start_one(
            rank, ','.join(hosts), 'endless', '--step_timeout=10', network=names[rank // 2],
            MEETING=f'{addresses[0]}:2229') for rank in range(3)]
        assert [process.stdout.readline() for process in processes] == ['running\n'] * 3
        block(names[0], 2222)
        ended = spawn.all_ended(processes)
    for code, _, error in ended:
        assert f'cannot connect to worker 2 ({hosts[2]}): timed out; does a firewall' in error
        assert code == 75
