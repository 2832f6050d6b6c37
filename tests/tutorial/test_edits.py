"""A reader's edits of the five files have their effects, in all programs."""
import contextlib
import json
import re

from cifar10_lib import checkpoints

import copies
import numpy as np
import outcomes
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'

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
    name = 'local3/weights'
    np.testing.assert_allclose(after[name + AVERAGE], 0.05 * before[name] + 0.95 * after[name],
                               atol=1e-7)
    assert abs(after[name] - before[name]).max() > 1e-5
    shown = outcomes.summaries(FLAGS.train_dir)
    rates = [shown[step]['learning_rate'].simple_value for step in (1, 2, 3)]
    np.testing.assert_allclose(rates, [0.02, 0.01, 0.005], rtol=1e-6)
    for step in (1, 2, 3):
        image = shown[step]['input/images/image/0'].image
        assert (image.height, image.width) == (28, 28)
    tf.train.import_meta_graph(f'{FLAGS.train_dir}/model.ckpt-3.meta')
    scopes = {op.name.split('/')[0] for op in tf.get_default_graph().get_operations()}
    assert {'copy_0', 'copy_1'} <= scopes and 'tower_0' not in scopes


NEW_LAYER = '''
    with tf.variable_scope('conv3') as scope:
        kernel = _variable_with_weight_decay('weights', shape=[3, 3, 64, 32], stddev=5e-2, wd=0.01)
        conv = tf.nn.conv2d(pool2, kernel, [1, 1, 1, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [32], tf.constant_initializer(0.1))
        pre_activation = tf.nn.bias_add(conv, biases)
        conv3 = tf.nn.relu(pre_activation, name=scope.name)
        _activation_summary(conv3)
    # Each place of the image has weights of its own.
    with tf.variable_scope('local5') as scope:
        patches = tf.image.extract_patches(
            conv3, [1, 3, 3, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'SAME')
        weights = _variable_with_weight_decay('weights', [7, 7, 288, 8], stddev=0.04, wd=0.004)
        local5 = tf.nn.relu(tf.einsum('bijk,ijkl->bijl', patches, weights), name=scope.name)
        _activation_summary(local5)
    pool2 = local5

    # local3
'''


@pytest.mark.slow
def test_layers_of_ones_own(half_bright, tmp_path, capsys, pictures):
    """conv1 with another activation, a convolution, a locally connected layer, larger images:
    training, resume, evaluation, prediction and export follow."""
    pixels, paths = pictures
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': {**SHORT_QUEUE, 'IMAGE_SIZE = 24\n': 'IMAGE_SIZE = 28\n'},
        'cifar10.py': {
            **LOW_RATE, '\n    # local3\n': NEW_LAYER,
            'conv1 = tf.nn.relu(pre_activation,': 'conv1 = tf.nn.softplus(pre_activation,'}})
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2)
        run(import_, 'cifar10_train', max_steps=3)
        assert 'Resuming from ' in capsys.readouterr().out
        assert 0 <= evaluated(import_, capsys) <= 1
        expected = exported(import_, tmp_path / 'model', pixels)
        np.testing.assert_allclose(predicted(import_, capsys, paths), expected, atol=2e-6)
    values = latest()
    for name, shape in [('conv3/weights', (3, 3, 64, 32)), ('conv3/biases', (32,)),
                        ('local5/weights', (7, 7, 288, 8)), ('local3/weights', (392, 384))]:
        assert values[name].shape == values[name + AVERAGE].shape == shape
        assert abs(values[name] - values[name + AVERAGE]).max() > 0  # The last update moved it.
    tags = outcomes.summaries(FLAGS.train_dir)[1]
    assert {'conv3/conv3/activations', 'conv3/conv3/sparsity', 'conv3/weight_loss_1',
            'conv3/weight_loss__raw_', 'conv3/weights_1', 'local5/weights/gradients'} <= tags.keys()
    assert tags['conv1/conv1/sparsity'].simple_value == 0  # ReLU has about a half.


@pytest.mark.slow
def test_a_pasted_layer_with_half_precision(half_bright, tmp_path):
    """Variables are float32 with any type; the other layers convert them in this way."""
    layer = NEW_LAYER.replace('pool2, kernel', 'pool2, tf.cast(kernel, dtype)').replace(
        'conv, biases', 'conv, tf.cast(biases, dtype)').replace(
        'patches, weights', 'patches, tf.cast(weights, dtype)').replace('[7, 7, ', '[6, 6, ')
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': SHORT_QUEUE, 'cifar10.py': {**LOW_RATE, '\n    # local3\n': layer}})
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2, use_bf16=True)
    assert {value.dtype for value in latest().values()} == {np.dtype('f4'), np.dtype('i8')}


@pytest.mark.slow
@pytest.mark.parametrize('edit', [
    {'return tf.image.per_image_standardization(resized_images)': 'return resized_images / 255'},
    {'resized_images = tf.image.resize_image_with_crop_or_pad(images, IMAGE_SIZE, IMAGE_SIZE)':
     'resized_images = tf.image.resize_bilinear(images, [24, 24])'}])
def test_an_edit_of_the_preprocessing(half_bright, tmp_path, capsys, pictures, edit):
    """Evaluation, prediction and export see the same images: the labels in the records are the
    classes that prediction gives the pictures, and those of the unedited project are others."""
    pixels, paths = pictures
    plain.save_averaged(tmp_path / 'train')
    with copies.imported(copies.copy_with(tmp_path / 'plain', {})) as import_:
        unedited = predicted(import_, capsys, paths)
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': edit})
    with copies.imported(copy) as import_:
        probabilities = predicted(import_, capsys, paths)
        np.testing.assert_allclose(exported(import_, tmp_path / 'model', pixels), probabilities,
                                   atol=2e-6)
        labels = probabilities.argmax(axis=1)
        record_files.write(half_bright / 'test_batch.bin', zip(labels, pixels))
        assert evaluated(import_, capsys) == 1
    assert abs(probabilities - unedited).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize('edit', [
    {'tf.train.Saver(variable_averages.variables_to_restore())': 'tf.train.Saver()'},
    {'tf.train.Saver(variable_averages.variables_to_restore())':
     'tf.train.Saver(tf.trainable_variables())'},
    {'        variable_averages = tf.train.ExponentialMovingAverage('
     'cifar10.MOVING_AVERAGE_DECAY)\n': '',
     'variable_averages.variables_to_restore()': 'tf.global_variables()'},
    {'        variable_averages = tf.train.ExponentialMovingAverage('
     'cifar10.MOVING_AVERAGE_DECAY)\n'
     '        saver = tf.train.Saver(variable_averages.variables_to_restore())\n':
     '        saver = tf.train.Saver()\n'}])
def test_raw_weights_in_the_evaluation(half_bright, tmp_path, capsys, edit):
    """The labels are what the raw weights predict: precision 1 with the edit, less without."""
    (tmp_path / 'train').mkdir()
    raw = checkpoints.read(plain.save_averaged(tmp_path / 'train'))
    records = np.fromfile(half_bright / 'test_batch.bin', np.uint8).reshape(-1, 3073)
    records[:, 1:] = np.random.RandomState(1).randint(0, 256, [len(records), 3072])
    pixels, _ = record_files.unpacked(records)
    centre = pixels[:, 4:28, 4:28].astype(np.float32)
    centre -= centre.mean(axis=(1, 2, 3), keepdims=True)
    centre /= centre.std(axis=(1, 2, 3), keepdims=True)
    with tf.Session() as session:
        logits = session.run(plain.logits(tf.constant(centre), raw))
    records[:, 0] = logits.argmax(axis=1)
    records.tofile(half_bright / 'test_batch.bin')
    assert evaluated(__import__, capsys) < 1
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_eval.py': edit})
    with copies.imported(copy) as import_:
        assert evaluated(import_, capsys) == 1


@pytest.mark.parametrize('edit, threads', [
    ({'num_preprocess_threads=16)': 'num_preprocess_threads=5)'}, 5),
    ({'min_queue_examples, batch_size, shuffle=True)':
      'min_queue_examples, batch_size, shuffle=True, num_preprocess_threads=3)'}, 3)])
def test_threads_and_length_of_the_queue(half_bright, tmp_path, capsys, edit, threads):
    """And the line that is printed."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': {
        **SHORT_QUEUE, **edit,
        'min_fraction_of_examples_in_queue = 0.4': 'min_fraction_of_examples_in_queue = 0.7',
        "'Filling queue with %d CIFAR images before": "'Wait: %d images before"}})
    with copies.imported(copy) as import_:
        images, _ = import_('cifar10').distorted_inputs()
    assert capsys.readouterr().out == 'Wait: 56 images before starting to train.\n'
    runner = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[-1]
    assert len(runner.enqueue_ops) == threads
    with tf.train.SingularMonitoredSession() as session:
        session.run(images)
        assert session.run(f'{runner.queue.name}_Size:0') >= 56 - 8


def test_training_images_without_shuffling(half_bright, tmp_path):
    """One thread and no shuffle queue: the records come in the order of their files."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': {
        'min_queue_examples, batch_size, shuffle=True)':
        'min_queue_examples, batch_size, shuffle=False, num_preprocess_threads=1)',
        'record_files(False, data_dir))': 'record_files(False, data_dir), shuffle=False)'}})
    record_files.write(half_bright / 'data_batch_1.bin', (
        (number % 10, image) for number, (_, image) in enumerate(record_files.noise(16, 0))))
    with copies.imported(copy) as import_:
        _, labels = import_('cifar10').distorted_inputs()
    with tf.train.SingularMonitoredSession() as session:
        found = [*session.run(labels), *session.run(labels)]
    assert found == [number % 10 for number in range(16)]


@pytest.mark.slow
def test_the_distortions(half_bright, tmp_path):
    """Without them, the images are the centres of the records, standardised."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': {
        **SHORT_QUEUE, 'float_image = distort(read_input.uint8image)':
        'float_image = crop_and_standardize(read_input.uint8image)'}})
    with copies.imported(copy) as import_:
        import_('cifar10_train')
        images, _ = import_('cifar10').distorted_inputs()
    with tf.train.SingularMonitoredSession() as session:
        found = session.run(images)
    records = np.concatenate([np.fromfile(half_bright / f'data_batch_{i}.bin', np.uint8)
                              for i in range(1, 6)]).reshape(-1, 3073)
    centres = record_files.unpacked(records)[0][:, 4:28, 4:28].astype(np.float32)
    centres -= centres.mean(axis=(1, 2, 3), keepdims=True)
    centres /= centres.std(axis=(1, 2, 3), keepdims=True)
    for image in found:
        assert abs(centres - image).max(axis=(1, 2, 3)).min() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('script, hook, text', [
    ('cifar10_train', '                       tf.train.NanTensorHook(loss),\n', ''),
    ('cifar10_train', ',\n                       _LoggerHook(loss)]', ']'),
    ('cifar10_multi_gpu_train', ',\n                       tf.train.NanTensorHook(loss)]', ']')])
def test_a_hook_removed(half_bright, tmp_path, capsys, script, hook, text):
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': SHORT_QUEUE, 'cifar10.py': LOW_RATE, f'{script}.py': {hook: text}})
    with copies.imported(copy) as import_:
        run(import_, script, max_steps=3)
    out = capsys.readouterr().out
    assert f'Saved step 3 in {FLAGS.train_dir}.\n' in out
    assert bool(outcomes.LINE.search(out)) == ('Logger' not in hook)
    assert latest()['global_step'] == 3


@pytest.mark.slow
def test_without_the_hook_that_stops(half_bright, tmp_path, capsys):
    """Training ends with any other hook that asks for it."""
    copy = copies.copy_with(tmp_path / 'copy', {
        'cifar10_input.py': SHORT_QUEUE, 'cifar10.py': LOW_RATE, 'cifar10_train.py': {
            'tf.train.StopAtStepHook(last_step=FLAGS.max_steps)': '_Stop()',
            'def train():': '''class _Stop(tf.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        if run_context.session.run(tf.train.get_global_step()) == 4:
            run_context.request_stop()


def train():'''}})
    with copies.imported(copy) as import_, contextlib.suppress(KeyboardInterrupt):
        run(import_, 'cifar10_train', max_steps=1)
    assert latest()['global_step'] == 4


@pytest.mark.slow
def test_another_schedule_and_another_optimizer(half_bright, tmp_path, capsys):
    """The optimizer's variables are saved and restored; the evaluation reads the run."""
    schedule = '''lr = tf.train.exponential_decay(INITIAL_LEARNING_RATE, global_step, decay_steps,
                                    LEARNING_RATE_DECAY_FACTOR, staircase=True)'''
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': SHORT_QUEUE, 'cifar10.py': {
        schedule: 'lr = tf.train.polynomial_decay(0.004, global_step, 4, 0.0)',
        'tf.train.GradientDescentOptimizer(lr)': 'tf.train.AdamOptimizer(lr)'}})
    with copies.imported(copy) as import_:
        run(import_, 'cifar10_train', max_steps=2)
        moments = latest()['local3/weights/Adam_1']
        run(import_, 'cifar10_train', max_steps=3)
        assert 0 <= evaluated(import_, capsys) <= 1
    shown = outcomes.summaries(FLAGS.train_dir)
    rates = [shown[step]['learning_rate'].simple_value for step in (1, 3)]
    np.testing.assert_allclose(rates, [0.004, 0.002], rtol=1e-6)
    # Adam's decay of the second moments is 0.999: they stay where they were restored.
    later = latest()['local3/weights/Adam_1']
    assert (later >= 0.998 * moments).all() and abs(later - moments).max() > 0


def test_a_loss_with_another_decay(half_bright, tmp_path):
    """wd of local3: the loss of ones is 0.5 * 2304 * 384 / 2."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10.py': {
        "shape=[dim, 384], stddev=0.04, wd=0.004)": "shape=[dim, 384], stddev=0.04, wd=0.5)"}})
    with copies.imported(copy) as import_:
        import_('cifar10').inference(tf.zeros([1, 24, 24, 3]))
    weights, = (each for each in tf.trainable_variables() if each.op.name == 'local3/weights')
    decay, = (each for each in tf.get_collection('losses') if each.op.name == 'local3/weight_loss')
    with tf.Session() as session:
        weights.load(np.ones([2304, 384], np.float32), session)
        np.testing.assert_allclose(session.run(decay), 0.5 * 2304 * 384 / 2, rtol=1e-4)


def test_normalised_predictions(half_bright, tmp_path):
    """The text's exercise: `inference` returns the softmax."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10.py': {
        '    return softmax_linear\n': '    return tf.nn.softmax(softmax_linear)\n'}})
    with copies.imported(copy) as import_:
        predictions = import_('cifar10').inference(tf.zeros([3, 24, 24, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(predictions).sum(axis=1), [1, 1, 1], rtol=1e-6)
