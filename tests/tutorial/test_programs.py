"""Code written against the tutorial runs unchanged, apart from `import tensorflow.compat.v1`."""
import json
import math
import os
import re

from cifar10_lib import checkpoints

import copies
import numpy as np
import outcomes
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from tensorflow.python.tools import freeze_graph

import cifar10
import cifar10_eval
import cifar10_multi_gpu_train
import cifar10_train

FLAGS = flags.FLAGS
LAYERS = ['conv1/conv1', 'pool1', 'norm1', 'conv2/conv2', 'norm2', 'pool2', 'local3/Reshape',
          'local3/local3', 'local4/local4', 'softmax_linear/softmax_linear']

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


@pytest.mark.slow
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


@pytest.mark.parametrize('scope', ['', 'tower_0/'])
def test_layers_by_name(scope):
    """Of images in an array."""
    with tf.name_scope(scope or None):
        logits = cifar10.inference(np.zeros([3, 24, 24, 3]))
    found = [tf.get_default_graph().get_tensor_by_name(f'{scope}{name}:0') for name in LAYERS]
    assert [tensor.shape.as_list()[1:] for tensor in found] == [
        [24, 24, 64], [12, 12, 64], [12, 12, 64], [12, 12, 64], [12, 12, 64], [6, 6, 64], [2304],
        [384], [192], [10]]
    assert found[-1] is logits


def test_an_evaluation_loop(trained):
    """17 batches of 8 read the 130 images and the first six again; each counts as in ours."""
    images, labels = cifar10.inputs(eval_data=True)
    logits = cifar10.inference(images)
    top_k = tf.nn.in_top_k(logits, labels, 1)
    averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
    saver = tf.train.Saver(averages.variables_to_restore())
    summaries = tf.summary.merge_all()
    with tf.Session() as session, \
            tf.summary.FileWriter(FLAGS.eval_dir, session.graph) as writer:
        state = tf.train.get_checkpoint_state(FLAGS.checkpoint_dir)
        saver.restore(session, state.model_checkpoint_path)
        coordinator = tf.train.Coordinator()
        threads = []
        for runner in tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
            threads += runner.create_threads(session, coord=coordinator, daemon=True, start=True)
        hits = np.concatenate([session.run(top_k) for _ in range(math.ceil(130 / 8))])
        summary = tf.Summary.FromString(session.run(summaries))
        summary.value.add(tag='Precision @ 1', simple_value=hits.mean())
        writer.add_summary(summary, 10)
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)
    assert len(hits) == 136
    assert hits[130:].tolist() == hits[:6].tolist()
    np.testing.assert_array_equal(hits[:130], outcomes.hits(FLAGS.checkpoint_dir))
    assert {'Precision @ 1', 'local3/local3/sparsity'} <= outcomes.summaries(
        FLAGS.eval_dir)[10].keys()


def test_towers_and_a_plain_session(half_bright, capsys):
    """The loop of the published multi-GPU script, with a float32 step; our programs resume and
    evaluate it."""
    with tf.device('/cpu:0'):
        global_step = tf.get_variable('global_step', [], initializer=tf.constant_initializer(0),
                                      trainable=False)
        rate = tf.train.exponential_decay(0.03, global_step, 100, 0.1, staircase=True)
        optimizer = tf.train.GradientDescentOptimizer(rate)
        images, labels = cifar10.distorted_inputs()
        towers = []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in range(2):
                with tf.device(f'/gpu:{i}'), tf.name_scope(f'{cifar10.TOWER_NAME}_{i}') as scope:
                    cifar10.loss(cifar10.inference(images), labels)
                    loss = tf.add_n(tf.get_collection('losses', scope), name='total_loss')
                    tf.get_variable_scope().reuse_variables()
                    towers.append(optimizer.compute_gradients(loss))
        gradients = cifar10_multi_gpu_train.average_gradients(towers)
        averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY, global_step)
        step = tf.group(optimizer.apply_gradients(gradients, global_step),
                        averages.apply(tf.trainable_variables()))
    saver = tf.train.Saver(tf.global_variables())
    os.makedirs(FLAGS.train_dir)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(tf.global_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        for _ in range(3):
            session.run([step, loss])
        saver.save(session, os.path.join(FLAGS.train_dir, 'model.ckpt'), global_step=3)
        coordinator.request_stop()
        coordinator.join(threads)
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
    assert 'precision @ 1 = ' in capsys.readouterr().out
    with flagsaver.flagsaver(max_steps=4):
        cifar10_train.main()
    assert 'model.ckpt-3.\n' in capsys.readouterr().out
    assert checkpoints.newest(FLAGS.train_dir).values['global_step'].dtype == np.int64


def test_training_and_evaluation_in_one_graph(half_bright):
    """Both networks share the variables; all summaries merge."""
    images, labels = cifar10.distorted_inputs()
    test_images, test_labels = cifar10.inputs(eval_data=True)
    step = tf.Variable(0, trainable=False)
    with tf.variable_scope(tf.get_variable_scope()) as scope:
        logits = cifar10.inference(images)
        scope.reuse_variables()
        hits = tf.nn.in_top_k(cifar10.inference(test_images), test_labels, 1)
    train_op = cifar10.train(cifar10.loss(logits, labels), step)
    summaries = tf.summary.merge_all()
    assert len(tf.trainable_variables()) == 10
    with tf.train.SingularMonitoredSession() as session:
        for _ in range(3):
            session.run(train_op)
        assert session.run(hits).shape == (8,)
        assert session.run(step) == 3
        session.run(summaries)


def test_a_network_of_a_fixed_batch_size(trained, monkeypatch, capsys):
    """As one that flattens pool2 to [FLAGS.batch_size, -1]: it trains, in towers, too, and is
    evaluated, although 130 is not a multiple of 8."""
    expected = outcomes.precision(FLAGS.train_dir)
    inference = cifar10.inference
    monkeypatch.setattr(cifar10, 'inference', lambda images: inference(
        tf.reshape(images, [FLAGS.batch_size, 24, 24, 3])))
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
    assert f'precision @ 1 = {expected:.3f}' in capsys.readouterr().out
    with flagsaver.flagsaver(num_gpus=2, max_steps=11), tf.Graph().as_default():
        cifar10_multi_gpu_train.main()
    assert 'Saved step 11' in capsys.readouterr().out


def test_the_value_of_a_variable_by_name():
    """The remedy of docs/differences.md."""
    cifar10.inference(tf.zeros([1, 24, 24, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run('conv1/weights/Read/ReadVariableOp:0')
        with tf.variable_scope('conv1', reuse=True):
            np.testing.assert_array_equal(session.run(tf.get_variable('weights')), value)
    assert value.shape == (5, 5, 3, 64)


def test_tensorflows_program_that_freezes_a_graph(trained, tmp_path):
    """The remedies of docs/differences.md: it cannot match resource variables with a GraphDef, and
    conv1 is not on the way to the logits. The graph, for batches of 8, accepts 13 images."""
    checkpoint = tf.train.latest_checkpoint(FLAGS.checkpoint_dir)
    freeze_graph.freeze_graph(
        '', '', True, checkpoint, 'softmax_linear/softmax_linear,conv1/conv1', '', '',
        str(tmp_path / 'frozen.pb'), True, '', input_meta_graph=checkpoint + '.meta')
    frozen = tf.GraphDef.FromString((tmp_path / 'frozen.pb').read_bytes())
    images, = {edge for node in frozen.node if node.name == 'conv1/Conv2D'
               for edge in node.input[:1]}
    fed = tf.placeholder(tf.float32, [None, 24, 24, 3])
    logits, = tf.import_graph_def(frozen, {images: fed}, ['softmax_linear/softmax_linear:0'])
    with tf.Session() as session:
        assert session.run(logits, {fed: np.zeros([13, 24, 24, 3])}).shape == (13, 10)
    assert not [node.name for node in frozen.node if node.op == 'VarHandleOp']
    assert {*LAYERS} <= {node.name for node in frozen.node}


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


@pytest.mark.slow
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
import sys
sys.path.insert(0, sys.argv.pop(1))
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


@pytest.mark.slow
@pytest.mark.parametrize('program, words', [
    (WITHOUT_APP_RUN, ['--batch_size=16']), (IN_A_NOTEBOOK, ['-f', 'kernel.json'])])
def test_flags_are_parsed_on_first_use(program, words):
    done = spawn.run(['-c', program, spawn.ROOT, *words])
    assert (done.returncode, done.stdout) == (0, '(16, 10)\n'), done.stderr


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


@pytest.mark.slow
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
