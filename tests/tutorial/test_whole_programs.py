"""Programs written against the tutorial that need a process of their own, or several."""
import socket

from cifar10_lib import checkpoints

import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf

pytestmark = pytest.mark.slow

WITHOUT_APP_RUN = '''
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10
print(cifar10.inference(tf.zeros([cifar10.FLAGS.batch_size, 24, 24, 3])).shape)
'''
# The remedy of docs/differences.md for a notebook, whose command line has another program's flags.
IN_A_NOTEBOOK = WITHOUT_APP_RUN.replace(
    'import cifar10\n', "import cifar10\ntf.app.flags.FLAGS(['notebook', '--batch_size=16'])\n")
# Flags before and after the import, one of a name that `classification.py` has.
OWN_FLAGS = '''
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string('train_dir', '/nowhere', 'Folder.')
tf.app.flags.DEFINE_integer('num_gpus', 1, 'Number.')
import cifar10
tf.app.flags.DEFINE_string('b', 'x', 'Letter.')
tf.app.flags.DEFINE_float('max_steps', 2.5, 'Steps.')

def main(argv=None):
    print((FLAGS.b, FLAGS.num_gpus, FLAGS.train_dir, FLAGS.max_steps, cifar10.FLAGS.batch_size))

if __name__ == '__main__':
    tf.app.run()
'''


# As the tutorial of 2017 did.
WITH_ARGPARSE = '''
import argparse
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10
parser = cifar10.parser
parser.add_argument('--train_dir', type=str, default='/nowhere', help='Directory for logs.')
parser.add_argument('--max_steps', type=int, default=1000000)
parser.add_argument('--log_device_placement', action='store_true')

def main(argv=None):
    print((FLAGS.train_dir, FLAGS.max_steps, FLAGS.log_device_placement, FLAGS.batch_size,
           cifar10.FLAGS.batch_size))

if __name__ == '__main__':
    FLAGS = parser.parse_args()
    tf.app.run()
'''


@pytest.mark.parametrize('program, words, printed', [
    (WITHOUT_APP_RUN, ['--batch_size=16'], '(16, 10)'),
    (IN_A_NOTEBOOK, ['-f', 'kernel.json'], '(16, 10)'),
    (OWN_FLAGS, ['--b=y', '--num_gpus=2', '--batch_size=16'], "('y', 2, '/nowhere', 2.5, 16)"),
    (WITH_ARGPARSE, ['--log_device_placement', '--max_steps', '3', '--batch_size', '4'],
     "('/nowhere', 3, True, 4, 4)")])
def test_flags(program, words, printed):
    done = spawn.fork(['-c', program, *words], cwd=spawn.ROOT)
    assert (done.returncode, done.stdout) == (0, printed + '\n'), done.stderr


def test_a_misspelled_argument_is_an_error():
    done = spawn.fork(['-c', WITH_ARGPARSE, '--train=x'], cwd=spawn.ROOT)
    assert (done.returncode, done.stdout) == (2, ''), done.stderr
    assert 'error: unrecognized arguments: --train=x' in done.stderr


# A parameter server and two workers, each with a batch of its own.
CLUSTER = '''
import time
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_list('hosts', [], 'The parameter server, and the workers.')
tf.app.flags.DEFINE_string('job_name', 'worker', 'ps or worker.')
tf.app.flags.DEFINE_integer('task_index', 0, 'Number of the worker; 0 is the chief.')
tf.app.flags.DEFINE_string('train_dir', '', 'Folder.')

def build(cluster):
    tf.set_random_seed(1)  # With some initial values, rounding decides a tie in a pooling window.
    with tf.device(tf.train.replica_device_setter(
            worker_device='/job:worker/task:%d' % FLAGS.task_index, cluster=cluster)):
        global_step = tf.Variable(0, name='global_step', trainable=False)
        random = np.random.RandomState(FLAGS.task_index)
        images = tf.constant(random.normal(size=[4, 24, 24, 3]), tf.float32)
        loss = cifar10.loss(cifar10.inference(images), tf.constant(random.randint(0, 10, 4)))
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.05), 2, 2,
            variable_averages=tf.train.ExponentialMovingAverage(0.9999, global_step),
            variables_to_average=tf.trainable_variables())
        return optimizer, optimizer.minimize(loss, global_step=global_step)

def main(_):
    cluster = tf.train.ClusterSpec({'ps': FLAGS.hosts[:1], 'worker': FLAGS.hosts[1:]})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == 'ps':
        server.join()
    optimizer, train_op = build(cluster)
    is_chief = FLAGS.task_index == 0
    while not is_chief and not tf.train.latest_checkpoint(FLAGS.train_dir):
        time.sleep(0.1)  # TensorFlow would look every 30 seconds.
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief, FLAGS.train_dir, stop_grace_period_secs=1,
            hooks=[optimizer.make_session_run_hook(is_chief, num_tokens=0),
                   tf.train.StopAtStepHook(last_step=3)]) as session:
        while not session.should_stop():
            session.run(train_op)

if __name__ == '__main__':
    tf.app.run()
'''


def test_a_parameter_server_and_synchronous_workers(tmp_path):
    """Three updates, each with the mean of the gradients of both workers."""
    sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(3)]
    hosts = ','.join('127.0.0.1:%d' % each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    folder = str(tmp_path / 'run')
    _, *workers = [
        spawn.start(['-c', CLUSTER, f'--hosts={hosts}', f'--train_dir={folder}', *words],
                    cwd=spawn.ROOT)
        for words in (['--job_name=ps'], ['--task_index=0'], ['--task_index=1'])]
    for each in workers:
        spawn.ended(each, 0)
    first, last = (checkpoints.read(f'{folder}/model.ckpt-{step}') for step in (0, 3))
    assert (last['global_step'], last['global_step'].dtype) == (3, np.int32)
    variables = {name: tf.Variable(first[name]) for name in plain.SHAPES}
    losses = []
    for seed in (0, 1):
        random = np.random.RandomState(seed)
        images = tf.constant(random.normal(size=[4, 24, 24, 3]), tf.float32)
        losses.append(plain.loss(
            plain.logits(images, variables), random.randint(0, 10, 4), variables))
    step = tf.train.GradientDescentOptimizer(0.05).minimize(tf.add_n(losses) / 2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        for name, expected in session.run(variables).items():
            np.testing.assert_allclose(last[name], expected, atol=1e-6)
            assert (last[name + plain.AVERAGE] != expected).any()
