"""Code written against the tutorial runs unchanged, apart from `import tensorflow.compat.v1`."""
import dataclasses
import json
import math
import os

import copies
import numpy as np
import outcomes
import placement
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from tensorflow.python.tools import freeze_graph

import cifar10
import cifar10_eval
import cifar10_input
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib import recipes
from cifar10_lib.evaluation import accuracy
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
LAYERS = ['conv1/conv1', 'pool1', 'norm1', 'conv2/conv2', 'norm2', 'pool2', 'local3/local3',
          'local4/local4', 'softmax_linear/softmax_linear']


def restore_averages(session):
    averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
    state = tf.train.get_checkpoint_state(FLAGS.checkpoint_dir)
    tf.train.Saver(averages.variables_to_restore()).restore(session, state.model_checkpoint_path)


def test_an_evaluation_loop(trained):
    """17 batches of 8 read the 130 images and the first six again; each counts as in ours."""
    images, labels = cifar10.inputs(eval_data=True)
    logits = cifar10.inference(images)
    top_k = tf.nn.in_top_k(logits, labels, 1)
    summaries = tf.summary.merge_all()
    with tf.Session() as session, \
            tf.summary.FileWriter(FLAGS.eval_dir, session.graph) as writer:
        restore_averages(session)
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
    expected = outcomes.counts(tf.train.latest_checkpoint(FLAGS.checkpoint_dir))
    assert hits[:130].sum() == expected.correct
    path, = os.scandir(FLAGS.eval_dir)
    tags = [value.tag for event in tf.train.summary_iterator(path.path)
            for value in event.summary.value]
    assert tags[-1] == 'Precision @ 1' and 'local3/local3/sparsity' in tags


@pytest.mark.parametrize('scope', ['', 'tower_0/'])
def test_layers_by_name(scope):
    with tf.name_scope(scope or None):
        logits = cifar10.inference(tf.zeros([3, 24, 24, 3]))
    found = [tf.get_default_graph().get_tensor_by_name(f'{scope}{name}:0') for name in LAYERS]
    assert [tensor.shape.as_list()[1:] for tensor in found] == [
        [24, 24, 64], [12, 12, 64], [12, 12, 64], [12, 12, 64], [12, 12, 64], [6, 6, 64], [384],
        [192], [10]]
    assert found[-1] is logits


BY_POSITION = cifar10_input._generate_image_and_label_batch


def by_keyword(image, label, min_queue_examples, batch_size, shuffle, **threads):
    return cifar10_input._generate_image_and_label_batch(
        image=image, label=label, min_queue_examples=min_queue_examples, batch_size=batch_size,
        shuffle=shuffle, **threads)


@pytest.mark.parametrize('make', [BY_POSITION, by_keyword])
@pytest.mark.parametrize('shuffle', [False, True])
def test_an_input_of_single_records(half_bright, shuffle, make):
    """The tutorial's own `distorted_inputs` and `inputs` consist of these calls. One thread keeps
    the order."""
    paths = list(cifar10.default_source().files())
    read = cifar10_input.read_cifar10(tf.train.string_input_producer(paths, shuffle=False))
    image = tf.image.per_image_standardization(tf.cast(read.uint8image, tf.float32))
    threads = {} if shuffle else {'num_preprocess_threads': 1}
    images, labels = make(image, read.label, 20, 8, shuffle, **threads)
    assert (images.shape.as_list(), labels.shape.as_list()) == ([8, 32, 32, 3], [8])
    assert tf.get_collection(tf.GraphKeys.SUMMARIES)
    with tf.Session() as session:
        tf.train.start_queue_runners(session)
        found, classes = session.run([images, labels])
    assert (found[:, :16].mean((1, 2, 3)) > 0).tolist() == (classes == 0).tolist()
    first = np.fromfile(paths[0], np.uint8).reshape(-1, 3073)[:8, 1:].reshape(8, 3, 32, 32)
    first = (first - first.mean((1, 2, 3), keepdims=True)) / first.std((1, 2, 3), keepdims=True)
    assert np.allclose(found, first.transpose(0, 2, 3, 1), atol=1e-4) != shuffle


@pytest.mark.parametrize('wd, value', [(None, None), (0.0, 0.0), (0.004, 0.012)])
def test_weights_with_and_without_decay(wd, value):
    """By position, and by keyword, as published layers have it: 0.004 * 6 / 2 for six ones."""
    with tf.variable_scope('one'):
        cifar10._variable_with_weight_decay('weights', shape=[2, 3], stddev=5e-2, wd=wd)
    with tf.variable_scope('other'):
        cifar10._variable_with_weight_decay('weights', [2, 3], 5e-2, wd)
    one, other = tf.trainable_variables()
    assert (one.op.name, other.op.name) == ('one/weights', 'other/weights')
    losses = tf.get_collection('losses')
    assert [each.op.name for each in losses] == (
        [] if wd is None else ['one/weight_loss', 'other/weight_loss'])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for variable in one, other:
            assert 0 < abs(session.run(variable)).max() <= 0.1
            variable.load(np.ones([2, 3], np.float32), session)
        np.testing.assert_allclose(session.run(losses), [value] * len(losses), rtol=1e-6)


def tags_of_all_summaries():
    """The tags of `merge_all` in the default graph, whose queues run, in a list."""
    summary_op = tf.summary.merge_all()
    with tf.train.SingularMonitoredSession() as session:
        return [value.tag for value in tf.Summary.FromString(session.run(summary_op)).value]


def test_summaries_of_two_towers():
    """The first has the tags of a network without towers."""
    with tf.variable_scope(tf.get_variable_scope()) as scope:
        for i in range(2):
            with tf.name_scope(f'{cifar10.TOWER_NAME}_{i}'):
                cifar10.loss(cifar10.inference(tf.zeros([2, 24, 24, 3])), tf.zeros([2], tf.int32))
            scope.reuse_variables()
    cifar10._add_loss_summaries(tf.add_n(tf.get_collection('losses'), name='total_loss'))
    tags = tags_of_all_summaries()
    assert len(tags) == len({*tags})
    assert not [tag for tag in tags if 'tower' in tag and 'activations' in tag]
    layers = [f'{layer}/{layer}' for layer in ('conv1', 'conv2', 'local3', 'local4')]
    assert {f'{layer}/activations' for layer in layers} <= {*tags}
    assert {f'{layer}/activations_1' for layer in layers} <= {*tags}


def test_summaries_of_train_called_twice():
    """As for two parts of a loss, each with its own step."""
    logits = cifar10.inference(tf.zeros([2, 24, 24, 3]))
    loss = cifar10.loss(logits, tf.constant([3, 4]))
    global_step = tf.train.get_or_create_global_step()
    both = [cifar10.train(loss, global_step),
            cifar10.train(tf.add_n(tf.get_collection('losses')[:1], name='decay'), global_step)]
    assert len({op.name for op in both}) == 2
    tags = tags_of_all_summaries()
    assert len(tags) == len({*tags})
    assert {'learning_rate', 'learning_rate_1', 'conv1/weights_1', 'conv1/weights_2',
            'conv1/weights/gradients'} <= {*tags}
    with tf.train.SingularMonitoredSession() as session:
        session.run(both)
        assert session.run(global_step) == 2


def test_images_in_an_array():
    logits = cifar10.inference(np.zeros([2, 24, 24, 3]))
    assert logits.shape.as_list() == [2, 10]


@pytest.mark.parametrize('height, width, inputs', [(24, 24, 2304), (32, 32, 4096), (28, 24, 2688)])
def test_images_of_another_size(height, width, inputs):
    """Two poolings leave a quarter of height and width, in 64 channels."""
    logits = cifar10.inference(tf.placeholder(tf.float32, [None, height, width, 3]))
    assert logits.shape.as_list() == [None, 10]
    weights, = (each for each in tf.trainable_variables() if each.op.name == 'local3/weights')
    assert weights.shape.as_list() == [inputs, 384]


@pytest.mark.parametrize('shape', [None, [None, None, None, 3]])
def test_images_of_an_unknown_size(shape):
    with pytest.raises(ValueError, match=r'images have shape .*expected \[batch, 24, 24, 3\]'):
        cifar10.inference(tf.placeholder(tf.float32, shape))


def test_tensorflows_program_that_freezes_a_graph(trained, tmp_path):
    """The remedies of docs/differences.md: it cannot match resource variables with a GraphDef, and
    conv1 is not on the way to the logits. The graph, for batches of 8, accepts 13 images."""
    checkpoint = tf.train.latest_checkpoint(FLAGS.checkpoint_dir)
    freeze_graph.freeze_graph(
        '', '', True, checkpoint, 'softmax_linear/softmax_linear,conv1/conv1', '', '',
        str(tmp_path / 'frozen.pb'), True, '', input_meta_graph=checkpoint + '.meta')
    frozen = tf.GraphDef.FromString((tmp_path / 'frozen.pb').read_bytes())
    fed = tf.placeholder(tf.float32, [None, 24, 24, 3])
    logits, = tf.import_graph_def(
        frozen, {'input/batch:0': fed}, ['softmax_linear/softmax_linear:0'])
    with tf.Session() as session:
        assert session.run(logits, {fed: np.zeros([13, 24, 24, 3])}).shape == (13, 10)
    assert not [node.name for node in frozen.node if node.op == 'VarHandleOp']
    assert {*LAYERS} <= {node.name for node in frozen.node}


def tower(scope, images, labels):
    """Builds a tower as the multi-GPU script does: it sums the scope's collection `losses`."""
    cifar10.loss(cifar10.inference(images), labels)
    return tf.add_n(tf.get_collection('losses', scope), name='total_loss')


def test_towers_and_a_plain_session(half_bright):
    """The loop of the multi-GPU script, with a float32 step; then our evaluation reads it."""
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
                    loss = tower(scope, images, labels)
                    tf.get_variable_scope().reuse_variables()
                    towers.append(optimizer.compute_gradients(loss))
        gradients = cifar10_multi_gpu_train.average_gradients(towers)
        averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY, global_step)
        step = tf.group(optimizer.apply_gradients(gradients, global_step),
                        averages.apply(tf.trainable_variables()))
    saver = tf.train.Saver(tf.global_variables())
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(tf.global_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        for _ in range(3):
            session.run([step, loss])
        path = saver.save(session, os.path.join(FLAGS.train_dir, 'model.ckpt'), global_step=3)
        coordinator.request_stop()
        coordinator.join(threads)
    assert (checkpoints.step(path), outcomes.counts(path).total) == (3, 130)


def test_main_accepts_the_arguments_of_app_run(trained, capsys):
    for script in (cifar10_train, cifar10_multi_gpu_train):
        script.main(['script'])
        assert 'model.ckpt-10 has reached --max_steps=10' in capsys.readouterr().out
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main(['script'])
    assert 'precision @ 1 = ' in capsys.readouterr().out


@pytest.fixture
def of_fixed_batches(monkeypatch):
    """A function that puts an `inference` into `cifar10` that accepts only --batch_size images, as
    one that flattens pool2 to [FLAGS.batch_size, -1]; it returns the list of its images' shapes."""
    inference, shapes = cifar10.inference, []

    def of_fixed_batch(images):
        shapes.append(images.shape.as_list())
        return inference(tf.reshape(images, [FLAGS.batch_size, 24, 24, 3]))

    def put():
        monkeypatch.setattr(cifar10, 'inference', of_fixed_batch)
        return shapes
    return put


def test_a_network_of_a_fixed_batch_size(trained, of_fixed_batches):
    """130 is not a multiple of 8."""
    checkpoint = tf.train.latest_checkpoint(FLAGS.checkpoint_dir)
    expected = outcomes.counts(checkpoint)
    shapes = of_fixed_batches()
    result = outcomes.counts(checkpoint)
    assert shapes == [[8, 24, 24, 3]]
    assert result.total == 130
    assert result.confusion.tolist() == expected.confusion.tolist()


def test_training_a_network_of_a_fixed_batch_size(half_bright, of_fixed_batches):
    shapes = of_fixed_batches()
    cifar10.inference(cifar10.distorted_inputs()[0])
    with flagsaver.flagsaver(num_gpus=2):
        placement.graph_of_towers()
    with tf.Graph().as_default():  # The second of three workers.
        shard = dataclasses.replace(cifar10.default_source(), shard=(1, 3))
        cifar10.inference(cifar10.distorted_inputs(shard)[0])
    assert shapes == 4 * [[8, 24, 24, 3]]


@pytest.mark.parametrize('net', ['tutorial', 'tutorial_fast', 'resnet23', 'airbench94'])
def test_a_second_call_of_disable_v2_behavior(net):
    """As in a module of hooks that is imported last. Without resource variables, training ended
    with NaN, because updates came before gradients that read the old values."""
    size = 24 if net.startswith('tutorial') else 32
    tf.disable_v2_behavior()
    try:
        recipes.TABLE[net].logits(tf.zeros([8, size, size, 3]), 10, training=True)
    finally:
        tf.enable_resource_variables()
    assert {variable.op.type for variable in tf.trainable_variables()} == {'VarHandleOp'}


def test_training_and_evaluation_in_one_graph(half_bright):
    """`train` makes new variables in a scope that reuses the network's; all summaries merge."""
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
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.start_queue_runners(session)
        for _ in range(2):
            session.run(train_op)
        assert session.run([step, hits])[0] == 2
        tags = [value.tag for value in tf.Summary.FromString(session.run(summaries)).value]
    assert len(set(tags)) == len(tags)
    assert {'input/images/image/0', 'input_1/images/image/0', 'conv1/conv1/activations',
            'learning_rate'} <= set(tags)


# Programs without `tf.app.run`, which would parse the command line.
HELPER = '''
with tf.variable_scope('conv3'):
    cifar10._variable_on_cpu('biases', [3], tf.constant_initializer(0.1))
print([(v.op.name, v.device) for v in tf.global_variables()], cifar10.FLAGS.batch_size)
'''
SCRIPTS = '''
import cifar10_eval, cifar10_multi_gpu_train, cifar10_train
cifar10.FLAGS.max_steps = 1
cifar10_train.train()
cifar10.FLAGS.max_steps = 2
cifar10_multi_gpu_train.train()
cifar10_eval.FLAGS.run_once = True
cifar10_eval.evaluate()
'''
OWN_FLAGS = '''
tf.app.flags.DEFINE_float('learning_rate', 0.5, 'As many programs define it.')
tf.app.flags.DEFINE_string('dataset', 'cifar10', '')
tf.app.flags.DEFINE_string('variables', 'theirs', '')
tf.app.flags.DEFINE_boolean('b', False, 'Also the short name of --batch_size.')
print(tf.app.flags.FLAGS.learning_rate, cifar10.FLAGS.batch_size)
weight = tf.get_variable('weight', [])
cifar10.train(weight + 0.0, tf.train.get_or_create_global_step())
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rate, = session.run(tf.get_collection('learning_rate'))
    print(rate)
'''


@pytest.mark.parametrize('program, outputs', [
    (HELPER, ["[('conv3/biases', '/device:CPU:0')] 8"]),
    (SCRIPTS, ['Saved step 1 in ', 'Saved step 2 in ', ' on 130 images.']),
    (OWN_FLAGS, ['0.5 8\n0.5\n'])], ids=['helper', 'scripts', 'own flags'])
def test_the_command_line_is_parsed_on_first_use(half_bright, program, outputs):
    folders = [f'--data_dir={FLAGS.data_dir}']
    if program is SCRIPTS:
        folders += [f'--{name}={FLAGS[name].value}'
                    for name in ('train_dir', 'checkpoint_dir', 'eval_dir')]
    start = f'import sys; sys.path.insert(0, {str(spawn.ROOT)!r})\n'
    start += 'import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nimport cifar10\n'
    done = spawn.run(['-c', start + program, '--batch_size=8', *folders], capture_output=True)
    assert done.returncode == 0, done.stderr
    for output in outputs:
        assert output in done.stdout


HOSTED = '''
import sys; sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = 'ipykernel_launcher.py'
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10
tf.app.flags.FLAGS(['notebook'])
cifar10.FLAGS.batch_size = 16
with tf.Session() as session:
    logits = cifar10.inference(tf.zeros([cifar10.FLAGS.batch_size, 24, 24, 3]))
    session.run(tf.global_variables_initializer())
    print(session.run(logits).shape)
'''


def test_a_notebook_has_a_command_line_of_its_own():
    """The remedy of docs/differences.md: TensorFlow would refuse the flag -f."""
    done = spawn.run(['-c', HOSTED, spawn.ROOT, '-f', 'kernel.json'], capture_output=True)
    assert (done.returncode, done.stdout) == (0, '(16, 10)\n'), done.stderr


def test_the_value_of_a_variable_by_name():
    """The remedy of docs/differences.md."""
    cifar10.inference(tf.zeros([1, 24, 24, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run('conv1/weights/Read/ReadVariableOp:0')
        with tf.variable_scope('conv1', reuse=True):
            np.testing.assert_array_equal(session.run(tf.get_variable('weights')), value)
    assert value.shape == (5, 5, 3, 64)


PASTED = """
    with tf.variable_scope('conv3') as scope:
        kernel = _variable_with_weight_decay('weights', shape=[3, 3, 64, 32], stddev=5e-2, wd=0.01)
        conv = tf.nn.conv2d(pool2, kernel, [1, 1, 1, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [32], tf.constant_initializer(0.1))
        pre_activation = tf.nn.bias_add(conv, biases)
        conv3 = tf.nn.relu(pre_activation, name=scope.name)
        _activation_summary(conv3)
    pool2 = conv3
"""
# Variables are float32 with any type; the other layers convert them in this way.
CONVERTED = PASTED.replace('pool2, kernel', 'pool2, tf.cast(kernel, dtype)').replace(
    'conv, biases', 'conv, tf.cast(biases, dtype)')


@pytest.mark.slow
@pytest.mark.parametrize('pasted, options', [(PASTED, []), (CONVERTED, ['--use_fp16'])])
def test_a_pasted_convolution(half_bright, tmp_path, pasted, options):
    """It trains, decays, has summaries and averages, and is saved."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10.py': {
        '\n    # local3\n': pasted + '\n    # local3\n'}})
    done = spawn.run([copy / 'cifar10_train.py', '--batch_size=8', '--max_steps=3',
                      f'--data_dir={FLAGS.data_dir}', f'--train_dir={FLAGS.train_dir}', *options],
                     capture_output=True)
    assert done.returncode == 0, done.stderr
    reader = tf.train.load_checkpoint(FLAGS.train_dir)
    for name, shape in [('conv3/weights', [3, 3, 64, 32]), ('conv3/biases', [32]),
                        ('local3/weights', [6 * 6 * 32, 384])]:
        value, average = (reader.get_tensor(name + end)
                          for end in ('', '/ExponentialMovingAverage'))
        assert list(value.shape) == shape
        assert abs(value - average).max() > 0  # The last update moved it.
    events = [path for path in os.listdir(FLAGS.train_dir) if 'tfevents' in path]
    tags = {value.tag for event in tf.train.summary_iterator(
        os.path.join(FLAGS.train_dir, events[0])) for value in event.summary.value}
    assert {'conv3/conv3/activations', 'conv3/conv3/sparsity', 'conv3/weight_loss_1',
            'conv3/weight_loss__raw_', 'conv3/weights_1', 'conv3/weights/gradients'} <= tags


# Prints what the constants have changed.
CONSTANTS = '''
import json, os, sys
sys.path.insert(0, sys.argv.pop(1))
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import cifar10, cifar10_multi_gpu_train
from cifar10_lib.evaluation import accuracy
step = tf.Variable(0, trainable=False, name='global_step')
images, labels = cifar10.distorted_inputs()
logits = cifar10.inference(images)
train_op = cifar10.train(cifar10.loss(logits, labels), step)
rate, = tf.get_collection('learning_rate')
weights, average = (v for v in tf.global_variables() if v.op.name.startswith('local4/weights'))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.start_queue_runners(session)
    start = session.run(weights)
    session.run(train_op)
    moved, averaged = session.run([weights, average])
    image = session.run(images)
    rates = []
    for number in (0, 19, 20, 40):
        step.load(number, session)
        rates.append(float(session.run(rate)))
cifar10_multi_gpu_train.main()
with open(os.path.join(cifar10.FLAGS.train_dir, 'model.ckpt-1.meta'), 'rb') as stream:
    names = [node.name for node in tf.MetaGraphDef.FromString(stream.read()).graph_def.node]
print(json.dumps({
    'logits': logits.shape.as_list(), 'images': image.shape, 'rates': rates,
    'decay': float((abs(averaged - moved) / abs(start - moved).max()).max()),
    'towers': sorted({name.split('/')[0] for name in names if name.startswith('copy')}),
    'total': accuracy.images_to_count(cifar10.default_source(eval_data=True)),
    'url': cifar10.default_source().data_set.url}))
'''


@pytest.mark.slow
def test_edited_constants_have_an_effect(half_bright, tmp_path):
    """160 images per epoch in batches of 8: the rate halves every 20 steps."""
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': {
            'IMAGE_SIZE = 24\n': 'IMAGE_SIZE = 28\n', 'NUM_CLASSES = 10\n': 'NUM_CLASSES = 12\n',
            'FOR_TRAIN = 50000': 'FOR_TRAIN = 160', 'FOR_EVAL = 10000': 'FOR_EVAL = 50'},
        'cifar10.py': {
            "DATA_URL = 'https://www.cs.toronto.edu/~kriz": "DATA_URL = 'http://mirror",
            'DECAY = 0.9999': 'DECAY = 0.05', 'PER_DECAY = 350.0': 'PER_DECAY = 1.0',
            'FACTOR = 0.1': 'FACTOR = 0.5', '_RATE = 0.1': '_RATE = 0.02',
            "TOWER_NAME = 'tower'": "TOWER_NAME = 'copy'"}})
    done = spawn.run(['-c', CONSTANTS, copy, '--batch_size=8', f'--data_dir={FLAGS.data_dir}',
                      f'--train_dir={FLAGS.train_dir}', '--max_steps=1'], capture_output=True)
    assert done.returncode == 0, done.stderr
    *lines, result = done.stdout.splitlines()
    assert lines[0] == 'Filling queue with 64 CIFAR images before starting to train.'
    found = json.loads(result)
    assert found['logits'] == [8, 12]
    assert found['images'] == [8, 28, 28, 3]
    np.testing.assert_allclose(found['rates'], [0.02, 0.02, 0.01, 0.005], rtol=1e-5)
    np.testing.assert_allclose(found['decay'], 0.05, rtol=1e-3)
    assert found['towers'] == ['copy_0']
    assert found['total'] == [50, 50]
    assert found['url'] == 'http://mirror/cifar-10-binary.tar.gz'


def test_constants_edited_in_cifar10(half_bright, monkeypatch):
    """They decide there, whatever cifar10_input says: the network, the schedule, the evaluation."""
    monkeypatch.setattr(cifar10, 'NUM_CLASSES', 4)
    monkeypatch.setattr(cifar10, 'NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN', 160)
    monkeypatch.setattr(cifar10, 'NUM_EXAMPLES_PER_EPOCH_FOR_EVAL', 50)
    assert cifar10.inference(tf.zeros([1, 24, 24, 3])).shape.as_list() == [1, 4]
    source = cifar10.default_source()
    assert source.data_set.classes == ('airplane', 'automobile', 'bird', 'cat')
    assert source.num_examples() == 160
    assert accuracy.images_to_count(cifar10.default_source(eval_data=True)) == (50, 50)


@pytest.mark.parametrize('size', [0, 33])
def test_an_image_size_beyond_the_records(half_bright, monkeypatch, size):
    monkeypatch.setattr('cifar10_input.IMAGE_SIZE', size)
    with pytest.raises(ValueError, match=f'IMAGE_SIZE is {size}; expected 1 to 32'):
        cifar10.distorted_inputs()


@pytest.mark.parametrize('name, eval_data', [('TRAIN', False), ('EVAL', True)])
def test_an_epoch_without_images(half_bright, monkeypatch, name, eval_data):
    monkeypatch.setattr(f'cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_{name}', 0)
    with pytest.raises(ValueError, match=f'FOR_{name} is 0; expected at least 1'):
        cifar10.default_source(eval_data).num_examples()


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

def train():
    with tf.Graph().as_default():
        global_step = tf.train.get_or_create_global_step()
        images, labels = cifar10.distorted_inputs()
        assert images.shape[0] == FLAGS.batch_size == cifar10.FLAGS.batch_size
        assert FLAGS.log_frequency == 5
        loss = cifar10.loss(cifar10.inference(images), labels)
        train_op = cifar10.train(loss, global_step)
        with tf.train.MonitoredTrainingSession(
                checkpoint_dir=FLAGS.train_dir,
                hooks=[tf.train.StopAtStepHook(last_step=FLAGS.max_steps)],
                config=tf.ConfigProto(log_device_placement=FLAGS.log_device_placement)) as session:
            while not session.should_stop():
                session.run(train_op)

def main(argv=None):
    cifar10.maybe_download_and_extract()
    train()

if __name__ == '__main__':
    FLAGS = parser.parse_args()
    tf.app.run()
'''


@pytest.mark.slow
def test_a_script_that_parses_its_flags_with_argparse(half_bright, tmp_path):
    """As the tutorial's last version did; a misspelled argument ends in a line."""
    script, run_dir = tmp_path / 'my_train.py', tmp_path / 'my_run'
    script.write_text(ARGPARSE_TRAINER)
    command = [script, '--log_device_placement', f'--data_dir={half_bright.parent}',
               '--batch_size', '4', '--max_steps', '3', f'--train_dir={run_dir}']
    environment = {**os.environ, 'PYTHONPATH': str(spawn.ROOT)}
    done = spawn.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert tf.train.latest_checkpoint(str(run_dir)).endswith('model.ckpt-3')
    done = spawn.run([*command, '--train=x'], capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (2, ''), done.stderr
    assert 'error: unrecognized arguments: --train=x' in done.stderr
