"""What averaging over workers costs here, and from that, on paper, what many machines give.

    python -m benchmarks.scaling --num_workers=2
    python -m benchmarks.scaling --num_workers=2 --chunk_kb=4

The first table is measured, between workers on this machine. The second is reasoning, no
measurement: a step takes its forward pass, and then the longer one of the backward pass and the
averaging under it. A ring of n workers makes 2 (n - 1) passes; each takes the latency of a small
message, as measured, and moves an n-th of the gradients, as fast as the runtime does here, or as
fast as a link can.
"""
from program import startup  # First: it imports TensorFlow quietly.

import statistics
import time

import tensorflow.compat.v1 as tf
from absl import flags

from benchmarks import children
from workers import cluster
from workers import collectives
from workers import launch
from workers import rendezvous

flags.DEFINE_list('step_ms', ['48', '111'], 'Milliseconds of a step of one worker: of the '
                  "tutorial's net with batches of 128, of ResNet-23 with batches of 64.")

flags.DEFINE_integer('chunk_kb', None, 'Kilobytes of the pieces in which gRPC copies, in place of '
                     "the trainers'.", lower_bound=1)

FLAGS = flags.FLAGS

_BYTES = (4, 4 * 2**10, 4 * 2**16, 4 * 2**20, 16 * 2**20)
_REPEATS = 50
_NETS = (('tutorial', 4 * 1068298), ('ResNet-23', 4 * 97482))  # Bytes of the gradients.
_FORWARD_SHARE = 1 / 3  # Of a step: the backward pass has two products for each of the forward's.
_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LINKS = {'10 Gbit/s': 10e9 / 8, '100 Gbit/s': 100e9 / 8}  # Bytes a second, if it is filled.


def main(me):
    with rendezvous.join(me, {}) as peers, collectives.failures_of(peers):
        seconds, busy = _measure(collectives.Group(me.rank, me.size), peers)
    if me.rank == 0:
        print(children.heading())
        _print_measured(me.size, seconds, busy)
        _print_reasoning(*_latency_and_bandwidth(me.size, seconds))


def _measure(group, peers):
    """Median seconds of averaging so many bytes, and this process's processor time: two
    dictionaries from bytes."""
    config = startup.session_config()
    collectives.configure(config, group)
    if FLAGS.chunk_kb:
        config.experimental.recv_buf_max_chunk = FLAGS.chunk_kb << 10
    gradients = [(tf.ones([size // 4]), tf.get_variable(f'v{size}', [1])) for size in _BYTES]
    means = collectives.all_reduce_mean(gradients, group, bucket_mb=0)
    server = collectives.serve(peers, config)
    peers.agree('the start')
    seconds, busy = {}, {}
    with tf.Session(server.target, config=config) as session:
        for size, (mean, _) in zip(_BYTES, means):
            _time(session, mean.op)  # The first one sets everything up.
            started = time.process_time()
            seconds[size] = statistics.median(_time(session, mean.op) for _ in range(_REPEATS))
            busy[size] = (time.process_time() - started) / _REPEATS
        peers.agree('the end')
    peers.leave()
    return seconds, busy


def _time(session, operation):
    start = time.perf_counter()
    session.run(operation)
    return time.perf_counter() - start


def _print_measured(size, seconds, busy):
    print(f'\n| bytes | ms, {size} workers here, median of {_REPEATS} | ms of processor time of '
          'worker 0, mean |\n| --- | --- | --- |')
    for count, taken in seconds.items():
        print(f'| {count} | {1000 * taken:.2f} | {1000 * busy[count]:.2f} |')


def _latency_and_bandwidth(size, seconds):
    """Seconds of a pass with next to nothing, and bytes a second of the passes of large ones."""
    passes = 2 * (size - 1)
    *_, middle, large = _BYTES
    return (min(seconds.values()) / passes,
            (large - middle) / size * passes / (seconds[large] - seconds[middle]))


def _print_reasoning(latency, bandwidth):
    """Table of step times for so many seconds a pass, and bytes a second of this runtime."""
    links = {f'{8e-9 * bandwidth:.1f} Gbit/s, as here': bandwidth, **_LINKS}
    print(f'\nOn paper, with {1e6 * latency:.0f} microseconds a pass:\n\n| workers |'
          + ''.join(f' {net}, {link}: ms a step, times one worker |'
                    for net, _ in _NETS for link in links))
    print('| --- |' + len(_NETS) * len(links) * ' --- |')
    for count in _WORKERS:
        row = []
        for milliseconds, (_, size) in zip(map(float, FLAGS.step_ms), _NETS):
            for rate in links.values():
                step = 1000 * _step(milliseconds / 1000, size, count, latency, rate)
                row.append(f' {step:.0f}, {count * milliseconds / step:.0f} x |')
        print(f'| {count} |' + ''.join(row))


def _step(alone, size, count, latency, bandwidth):
    """Seconds of a step with so many workers, from that of one alone."""
    averaging = 2 * (count - 1) * (latency + size / count / bandwidth)
    forward = _FORWARD_SHARE * alone
    return forward + max(alone - forward, averaging)


if __name__ == '__main__':
    startup.run(lambda: launch.run(main), [startup, cluster, collectives])
