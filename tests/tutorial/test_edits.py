"""A reader's edits of the five files have their effects, in all programs."""
import importlib
import json
import re

from cifar10_lib import checkpoints

import copies
import numpy as np
import outcomes
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

FLAGS = flags.FLAGS

# A queue for 50,000 images would take longer to fill than the test. At a rate of 0.1, some runs
# diverge on batches as small as these.
SHORT_QUEUE = {'FOR_TRAIN = 50000': 'FOR_TRAIN = 80'}
LOW_RATE = {'INITIAL_LEARNING_RATE = 0.1 ': 'INITIAL_LEARNING_RATE = 0.03 '}


def run(import_, script, **options):
    """Runs `main` of a script of a copy with these flags."""
    with tf.Graph().as_default():
        main = import_(script).main
        with flagsaver.flagsaver(**options):
            main()


def latest():
    """The values of the latest checkpoint in --train_dir."""
    return checkpoints.newest(FLAGS.train_dir).values


def evaluated(import_, capsys):
    """Precision @ 1 of the run in --train_dir, as the evaluation prints it."""
    capsys.readouterr()
    run(import_, 'cifar10_eval', run_once=True)
    return float(re.search(r'precision @ 1 = (\S+)', capsys.readouterr().out)[1])


def predicted(import_, capsys, paths, classes=10):
    """Probabilities that cifar10_predict.py prints for pictures: [pictures, classes]."""
    capsys.readouterr()
    with flagsaver.flagsaver(json=True, top_k=classes):
        assert import_('cifar10_predict').predict(list(map(str, paths))) == 0
    found = np.zeros([len(paths), classes])
    for row, line in zip(found, capsys.readouterr().out.splitlines()):
        for each in json.loads(line)['predictions']:
            row[each['label']] = each['probability']
    return found


def exported(import_, folder, pixels):
    """Probabilities from the exported model, for uint8 [pictures, 32, 32, 3]."""
    with flagsaver.flagsaver(export_dir=str(folder)):
        import_('cifar10_export').export()
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, ['serve'], str(folder))
        signature = model.signature_def['serving_default']
        return session.run(signature.outputs['probabilities'].name,
                           {signature.inputs['images'].name: pixels})


@pytest.fixture
def pictures(tmp_path):
    """Pixels of twelve pictures of noise, uint8 [12, 32, 32, 3], and the paths of their files."""
    pixels = np.random.RandomState(5).randint(0, 256, [12, 32, 32, 3]).astype(np.uint8)
    pixels[:, :16] //= 2
    paths = [tmp_path / f'{number:02}.png' for number in range(12)]
    for path, image in zip(paths, pixels):
        Image.fromarray(image).save(path)
    return pixels, paths


@pytest.mark.slow
def test_the_constants(half_bright, tmp_path):
    """Batches of 8 of 80 images: 10 steps per epoch. The rate halves every 0.1 epochs."""
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': {
            **SHORT_QUEUE, 'IMAGE_SIZE = 24\n': 'IMAGE_SIZE = 28\n',
            'NUM_CLASSES = 10\n': 'NUM_CLASSES = 12\n'},
        'cifar10.py': {
            'AVERAGE_DECAY = 0.9999': 'AVERAGE_DECAY = 0.05',
            'PER_DECAY = 350.0': 'PER_DECAY = 0.1', 'FACTOR = 0.1': 'FACTOR = 0.5',
            '_RATE = 0.1 ': '_RATE = 0.02 ', "TOWER_NAME = 'tower'": "TOWER_NAME = 'copy'"}})
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=1)
        before, after = (checkpoints.read(f'{FLAGS.train_dir}/model.ckpt-{step}')
                         for step in (0, 1))
        run(import_, 'cifar10_train', max_steps=2)
        run(import_, 'cifar10_multi_gpu_train', max_steps=3, num_gpus=2)
    assert after['softmax_linear/weights'].shape == (192, 12)
    assert after['local3/weights'].shape == (7 * 7 * 64, 384)
    old, new = (values['local3/weights'] for values in (before, after))
    np.testing.assert_allclose(after['local3/weights' + plain.AVERAGE], 0.05 * old + 0.95 * new,
                               atol=1e-7)
    assert abs(new - old).max() > 1e-5
    shown = outcomes.summaries(FLAGS.train_dir)
    rates = [shown[step]['learning_rate'].simple_value for step in (1, 2, 3)]
    np.testing.assert_allclose(rates, [0.02, 0.01, 0.005], rtol=1e-6)
    for step in (1, 2, 3):
        image = shown[step]['input/images/image/0'].image
        assert (image.height, image.width) == (28, 28)
    tf.train.import_meta_graph(f'{FLAGS.train_dir}/model.ckpt-3.meta')
    scopes = {op.name.split('/')[0] for op in tf.get_default_graph().get_operations()}
    assert {'copy_0', 'copy_1'} <= scopes and 'tower_0' not in scopes


OWN_NETWORK = '''
def inference(images, *, num_classes=None):
    with tf.variable_scope('conv1') as scope:
        kernel = _variable_with_weight_decay('weights', [5, 5, 3, 32], stddev=5e-2, wd=0.01)
        conv = tf.nn.conv2d(images, kernel, [1, 2, 2, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [32], tf.constant_initializer(0.1))
        conv1 = tf.nn.softplus(tf.nn.bias_add(conv, biases), name=scope.name)
        _activation_summary(conv1)
    pool1 = tf.nn.max_pool(conv1, [1, 3, 3, 1], [1, 2, 2, 1], padding='SAME')
    # Each place of the image has weights of its own.
    with tf.variable_scope('local2') as scope:
        patches = tf.image.extract_patches(
            pool1, [1, 3, 3, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'SAME')
        weights = _variable_with_weight_decay('weights', [7, 7, 288, 8], stddev=0.04, wd=0.004)
        local2 = tf.nn.relu(tf.einsum('bijk,ijkl->bijl', patches, weights), name=scope.name)
        _activation_summary(local2)
    with tf.variable_scope('softmax_linear') as scope:
        weights = _variable_with_weight_decay(
            'weights', [392, num_classes or NUM_CLASSES], stddev=0.05, wd=None)
        return tf.matmul(tf.reshape(local2, [-1, 392]), weights, name=scope.name)
'''


@pytest.mark.slow
def test_a_network_of_ones_own(half_bright, tmp_path, capsys, pictures):
    """Another activation, a locally connected layer, larger images: training, resume, evaluation,
    prediction and export follow."""
    pixels, paths = pictures
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': {**SHORT_QUEUE, 'IMAGE_SIZE = 24\n': 'IMAGE_SIZE = 28\n'},
        'cifar10.py': LOW_RATE})
    copies.replace(copy / 'cifar10.py', inference=OWN_NETWORK)
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2)
        run(import_, 'cifar10_train', max_steps=3)
        assert 'Resuming from ' in capsys.readouterr().out
        assert 0 <= evaluated(import_, capsys) <= 1
        expected = exported(import_, tmp_path / 'model', pixels)
        np.testing.assert_allclose(predicted(import_, capsys, paths), expected, atol=2e-6)
    values = latest()
    for name, shape in [('conv1/weights', (5, 5, 3, 32)), ('conv1/biases', (32,)),
                        ('local2/weights', (7, 7, 288, 8)), ('softmax_linear/weights', (392, 10))]:
        raw, average = values[name], values[name + plain.AVERAGE]
        assert raw.shape == average.shape == shape
        assert abs(raw - average).max() > 0  # The last update moved it.
    tags = outcomes.summaries(FLAGS.train_dir)[1]
    assert {'conv1/conv1/activations', 'conv1/weight_loss_1', 'conv1/weight_loss__raw_',
            'conv1/weights_1', 'local2/weights/gradients'} <= tags.keys()
    softplus, relu = (
        tags[f'{name}/{name}/sparsity'].simple_value for name in ('conv1', 'local2'))
    assert softplus == 0 < relu < 1


@pytest.mark.slow
def test_an_edit_of_the_preprocessing(half_bright, tmp_path, capsys, pictures):
    """Evaluation, prediction and export see the same images: the labels in the records are the
    classes that prediction gives the pictures, and those of the unedited project are others."""
    pixels, paths = pictures
    plain.save_checkpoint(FLAGS.train_dir)
    unedited = predicted(importlib.import_module, capsys, paths)
    copy = copies.copy_with(tmp_path / 'copy', {})
    copies.replace(copy / 'cifar10_input.py', crop_and_standardize='''
def crop_and_standardize(images):
    return tf.image.resize_bilinear(tf.cast(images, tf.float32), [24, 24]) / 255
''')
    with copies.imported(copy) as import_:
        probabilities = predicted(import_, capsys, paths)
        np.testing.assert_allclose(exported(import_, tmp_path / 'model', pixels), probabilities,
                                   atol=2e-6)
        labels = probabilities.argmax(axis=1)
        record_files.write(half_bright / 'test_batch.bin', zip(labels, pixels))
        assert evaluated(import_, capsys) == 1
    assert abs(probabilities - unedited).max() > 0.01


@pytest.mark.slow
def test_raw_weights_in_the_evaluation(half_bright, tmp_path, capsys):
    """The labels are what the raw weights predict: precision 1 with the edit, less without."""
    raw = plain.read(plain.save_checkpoint(FLAGS.train_dir), '')
    records = np.fromfile(half_bright / 'test_batch.bin', np.uint8).reshape(-1, 3073)
    records[:, 1:] = np.random.RandomState(1).randint(0, 256, [len(records), 3072])
    with tf.Session() as session:
        logits = session.run(plain.logits(plain.centres(records), raw))
    records[:, 0] = logits.argmax(axis=1)
    records.tofile(half_bright / 'test_batch.bin')
    assert evaluated(importlib.import_module, capsys) < 1
    copy = copies.copy_with(tmp_path / 'copy', {})
    script = copy / 'cifar10_eval.py'
    script.write_text(re.sub(r'tf\.train\.Saver\(.+\)', 'tf.train.Saver()', script.read_text()))
    with copies.imported(copy) as import_:
        assert evaluated(import_, capsys) == 1


def test_training_images_without_distortions(half_bright, tmp_path):
    """They are the records' centres, standardised, each with its label."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    copies.replace(copy / 'cifar10_input.py', distort='''
def distort(images):
    return crop_and_standardize(images)
''')
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073)
                              for path in half_bright.glob('data_batch_*.bin')])
    centres = plain.centres(records)
    with copies.imported(copy) as import_:
        batch = import_('cifar10').distorted_inputs()
    with tf.train.SingularMonitoredSession() as session:
        for image, label in zip(*session.run(batch)):
            nearest = abs(centres - image).max((1, 2, 3)).argmin()
            np.testing.assert_allclose(image, centres[nearest], atol=1e-3)
            assert label == records[nearest, 0]


@pytest.mark.slow
def test_another_schedule_and_another_optimizer(half_bright, tmp_path, capsys):
    """They reach every trainer. The optimizer's variables are saved and restored, also in towers
    that resume; the evaluation reads the run."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    copies.replace(copy / 'cifar10.py', learning_rate='''
def learning_rate(global_step, images_per_step, **options):
    return tf.train.polynomial_decay(0.004, global_step, 4, 0.0)
''', optimizer='''
def optimizer(lr):
    return scaled(tf.train.AdamOptimizer(lr))
''')
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2)
        moments = [latest()['local3/weights/Adam_1']]
        run(import_, 'cifar10_train', max_steps=3)
        moments.append(latest()['local3/weights/Adam_1'])
        run(import_, 'cifar10_multi_gpu_train', max_steps=4, num_gpus=2)
        moments.append(latest()['local3/weights/Adam_1'])
        assert 0 <= evaluated(import_, capsys) <= 1
        run(import_, 'classification', net='tutorial', max_steps=1, validate_every=0,
            train_dir=str(tmp_path / 'own'))
    shown = outcomes.summaries(FLAGS.train_dir)
    rates = [shown[step]['learning_rate'].simple_value for step in (1, 3, 4)]
    np.testing.assert_allclose(rates, [0.004, 0.002, 0.001], rtol=1e-6)
    # Adam's decay of the second moments is 0.999: they stay where they were restored.
    for before, after in zip(moments, moments[1:]):
        assert (after >= 0.998 * before).all() and abs(after - before).max() > 0
    assert 'local3/weights/Adam_1' in checkpoints.newest(str(tmp_path / 'own')).values
    assert outcomes.summaries(tmp_path / 'own')[1]['metrics/learning_rate'].simple_value == (
        np.float32(0.004))


@pytest.mark.slow
def test_a_summary_in_a_tower(half_bright, tmp_path):
    """It is written for each tower; those of the network once."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    copies.replace(copy / 'cifar10_multi_gpu_train.py', tower_loss='''
def tower_loss(scope, images, labels):
    cifar10.loss(cifar10.inference(images), labels)
    tf.summary.scalar('mine', tf.reduce_mean(images))
    return tf.add_n(tf.get_collection('losses', scope), name='total_loss')
''')
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_multi_gpu_train', max_steps=1, num_gpus=2)
    tags = set(outcomes.summaries(FLAGS.train_dir)[1])
    assert {'tower_0/mine', 'tower_1/mine', 'conv1/conv1/activations'} <= tags
    assert not [tag for tag in tags if 'activations_1' in tag]


@pytest.mark.slow
@pytest.mark.parametrize('session', [
    'session.training_session', 'tf.train.MonitoredTrainingSession'])
def test_hooks_of_tensorflow(half_bright, tmp_path, session):
    """Their lines appear at the level that a reader chooses, and his own warnings; those of
    TensorFlow do not. A second saver saves, too. Hooks of the trainer may be left out."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    copies.replace(copy / 'cifar10_train.py', train=f'''
def train():
    with tf.Graph().as_default():
        images, labels = cifar10.distorted_inputs()
        loss = cifar10.loss(cifar10.inference(images), labels)
        train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
        tf.logging.set_verbosity(tf.logging.INFO)
        tf.logging.warning('of my own')
        with {session}(checkpoint_dir=FLAGS.train_dir, hooks=[
                tf.train.StopAtStepHook(last_step=FLAGS.max_steps),
                tf.train.LoggingTensorHook({{'mine': loss}}, every_n_iter=1),
                tf.train.CheckpointSaverHook(FLAGS.train_dir + '-second', save_steps=1)]) as sess:
            while not sess.should_stop():
                sess.run(train_op)
''')
    done = spawn.fork([copy / 'cifar10_train.py', f'--data_dir={FLAGS.data_dir}', '--max_steps=2',
                       f'--train_dir={FLAGS.train_dir}', '--batch_size=8'])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('INFO:tensorflow:mine = ') == 2
    assert re.findall('^WARNING:.*', done.stderr, re.MULTILINE) == ['WARNING:tensorflow:of my own']
    for folder in (FLAGS.train_dir, FLAGS.train_dir + '-second'):
        assert checkpoints.newest(folder).values['global_step'] == 2


@pytest.mark.slow
def test_variables_that_are_not_shared(half_bright, tmp_path):
    """By tf.Variable: a single network trains. Of several, each would have its own."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    copies.replace(copy / 'cifar10.py', _variable_on_cpu='''
def _variable_on_cpu(name, shape, initializer):
    return tf.Variable(initializer(shape, dtype=tf.float32), name=name, use_resource=True)  # Here.
''')
    line = (copy / 'cifar10.py').read_text().partition('# Here.')[0].count('\n') + 1
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=1)
        with pytest.raises(ValueError, match='do not share .*tower_1/conv1/weights.*get_variable'):
            run(import_, 'cifar10_multi_gpu_train', max_steps=2, num_gpus=2)
        with pytest.raises(ValueError, match=(
                rf'^cifar10.py:{line} \(validation/conv1/weights\): .*tf.get_variable$')):
            run(import_, 'classification', net='tutorial', max_steps=1,
                train_dir=str(tmp_path / 'own'))


@pytest.mark.slow
def test_another_initial_value(half_bright, tmp_path, capsys):
    """The same command again says what to do, and then the edit has its effect."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE})
    run(importlib.import_module, 'cifar10_train', max_steps=2)
    copies.replace(copy / 'cifar10.py', _variable_on_cpu='''
def _variable_on_cpu(name, shape, initializer):
    return tf.get_variable(name, shape, initializer=tf.zeros_initializer(), use_resource=True)
''')
    capsys.readouterr()
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2)
        assert 'Raise --max_steps, or start over with --restart.' in capsys.readouterr().out
        assert latest()['conv1/weights'].any()
        run(import_, 'cifar10_train', max_steps=2, restart=True)
    assert not latest()['conv1/weights'].any()
