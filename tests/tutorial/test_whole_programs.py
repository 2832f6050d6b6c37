"""Programs written against the tutorial that need a process of their own, or several."""
import json
import re
import socket

from cifar10_lib import checkpoints

import copies
import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

pytestmark = pytest.mark.slow
FLAGS = flags.FLAGS

# A program's own, with the tutorial's functions: two classes, 40 x 40 images, other file names.
THEIR_INPUT = '''
import os
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()

IMAGE_SIZE = 40
NUM_CLASSES = 2
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 40
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 12


def _batches(path, batch_size):
    queue = tf.train.string_input_producer([path])
    _, record = tf.FixedLengthRecordReader(record_bytes=1 + 40 * 40 * 3).read(queue)
    values = tf.decode_raw(record, tf.uint8)
    image = tf.image.per_image_standardization(tf.reshape(values[1:1 + 4800], [40, 40, 3]))
    return tf.train.batch([image, tf.cast(values[0], tf.int32)], batch_size)


def distorted_inputs(data_dir, batch_size):
    return _batches(os.path.join(data_dir, 'people_train.bin'), batch_size)


def inputs(eval_data, data_dir, batch_size):
    name = 'people_test.bin' if eval_data else 'people_train.bin'
    return _batches(os.path.join(data_dir, name), batch_size)
'''



def test_an_input_file_of_ones_own(tmp_path, capsys):
    """It trains, on one device and in towers, and is evaluated, on as many images as its constant
    says. Prediction needs one function more."""
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10.py': {'INITIAL_LEARNING_RATE = 0.1 ': 'INITIAL_LEARNING_RATE = 0.01 '}})
    (copy / 'cifar10_input.py').write_text(THEIR_INPUT)
    folder = tmp_path / 'data' / 'cifar-10-batches-bin'
    folder.mkdir(parents=True)
    random = np.random.RandomState(0)
    for name, count in (('train', 40), ('test', 12)):
        (folder / f'people_{name}.bin').write_bytes(b''.join(
            bytes([number % 2]) + random.bytes(4800) for number in range(count)))
    with copies.imported(copy) as import_, flagsaver.flagsaver(
            data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'run'), batch_size=8,
            checkpoint_dir=str(tmp_path / 'run'), eval_dir=str(tmp_path / 'eval'), run_once=True,
            num_gpus=2):
        for steps, script in enumerate(('cifar10_train', 'cifar10_multi_gpu_train'), start=2):
            with flagsaver.flagsaver(max_steps=steps):
                import_(script).main()
            assert f'Saved step {steps} in ' in capsys.readouterr().out
        import_('cifar10_eval').main()
        precision = float(re.search(r': precision @ 1 = ([01]\.\d{3})\n',
                                    capsys.readouterr().out)[1])
        np.testing.assert_allclose(12 * precision, round(12 * precision), atol=0.01)
    found = checkpoints.newest(str(tmp_path / 'run')).values
    assert found['local3/weights'].shape == (10 * 10 * 64, 384)
    assert found['softmax_linear/weights'].shape == (192, 2)


# A saliency map from the .meta file of a checkpoint, whose path the program takes.
SALIENCY = '''
import json, sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
images = tf.placeholder(tf.float32, [8, 24, 24, 3])
saver = tf.train.import_meta_graph(
    sys.argv[1] + '.meta', clear_devices=True, input_map={'input/shuffle_batch:0': images})
logits = tf.get_default_graph().get_tensor_by_name('softmax_linear/softmax_linear:0')
saliency, = tf.gradients(logits[:, 3], images)
with tf.Session() as session:
    saver.restore(session, sys.argv[1])
    fed = np.random.RandomState(0).normal(size=[8, 24, 24, 3])
    print(json.dumps(session.run(saliency, {images: fed}).tolist()))
'''



def test_another_process_differentiates_a_trained_graph(trained):
    """The map is that of TensorFlow's own operations with the same weights."""
    path = tf.train.latest_checkpoint(FLAGS.train_dir)
    done = spawn.run(['-c', SALIENCY, path])
    assert done.returncode == 0, done.stderr
    images = tf.constant(np.random.RandomState(0).normal(size=[8, 24, 24, 3]), tf.float32)
    logits = plain.logits(images, plain.read(path, ''))
    with tf.Session() as session:
        expected, = session.run(tf.gradients(logits[:, 3], images))
    assert abs(expected).max() > 0
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-4 * abs(expected).max())


WITHOUT_APP_RUN = '''
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10
with tf.Session() as session:
    logits = cifar10.inference(tf.zeros([cifar10.FLAGS.batch_size, 24, 24, 3]))
    session.run(tf.global_variables_initializer())
    print(session.run(logits).shape)
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


@pytest.mark.parametrize('program, words, printed', [
    (WITHOUT_APP_RUN, ['--batch_size=16'], '(16, 10)'),
    (IN_A_NOTEBOOK, ['-f', 'kernel.json'], '(16, 10)'),
    (OWN_FLAGS, ['--b=y', '--num_gpus=2', '--batch_size=16'], "('y', 2, '/nowhere', 2.5, 16)")])
def test_flags(program, words, printed):
    done = spawn.run(['-c', program, *words], cwd=spawn.ROOT)
    assert (done.returncode, done.stdout) == (0, printed + '\n'), done.stderr


ARGPARSE_TRAINER = '''
import argparse
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10
parser = cifar10.parser
parser.add_argument('--train_dir', type=str, default='/nowhere', help='Directory for logs.')
parser.add_argument('--max_steps', type=int, default=1000000)
parser.add_argument('--log_frequency', type=int, default=5)
parser.add_argument('--log_device_placement', action='store_true')
cifar10.cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 80

def main(argv=None):
    cifar10.maybe_download_and_extract()
    global_step = tf.train.get_or_create_global_step()
    images, labels = cifar10.distorted_inputs()
    assert images.shape[0] == FLAGS.batch_size == cifar10.FLAGS.batch_size
    assert FLAGS.log_frequency == 5
    train_op = cifar10.train(cifar10.loss(cifar10.inference(images), labels), global_step)
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.train_dir,
            hooks=[tf.train.StopAtStepHook(last_step=FLAGS.max_steps)],
            config=tf.ConfigProto(log_device_placement=FLAGS.log_device_placement)) as session:
        while not session.should_stop():
            session.run(train_op)

if __name__ == '__main__':
    FLAGS = parser.parse_args()
    tf.app.run()
'''



def test_a_script_that_parses_its_flags_with_argparse(half_bright, tmp_path):
    """As the tutorial of 2017 did; a misspelled argument ends in a line."""
    script, run_dir = tmp_path / 'my_train.py', tmp_path / 'my_run'
    script.write_text(ARGPARSE_TRAINER)
    command = [script, '--log_device_placement', f'--data_dir={half_bright.parent}',
               '--batch_size', '4', '--max_steps', '3', f'--train_dir={run_dir}']
    environment = spawn.environment(PYTHONPATH=str(spawn.ROOT))
    done = spawn.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    assert tf.train.latest_checkpoint(str(run_dir)).endswith('model.ckpt-3')
    done = spawn.run([*command, '--train=x'], env=environment)
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
tf.app.flags.DEFINE_boolean('supervisor', False, 'Whether to use a Supervisor.')

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
        return global_step, optimizer, optimizer.minimize(loss, global_step=global_step)

def supervise(target, is_chief, global_step, optimizer, train_op):
    runner, tokens = optimizer.get_chief_queue_runner(), optimizer.get_init_tokens_op(0)
    supervisor = tf.train.Supervisor(
        is_chief=is_chief, logdir=FLAGS.train_dir, global_step=global_step,
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
        local_init_op=optimizer.chief_init_op if is_chief else optimizer.local_step_init_op)
    with supervisor.managed_session(target) as session:
        if is_chief:
            supervisor.start_queue_runners(session, [runner])
            session.run(tokens)
        while session.run(global_step) < 3 and not supervisor.should_stop():
            session.run(train_op)
        if is_chief:
            supervisor.saver.save(session, supervisor.save_path, global_step)
        supervisor.request_stop()
        session.close()  # Ends the thread that waits for the fourth step's gradients.

def monitor(target, is_chief, global_step, optimizer, train_op):
    with tf.train.MonitoredTrainingSession(
            target, is_chief, FLAGS.train_dir, stop_grace_period_secs=1,
            hooks=[optimizer.make_session_run_hook(is_chief, num_tokens=0),
                   tf.train.StopAtStepHook(last_step=3)]) as session:
        while not session.should_stop():
            session.run(train_op)

def main(_):
    cluster = tf.train.ClusterSpec({'ps': FLAGS.hosts[:1], 'worker': FLAGS.hosts[1:]})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == 'ps':
        server.join()
    parts = build(cluster)
    is_chief = FLAGS.task_index == 0
    while not is_chief and not tf.train.latest_checkpoint(FLAGS.train_dir):
        time.sleep(0.1)  # TensorFlow would look every 30 seconds.
    (supervise if FLAGS.supervisor else monitor)(server.target, is_chief, *parts)

if __name__ == '__main__':
    tf.app.run()
'''


@pytest.mark.parametrize('session', ['nosupervisor', 'supervisor'])
def test_a_parameter_server_and_synchronous_workers(tmp_path, session):
    """Three updates, each with the mean of the gradients of both workers."""
    sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(3)]
    hosts = ','.join('127.0.0.1:%d' % each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    folder = str(tmp_path / 'run')
    _, *workers = [
        spawn.start(['-c', CLUSTER, f'--hosts={hosts}', f'--train_dir={folder}', f'--{session}',
                     *words], cwd=spawn.ROOT)
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
