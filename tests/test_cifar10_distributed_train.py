"""Real workers; what starts processes is marked slow."""
import os
import re
import signal
import time

import numpy as np
import pytest
import records
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_distributed_train
import cifar10_input
from runtime import evaluation

FLAGS = flags.FLAGS
SCRIPT = 'cifar10_distributed_train.py'


@pytest.mark.parametrize('count', [2, 3])
def test_shards_are_disjoint_and_complete(half_bright, count):
    """80 records in five files of 16: worker k has the records k, k + count, ... and no others."""
    everything = np.concatenate([
        np.fromfile(half_bright / f'data_batch_{k}.bin', np.uint8).reshape(-1, 3073)
        for k in range(1, 6)])
    for index in range(count):
        wanted = everything[index::count]
        with tf.Graph().as_default():
            read = cifar10_input._shuffled_records(
                half_bright, len(wanted), cifar10_input.table.CIFAR10, 0.0, (index, count))
            with tf.train.MonitoredSession() as session:
                got = np.concatenate([session.run(read) for _ in range(40)])
        found = {record.tobytes() for record in got}
        assert found == {record.tobytes() for record in wanted}


def test_alone_it_trains_as_one_worker(half_bright):
    with flagsaver.flagsaver(max_steps=30, batch_size=16):
        cifar10_distributed_train.train()
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith('model.ckpt-30')
    assert evaluation.precision(FLAGS.train_dir) == 1.0


# Runs 20 steps on fixed images, rank by rank in slices, and writes what the variables are then.
PROGRAM = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
folder = sys.argv.pop(1)
from runtime import startup
import numpy as np
import tensorflow.compat.v1 as tf
import cifar10, cifar10_distributed_train as script
from nets import table as nets
from runtime import cluster, collectives, meeting, team as team_, training, workers

def steps(me, group, peers):
    random = np.random.RandomState(0)
    images = random.normal(size=[12, 24, 24, 3]).astype(np.float32)
    labels = random.randint(0, 10, 12).astype(np.int32)
    own = slice(me.rank * 12 // me.size, (me.rank + 1) * 12 // me.size)
    tf.set_random_seed(1)
    with tf.device('/cpu:0'):
        tf.train.get_or_create_global_step()
    team = team_.Team(group, peers) if peers else None
    op, loss, _ = script.build(tf.constant(images[own]), tf.constant(labels[own]), group, team)
    if team:
        team.serve(startup.session_config())
    with training.session(loss, 12, team=team) as session:
        while not session.should_stop():
            session.run(op)
            values = session.run_step_fn(lambda step_context: step_context.session.run(
                {v.op.name.replace('/', '|'): v for v in tf.global_variables()}))
    np.savez(f'{folder}/{me.size}-{me.rank}.npz', **values)

def main():
    workers.end_with_parent()
    count = cluster.workers_to_start()
    if count:
        return workers.start(count)
    me = cluster.resolve()
    group = collectives.Group(me.rank, me.size)
    if me.size == 1:
        return steps(me, group, None)
    with meeting.join(me, {}) as peers, collectives.failures_of(peers):
        steps(me, group, peers)
startup.run(main, [startup, cifar10, nets, training, cluster, collectives])
'''


def variables_after_20_steps(tmp_path, size):
    process = records.start([
        '-c', PROGRAM, str(records.ROOT), str(tmp_path), f'--num_workers={size}',
        f'--batch_size={12 // size}', '--max_steps=20', f'--data_dir={FLAGS.data_dir}',
        f'--train_dir={tmp_path}/train-{size}', '--bucket_mb=1'])
    _, error = process.communicate(timeout=90)
    assert process.returncode == 0, error
    return [dict(np.load(tmp_path / f'{size}-{rank}.npz')) for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize('size', [2, 3])
def test_the_updates_are_those_of_one_process_with_all_records(half_bright, tmp_path, size):
    alone, = variables_after_20_steps(tmp_path, 1)
    first, *others = variables_after_20_steps(tmp_path, size)
    assert alone['global_step'] == 20
    for name, value in alone.items():
        np.testing.assert_allclose(first[name], value, atol=1e-5, err_msg=name)
    for other in others:
        for name, value in first.items():
            assert value.tobytes() == other[name].tobytes(), name


def start(*arguments, size=2):
    return records.start_script(
        SCRIPT, f'--num_workers={size}', f'--data_dir={FLAGS.data_dir}', '--batch_size=8',
        f'--train_dir={FLAGS.train_dir}', '--step_timeout=8', *arguments)


def workers_of(process):
    """The workers' process numbers, in the order of their ranks, once steps are made."""
    for line in process.stdout:
        if re.search(r'step \d+0, loss', line) and 'step 0,' not in line:
            break
    with open(f'/proc/{process.pid}/task/{process.pid}/children') as children:
        return [int(pid) for pid in children.read().split()]


@pytest.mark.slow
def test_trains_is_evaluated_and_resumes(half_bright):
    for steps in ('30', '32'):
        process = start(f'--max_steps={steps}')
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert error == ''
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith('model.ckpt-32')
    assert evaluation.precision(FLAGS.train_dir) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize('rank', [0, 1])
def test_a_worker_that_is_lost_ends_all(half_bright, rank, number):
    process = start('--max_steps=100000')
    pids = workers_of(process)
    os.kill(pids[rank], number)
    begun = time.monotonic()
    _, error = process.communicate(timeout=40)
    assert process.returncode not in (0, None)
    assert time.monotonic() - begun < 8 + 12  # --step_timeout, and what `workers` leaves a frozen.
    assert f'worker {rank}' in error and 'was lost' in error, error
    assert not any(os.path.exists(f'/proc/{pid}') for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 1])
def test_sigterm_to_one_worker_lets_worker_0_save(half_bright, rank):
    process = start('--max_steps=100000')
    os.kill(workers_of(process)[rank], signal.SIGTERM)
    out, error = process.communicate(timeout=40)
    assert process.returncode == 143, error
    saved = int(re.search(r'Saved step (\d+) in', out).group(1))
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith(f'model.ckpt-{saved}')
