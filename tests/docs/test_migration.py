"""docs/migration.md: its stages compute the same, and what it says of TensorFlow is so."""
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.datasets import custom
from cifar10_lib.evaluation import model
from cifar10_lib.runs import checkpoints
from docs.migration import batch_norm, lstm

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'docs/migration'
PAGE = (ROOT / 'docs/migration.md').read_text()
STAGES = sorted(FOLDER.glob('stage_*.py'))

# Prints the logits of a checkpoint's raw weights, and the losses of 20 steps that start from it.
_RUN = {'graph': '''
text = open(path).read()
for old, new in json.load(open('changes.json')) if '/stage_0' in path else []:
    text = text.replace(old, new)
stage = {'__name__': 'stage'}
exec(text, stage)
tf = stage['tf']
images, labels = tf.placeholder(tf.float32, [None, 24, 24, 3]), tf.placeholder(tf.int32, [None])
logits = stage['inference'](images)
total_loss = stage['loss'](logits, labels)
train_op = stage['train'](total_loss, tf.train.get_or_create_global_step(), 1000)
with tf.Session() as session:
    tf.train.Saver().restore(session, checkpoint)
    found = session.run(logits, {images: batches[0][0]})
    losses = [session.run([total_loss, train_op], {images: x, labels: y})[0] for x, y in batches]
''', 'module': '''
import tensorflow as tf
from docs.migration import stage_3_module
network = stage_3_module.Network()
tf.train.Checkpoint(network=network).restore(checkpoint).assert_existing_objects_matched()
found = network(batches[0][0]).numpy()
losses = [network.step(x, y, 1000) for x, y in batches]
''', 'keras': '''
import keras
from docs.migration import stage_4_keras
assert keras.backend.backend() == os.environ.get('KERAS_BACKEND', 'tensorflow')
model = stage_4_keras.network()
stage_4_keras.load(model, checkpoint, averaged=False)
model.compile(keras.optimizers.SGD(0.1),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True))
found = model.predict_on_batch(batches[0][0])
losses = [model.train_on_batch(x, y) for x, y in batches]
'''}


def changes():
    """(old, new) of each row of the page's table of what TensorFlow 2 needs of stage 0."""
    return re.findall(r'^\| `([^`]+)` \| `([^`]+)` \|', PAGE.partition('## Stage 1')[2]
                      .partition('## Stage 2')[0], re.MULTILINE)


def save_checkpoint(folder):
    """A checkpoint of random weights, averages with other values, and step 7: its path."""
    values = {'global_step': np.int64(7)}
    for seed, suffix in ((1, ''), (2, '/ExponentialMovingAverage')):
        random = np.random.RandomState(seed)
        values.update((name + suffix, random.normal(0, 0.04, shape).astype(np.float32))
                      for name, shape in plain.SHAPES.items())
    return plain.save(folder / 'model.ckpt-7', values)


def run(program, folder, *arguments, **environment):
    """Runs a program given as text; not a fork, which has TensorFlow 1's behaviour: its output."""
    done = subprocess.run([sys.executable, '-c', program, *arguments], cwd=folder, text=True,
                          capture_output=True, timeout=spawn.PATIENCE,
                          env={**spawn.environment(), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_stage(number, folder, *arguments, **environment):
    """Runs a stage as a script; stage 0 with the page's changes."""
    path, = FOLDER.glob(f'stage_{number}_*.py')
    text = path.read_text()
    for old, new in changes() if number == 0 else []:
        text = text.replace(old, new)
    script = folder / path.name
    script.write_text(text)
    return run('import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], None, "__main__")',
               folder, str(script), *arguments, **environment)


def computed(kind, name, folder, checkpoint, **environment):
    """(logits, losses) of a stage; see `_RUN`."""
    (folder / 'changes.json').write_text(json.dumps(changes()))
    program = f'''
import json, os, sys
import numpy as np
sys.path.insert(0, {str(ROOT)!r})
path, checkpoint = {str(FOLDER / name)!r}, {checkpoint!r}
random = np.random.RandomState(0)
batches = [(random.normal(size=[8, 24, 24, 3]).astype(np.float32),
            random.randint(0, 10, 8).astype(np.int32)) for _ in range(20)]
{_RUN[kind]}
print(json.dumps([np.asarray(found).tolist(), list(map(float, losses))]))
'''
    return json.loads(run(program, folder, **environment).splitlines()[-1])


def test_stages_are_short_and_complete():
    """At most 150 lines each, without an import from this project."""
    assert len(STAGES) == 5
    for path in STAGES:
        text = path.read_text()
        assert text.count('\n') <= 150, path
        assert not re.search(r'^(import|from) (cifar10|docs|benchmarks)', text, re.MULTILINE)


def test_the_changes_apply_to_stage_0():
    text = STAGES[0].read_text()
    assert len(changes()) == 2
    for old, new in changes():
        assert old in text and new not in text
    assert 'tf.contrib' in text and 'import tensorflow as tf' in text


@pytest.mark.slow
def test_all_stages_compute_the_same(tmp_path):
    checkpoint = save_checkpoint(tmp_path)
    kinds = ['graph', 'graph', 'graph', 'module', 'keras']
    logits, losses = zip(*(computed(kind, path.name, tmp_path, checkpoint)
                           for kind, path in zip(kinds, STAGES)))
    assert np.ptp(logits[0]) > 0.3 and len(losses[0]) == 20 and max(losses[0]) < 20
    for number in (1, 2, 3, 4):
        np.testing.assert_allclose(logits[number], logits[0], atol=1e-5, err_msg=str(number))
        np.testing.assert_allclose(losses[number], losses[0], rtol=1e-4, err_msg=str(number))


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['jax', 'torch'])
def test_keras_computes_the_same_on_other_backends(tmp_path, backend):
    if not importlib.util.find_spec(backend):
        pytest.skip(f'requires {backend}')
    checkpoint = save_checkpoint(tmp_path)
    expected = computed('keras', 'stage_4_keras.py', tmp_path, checkpoint)
    logits, losses = computed('keras', 'stage_4_keras.py', tmp_path, checkpoint,
                              KERAS_BACKEND=backend)
    np.testing.assert_allclose(logits, expected[0], atol=1e-5)
    np.testing.assert_allclose(losses, expected[1], rtol=1e-4)
    write_stripes(tmp_path / 'stripes')
    program = f'''
import sys
sys.path.insert(0, {str(ROOT)!r})
from docs.migration import stage_4_keras as stage
model = stage.network(classes=3)
losses, averages = stage.train(model, ['stripes/train.bin'], 20, every=10, batch_size=8)
model.set_weights(averages)
print(losses[1] < losses[0], 0 <= stage.precision(model, ['stripes/test.bin']) <= 1)
'''
    assert run(program, tmp_path, KERAS_BACKEND=backend).splitlines()[-1] == 'True True'


@pytest.mark.slow
def test_all_stages_print_the_same_precision(tmp_path, trained):
    """With the averages: the test set has 130 images, so batches of 10 count each once."""
    checkpoint = checkpoints.latest(flags.FLAGS.train_dir)
    arguments = [f'--records={trained}', f'--checkpoint={checkpoint}']
    printed = [run_stage(number, tmp_path, *arguments, *['--batch_size=10'] * (number < 4))
               .splitlines()[-1] for number in range(5)]
    assert re.fullmatch(r'precision @ 1 = \d\.\d{3}', printed[0])
    assert [line.partition(',')[0] for line in printed] == 5 * printed[:1]
    assert 'with raw weights' in printed[4]


@pytest.mark.slow
def test_each_stage_continues_the_run_of_the_stage_before(tmp_path, half_bright):
    """Ten steps each in one folder, stages 0 to 3; stage 3 reads its own checkpoints, too."""
    folder = tmp_path / 'run'
    for number, steps in enumerate((10, 20, 30, 40)):
        run_stage(number, tmp_path, f'--records={half_bright}', f'--train_dir={folder}',
                  f'--steps={steps}', '--batch_size=8')
        assert tf.train.latest_checkpoint(folder).endswith(f'model.ckpt-{steps}'), number
    run_stage(3, tmp_path, f'--records={half_bright}', f'--train_dir={folder}', '--steps=50',
              '--batch_size=8')
    assert tf.train.latest_checkpoint(folder).endswith('model.ckpt-50')
    out = run_stage(3, tmp_path, f'--records={half_bright}',
                    f'--checkpoint={tf.train.latest_checkpoint(folder)}')
    assert out.startswith('precision @ 1 = ')


def write_stripes(folder):
    """A data set of three classes, as cifar10_convert.py makes them: its path."""
    folder.mkdir()
    random = np.random.RandomState(1)
    rows = random.randint(0, 60, [300, 3073]).astype(np.uint8)
    rows[:, 0] = np.arange(300) % 3
    rows.reshape(300, -1)[:, 1:].reshape(300, 3, 1024)[np.arange(300), rows[:, 0]] += 150
    custom.write(str(folder), 'stripes', ['red', 'green', 'blue'],
                 record_files.unpacked(rows[:240]), record_files.unpacked(rows[240:]))
    return folder


@pytest.mark.slow
def test_stage_4_reads_checkpoints_of_the_trainers(trained, tmp_path):
    """Computes the logits of this project, with averages and without; trains with falling loss."""
    pixels = np.random.RandomState(1).randint(0, 256, [6, 32, 32, 3]).astype(np.uint8)
    checkpoint = checkpoints.latest(flags.FLAGS.train_dir)
    network = model.Model()
    expected = {}
    for averaged in (True, False):
        with network.session(checkpoint, averaged) as session:
            expected[str(averaged)] = session.run(
                network.outputs['logits'], {network.pixels: pixels})
    record_files.write(tmp_path / 'pixels.bin', [(0, image) for image in pixels])
    program = f'''
import glob, json, sys
sys.path.insert(0, {str(ROOT)!r})
from docs.migration import stage_4_keras as stage
(images, labels), = stage.batches(['pixels.bin'], training=False)
network, logits = stage.network(), {{}}
for averaged in (True, False):
    stage.load(network, {checkpoint!r}, averaged)
    logits[str(averaged)] = network(images).numpy().tolist()
losses, averages = stage.train(stage.network(), glob.glob({str(trained)!r} + '/data_batch_*'), 40,
                               rate=0.03, every=20, batch_size=8)
print(json.dumps([logits, losses, [value.shape for value in averages]]))
'''
    logits, losses, shapes = json.loads(run(program, tmp_path).splitlines()[-1])
    for averaged, values in expected.items():
        np.testing.assert_allclose(logits[averaged], values, atol=1e-4)
    assert not np.allclose(expected['True'], expected['False'], atol=1e-4)
    assert losses[1] < losses[0]
    assert [5, 5, 3, 64] in shapes and len(shapes) == 10


@pytest.mark.slow
def test_stage_4_trains_on_a_data_set_of_three_classes(tmp_path):
    out = run_stage(4, tmp_path, f'--records={write_stripes(tmp_path / "stripes")}', '--steps=100')
    assert float(re.search(r'precision @ 1 = (\S+),', out).group(1)) > 0.9


@pytest.mark.parametrize('arguments, message', [
    (['--records=nowhere'], '--records is nowhere; expected a folder with data_batch'),
    (['--steps=150'], '--steps is 150; expected a positive multiple of 100'),
    (['--checkpoint=nothing'], '--checkpoint is nothing; expected a checkpoint such as')])
def test_mistakes_in_stage_4_are_one_line(half_bright, monkeypatch, arguments, message):
    from docs.migration import stage_4_keras  # Keras takes a second.
    monkeypatch.setattr(sys, 'argv', ['stage_4_keras.py', f'--records={half_bright}', *arguments])
    with pytest.raises(SystemExit, match=message) as ended:
        stage_4_keras.main()
    assert '\n' not in ended.value.code


def names_in(heading):
    """The names in backticks in the first column of the table below a heading of the page."""
    table = PAGE.partition(f'\n{heading}\n')[2].partition('\n#')[0]
    cells = re.findall(r'^\| ([^|]*) \|', table, re.MULTILINE)
    return re.findall(r'`([\w.]+)`', ' '.join(cells))


def has(name):
    found = {'tf': tf}
    try:
        exec(f'import numpy as np, scipy.misc; {name}', found)
    except AttributeError:
        return False
    return True


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_what_the_page_calls_gone_is_gone_and_the_rest_is_there():
    gone, left = names_in('### Gone'), names_in('### Still there')
    assert len(gone) > 10 and len(left) > 10
    stays = ['np.bool8'] * np.__version__.startswith('1.')  # TensorFlow 2.16 still uses NumPy 1.
    assert [name for name in gone if has(name)] == stays
    assert [name for name in left if not has(name)] == []


def test_batch_norm_updates_without_update_ops():
    """The moving averages take a tenth of the batch's mean, and variance times N / (N - 1)."""
    values = np.random.RandomState(0).normal(3, 2, [2, 3, 3, 4]).astype(np.float32)
    outputs = batch_norm.batch_norm(tf.constant(values), True, decay=0.9, scale=True, scope='bn')
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        evaluated = batch_norm.batch_norm(tf.constant(values), False, scale=True, scope='bn')
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert [variable.op.name for variable in tf.global_variables()] == [
        'bn/beta', 'bn/gamma', 'bn/moving_mean', 'bn/moving_variance']
    mean, variance = values.mean((0, 1, 2)), values.var((0, 1, 2))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        got = session.run(outputs)
        moving = session.run(tf.global_variables()[2:])
        after = session.run(evaluated)
    np.testing.assert_allclose(got, (values - mean) / np.sqrt(variance + 0.001), atol=1e-4)
    np.testing.assert_allclose(moving[0], 0.1 * mean, rtol=1e-4)
    np.testing.assert_allclose(moving[1], 0.9 + 0.1 * variance * 18 / 17, rtol=1e-4)
    np.testing.assert_allclose(after, (values - moving[0]) / np.sqrt(moving[1] + 0.001), atol=1e-4)


def test_keras_leaves_update_ops_empty_and_the_variance_uncorrected(tmp_path):
    program = '''
import keras
import numpy as np
import tensorflow.compat.v1 as tf
values = np.random.RandomState(0).normal(size=[2, 3, 3, 4]).astype(np.float32)
layer = keras.layers.BatchNormalization(momentum=0.0)
layer(values, training=True)
print(np.allclose(layer.moving_variance, values.var((0, 1, 2)), atol=1e-5))
dense = keras.layers.Dense(1, name='dense')
with tf.variable_scope('scope'):
    dense.build([None, 2])
print([variable.path for variable in dense.weights])
tf.disable_v2_behavior()
with tf.Graph().as_default():
    with tf.variable_scope('scope'):
        keras.layers.BatchNormalization(name='norm')(tf.placeholder(tf.float32, [2, 4]),
                                                     training=True)
    print(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    print([variable.op.name for variable in tf.global_variables()])
'''
    assert run(program, tmp_path).splitlines() == [
        'True', "['dense/kernel', 'dense/bias']", '[]',
        "['scope/norm/gamma', 'scope/norm/beta', 'scope/norm/moving_mean', "
        "'scope/norm/moving_variance']"]


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
    continued, afresh = map(json.loads, run(program, tmp_path).splitlines())
    np.testing.assert_allclose(continued, expected, atol=1e-7)
    assert abs(np.subtract(afresh, expected)).max() > 5e-4


def test_a_fetched_global_step_is_the_one_before_the_update():
    step = tf.train.get_or_create_global_step()
    update = step.assign_add(1)
    with tf.control_dependencies([update]):
        after = step.read_value()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [session.run([update, step, after])[1:] for _ in range(3)] == [
            [0, 1], [1, 2], [2, 3]]


class CellOfContrib(lstm.BasicLSTMCell):
    """Makes its variables in the first call, as those of tf.contrib did."""

    def __init__(self, inputs, units):
        self._make = lambda: lstm.BasicLSTMCell.__init__(self, inputs, units, scope='lstm')
        self.state_size, self.output_size = (units, units), units

    def __call__(self, inputs, state, scope=None):
        with tf.variable_scope('', reuse=tf.AUTO_REUSE):
            self._make()
        return super().__call__(inputs, state)


@pytest.mark.parametrize('cell, is_late', [(lstm.BasicLSTMCell, False), (CellOfContrib, True)])
def test_averages_of_variables_that_are_made_in_dynamic_rnn_are_late(cell, is_late):
    """With a decay of 0, an average is the value itself: from before the update, or after it."""
    outputs, _ = tf.nn.dynamic_rnn(cell(2, 3), tf.ones([4, 5, 2]), dtype=tf.float32)
    kernel = next(each for each in tf.trainable_variables() if each.op.name.endswith('kernel'))
    descent = tf.train.GradientDescentOptimizer(1.0).minimize(tf.nn.l2_loss(outputs - 1))
    with tf.control_dependencies([descent]):
        averages = tf.train.ExponentialMovingAverage(0.0)
        train_op = averages.apply([kernel])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(kernel)
        session.run(train_op)
        average, after = session.run([averages.average(kernel), kernel])
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(average, before if is_late else after)


def test_an_lstm_continues_in_keras(tmp_path):
    words = np.random.RandomState(0).normal(size=[4, 6, 3]).astype(np.float32)
    lengths = np.array([6, 2, 1, 4])
    outputs, (_, last) = tf.nn.dynamic_rnn(
        lstm.BasicLSTMCell(3, 5), words, sequence_length=lengths, dtype=tf.float32)
    kernel, bias = tf.trainable_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(bias.assign(np.random.RandomState(1).normal(size=20)))
        values = session.run([kernel, bias])
        expected = session.run(last)
    assert [kernel.op.name, bias.op.name] == [
        f'rnn/basic_lstm_cell/{name}' for name in ('kernel', 'bias')]
    np.savez(tmp_path / 'values.npz', *values, words=words, lengths=lengths)
    program = f'''
import sys
sys.path.insert(0, {str(ROOT)!r})
import keras
import numpy as np
from docs.migration import lstm
found = np.load('values.npz')
mask = np.arange(6) < found['lengths'][:, np.newaxis]
layer = keras.layers.LSTM(5)
layer.build(found['words'].shape)
layer.set_weights(lstm.keras_weights(found['arr_0'], found['arr_1']))
print(layer(found['words'], mask=mask).numpy().tolist())
'''
    np.testing.assert_allclose(json.loads(run(program, tmp_path)), expected, atol=1e-6)


OPTIMIZERS = ['AdamOptimizer(0.1)', 'MomentumOptimizer(0.1, 0.9)', 'AdagradOptimizer(0.1)',
              'RMSPropOptimizer(0.1, 0.9, 0.8)']
_CONTINUE = """
import json, sys
import tensorflow as tf
rows = tf.constant(json.load(open('rows.json')), tf.int64)
found = []
for number, optimizer in enumerate({optimizers}):
    module = tf.Module()
    module.table = tf.Variable(tf.zeros([9, 2]), name='table')

    @tf.function
    def step(number):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(module.table, number) - 1))
        optimizer.apply_gradients([(tape.gradient(loss, module.table), module.table)])
        return loss

    if sys.argv[1] == 'with slots':
        step(rows[0])
    tf.train.Checkpoint(module=module, optimizer=optimizer).restore(
        f'model.ckpt-{{number}}').assert_existing_objects_matched()
    found.append([float(step(each)) for each in rows[10:]])
print(json.dumps(found))
"""


def test_old_optimizers_continue_in_a_tf_function_if_their_slots_exist(tmp_path):
    """Five steps on rows of an embedding, after ten of TensorFlow 1."""
    draw = np.random.RandomState(0)
    start, rows = draw.normal(size=[9, 2]).astype(np.float32), draw.randint(9, size=[15, 4])
    expected = []
    for index, optimizer in enumerate(OPTIMIZERS):
        with tf.Graph().as_default(), tf.Session() as session:
            table = tf.get_variable('table', initializer=start)
            number = tf.placeholder(tf.int64, [4])
            loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, number) - 1))
            train_op = eval(f'tf.train.{optimizer}').minimize(loss)
            session.run(tf.global_variables_initializer())
            losses = []
            for step, each in enumerate(rows):
                if step == 10:
                    tf.train.Saver().save(session, str(tmp_path / f'model.ckpt-{index}'))
                losses.append(session.run([loss, train_op], {number: each})[0])
        expected.append(losses[10:])
    (tmp_path / 'rows.json').write_text(json.dumps(rows.tolist()))
    made = ', '.join(f'tf.compat.v1.train.{optimizer}' for optimizer in OPTIMIZERS)
    warm, cold = (json.loads(run(_CONTINUE.format(optimizers=f'[{made}]'), tmp_path, slots))
                  for slots in ('with slots', 'without'))
    np.testing.assert_allclose(warm, expected, rtol=1e-5)
    assert (abs(np.divide(cold, expected) - 1).max(axis=1) > 1e-3).all()  # Without an error.


def test_the_report_of_tf_upgrade_v2(tmp_path):
    """It misses `.value`, leaves the summaries to TensorFlow 2, and reports tf.contrib."""
    run('from tensorflow.tools.compatibility import tf_upgrade_v2_main as tool; tool.main()',
        tmp_path, f'--infile={STAGES[0]}', '--outfile=new.py', '--reportfile=report.txt')
    new, report = ((tmp_path / name).read_text() for name in ('new.py', 'report.txt'))
    assert 'get_shape()[1].value' in new and '.value' not in report
    assert '    tf.summary.scalar(' in new and '    tf.contrib.framework' not in report
    assert 'ERROR: Using member tf.contrib.framework.get_or_create_global_step' in report
    assert 'tf.contrib.framework.get_or_create_global_step()' in new
    assert 'tf.compat.v1.train.string_input_producer' in new
    assert 'Detected 3 issues' in report
