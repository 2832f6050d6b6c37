"""The published tutorial in TensorFlow 1.15.5, beside this project and the stages that replace it.

Requires TF1_PYTHON, an interpreter with that TensorFlow: tests/tf1.sh makes one.
"""
import json
import os
import pathlib
import subprocess

from cifar10_lib import checkpoints

import numpy as np
import outcomes
import plain
import pytest
import spawn
from absl import flags
from absl.testing import flagsaver

import cifar10_train

TF1 = os.environ.get('TF1_PYTHON')
FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'docs/migration'
pytestmark = pytest.mark.slow
if not TF1:
    pytest.skip('requires TF1_PYTHON: run tests/tf1.sh', allow_module_level=True)


def in_tf1(*arguments):
    """Runs TensorFlow 1's interpreter: what it prints."""
    environment = {**spawn.environment(), 'TF2_BEHAVIOR': '0'}  # TensorFlow 2 has set it to 1.
    done = subprocess.run([TF1, *map(str, arguments)], text=True, capture_output=True,
                          timeout=spawn.PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def precision_in_tf1(records, checkpoint):
    """As stage 0 prints it; batches of 10 of the 130 test images count each image once."""
    printed = in_tf1(FOLDER / 'stage_0_published.py', f'--records={records}', '--batch_size=10',
                     f'--checkpoint={checkpoint}')
    return float(printed.split()[-1])


def test_each_continues_and_evaluates_the_other(half_bright):
    """Ten steps in TensorFlow 1, then ten of cifar10_train.py in the same folder."""
    folder = flags.FLAGS.train_dir
    in_tf1(FOLDER / 'stage_0_published.py', f'--records={half_bright}', f'--train_dir={folder}',
           '--steps=10', '--batch_size=8')
    for step in (10, 20):
        checkpoint = checkpoints.newest(folder).path
        assert checkpoint.endswith(f'model.ckpt-{step}')
        assert outcomes.precision(folder) == pytest.approx(
            precision_in_tf1(half_bright, checkpoint), abs=6e-4)
        with flagsaver.flagsaver(max_steps=20):
            cifar10_train.main()


# Trains a stage for ten steps on fixed batches, from a checkpoint: what each step found.
_STEPS = '''
import json, sys
import numpy as np
text, checkpoint = open(sys.argv[1]).read(), sys.argv[2]
stage = {'__name__': 'stage'}
exec(text, stage)
tf = stage['tf']
images, labels = tf.placeholder(tf.float32, [8, 24, 24, 3]), tf.placeholder(tf.int32, [8])
logits = stage['inference'](images)
total_loss = stage['loss'](logits, labels)
train_op = stage['train'](total_loss, tf.train.get_or_create_global_step(), 1000)
averages = [each for each in tf.global_variables() if 'ExponentialMovingAverage' in each.name]
random = np.random.RandomState(0)
found = []
with tf.Session() as session:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    tf.train.Saver([each for each in tf.global_variables()  # But for the averages of the losses.
                    if not each.op.name.endswith('/avg')]).restore(session, checkpoint)
    for _ in range(10):
        feeds = {images: random.normal(size=[8, 24, 24, 3]), labels: random.randint(0, 10, 8)}
        before = session.run([logits, total_loss], feeds)
        session.run(train_op, feeds)
        found.append([each.tolist() for each in before]
                     + [{each.op.name: float(session.run(each).sum()) for each in averages}])
print(json.dumps(found))
'''


# This project as a stage, whose schedule has its own number of images per epoch.
_OURS = '''
import tensorflow.compat.v1 as tf
import cifar10
from cifar10 import inference, loss
tf.app.flags.FLAGS(['test', '--data_dir=nowhere'])
def train(total_loss, global_step, _):
    return cifar10.train(total_loss, global_step)
'''


def test_ten_steps_are_equal(tmp_path):
    """Stage 0's averages race with the update, so those of stage 1 are compared."""
    checkpoint = plain.save_checkpoint(tmp_path)
    (tmp_path / 'steps.py').write_text(_STEPS)
    (tmp_path / 'ours.py').write_text(_OURS)
    done = spawn.run([tmp_path / 'steps.py', tmp_path / 'ours.py', checkpoint], capture_output=True,
                     env={**spawn.environment(), 'PYTHONPATH': str(spawn.ROOT)})
    assert done.returncode == 0, done.stderr
    ours = json.loads(done.stdout)
    for stage in ('stage_0_published.py', 'stage_1_compat.py'):
        found = json.loads(in_tf1(tmp_path / 'steps.py', FOLDER / stage, checkpoint))
        for number, (theirs, mine) in enumerate(zip(found, ours)):
            np.testing.assert_allclose(mine[0], theirs[0], atol=1e-5 * (1 + number))
            np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-5)
            assert theirs[2].keys() == mine[2].keys() and len(mine[2]) == 10
            if stage == 'stage_1_compat.py':
                for name, value in theirs[2].items():
                    np.testing.assert_allclose(mine[2][name], value, rtol=1e-4, err_msg=name)
