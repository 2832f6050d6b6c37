"""docs/migration.md: its stages compute the same, and its replacements what they replace."""
import importlib.util
import json
import re
import subprocess
import sys

from classification_lib import own_images

import numpy as np
import outcomes
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from docs.migration import batch_norm

ROOT = spawn.ROOT
PAGE = (ROOT / 'docs/migration.md').read_text()


@pytest.fixture
def stages(tmp_path):
    """Paths of the five stages, of which the first has the changes of the page's table."""
    published, *others = sorted(ROOT.glob('docs/migration/stage_*.py'))
    text = published.read_text()
    table = PAGE[PAGE.index('| in stage 0 | runs today |'):].partition('\n\n')[0]
    for old, new in re.findall(r'^\| `(.*)` \| `(.*)` \|$', table, re.MULTILINE):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / published.name).write_text(text)
    return [tmp_path / published.name, *others]


# Compute the logits of a checkpoint's raw weights, and the losses of 20 steps from there.
GRAPH = '''
import runpy
stage = runpy.run_path(path)
tf = stage['tf']
images, labels = tf.placeholder(tf.float32, [None, 24, 24, 3]), tf.placeholder(tf.int32, [None])
logits = stage['inference'](images)
total_loss = stage['loss'](logits, labels)
train_op = stage['train'](total_loss, tf.train.get_or_create_global_step(), 1000)
with tf.Session() as session:
    tf.train.Saver().restore(session, checkpoint)
    found = session.run(logits, {images: batches[0][0]})
    losses = []
    for x, y in batches:  # In one run, the update of a reference variable may come first.
        losses.append(session.run(total_loss, {images: x, labels: y}))
        step = session.run(train_op, {images: x, labels: y})
        assert step in (None, 7 + len(losses))  # From stage 1 on, the number after the update.
if step:
    assert all(each.op.type == 'VarHandleOp' for each in tf.global_variables())
'''
MODULE = '''
import tensorflow as tf
from docs.migration import stage_3_module
network = stage_3_module.Network()
tf.train.Checkpoint(network=network).restore(checkpoint).assert_existing_objects_matched()
found = network(batches[0][0]).numpy()
losses = [network.step(x, y, 1000) for x, y in batches]
'''
KERAS = '''
import keras
from docs.migration import stage_4_keras
assert keras.backend.backend() == os.environ['KERAS_BACKEND']
model = stage_4_keras.network()
stage_4_keras.load(model, checkpoint, averaged=False)
model.compile(keras.optimizers.SGD(0.1),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True))
found = model.predict_on_batch(batches[0][0])
losses = [model.train_on_batch(x, y) for x, y in batches]
'''


def run(folder, *arguments, **environment):
    """Runs Python in a folder; not a fork, which has TensorFlow 1's behaviour: its output."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, text=True, capture_output=True,
                          timeout=spawn.PATIENCE, env=spawn.environment(**environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_plain_network(checkpoint, batches):
    """The logits of the first batch, and the losses of a step on each, at a rate of 0.1."""
    variables = {name: tf.Variable(value) for name, value in plain.read(checkpoint, '').items()}
    images, labels = tf.placeholder(tf.float32, [8, 24, 24, 3]), tf.placeholder(tf.int32, [8])
    logits = plain.logits(images, variables)
    loss = plain.loss(logits, labels, variables)
    step = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(logits, {images: batches[0][0]})
        for x, y in batches:
            losses.append(session.run(loss, {images: x, labels: y}))
            session.run(step, {images: x, labels: y})
    return found, losses


@pytest.mark.slow
@pytest.mark.parametrize('number, program, backend', [
    (0, GRAPH, None), (1, GRAPH, None), (2, GRAPH, None), (3, MODULE, None),
    (4, KERAS, 'tensorflow'), (4, KERAS, 'jax'), (4, KERAS, 'torch')])
def test_all_stages_compute_the_same(stages, tmp_path, number, program, backend):
    """As a network in TensorFlow's own operations."""
    if backend and not importlib.util.find_spec(backend):
        pytest.skip(f'requires {backend}')
    checkpoint = plain.save_checkpoint(tmp_path)
    random = np.random.RandomState(0)
    batches = [(random.normal(size=[8, 24, 24, 3]).astype(np.float32),
                random.randint(0, 10, 8).astype(np.int32)) for _ in range(20)]
    images, labels = zip(*batches)
    np.savez(tmp_path / 'batches.npz', images=images, labels=labels)
    printed = run(ROOT, '-c', f'''
import json, os
import numpy as np
path, checkpoint = {str(stages[number])!r}, {checkpoint!r}
batches = list(zip(*np.load({str(tmp_path / 'batches.npz')!r}).values()))
{program}
print(json.dumps([np.asarray(found).tolist(), list(map(float, losses))]))
''', KERAS_BACKEND=backend or 'tensorflow')
    found, losses = json.loads(printed.splitlines()[-1])
    expected, expected_losses = of_plain_network(checkpoint, batches)
    assert np.ptp(expected) > 0.3 and max(expected_losses) < 20
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('number', range(5))
def test_all_stages_print_the_same_precision(stages, tmp_path, number):
    """That of the averages, whose values differ from the raw weights. There are 200 test images, so
    batches of 10 count each once."""
    flags.FLAGS.data_dir = str(tmp_path)
    records = record_files.write_noise(tmp_path)
    checkpoint = plain.save_checkpoint(tmp_path / 'run')
    averaged, raw = (outcomes.precision(str(tmp_path / 'run'), use) for use in (True, False))
    assert averaged != raw
    printed = run(ROOT, stages[number], f'--records={records}', f'--checkpoint={checkpoint}',
                  *['--batch_size=10'] * (number < 4)).splitlines()[-1]
    ending = f', with raw weights {raw:.3f}' if number == 4 else ''
    assert printed == f'precision @ 1 = {averaged:.3f}{ending}'


@pytest.mark.slow
def test_each_stage_continues_the_run_of_the_stage_before(stages, tmp_path, half_bright):
    """Ten steps each in one folder, stages 0 to 3; stage 3 reads its own checkpoints, too."""
    records, folder = f'--records={half_bright}', tmp_path / 'run'
    for number, steps in ((0, 10), (1, 20), (2, 30), (3, 40), (3, 50)):
        run(ROOT, stages[number], records, f'--train_dir={folder}', f'--steps={steps}',
            '--batch_size=8')
        assert tf.train.latest_checkpoint(folder).endswith(f'model.ckpt-{steps}'), number
    out = run(ROOT, stages[3], records, f'--checkpoint={tf.train.latest_checkpoint(folder)}')
    assert out.startswith('precision @ 1 = ')


@pytest.mark.slow
def test_stage_4_trains_on_a_data_set_of_three_classes(stages, tmp_path):
    """As cifar10_convert.py makes it; the colour of an image is its class. Batches are small."""
    labels = np.arange(300) % 3
    images = np.random.RandomState(1).randint(0, 60, [300, 32, 32, 3]).astype(np.uint8)
    images[np.arange(300), :, :, labels] += 150
    own_images.write(str(tmp_path), 'colours', own_images.OwnImages(
        ['red', 'green', 'blue'], own_images.Split(images[:240], labels[:240]),
        own_images.Split(images[240:], labels[240:])))
    program = ('import functools\nfrom docs.migration import stage_4_keras as stage\n'
               'stage.train = functools.partial(stage.train, batch_size=32)\nstage.main()')
    out = run(ROOT, '-c', program, f'--records={tmp_path}', '--steps=100')
    assert float(re.search(r'precision @ 1 = (\S+),', out).group(1)) > 0.9


def batch_norm_of(values, **options):
    return batch_norm.batch_norm(tf.constant(values), decay=0.9, scope='bn', **options)


@pytest.mark.parametrize('is_fed, collection, shape, epsilon', [
    (True, None, [2, 3, 3, 4], 0.001), (False, 'update_ops', [2, 3, 3, 4], 0.1),
    (True, 'update_ops', [18, 4], 0.1), (False, None, [18, 4], 0.001)])
def test_batch_norm_by_hand(is_fed, collection, shape, epsilon):
    """The averages take a tenth of the batch's mean, and of its variance times N / (N - 1)."""
    values = np.random.RandomState(0).normal(3, 2, shape).astype(np.float32)
    training = tf.placeholder_with_default(True, []) if is_fed else True
    options = {'scale': True, 'epsilon': epsilon}
    outputs = batch_norm_of(
        values, is_training=training, updates_collections=collection, **options)
    if is_fed:
        evaluated, feeds = outputs, {training: False}
    else:
        evaluated = batch_norm_of(values, is_training=False, reuse=True, **options)
        feeds = None
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert len(updates) == (2 if collection else 0)
    assert [variable.op.name for variable in tf.global_variables()] == [
        'bn/beta', 'bn/gamma', 'bn/moving_mean', 'bn/moving_variance']
    mean, variance = values.reshape(18, 4).mean(0), values.reshape(18, 4).var(0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        got = session.run([outputs, updates])[0]
        session.run(evaluated, feeds)  # Changes nothing.
        moving = session.run(tf.global_variables()[2:])
        after = session.run(evaluated, feeds)
    np.testing.assert_allclose(got, (values - mean) / np.sqrt(variance + epsilon), atol=1e-4)
    np.testing.assert_allclose(moving[0], 0.1 * mean, rtol=1e-4)
    np.testing.assert_allclose(moving[1], 0.9 + 0.1 * variance * 18 / 17, rtol=1e-4)
    np.testing.assert_allclose(
        after, (values - moving[0]) / np.sqrt(moving[1] + epsilon), atol=1e-4)


def test_with_towers_the_averages_follow_those_of_one():
    """Three steps on a mean of 1: 1 - 0.9^3 = 0.271. The updates of both towers go further."""
    nets = []
    for tower in range(2):
        with tf.name_scope(f'tower_{tower}'):
            nets.append(batch_norm_of(np.ones([2, 4, 4, 3], np.float32), reuse=tower > 0))
    mean = next(each for each in tf.global_variables() if each.op.name == 'bn/moving_mean')
    found = []
    for scope in ('tower_0', None):
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run([nets, tf.get_collection(tf.GraphKeys.UPDATE_OPS, scope)])
            found.append(session.run(mean)[0])
    assert found[0] == pytest.approx(0.271, abs=1e-5) and found[1] > 0.3


def test_adam_continues_in_keras(tmp_path):
    """One step after ten of TensorFlow 1, with the second of two optimizers."""
    inputs = np.random.RandomState(0).normal(size=[8, 3]).astype(np.float32)
    weights = tf.get_variable('weights', initializer=np.ones([3, 2], np.float32))
    scale = tf.get_variable('scale', initializer=np.ones(2, np.float32))
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(inputs, weights)) * scale - 1))
    first = tf.train.AdamOptimizer(0.01, beta1=0.5).minimize(loss, var_list=[scale])
    second = tf.train.AdamOptimizer(0.01).minimize(loss, var_list=[weights])
    gradient, = tf.gradients(loss, [weights])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(10):
            session.run([first, second])
        checkpoint = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))
        np.save(tmp_path / 'gradient.npy', session.run(gradient))
        session.run(second)
        expected = session.run(weights)
    program = f'''
import sys
sys.path.insert(0, {str(ROOT)!r})
import keras
import numpy as np
import tensorflow as tf
from docs.migration import adam
weights = keras.Variable(tf.train.load_variable({checkpoint!r}, 'weights'))
optimizer = keras.optimizers.Adam(0.01, epsilon=1e-8)
adam.load_adam(optimizer, {{'weights': weights}}, {checkpoint!r}, number=1)
optimizer.apply([np.load('gradient.npy')], [weights])
print(weights.numpy().tolist())
'''
    np.testing.assert_allclose(json.loads(run(tmp_path, '-c', program)), expected, atol=1e-7)
