"""Code written against the tutorial runs unchanged, apart from `import tensorflow.compat.v1`.

One program of each kind. Those that need a process of their own are in test_whole_programs.py.
"""
import contextlib
import math
import os
import re

from cifar10_lib import checkpoints

import numpy as np
import outcomes
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from tensorflow.python.tools import freeze_graph

import cifar10
import cifar10_eval
import cifar10_input
import cifar10_multi_gpu_train
import cifar10_train
from benchmarks import tutorial

FLAGS = flags.FLAGS
LAYERS = ['conv1/conv1', 'pool1', 'norm1', 'conv2/conv2', 'norm2', 'pool2', 'local3/Reshape',
          'local3/local3', 'local4/local4', 'softmax_linear/softmax_linear']
LOGITS = LAYERS[-1]


@contextlib.contextmanager
def running(restore=None):
    """A session with the threads of the queues, and the first values or what `restore` restores."""
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        if restore:
            restore(session)
        coordinator = tf.train.Coordinator()
        threads = []
        for runner in tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
            threads += runner.create_threads(session, coord=coordinator, daemon=True, start=True)
        yield session
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)


def noise(count, seed=0):
    """Images and labels to feed."""
    random = np.random.RandomState(seed)
    return (random.normal(size=[count, 24, 24, 3]).astype(np.float32),
            random.randint(0, 10, count).astype(np.int32))


def plain_logits(images, values):
    """The logits of TensorFlow's own operations."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(plain.logits(tf.constant(images), values))


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


def test_a_programs_own_variables_and_ours():
    """Its own are TensorFlow 1's, as without the import. The value of ours has another name:
    docs/differences.md."""
    step = tf.Variable(0, trainable=False, name='global_step')
    own = tf.Variable([1.0, 2.0], name='own')
    double = own * 2
    cifar10.inference(tf.zeros([1, 24, 24, 3]))
    assert tf.train.get_global_step().op is step.op
    with running() as session:
        assert session.run('own:0').tolist() == [1, 2]
        assert session.run(double, {own: [5, 6]}).tolist() == [10, 12]
        value = session.run('conv1/weights/Read/ReadVariableOp:0')
        with tf.variable_scope('conv1', reuse=True):
            np.testing.assert_array_equal(session.run(tf.get_variable('weights')), value)
    assert value.shape == (5, 5, 3, 64)


def test_constants_that_a_program_sets(half_bright, monkeypatch, capsys):
    """By hand: the rate of 0.5 halves after two epochs of two batches; the average takes 0.95 of
    the new value."""
    for name, value in {
            'INITIAL_LEARNING_RATE': 0.5, 'LEARNING_RATE_DECAY_FACTOR': 0.5, 'NUM_CLASSES': 3,
            'NUM_EPOCHS_PER_DECAY': 2, 'NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN': 16,
            'MOVING_AVERAGE_DECAY': 0.05, 'TOWER_NAME': 'copy'}.items():
        monkeypatch.setattr(cifar10, name, value)
    monkeypatch.setattr(cifar10_input, 'IMAGE_SIZE', 16)
    monkeypatch.setattr(cifar10_input, 'NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN', 20)
    weight = tf.get_variable('weight', [], initializer=tf.constant_initializer(1.0))
    train_op = cifar10.train(2 * weight, tf.train.get_or_create_global_step())
    average = tf.global_variables()[-1]
    found = []
    with running() as session:
        for _ in range(5):
            session.run(train_op)
            found.append(session.run([weight, average]))
    assert [value for value, _ in found] == [0, -1, -2, -3, -3.5]
    np.testing.assert_allclose(found[0][1], 0.05 * 1 + 0.95 * 0, rtol=1e-5)
    np.testing.assert_allclose(found[1][1], 0.05 * 0.05 + 0.95 * -1, rtol=1e-5)
    images, _ = cifar10.distorted_inputs()
    assert 'Filling queue with 8 CIFAR images' in capsys.readouterr().out
    with tf.name_scope('copy_0'):
        assert cifar10.inference(images).shape.as_list() == [8, 3]
    assert tf.trainable_variables('local3/weights')[0].shape.as_list() == [4 * 4 * 64, 384]
    assert tf.get_default_graph().get_operation_by_name('conv1/conv1/sparsity')


# ---- Input


def test_read_cifar10_in_a_pipeline_of_ones_own(tmp_path):
    """Two readers, files of other names, each record once."""
    pairs = [(label, image) for label, (_, image) in enumerate(record_files.noise(9, seed=0))]
    for name, part in (('a', pairs[:4]), ('b', pairs[4:])):
        record_files.write(tmp_path / f'{name}.dat', part)
    queue = tf.train.string_input_producer(
        [f'{tmp_path}/a.dat', f'{tmp_path}/b.dat'], num_epochs=1)
    records = [cifar10_input.read_cifar10(queue) for _ in range(2)]
    images, labels = tf.train.batch_join(
        [[tf.reshape(each.uint8image, [each.height, each.width, each.depth]), each.label]
         for each in records], 4, allow_smaller_final_batch=True)
    found = {}
    with running() as session, contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            batch = session.run([labels, images])
            found.update((int(label), image) for (label,), image in zip(*batch))
    assert sorted(found) == list(range(9))
    for label, image in pairs:
        np.testing.assert_array_equal(found[label], image)


# ---- Training


def six_steps(module, path, start=''):
    """Six steps of a module's network on fixed images, from a checkpoint or the first values:
    the losses. Saves the first values and the last."""
    # Of 60 seeds, two brought a value so near to a tie in a pooling window, or to 0 in a ReLU, that
    # rounding decided: weights of the two networks then differed by 1e-4.
    tf.set_random_seed(1)
    images, labels = tf.placeholder(tf.float32, [8, 24, 24, 3]), tf.placeholder(tf.int32, [8])
    loss = module.loss(module.inference(images), labels)
    train_op = module.train(loss, tf.train.get_or_create_global_step())
    saver = tf.train.Saver()
    with running(lambda session: start and saver.restore(session, start)) as session:
        saver.save(session, path, 0)
        losses = []
        for feeds in (dict(zip((images, labels), noise(8, seed))) for seed in range(6)):
            losses.append(session.run([train_op, loss], feeds)[1])
        saver.save(session, path, 6)
    return losses


def test_the_published_network_and_ours(tmp_path):
    """Six steps from the same weights have the same losses. Each reads the other's checkpoint, and
    computes the same with its averages."""
    paths = {tutorial: f'{tmp_path}/theirs', cifar10: f'{tmp_path}/ours'}
    start, losses = '', []
    for module, path in paths.items():
        with tf.Graph().as_default():
            losses.append(six_steps(module, path, start))
        start = f'{path}-0'
    np.testing.assert_allclose(*losses, atol=2e-6)
    assert np.ptp(losses[0]) > 0.01
    theirs, ours = (checkpoints.read(f'{path}-6') for path in paths.values())
    assert theirs.keys() == ours.keys() and theirs['global_step'] == ours['global_step'] == 6
    for name in plain.SHAPES:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6)
    for path in paths.values():
        expected = plain_logits(noise(8)[0], plain.read(f'{path}-6'))
        for module in paths:
            with tf.Graph().as_default():
                logits = module.inference(noise(8)[0])
                averages = tf.train.ExponentialMovingAverage(0.9999)
                saver = tf.train.Saver(averages.variables_to_restore())
                with tf.Session() as session:
                    saver.restore(session, f'{path}-6')
                    np.testing.assert_allclose(session.run(logits), expected, atol=1e-5)


class _Losses(tf.train.SessionRunHook):
    """A program's own hook."""

    def begin(self):
        self.found = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs('total_loss:0')

    def after_run(self, run_context, run_values):
        self.found.append(run_values.results)


def test_hooks_of_ones_own(half_bright):
    """In TensorFlow's own session: the hook finds the losses that the events have."""
    images, labels = cifar10.distorted_inputs()
    loss = cifar10.loss(cifar10.inference(images), labels)
    train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
    losses = _Losses()
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.train_dir, save_checkpoint_steps=2, save_summaries_steps=1,
            hooks=[tf.train.StopAtStepHook(last_step=4), tf.train.NanTensorHook(loss), losses,
                   tf.train.StepCounterHook(every_n_steps=2)]) as session:
        while not session.should_stop():
            session.run(train_op)
    assert len(losses.found) == 4
    events = outcomes.summaries(FLAGS.train_dir)
    assert [events[step]['total_loss__raw_'].simple_value
            for step in range(1, 5)] == pytest.approx(losses.found)
    assert checkpoints.newest(FLAGS.train_dir).values['global_step'] == 4


@pytest.mark.parametrize('inputs_of', ['each tower', 'a queue'])
def test_towers_and_a_plain_session(half_bright, capsys, inputs_of):
    """The loop of the published multi-GPU script, with a float32 step; our programs resume and
    evaluate it."""
    with tf.device('/cpu:0'):
        global_step = tf.get_variable('global_step', [], initializer=tf.constant_initializer(0),
                                      trainable=False)
        rate = tf.train.exponential_decay(0.03, global_step, 100, 0.1, staircase=True)
        optimizer = tf.train.GradientDescentOptimizer(rate)
        get_batch = cifar10.distorted_inputs
        if inputs_of == 'a queue':
            batch = cifar10.distorted_inputs()
            queue = tf.FIFOQueue(4, [tf.float32, tf.int32], [each.shape for each in batch])
            tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(batch)]))
            get_batch = queue.dequeue
        towers = []
        with tf.variable_scope(tf.get_variable_scope()):
            for i in range(2):
                with tf.device(f'/gpu:{i}'), tf.name_scope(f'{cifar10.TOWER_NAME}_{i}') as scope:
                    images, labels = get_batch()
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
    with running() as session:
        for _ in range(3):
            session.run([step, loss])
        saver.save(session, os.path.join(FLAGS.train_dir, 'model.ckpt'), global_step=3)
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
    assert 'precision @ 1 = ' in capsys.readouterr().out
    with flagsaver.flagsaver(max_steps=4):
        cifar10_train.main()
    assert 'at step 3, until step 4.\n' in capsys.readouterr().out
    assert checkpoints.newest(FLAGS.train_dir).values['global_step'].dtype == np.int64


def test_two_networks_with_inputs_of_their_own(half_bright):
    """The second loss has the terms of both; all summaries merge."""
    networks = []
    for name, batch in (('first', cifar10.distorted_inputs()),
                        ('second', cifar10.inputs(eval_data='train_eval'))):
        with tf.variable_scope(name):
            networks.append((*batch, cifar10.loss(cifar10.inference(batch[0]), batch[1])))
    variables = {each.op.name: tf.convert_to_tensor(each) for each in tf.trainable_variables()}
    expected = sum(
        plain.loss(plain.logits(images, values), labels, values)
        for (images, labels, _), values in zip(networks, (
            {key: variables[f'{name}/{key}'] for key in plain.SHAPES}
            for name in ('first', 'second'))))
    loss = networks[1][-1]
    train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
    summaries = tf.summary.merge_all()
    with running() as session:
        found, value = session.run([loss, expected])
        assert found == pytest.approx(value, rel=1e-5)
        before = session.run(tf.trainable_variables())
        session.run(train_op)
        after = session.run(tf.trainable_variables())
        shown = tf.Summary.FromString(session.run(summaries))
    assert len(after) == 20 and all((a != b).any() for a, b in zip(after, before))
    assert {f'{name}/conv1/{name}/conv1/sparsity' for name in ('first', 'second')} <= {
        each.tag for each in shown.value}


def test_training_and_evaluation_in_one_graph(half_bright):
    """In a Supervisor's session. Both networks share the variables; all summaries merge."""
    images, labels = cifar10.distorted_inputs()
    test_images, test_labels = cifar10.inputs(eval_data=True)
    step = tf.Variable(0, trainable=False, name='global_step')
    with tf.variable_scope(tf.get_variable_scope()) as scope:
        logits = cifar10.inference(images)
        scope.reuse_variables()
        hits = tf.nn.in_top_k(cifar10.inference(test_images), test_labels, 1)
    train_op = cifar10.train(cifar10.loss(logits, labels), step)
    summaries = tf.summary.merge_all()
    assert len(tf.trainable_variables()) == 10
    supervisor = tf.train.Supervisor(logdir=FLAGS.train_dir, global_step=step)
    with supervisor.managed_session() as session:
        for _ in range(3):
            session.run(train_op)
        assert session.run(hits).shape == (8,)
        supervisor.saver.save(session, supervisor.save_path, step)
        supervisor.summary_computed(session, session.run(summaries))
    assert checkpoints.newest(FLAGS.train_dir).values['global_step'] == 3
    assert 'total_loss__raw_' in outcomes.summaries(FLAGS.train_dir)[3]


def test_pruning():
    """`tf.assign` makes small weights 0, and does it again after each update."""
    images, labels = noise(8)
    logits = cifar10.inference(images)
    train_op = cifar10.train(cifar10.loss(logits, labels), tf.train.get_or_create_global_step())
    variables = {each.op.name: each for each in tf.trainable_variables()}
    weights = [each for name, each in variables.items() if name.endswith('weights')]
    masks = [tf.Variable(tf.ones(each.shape), trainable=False) for each in weights]
    choose = [tf.assign(mask, tf.cast(tf.abs(each) > 0.003, tf.float32))
              for mask, each in zip(masks, weights)]
    prune = [tf.assign(each, each * mask) for mask, each in zip(masks, weights)]
    with running() as session:
        expected = {name: value * (abs(value) > 0.003) if name.endswith('weights') else value
                    for name, value in session.run(variables).items()}
        session.run(choose)
        session.run(prune)
        np.testing.assert_allclose(session.run(logits), plain_logits(images, expected), atol=1e-5)
        session.run(train_op)
        updated = session.run(variables)
        session.run(prune)
        for each, pruned in zip(weights, session.run(weights)):
            was_zero = expected[each.op.name] == 0
            assert 0.01 < was_zero.mean() < 0.6 and updated[each.op.name][was_zero].any()
            np.testing.assert_array_equal(pruned, updated[each.op.name] * ~was_zero)


def test_fake_quantisation():
    """Weights in steps of 0.01, from -1.28 to 1.27; the gradients pass."""
    def quantised(getter, name, *arguments, **options):
        variable = getter(name, *arguments, **options)
        if not name.endswith('weights'):
            return variable
        return tf.quantization.fake_quant_with_min_max_vars(variable, -1.28, 1.27)

    images, labels = noise(8)
    with tf.variable_scope(tf.get_variable_scope(), custom_getter=quantised):
        logits = cifar10.inference(images)
    train_op = cifar10.train(cifar10.loss(logits, labels), tf.train.get_or_create_global_step())
    variables = {each.op.name: each for each in tf.trainable_variables()}
    with running() as session:
        before = session.run(variables)
        expected = plain_logits(images, {
            name: value.round(2) if name.endswith('weights') else value
            for name, value in before.items()})
        np.testing.assert_allclose(session.run(logits), expected, atol=1e-3)
        session.run(train_op)
        assert all((value != before[name]).any() for name, value in session.run(variables).items())


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


# ---- Trained networks


def test_an_evaluation_loop(trained):
    """17 batches of 8 read the 130 images and the first six again; each counts as in ours."""
    images, labels = cifar10.inputs(eval_data='test')
    top_k = tf.nn.in_top_k(cifar10.inference(images), labels, 1)
    averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
    saver = tf.train.Saver(averages.variables_to_restore())
    summaries = tf.summary.merge_all()
    path = tf.train.get_checkpoint_state(FLAGS.checkpoint_dir).model_checkpoint_path
    with running(lambda session: saver.restore(session, path)) as session, \
            tf.summary.FileWriter(FLAGS.eval_dir, session.graph) as writer:
        hits = np.concatenate([session.run(top_k) for _ in range(math.ceil(130 / 8))])
        summary = tf.Summary.FromString(session.run(summaries))
        summary.value.add(tag='Precision @ 1', simple_value=hits.mean())
        writer.add_summary(summary, 10)
    assert len(hits) == 136
    assert hits[130:].tolist() == hits[:6].tolist()
    np.testing.assert_array_equal(hits[:130], outcomes.hits(FLAGS.checkpoint_dir))
    assert {'Precision @ 1', 'local3/local3/sparsity'} <= outcomes.summaries(
        FLAGS.eval_dir)[10].keys()


def test_our_evaluation_called_by_a_program(half_bright, capsys):
    """`eval_once` with its own graph and a saver of the raw weights, which predict 3; then
    `evaluate`, with the averages, which predict 0. Half of the images are of class 0."""
    values = {'global_step': np.int64(7)}
    for suffix, label in (('', 3), (plain.AVERAGE, 0)):
        values.update({name + suffix: value for name, value in plain.weights(seed=1).items()})
        values['softmax_linear/biases' + suffix] = np.eye(10, dtype=np.float32)[label] * 1e3
    plain.save(os.path.join(FLAGS.train_dir, 'model.ckpt-7'), values)
    images, labels = cifar10.inputs(eval_data='test')
    top_k_op = tf.nn.in_top_k(cifar10.inference(images), labels, 1)
    with tf.summary.FileWriter(FLAGS.eval_dir) as writer:
        cifar10_eval.eval_once(tf.train.Saver(), writer, top_k_op, tf.summary.merge_all())
    cifar10_eval.FLAGS.run_once = True
    cifar10_eval.evaluate()
    assert re.findall(r'precision @ 1 = (.*)\n', capsys.readouterr().out) == ['0.000', '0.500']
    assert 'Precision @ 1' in outcomes.summaries(FLAGS.eval_dir)[7]


def test_a_trained_network_with_other_classes(trained, monkeypatch):
    """A saver of all layers but the last one."""
    monkeypatch.setattr(cifar10, 'NUM_CLASSES', 3)
    cifar10.inference(tf.zeros([8, 24, 24, 3]))
    kept = [each for each in tf.trainable_variables() if 'softmax_linear' not in each.op.name]
    path = tf.train.latest_checkpoint(FLAGS.train_dir)
    with running(lambda session: tf.train.Saver(kept).restore(session, path)) as session:
        found = session.run({each.op.name: each for each in tf.trainable_variables()})
    values = plain.read(path, '')
    for each in kept:
        np.testing.assert_array_equal(found[each.op.name], values[each.op.name])
    assert found['softmax_linear/weights'].shape == (192, 3)


@pytest.mark.parametrize('way', ['freeze_graph', 'convert_variables_to_constants'])
def test_freezing(trained, tmp_path, way):
    """With the remedies of docs/differences.md: `freeze_graph` cannot match resource variables with
    a GraphDef. The graph, for batches of 8, accepts 13 images. conv1 is not on the way to the
    logits."""
    checkpoint = tf.train.latest_checkpoint(FLAGS.checkpoint_dir)
    if way == 'freeze_graph':
        freeze_graph.freeze_graph(
            '', '', True, checkpoint, f'{LOGITS},conv1/conv1', '', '', str(tmp_path / 'frozen.pb'),
            True, '', input_meta_graph=checkpoint + '.meta')
        frozen = tf.GraphDef.FromString((tmp_path / 'frozen.pb').read_bytes())
    else:
        with tf.Graph().as_default() as graph, tf.Session() as session:
            tf.train.import_meta_graph(checkpoint + '.meta').restore(session, checkpoint)
            frozen = tf.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), [LOGITS, 'conv1/conv1'])
        frozen = tf.graph_util.remove_training_nodes(frozen, protected_nodes=[LOGITS, *LAYERS])
        assert not [node.name for node in frozen.node
                    if node.op == 'Identity' and node.name not in LAYERS]
    images, = {edge for node in frozen.node if node.name == 'conv1/Conv2D'
               for edge in node.input[:1]}
    fed = tf.placeholder(tf.float32, [None, 24, 24, 3])
    logits, = tf.import_graph_def(frozen, {images: fed}, [f'{LOGITS}:0'])
    expected = plain_logits(noise(13)[0], plain.read(checkpoint, ''))
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(logits, {fed: noise(13)[0]}), expected, atol=1e-4)
    assert not [node.name for node in frozen.node if node.op == 'VarHandleOp']
    assert {*LAYERS} <= {node.name for node in frozen.node}


def test_a_saliency_map_from_a_meta_graph(trained):
    """It is that of TensorFlow's own operations with the same weights."""
    path = tf.train.latest_checkpoint(FLAGS.train_dir)
    images = tf.placeholder(tf.float32, [8, 24, 24, 3])
    saver = tf.train.import_meta_graph(
        path + '.meta', clear_devices=True, input_map={'input/shuffle_batch:0': images})
    logits = tf.get_default_graph().get_tensor_by_name(f'{LOGITS}:0')
    maps = [tf.gradients(each[:, 3], images)[0] for each in (
        logits, plain.logits(images, plain.read(path, '')))]
    with tf.Session() as session:
        saver.restore(session, path)
        found, expected = session.run(maps, {images: noise(8)[0]})
    assert abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, atol=1e-4 * abs(expected).max())
