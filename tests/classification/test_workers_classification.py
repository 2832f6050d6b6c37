"""classification.py under a real mpirun, on small record files."""
import os
import re
import shutil
import signal

from cifar10_lib import checkpoints
from classification_lib import own_images, recipes, run

import copies
import mpi
import numpy as np
import pytest
import record_files
import spawn
from absl import flags

FLAGS = flags.FLAGS
pytestmark = [pytest.mark.slow, mpi.with_mpi]


def test_the_command_of_the_example_trains_validates_and_resumes(half_bright):
    """80 images in steps of 2 x 8, and 130 validated by two workers: 65 each, in batches of 8."""
    shown = []
    for steps in (20, 30, 30):
        with mpi.running(2, *mpi.words('--context', 'cudnn', f'--max_steps={steps}')) as job:
            out, errors = job.ended(0)
        assert errors == []
        shown.append(out)
    first, second, third = shown
    assert f'Saved step 20 in {FLAGS.train_dir}.' in first
    assert f'Resuming from {FLAGS.train_dir} at step 20, until step 30.' in second
    assert f'Saved step 30 in {FLAGS.train_dir}.' in second
    assert 'Nothing to do: ' in third
    error = run.read_metrics(FLAGS.train_dir)[-1]['validation_error']
    assert error * 130 == pytest.approx(round(error * 130))  # Each image once.
    assert error < 0.1
    # The images per step of a run do not change.
    with mpi.running(3, *mpi.words('--max_steps=40'), options=['--oversubscribe']) as job:
        _, errors = job.ended(1)
    assert errors[0].startswith('classification.py: ')
    assert 'workers' in errors[0]
    assert checkpoints.step(checkpoints.newest(FLAGS.train_dir)) == 30


@pytest.mark.parametrize('net, rate, size, options, ends, is_equal', [
    ('tutorial', 0.01, 3, [], (3, 6), True),
    ('tutorial', 0.01, 2, ['--nowith_all_reduce_callback'], (6,), True),
    ('resnet23', 1e-4, 2, ['--sync_bn'], (6,), True),
    ('airbench94', 1e-2, 2, ['--sync_bn'], (6,), True), ('airbench94', 1e-2, 2, [], (6,), False)])
def test_the_variables_are_those_of_one_process_with_all_images(
        half_bright, net, rate, size, options, ends, is_equal):
    """All images in each step, without distortions. The first workers end early and resume. Batch
    norms need --sync_bn. At a low rate: at a usual one, steps multiply the differences of rounding.
    """
    for number, count in enumerate((5, 5, 5, 5, 4), start=1):
        record_files.write(half_bright / f'data_batch_{number}.bin',
                           record_files.noise(count, seed=number))
    change = f'''
import tensorflow.compat.v1 as tf
trained = recipes.TABLE[{net!r}]
recipes.TABLE[{net!r}] = trained._replace(
    distort=trained.prepare, schedule=lambda step, settings: tf.constant(settings.learning_rate),
    optimizer=lambda lr, max_steps: tf.train.GradientDescentOptimizer(lr))
'''

    def arguments(workers, steps):
        return mpi.words('-n', net, '-l', str(rate), '-b', str(24 // workers), '--seed=1',
                         f'--max_steps={steps}', '--validate_every=0', *options,
                         f'--train_dir={FLAGS.train_dir}-{workers}', change=change)

    assert spawn.fork(arguments(1, 6)).returncode == 0
    for steps in ends:
        with mpi.running(size, *arguments(size, steps)) as job:
            job.ended(0)
    one, several = (checkpoints.newest(f'{FLAGS.train_dir}-{workers}').values
                    for workers in (1, size))
    assert set(one) == set(several)
    # Biases that were 0 have moved by less than the rounding of the sums that move them.
    largest = max(np.linalg.norm(several[name] - value) / np.linalg.norm(value)
                  for name, value in one.items() if np.linalg.norm(value) > 0.01)
    assert largest < 5e-4 if is_equal else largest > 5e-3


def test_what_is_validated_is_what_is_saved(half_bright):
    """Worker 1 trains on black images, so the statistics of its batch norms fit no others. Worker 0
    alone evaluates."""
    change = '''
airbench94 = recipes.TABLE['airbench94']
recipes.TABLE['airbench94'] = airbench94._replace(
    distort=lambda images: airbench94.distort(images) * (1 - is_worker_1))
'''
    with mpi.running(2, *mpi.words('-n', 'airbench94', '-l', '0.1', '--seed=1', '--max_steps=6',
                                   change=change)) as job:
        job.ended(0)
    error = run.read_metrics(FLAGS.train_dir)[-1]['validation_error']
    with mpi.running(2, *mpi.words('--evaluate')) as job:
        out, _ = job.ended(0)
    assert re.findall(r'precision @ 1 = (.*)\n', out) == [f'{1 - error:.3f}'], (error, out)


def test_a_signal_in_a_validation(half_bright):
    """Worker 1 alone gets it, in the validation of step 5, and worker 0 saves. The resumed run
    makes that validation first."""
    change = '''
if is_worker_1 and os.environ.get('SIGNALLED'):
    row = row._replace(prepare=small_nets.signalling(signal.SIGTERM, 3))
'''
    arguments = mpi.words('-n', 'steps', '--max_steps=10', '--log_frequency=5', change=change)
    for options, code in ((['-x', 'SIGNALLED=1'], 128 + signal.SIGTERM), ([], 0)):
        with mpi.running(2, *arguments, options=options) as job:
            out, _ = job.ended(code)
        found = checkpoints.newest(FLAGS.train_dir).values
        assert found['global_step'] == (5 if code else 10)
    assert 'Resuming from' in out
    rows = run.read_metrics(FLAGS.train_dir)
    assert [row['step'] for row in rows if row['validation_error'] is not None] == [5, 10]


@pytest.mark.parametrize('net', list(recipes.TABLE))
def test_bfloat16(half_bright, net):
    """Two steps of 16 images, of 80, are 0.4 epochs, in which ResNet-23's rate doubles."""
    with mpi.running(2, *mpi.words(f'--net={net}', '--use_bf16', '--max_steps=2', '-e', '0.4',
                               '--log_frequency=1', '--validate_every=0')) as job:
        out, errors = job.ended(0)
    assert errors == []
    assert 'Saved step 2 in ' in out
    if net == 'resnet23':
        rates = [row['learning_rate'] for row in run.read_metrics(FLAGS.train_dir)]
        assert rates == pytest.approx([0.03, 0.045])


def differing(first, second):
    """Starts two workers, each with words of its own; returns the line of worker 0."""
    with mpi.running(1, *first, second=second) as job:
        _, errors = job.ended(1)
    assert len(errors) == 1, errors
    assert not os.path.exists(FLAGS.train_dir) or checkpoints.newest(FLAGS.train_dir) is None
    return errors[0]


def test_a_worker_with_another_flag(half_bright, tmp_path):
    """Also one that a maintainer adds. Folders may differ."""
    define = "flags.DEFINE_integer('own_flag', 5, 'A number.')\n"
    copy = copies.copy_with(tmp_path / 'copy', {'classification.py': {
        '# Flags that may differ': f'{define}\n# Flags that may differ'}}) / 'classification.py'
    line = differing(mpi.words(script=copy),
                     mpi.words('--own_flag=6', '--train_dir=other', script=copy))
    assert re.search(r'worker 1 on \S+ differs from worker 0: --own_flag is 6, not 5\. Start all '
                     r'workers with the same code, data and flags$', line)


def test_a_worker_with_other_code(half_bright, tmp_path):
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10.py': {'MOVING_AVERAGE_DECAY = 0.9999': 'MOVING_AVERAGE_DECAY = 0.999'}})
    line = differing(mpi.words(), mpi.words(script=copy / 'classification.py'))
    assert 'the checksum of cifar10.py is ' in line


def test_a_worker_with_other_record_files(half_bright, tmp_path):
    """They hold as many images as those of worker 0, but one byte is another."""
    other = tmp_path / 'other'
    shutil.copytree(FLAGS.data_dir, other)
    path = other / 'cifar-10-batches-bin' / 'data_batch_3.bin'
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    line = differing(mpi.words(), mpi.words(f'--data_dir={other}'))
    assert 'checksum' in line


def test_images_of_ones_own(half_bright, tmp_path):
    """Each worker has them in a folder of its own. NaN, also of all workers, is one line."""
    images = own_images.Split(np.zeros([8, 32, 32, 3], np.uint8), np.arange(8) % 2)
    folders = tmp_path / 'first', tmp_path / 'second'
    for folder in folders:
        folder.mkdir()
        own_images.write(folder, 'own', own_images.OwnImages(['a', 'b'], images, images))
    for options, code, count in ((['--max_steps=1'], 0, 0),
                                 (['--max_steps=9', '-l', '1e38'], 1, 1)):
        first, second = (mpi.words(f'--dataset={folder}', '-b', '2', *options)
                         for folder in folders)
        with mpi.running(1, *first, second=second) as job:
            _, errors = job.ended(code)
        assert len(errors) == count, errors
    assert 'Training diverged: ' in errors[0]
