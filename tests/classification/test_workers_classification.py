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
import tensorflow.compat.v1 as tf

FLAGS = tf.app.flags.FLAGS
SCRIPT = spawn.ROOT / 'classification.py'
pytestmark = [pytest.mark.slow, mpi.with_mpi]


def words(*arguments, script=SCRIPT):
    """80 images for training and 130 for validation; see `conftest.half_bright`."""
    return [script, '-n', 'tutorial', '-l', '0.03', '-b', '8', f'--data_dir={FLAGS.data_dir}',
            f'--train_dir={FLAGS.train_dir}', f'--step_timeout={spawn.PATIENCE}', *arguments]


def newest_step():
    return checkpoints.step(checkpoints.newest(FLAGS.train_dir))


def test_the_command_of_the_example_trains_validates_and_resumes(half_bright):
    """80 images in steps of 2 x 8, and 130 validated by two workers: 65 each, in batches of 8."""
    for steps in (20, 30):
        with mpi.running(2, *words('--context', 'cudnn', f'--max_steps={steps}')) as job:
            out, errors = job.ended(0)
        assert errors == []
        assert f'Saved step {steps} in {FLAGS.train_dir}.' in out
    assert f'Resuming from {FLAGS.train_dir} at step 20, until step 30.' in out
    error = run.read_metrics(FLAGS.train_dir)[-1]['validation_error']
    assert error * 130 == pytest.approx(round(error * 130))  # Each image once.
    assert error < 0.1
    # The images per step of a run do not change.
    with mpi.running(3, *words('--max_steps=40'), options=['--oversubscribe']) as job:
        _, errors = job.ended(1)
    assert errors[0].startswith('classification.py: ')
    assert 'workers' in errors[0]
    assert newest_step() == 30


# Stops worker 0 for good in the middle of writing the checkpoint of step 4.
_KILLED_WHILE_SAVING = '''
import os, signal
import tensorflow.compat.v1 as tf
from PIL import Image
save = tf.train.Saver.save
def killed(self, session, path, global_step=None, **options):
    found = save(self, session, path, global_step, **options)
    step = session.run(global_step) if isinstance(global_step, tf.Variable) else global_step
    if int(step) == 4:
        data = f'{found}.data-00000-of-00001'
        os.truncate(data, os.path.getsize(data) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    return found
tf.train.Saver.save = killed
'''


def test_worker_0_is_killed_while_it_saves(half_bright):
    """The half checkpoint of step 4 is skipped, and the run resumes from that of step 2."""
    program = spawn.gently('classification.py', change=_KILLED_WHILE_SAVING)
    arguments = words('--max_steps=6', '--save_checkpoint_steps=2')[1:]
    with mpi.running(2, *program, *arguments) as job:
        job.ended(137)
    assert newest_step() == 2
    with mpi.running(2, *words('--max_steps=6')) as job:
        out, _ = job.ended(0)
    assert f'Resuming from {FLAGS.train_dir} at step 2, until step 6.' in out
    assert newest_step() == 6


def test_the_variables_are_those_of_one_process_with_all_images(half_bright):
    """Twelve images, all of them in each step, without distortions. At a low rate: at the
    tutorial's, steps multiply the differences of rounding."""
    for number, count in enumerate((3, 3, 2, 2, 2), start=1):
        record_files.write(half_bright / f'data_batch_{number}.bin',
                           record_files.noise(count, seed=number))
    program = spawn.gently('classification.py', change='''
cifar10_input.distort = cifar10_input.crop_and_standardize
''')
    found = {}
    for size in (1, 3):
        folder = f'{FLAGS.train_dir}-{size}'
        arguments = words('--max_steps=10', '-l', '0.01', '-b', str(12 // size), '--seed=1',
                          f'--train_dir={folder}', '--validate_every=0')[1:]
        if size == 1:
            assert spawn.fork([*program, *arguments]).returncode == 0
        else:
            with mpi.running(size, *program, *arguments, options=['--oversubscribe']) as job:
                job.ended(0)
        found[size] = checkpoints.newest(folder).values
    assert set(found[1]) == set(found[3])
    for name, value in found[1].items():
        np.testing.assert_allclose(found[3][name], value, atol=1e-5, err_msg=name)


def test_what_is_validated_is_what_is_saved(half_bright):
    """Worker 1 trains on black images, so the statistics of its batch norms fit no others."""
    program = spawn.gently('classification.py', change='''
import os
from classification_lib import recipes
row = recipes.TABLE['airbench94']
rank = int(os.environ['OMPI_COMM_WORLD_RANK'])
recipes.TABLE['airbench94'] = row._replace(distort=lambda images: row.distort(images) * (1 - rank))
''')
    arguments = words('-n', 'airbench94', '-l', '0.1', '--seed=1', '--max_steps=6')[1:]
    with mpi.running(2, *program, *arguments) as job:
        job.ended(0)
    error = run.read_metrics(FLAGS.train_dir)[-1]['validation_error']
    done = spawn.fork_script('classification.py', '--evaluate', f'--data_dir={FLAGS.data_dir}',
                             f'--train_dir={FLAGS.train_dir}')
    assert done.stdout.endswith(f'precision @ 1 = {1 - error:.3f}\n'), (error, done.stdout)


def test_a_signal_in_a_validation(half_bright):
    """Worker 1 alone gets it, in the validation of step 5, and worker 0 saves. The resumed run
    makes that validation first."""
    program = spawn.gently('classification.py', change=f'''
import os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import small_nets
from classification_lib import recipes
row = small_nets.STEPS
if os.environ.get('OMPI_COMM_WORLD_RANK') == '1' and os.environ.get('SIGNALLED'):
    row = row._replace(prepare=small_nets.signalling(signal.SIGTERM, 3))
recipes.TABLE['steps'] = row
''')
    for options, code in ((['-x', 'SIGNALLED=1'], 128 + signal.SIGTERM), ([], 0)):
        arguments = words('-n', 'steps', '-l', '1', '--max_steps=10', '--log_frequency=5')[1:]
        with mpi.running(2, *program, *arguments, options=options) as job:
            out, _ = job.ended(code)
        found = checkpoints.newest(FLAGS.train_dir).values
        assert found['global_step'] == (5 if code else 10)
    assert 'Resuming from' in out
    rows = run.read_metrics(FLAGS.train_dir)
    assert [row['step'] for row in rows if row['validation_error'] is not None] == [5, 10]


@pytest.mark.parametrize('net', list(recipes.TABLE))
def test_bfloat16(half_bright, net):
    """Two steps of 16 images, of 80, are 0.4 epochs, in which ResNet-23's rate doubles."""
    with mpi.running(2, *words(f'--net={net}', '--use_bf16', '--max_steps=2', '-e', '0.4',
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


def test_a_worker_with_another_flag(half_bright):
    line = differing(words(), words('--learning_rate=0.04'))
    assert re.search(r'worker 1 on \S+ differs from worker 0: .*learning_rate.* is 0\.04, not 0\.03'
                     r'\. Start all workers with the same code, data and flags$', line)


def test_a_worker_with_another_value_of_a_maintainers_flag(half_bright, tmp_path):
    """It is listed nowhere else. Folders may differ."""
    define = "flags.DEFINE_integer('own_flag', 5, 'A number.')\n"
    copy = copies.copy_with(tmp_path / 'copy', {'classification.py': {
        '# Flags that may differ': f'{define}\n# Flags that may differ'}}) / 'classification.py'
    line = differing(words(script=copy), words('--own_flag=6', '--train_dir=other', script=copy))
    assert re.search(r'worker 1 on \S+ differs from worker 0: --own_flag is 6, not 5\.', line)


def test_a_worker_with_other_code(half_bright, tmp_path):
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10.py': {'MOVING_AVERAGE_DECAY = 0.9999': 'MOVING_AVERAGE_DECAY = 0.999'}})
    line = differing(words(), words(script=copy / 'classification.py'))
    assert 'the checksum of cifar10.py is ' in line


def test_a_worker_with_other_record_files(half_bright, tmp_path):
    """They hold as many images as those of worker 0, but one byte is another."""
    other = tmp_path / 'other'
    shutil.copytree(FLAGS.data_dir, other)
    path = other / 'cifar-10-batches-bin' / 'data_batch_3.bin'
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    line = differing(words(), words(f'--data_dir={other}'))
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
        first, second = (words(f'--dataset={folder}', '-b', '2', *options) for folder in folders)
        with mpi.running(1, *first, second=second) as job:
            _, errors = job.ended(code)
        assert len(errors) == count, errors
    assert 'Training diverged: ' in errors[0]


def test_more_workers_than_images(half_bright, tmp_path):
    """Two images of one's own, and three workers."""
    images = own_images.Split(np.zeros([2, 32, 32, 3], np.uint8), np.arange(2))
    own_images.write(tmp_path, 'own', own_images.OwnImages(['a', 'b'], images, images))
    with mpi.running(3, *words(f'--dataset={tmp_path}', '-b', '1')) as job:
        _, errors = job.ended(1)
    assert '2 training images are not enough for 3 workers: start fewer' in errors[0]
