"""What cifar10_train.py prints and saves, and its command line."""
import json
import os
import re
import time

from cifar10_lib import errors

import numpy as np
import outcomes
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_train

FLAGS = flags.FLAGS

# The model's flags, those of both trainers, and of the evaluation, with their defaults.
MODEL = {'batch_size': 128, 'data_dir': '/tmp/cifar10_data', 'use_fp16': False}
TRAINING = {**MODEL, 'train_dir': '/tmp/cifar10_train', 'log_device_placement': False}
EVALUATION = {**MODEL, 'eval_dir': '/tmp/cifar10_eval', 'eval_data': 'test',
              'checkpoint_dir': '/tmp/cifar10_train', 'eval_interval_secs': 300,
              'num_examples': 10000, 'run_once': False}


@pytest.mark.slow
@pytest.mark.parametrize('script, expected', [
    ('cifar10_train', {**TRAINING, 'max_steps': 100000, 'log_frequency': 10}),
    ('cifar10_multi_gpu_train', {**TRAINING, 'max_steps': 1000000, 'num_gpus': 1}),
    ('cifar10_eval', EVALUATION)])
def test_published_flags_and_defaults(script, expected):
    """Code that imports a script reads them without parsing first."""
    done = spawn.run(['-c', f'import json, {script}\nnames = {list(expected)}\n'
                      f'print(json.dumps([getattr({script}.FLAGS, name) for name in names]))'],
                     cwd=spawn.ROOT)
    assert done.returncode == 0, done.stderr
    assert dict(zip(expected, json.loads(done.stdout))) == expected


@pytest.mark.slow
def test_the_scripts_as_a_user_runs_them(half_bright, tmp_path):
    """One device, then two towers, then an evaluation; they print only the tutorial's lines."""
    data, run = f'--data_dir={FLAGS.data_dir}', FLAGS.train_dir

    def lines(*words):
        done = spawn.run_script(*words, data, '--batch_size=8')
        assert (done.returncode, done.stderr) == (0, '')
        return done.stdout.splitlines()

    first, filling, *steps, saved = lines(
        'cifar10_train.py', '--max_steps=11', f'--train_dir={run}')
    assert first.startswith('Training on ')
    assert filling == 'Filling queue with 20000 CIFAR images before starting to train.'
    assert [outcomes.LINE.fullmatch(line)[1] for line in steps] == ['0', '10']
    assert saved == f'Saved step 11 in {run}.'
    first, filling, resuming, images, *steps, saved = lines(
        'cifar10_multi_gpu_train.py', '--max_steps=13', f'--train_dir={run}', '--num_gpus=2',
        '--log_frequency=1')
    assert first.startswith('Training 2 towers on ')
    assert resuming == f'Resuming from {run} at step 11, until step 13.'
    assert images.startswith('Resuming with ') and '(was ' in images
    assert [outcomes.LINE.fullmatch(line)[1] for line in steps] == ['11', '12']
    assert saved == f'Saved step 13 in {run}.'
    line, = lines('cifar10_eval.py', f'--checkpoint_dir={run}', '--run_once',
                  f'--eval_dir={tmp_path}/eval')
    assert line.endswith(f': precision @ 1 = {outcomes.precision(run):.3f}')


def test_the_files_of_a_run(trained):
    names = set(os.listdir(FLAGS.train_dir))
    events = {name for name in names if name.startswith('events.out.tfevents.')}
    files = {f'model.ckpt-{step}.{ending}' for step in (0, 10)
             for ending in ('index', 'meta', 'data-00000-of-00001')}
    assert len(events) == 1
    assert {name for name in names - events if name[0] != '.'} == {
        *files, 'checkpoint', 'graph.pbtxt'}


def test_it_learns(half_bright):
    """Two classes in thirty steps; the averages too, whose decay is (1 + step) / (10 + step)."""
    with flagsaver.flagsaver(max_steps=30, batch_size=16):
        cifar10_train.main()
    assert outcomes.precision(FLAGS.train_dir) > 0.9
    assert outcomes.precision(FLAGS.train_dir, use_moving_averages=False) > 0.9


def test_the_speed_is_that_of_all_steps(capsys):
    """Steps 0, 2, 4 take 0.2 s and the others none. The line of step 4 is about steps 1 to 4, that
    of step 0 about itself. Its loss is the step's own."""
    woken, ended = [], []

    def sleep(number):
        time.sleep(0.2 * (number % 2 == 0))
        woken.append(time.perf_counter())

    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([tf.py_func(sleep, [step], [])]):
        loss = tf.cast(step, tf.float32) + 0.25
    with tf.control_dependencies([loss]):
        train_op = tf.assign_add(step, 1)
    with flagsaver.flagsaver(log_frequency=4, batch_size=10), \
            tf.train.SingularMonitoredSession([cifar10_train._LoggerHook(loss)]) as session:
        for _ in range(6):
            session.run(train_op)
            ended.append(time.perf_counter())
    first, second = capsys.readouterr().out.splitlines()
    assert ': step 0, loss = 0.25 (' in first and ': step 4, loss = 4.25 (' in second
    assert float(outcomes.LINE.fullmatch(first)[3]) >= 0.2
    images, seconds = map(float, outcomes.LINE.fullmatch(second).groups()[1:])
    # A step ends after its sleep, and before `run` returns. The line is rounded.
    assert woken[4] - ended[0] - 0.01 <= 4 * seconds <= ended[4] - woken[0] + 0.01
    np.testing.assert_allclose(images, 10 / seconds, rtol=0.01)


def test_the_device_of_every_operation(half_bright, capfd):
    with flagsaver.flagsaver(log_device_placement=True, max_steps=1):
        cifar10_train.main()
    out, error = capfd.readouterr()
    places = dict(re.findall(r'(\S+): \(\w+\): /job:localhost/\S*device:(\w+:\d+)', out + error))
    place = 'GPU:0' if tf.config.list_physical_devices('GPU') else 'CPU:0'
    assert places['conv1/Conv2D'] == place
    assert places['conv1/weights'] == places['input/DecodeRaw'] == 'CPU:0'


def test_damaged_data_is_noticed_before_the_run(half_bright):
    (half_bright / 'data_batch_4.bin').write_bytes(b'torn')
    with pytest.raises(errors.UserError, match='data_batch_4.bin has 4 bytes'):
        cifar10_train.main()
    assert not os.path.exists(FLAGS.train_dir)
