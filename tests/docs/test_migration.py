"""docs/migration.md: its stages compute the same, and its replacements what they replace."""
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

from cifar10_lib import checkpoints
from classification_lib import evaluate, own_images, recipes

import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from docs.migration import batch_norm

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'docs/migration'
PAGE = (ROOT / 'docs/migration.md').read_text()


@pytest.fixture
def stages(tmp_path):
    """Paths of the five stages, of which the first has the changes of the page's table."""
    published, *others = sorted(FOLDER.glob('stage_*.py'))
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
assert keras.backend.backend() == os.environ.get('KERAS_BACKEND', 'tensorflow')
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
                          timeout=spawn.PATIENCE, env={**spawn.environment(), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def computed(program, stage, checkpoint, **environment):
    """(logits, losses) of a stage, from one of the programs above."""
    program = f'''
import json, os
import numpy as np
path, checkpoint = {str(stage)!r}, {checkpoint!r}
random = np.random.RandomState(0)
batches = [(random.normal(size=[8, 24, 24, 3]).astype(np.float32),
            random.randint(0, 10, 8).astype(np.int32)) for _ in range(20)]
{program}
print(json.dumps([np.asarray(found).tolist(), list(map(float, losses))]))
'''
    return json.loads(run(ROOT, '-c', program, **environment).splitlines()[-1])


@pytest.mark.slow
def test_all_stages_compute_the_same(stages, tmp_path):
    checkpoint = plain.save_checkpoint(tmp_path)
    logits, losses = zip(*(computed(program, stage, checkpoint) for program, stage in zip(
        (GRAPH, GRAPH, GRAPH, MODULE, KERAS), stages)))
    assert np.ptp(logits[0]) > 0.3 and len(losses[0]) == 20 and max(losses[0]) < 20
    for number in (1, 2, 3, 4):
        np.testing.assert_allclose(logits[number], logits[0], atol=1e-5, err_msg=str(number))
        np.testing.assert_allclose(losses[number], losses[0], rtol=1e-4, err_msg=str(number))


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['jax', 'torch'])
def test_keras_computes_the_same_on_other_backends(stages, tmp_path, backend):
    if not importlib.util.find_spec(backend):
        pytest.skip(f'requires {backend}')
    checkpoint = plain.save_checkpoint(tmp_path)
    expected = computed(KERAS, stages[4], checkpoint)
    logits, losses = computed(KERAS, stages[4], checkpoint, KERAS_BACKEND=backend)
    np.testing.assert_allclose(logits, expected[0], atol=1e-5)
    np.testing.assert_allclose(losses, expected[1], rtol=1e-4)


@pytest.mark.slow
def test_all_stages_print_the_same_precision(stages, trained):
    """With the averages: the test set has 130 images, so batches of 10 count each once."""
    checkpoint = checkpoints.newest(flags.FLAGS.train_dir).path
    printed = [run(ROOT, stage, f'--records={trained}', f'--checkpoint={checkpoint}',
                   *['--batch_size=10'] * (number < 4)).splitlines()[-1]
               for number, stage in enumerate(stages)]
    assert re.fullmatch(r'precision @ 1 = \d\.\d{3}', printed[0])
    assert [line.partition(',')[0] for line in printed] == 5 * printed[:1]
    assert 'with raw weights' in printed[4]


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
def test_stage_4_reads_checkpoints_of_the_trainers(trained, tmp_path):
    """Computes the logits of this project, of the averages; those of the raw weights differ."""
    pixels = np.random.RandomState(1).randint(0, 256, [6, 32, 32, 3]).astype(np.uint8)
    checkpoint = checkpoints.newest(flags.FLAGS.train_dir)
    network = evaluate.Classifier(recipes.TABLE['tutorial'], 10)
    with network.restored(checkpoint) as session:
        expected = session.run(network.logits, {network.pixels: pixels})
    record_files.write(tmp_path / 'pixels.bin', [(0, image) for image in pixels])
    program = f'''
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from docs.migration import stage_4_keras as stage
(images, labels), = stage.batches(['pixels.bin'], training=False)
network = stage.network()
for averaged in (True, False):
    stage.load(network, {checkpoint.path!r}, averaged)
    print(json.dumps(network(images).numpy().tolist()))
'''
    averaged, raw = map(json.loads, run(tmp_path, '-c', program).splitlines()[-2:])
    np.testing.assert_allclose(averaged, expected, atol=1e-4)
    assert not np.allclose(raw, expected, atol=1e-4)


@pytest.mark.slow
def test_stage_4_trains_on_a_data_set_of_three_classes(stages, tmp_path):
    """As cifar10_convert.py makes it; the colour of an image is its class."""
    labels = np.arange(300) % 3
    images = np.random.RandomState(1).randint(0, 60, [300, 32, 32, 3]).astype(np.uint8)
    images[np.arange(300), :, :, labels] += 150
    own_images.write(str(tmp_path), 'colours', own_images.OwnImages(
        ['red', 'green', 'blue'], own_images.Split(images[:240], labels[:240]),
        own_images.Split(images[240:], labels[240:])))
    out = run(ROOT, stages[4], f'--records={tmp_path}', '--steps=100')
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


@pytest.mark.parametrize('towers', [1, 2, 4])
def test_with_towers_the_averages_follow_those_of_one(towers):
    """Three steps on a mean of 1: 1 - 0.9^3 = 0.271. The updates of all towers go further."""
    nets = []
    for tower in range(towers):
        with tf.name_scope(f'tower_{tower}'):
            nets.append(batch_norm_of(np.ones([2, 4, 4, 3], np.float32), reuse=tower > 0))
    of_first = tf.get_collection(tf.GraphKeys.UPDATE_OPS, 'tower_0')
    of_all = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    mean = next(each for each in tf.global_variables() if each.op.name == 'bn/moving_mean')
    found = []
    for updates in (of_first, of_all):
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run([nets, updates])
            found.append(session.run(mean)[0])
    assert found[0] == pytest.approx(0.271, abs=1e-5)
    assert (found[1] > 0.3) == (towers > 1)


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
for loaded in (True, False):
    weights = keras.Variable(tf.train.load_variable({checkpoint!r}, 'weights'))
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-8)
    if loaded:
        adam.load_adam(optimizer, {{'weights': weights}}, {checkpoint!r}, number=1)
    optimizer.apply([np.load('gradient.npy')], [weights])
    print(weights.numpy().tolist())
'''
    continued, afresh = map(json.loads, run(tmp_path, '-c', program).splitlines())
    np.testing.assert_allclose(continued, expected, atol=1e-7)
    assert abs(np.subtract(afresh, expected)).max() > 5e-4
