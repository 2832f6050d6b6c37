"""The five files are the tutorial: a reader of its text finds what it names, where it says.

And values travel as arguments: only the scripts, cifar10.py and the settings read flags.
"""
import ast
import pathlib
import re

import pytest
from absl import flags

ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = sorted(ROOT.glob('cifar10_lib/**/*.py'))

# The functions of the published files, in their order; others may stand between them.
PUBLISHED = {
    'cifar10_input.py': 'read_cifar10 _generate_image_and_label_batch distorted_inputs inputs',
    'cifar10.py': '_activation_summary _variable_on_cpu _variable_with_weight_decay '
                  'distorted_inputs inputs inference loss _add_loss_summaries train '
                  'maybe_download_and_extract',
    'cifar10_train.py': 'train main',
    'cifar10_multi_gpu_train.py': 'tower_loss average_gradients train main',
    'cifar10_eval.py': 'eval_once evaluate main'}

# What the published files use of TensorFlow, and ours, too.
CONSTRUCTS = {
    'cifar10_input.py': '''
        FixedLengthRecordReader cast decode_raw float32 image.per_image_standardization
        image.random_flip_left_right image.resize_image_with_crop_or_pad int32 name_scope reshape
        summary.image train.batch train.shuffle_batch train.string_input_producer transpose
        uint8''',
    'cifar10.py': '''
        add_n add_to_collection app.flags.FLAGS cast constant_initializer control_dependencies
        device float16 float32 get_collection get_variable group int64 matmul multiply nn.bias_add
        nn.conv2d nn.l2_loss nn.max_pool nn.relu nn.sparse_softmax_cross_entropy_with_logits
        nn.zero_fraction reduce_mean reshape summary.histogram summary.scalar
        train.ExponentialMovingAverage train.GradientDescentOptimizer train.exponential_decay
        trainable_variables truncated_normal_initializer variable_scope''',
    'cifar10_train.py': '''
        Graph device train.NanTensorHook train.SessionRunArgs train.SessionRunHook
        train.StopAtStepHook train.get_or_create_global_step''',
    'cifar10_multi_gpu_train.py': '''
        FIFOQueue Graph GraphKeys.SUMMARIES add_n device get_collection get_variable_scope
        name_scope summary.merge train.QueueRunner train.add_queue_runner variable_scope''',
    'cifar10_eval.py': '''
        Graph Session Summary summary.merge_all train.Coordinator train.ExponentialMovingAverage
        train.Saver train.start_queue_runners'''}

# (what the tutorial's text says, file, function or class or None for the file, what is found there)
STATEMENTS = [
    ('distorted_inputs() adds operations that read and distort images', 'cifar10.py',
     'distorted_inputs', r'return cifar10_input\.distorted_inputs\('),
    ('inputs() adds operations that read and preprocess images', 'cifar10.py', 'inputs',
     r'return cifar10_input\.inputs\('),
    ('records of a fixed length are read by tf.FixedLengthRecordReader', 'cifar10_input.py',
     'read_cifar10', r'tf\.FixedLengthRecordReader\(record_bytes='),
    *((f'a record has a {field}', 'cifar10_input.py', function, rf'result\.{field} = ')
      for field, function in [
          ('height', 'decode_records'), ('width', 'decode_records'), ('depth', 'decode_records'),
          ('label', 'decode_records'), ('uint8image', 'decode_records'), ('key', 'read_cifar10')]),
    ('for N-way parallel reading, call it N times', 'cifar10_input.py', 'read_cifar10',
     r'several calls read in parallel'),
    ('images are cropped to 24 x 24 pixels', 'cifar10_input.py', None, r'^IMAGE_SIZE = 24$'),
    ('at random for training', 'cifar10_input.py', 'distort_images',
     r' random_crop\(\w+, IMAGE_SIZE\)'),
    ('centrally for evaluation', 'cifar10_input.py', 'prepare_images',
     r'tf\.image\.resize_image_with_crop_or_pad\(\w+, IMAGE_SIZE, IMAGE_SIZE\)'),
    ('they are approximately whitened for training', 'cifar10_input.py', 'distort_images',
     r'return tf\.image\.per_image_standardization\('),
    ('and for evaluation', 'cifar10_input.py', 'prepare_images',
     r'return tf\.image\.per_image_standardization\('),
    ('randomly flip the image', 'cifar10_input.py', 'distort_images',
     r'tf\.image\.random_flip_left_right\('),
    ('randomly distort its brightness', 'cifar10_input.py', 'distort_images',
     r' random_brightness\(\w+, max_delta=63\)'),
    ('randomly distort its contrast', 'cifar10_input.py', 'distort_images',
     r' random_contrast\(\w+, lower=0\.2, upper=1\.8\)'),
    ('we attach a tf.summary.image to the images', 'cifar10_input.py',
     '_generate_image_and_label_batch', r"tf\.summary\.image\('images', images\)"),
    ('distorted inputs have it', 'cifar10_input.py', 'distorted_inputs',
     r'return _generate_image_and_label_batch\('),
    ('and those of the evaluation', 'cifar10_input.py', 'inputs',
     r'return _generate_image_and_label_batch\('),
    ('threads continuously fill a queue', 'cifar10_input.py', 'distorted_inputs',
     r'tf\.train\.shuffle_batch\('),
    ('there are 16 of them', 'cifar10_input.py', '_generate_image_and_label_batch',
     r'num_preprocess_threads=16\b'),
    ('search for min_fraction_of_examples_in_queue', 'cifar10_input.py', 'distorted_inputs',
     r'min_fraction_of_examples_in_queue=0\.4\b'),
    ('the layers', 'cifar10.py', 'inference',
     "'conv1'.*'pool1'.*'norm1'.*'conv2'.*'norm2'.*'pool2'.*'local3'.*'local4'.*'softmax_linear'"),
    ('inference() returns logits that are not normalised', 'cifar10.py', 'inference',
     r'return softmax_linear$'),
    ('the loss is the cross entropy', 'cifar10.py', 'loss',
     r'tf\.nn\.sparse_softmax_cross_entropy_with_logits\('),
    ('and all weight decay terms', 'cifar10.py', 'loss',
     r"return tf\.add_n\(tf\.get_collection\('losses'\), name='total_loss'\)"),
    ('the usual weight decay', 'cifar10.py', '_variable_with_weight_decay',
     r"tf\.multiply\(tf\.nn\.l2_loss\(var\), wd, .*"
     r"tf\.add_to_collection\('losses', weight_decay\)"),
    ('we visualise it with a tf.summary.scalar', 'cifar10.py', '_add_loss_summaries',
     r'tf\.summary\.scalar\('),
    ('see how the scripts use tf.train.ExponentialMovingAverage', 'cifar10.py',
     '_add_loss_summaries', r"tf\.train\.ExponentialMovingAverage\(0\.9, name='avg'\)"),
    ('a learning rate that decays exponentially', 'cifar10.py', 'learning_rate',
     r'return tf\.train\.exponential_decay\('),
    ('standard gradient descent', 'cifar10.py', 'train', r'tf\.train\.GradientDescentOptimizer\('),
    ('train() calculates the gradient', 'cifar10.py', 'train',
     r'opt\.compute_gradients\(total_loss'),
    ('and updates the variables', 'cifar10.py', 'train', r'opt\.apply_gradients\(grads, '),
    ('then their moving averages', 'cifar10.py', 'train',
     r'tf\.control_dependencies\(\[apply_gradient_op, .*tf\.train\.ExponentialMovingAverage\(\s*'
     r'MOVING_AVERAGE_DECAY, global_step\)'),
    ('it returns one operation', 'cifar10.py', 'train', r"return tf\.group\(.*, name='train'\)$"),
    ('what is the learning rate?', 'cifar10.py', 'train',
     r"tf\.summary\.scalar\('learning_rate', lr\)"),
    ('are the weights reasonable?', 'cifar10.py', 'train',
     r'tf\.summary\.histogram\(var\.op\.name, var\)'),
    ('and the gradients?', 'cifar10.py', 'train',
     r"tf\.summary\.histogram\(var\.op\.name \+ '/gradients', grad\)"),
    ('the distribution of activations', 'cifar10.py', '_activation_summary',
     r"tf\.summary\.histogram\(tensor_name \+ '/activations', x\)"),
    ('and their sparsity', 'cifar10.py', '_activation_summary',
     r"tf\.summary\.scalar\(tensor_name \+ '/sparsity', tf\.nn\.zero_fraction\(x\)\)"),
    ('all variables are pinned to the CPU and accessed via tf.get_variable', 'cifar10.py',
     '_variable_on_cpu', r"with tf\.device\('/cpu:0'\):\s+(return|var =) tf\.get_variable\(name, "),
    ('the script reports the loss and the speed', 'cifar10_train.py', '_LoggerHook',
     r'step %d, loss = %\.2f \(%\.1f examples/sec; %\.3f sec/batch\)'),
    ('it runs the training operation', 'cifar10_train.py', 'train',
     r'while not mon_sess\.should_stop\(\):\s+mon_sess\.run\(train_op\)'),
    ('it periodically saves all parameters and exports events', 'cifar10_train.py', 'train',
     r'# Checkpoints, summaries.*\*monitored\.shared_hooks\('),
    ('the data set is downloaded automatically', 'cifar10_train.py', 'main',
     r'cifar10\.maybe_download_and_extract\('),
    ('evaluation uses all 10,000 images', 'cifar10_eval.py', None,
     r"flags\.DEFINE_integer\('num_examples', 10000, "),
    ('it runs periodically', 'cifar10_eval.py', None,
     r"flags\.DEFINE_integer\('eval_interval_secs', 300, "),
    ('precision at 1', 'cifar10_eval.py', 'eval_once', r"'%s: precision @ 1 = %\.3f'"),
    ('it substitutes the averages for the learned variables', 'cifar10_eval.py', 'evaluate',
     r'tf\.train\.ExponentialMovingAverage\(cifar10\.MOVING_AVERAGE_DECAY\)\s+'
     r'variables_to_restore = variable_averages\.variables_to_restore\(\).*'
     r'tf\.train\.Saver\(variables_to_restore\)'),
    ('it exports summaries', 'cifar10_eval.py', 'eval_once',
     r'summary_writer\.add_summary\(summary, global_step\)'),
    ('a unique name for all operations within a tower', 'cifar10_multi_gpu_train.py', 'train',
     r"tf\.name_scope\('%s_%d' % \(cifar10\.TOWER_NAME, i\)\) as scope"),
    ('a device for a tower', 'cifar10_multi_gpu_train.py', 'train',
     r"tf\.device\('/gpu:%d' % i\)"),
    ('each GPU computes inference for a unique batch', 'cifar10_multi_gpu_train.py', 'train',
     r'tf\.FIFOQueue\(.*image_batch, label_batch = batch_queue\.dequeue\(\)'),
    ('and its loss', 'cifar10_multi_gpu_train.py', 'tower_loss',
     r"tf\.get_collection\('losses', scope\)"),
    ('and the gradients', 'cifar10_multi_gpu_train.py', 'train',
     r'opt\.compute_gradients\(loss\)'),
    ('the GPUs share the parameters', 'cifar10_multi_gpu_train.py', 'train',
     r'tf\.get_variable_scope\(\)\.reuse_variables\(\)'),
    ('all gradients are averaged', 'cifar10_multi_gpu_train.py', 'train',
     r'grads = average_gradients\(tower_grads\).*cifar10\.train\(loss, global_step, lr, opt, '
     r'grads\)'),
    ('this is where they are synchronised', 'cifar10_multi_gpu_train.py', 'average_gradients',
     r'the point where they synchronise'),
    ('one GPU unless more are asked for', 'cifar10_multi_gpu_train.py', None,
     r"flags\.DEFINE_integer\('num_gpus', 1, ")]


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_published_functions_in_their_order(name):
    body = ast.parse((ROOT / name).read_text()).body
    ours = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    wanted = PUBLISHED[name].split()
    assert [each for each in ours if each in wanted] == wanted


@pytest.mark.parametrize('name', CONSTRUCTS)
def test_the_constructs_of_tensorflow(name):
    tree = ast.parse((ROOT / name).read_text())
    used = {ast.unparse(node).removeprefix('tf.') for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)}
    assert {*CONSTRUCTS[name].split()} <= used


def lines_of(name, inner):
    """The text of a file, or of a function or class in it."""
    text = (ROOT / name).read_text()
    if inner is None:
        return text
    found, = (node for node in ast.parse(text).body if getattr(node, 'name', None) == inner)
    return ast.get_source_segment(text, found)


@pytest.mark.parametrize('statement, name, inner, wanted', STATEMENTS, ids=[
    f'{name}: {statement}' for statement, name, *_ in STATEMENTS])
def test_what_the_text_says(statement, name, inner, wanted):
    assert re.search(wanted, lines_of(name, inner), re.DOTALL | re.MULTILINE), statement


def test_only_scripts_cifar10_and_the_settings_read_flags():
    """Two modules parse the command line; they know no flag by its name."""
    parse = [ROOT / 'cifar10_lib/program' / name for name in ('startup.py', 'command_line.py')]
    below = {*LIBRARY} - {*parse, ROOT / 'cifar10_lib/settings.py'}
    found = [path for path in below if re.search(r'\bFLAGS\b', path.read_text())]
    assert len(below) > 45 and found == []
    for path in parse:
        assert {*re.findall(r'FLAGS\.(\w+)', path.read_text())} <= {*dir(flags.FlagValues)}


def test_nothing_changes_a_flag():
    """Apart from `cifar10.parser`, whose values become flags."""
    change = re.compile(r'FLAGS[.\[](?!.*allow_override)[\w.\[\]\'"]+ *[-+*/|]*=(?!=)'
                        r'|\.set_default\(|\.unparse\(|setattr\([\w.]*FLAGS')
    files = {*ROOT.glob('cifar10*.py'), *LIBRARY} - {ROOT / 'cifar10_lib/program/command_line.py'}
    found = [path for path in files if change.search(path.read_text())]
    assert len(files) > 60 and found == []
