"""A reader's mistake is one line: his file and line, the operation, and TensorFlow's reason."""
import re

import copies
import pytest
from absl import flags

FLAGS = flags.FLAGS

# {what is wrong: (file, name of the function, its new source, a part of TensorFlow's reason)}. The
# line of the mistake ends with `# Here.`
MISTAKES = {
    'a label beyond the classes': ('cifar10.py', 'loss', '''
def loss(logits, labels):
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(  # Here.
        labels=labels + 9, logits=logits, name='mine')
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy))
    return tf.add_n(tf.get_collection('losses'))
''', 'Received a label value of 10 which is outside the valid range'),
    'a shape': ('cifar10.py', '_activation_summary', '''
def _activation_summary(x):
    rows = tf.reshape(x, [tf.cast(0 * tf.reduce_max(x), tf.int32) + 7], name='mine')  # Here.
    tf.add_to_collection('losses', tf.reduce_mean(rows))
''', 'Input to reshape is a tensor with '),
    'a variable of ones own': ('cifar10.py', 'learning_rate', '''
def learning_rate(global_step, images_per_step, **options):
    factor = tf.get_variable('mine', [], collections=[], use_resource=False)  # Here.
    return 0.1 * factor
''', 'uninitialized value mine'),
    'the update': ('cifar10.py', 'update', '''
def update(opt, grads, global_step, **options):
    checked = [(tf.check_numerics(tf.log(-tf.abs(grad)), 'mine', name='mine'), var)  # Here.
               for grad, var in grads]
    return opt.apply_gradients(checked, global_step)
''', 'mine : Tensor had '),
    'a record': ('cifar10_input.py', 'distort', '''
def distort(images):
    others = tf.gather(images, 600 + tf.range(tf.shape(images)[0]), name='mine')  # Here.
    return tf.cast(others[:, :24, :24], tf.float32)
''', 'indices[0] = 600 is not in [0, '),
    'a function of Python': ('cifar10_input.py', 'distort', '''
def distort(images):
    def mine(pixels):
        return pixels[:, :24, :24] / pixels.missing
    made = tf.numpy_function(mine, [images], tf.float32, name='mine')  # Here.
    return tf.ensure_shape(made, [None, 24, 24, 3])
''', "AttributeError: 'numpy.ndarray' object has no attribute 'missing'"),
    'a function of a pipeline': ('cifar10_input.py', 'distort', '''
def distort(images):
    def mine(number):
        return tf.gather([1.0, 2.0], tf.minimum(number + 5, 5))
    numbers = tf.data.Dataset.range(9).map(mine)
    number = tf.data.make_one_shot_iterator(numbers).get_next('mine')  # Here.
    return tf.cast(images[:, :24, :24], tf.float32) * number
''', 'indices = 5 is not in [0, 2)'),
    'a file': ('cifar10_train.py', '_LoggerHook', '''
class _LoggerHook(tf.train.SessionRunHook):
    def __init__(self, loss):
        self._text = tf.read_file('/nowhere/mine', name='mine')  # Here.

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._text)
''', '/nowhere/mine; No such file or directory'),
    'a file, in Python': ('cifar10_train.py', '_LoggerHook', '''
class _LoggerHook(tf.train.SessionRunHook):
    def __init__(self, loss):
        pass

    def before_run(self, run_context):
        open('/nowhere/mine')  # Here.
''', "No such file or directory: '/nowhere/mine'"),
    'a file of NumPy': ('cifar10_input.py', 'distort', '''
def distort(images):
    import numpy as np
    return tf.cast(images[:, :24, :24], tf.float32) - np.load('/nowhere/mine.npy')  # Here.
''', "No such file or directory: '/nowhere/mine.npy'"),
    'a placeholder': ('cifar10_train.py', '_LoggerHook', '''
class _LoggerHook(tf.train.SessionRunHook):
    def __init__(self, loss):
        fed = tf.placeholder(tf.float32, [], name='mine')  # Here.
        self._product = fed * loss

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._product)
''', "You must feed a value for placeholder tensor 'mine'")}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake(half_bright, tmp_path, monkeypatch, capsys, mistake):
    file, name, source, reason = MISTAKES[mistake]
    project = copies.copy_with(tmp_path / 'copy', {})
    copies.replace(project / file, **{name: source})
    lines = (project / file).read_text().splitlines()
    number = next(count for count, line in enumerate(lines, 1) if line.endswith('# Here.'))
    flags_ = [f'--{name}={FLAGS[name].value}' for name in ('data_dir', 'train_dir', 'batch_size')]
    monkeypatch.setattr('sys.argv', ['cifar10_train.py', *flags_, '--max_steps=3'])
    with copies.imported(project) as import_, pytest.raises(SystemExit) as ended:
        train = import_('cifar10_train')
        import_('cifar10_input').NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 80
        import_('cifar10_lib.script').run(train.main)
    error = capsys.readouterr().err
    assert ended.value.code == 1 and error.count('\n') == 1, error
    assert re.match(rf'cifar10_train\.py: {file}:{number}(:| \(\S*mine\S*\):) ', error), error
    assert reason in error, error
