"""Measures how long workers on this machine take to average gradients, by size.

    python -m benchmarks.scaling --num_workers=2
    python -m benchmarks.scaling --num_workers=2 --chunk_kb=4
    python -m benchmarks.scaling --num_workers=2 --compress=bf16
"""
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import statistics
import time

import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

from benchmarks import children
from cifar10_lib.program import devices
from cifar10_lib.workers import cluster
from cifar10_lib.workers import collectives
from cifar10_lib.workers import launch
from cifar10_lib.workers import meeting

flags.DEFINE_integer('chunk_kb', None, 'Kilobytes that gRPC copies at a time; by default the '
                     "trainers' setting.", lower_bound=1)

FLAGS = flags.FLAGS

_BYTES = (4, 4 * 2**10, 4 * 2**16, 4 * 2**20, 16 * 2**20)
_REPEATS = 50


def main(cluster_):
    worker = cluster_.worker
    if worker.size == 1:
        raise app.UsageError('there is one worker; expected at least two: pass --num_workers=2')
    with meeting.join(cluster_, {}) as peers, collectives.failures_of(peers):
        rows = _measure(worker, peers)
    if worker.leads:
        print(children.heading())
        print(f'\n| bytes | ms, {worker.size} workers here, median of {_REPEATS} | '
              'ms of processor time of worker 0, mean |\n| --- | --- | --- |')
        for size, seconds, busy in rows:
            print(f'| {size} | {1000 * seconds:.2f} | {1000 * busy:.2f} |')


def _measure(worker, peers):
    """For each size: (bytes, median seconds, mean seconds of this process's processor time)."""
    config = devices.session_config()
    collectives.configure(config, worker)
    if FLAGS.chunk_kb:
        config.experimental.recv_buf_max_chunk = FLAGS.chunk_kb << 10
    gradients = [(tf.ones([size // 4]), tf.get_variable(f'v{size}', [1])) for size in _BYTES]
    means = collectives.all_reduce_mean(gradients, worker, bucket_mb=0, compress=FLAGS.compress)
    server = collectives.serve(peers, config)
    peers.barrier('the start')
    rows = []
    with tf.Session(server.target, config=config) as session:
        for size, (mean, _) in zip(_BYTES, means):
            _seconds(session, mean.op)  # The first run sets everything up.
            started = time.process_time()
            seconds = statistics.median(_seconds(session, mean.op) for _ in range(_REPEATS))
            rows.append((size, seconds, (time.process_time() - started) / _REPEATS))
        peers.barrier('the end')
    peers.leave()
    return rows


def _seconds(session, operation):
    start = time.perf_counter()
    session.run(operation)
    return time.perf_counter() - start


if __name__ == '__main__':
    startup.run(lambda: launch.run(main), [devices, cluster, collectives])
