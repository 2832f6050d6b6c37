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


def tree_of(path):
    return ast.parse(path.read_text())


def chain(node):
    """'a.b.c' of an expression `a.b.c`; '' of any other."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ''
    return '.'.join([node.id, *reversed(names)])


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_published_functions_in_their_order(name):
    ours = [node.name for node in tree_of(ROOT / name).body if isinstance(node, ast.FunctionDef)]
    wanted = PUBLISHED[name].split()
    assert [each for each in ours if each in wanted] == wanted


@pytest.mark.parametrize('name', CONSTRUCTS)
def test_the_constructs_of_tensorflow(name):
    used = {chain(node).removeprefix('tf.') for node in ast.walk(tree_of(ROOT / name))
            if isinstance(node, ast.Attribute)}
    assert {*CONSTRUCTS[name].split()} <= used


def test_only_scripts_cifar10_and_the_settings_read_flags():
    """Two modules parse the command line; they know no flag by its name."""
    parse = [ROOT / 'cifar10_lib/program' / name for name in ('startup.py', 'command_line.py')]
    below = {*LIBRARY} - {*parse, ROOT / 'cifar10_lib/settings.py'}
    found = [f'{path.relative_to(ROOT)}:{node.lineno}' for path in below
             for node in ast.walk(tree_of(path))
             if 'FLAGS' in (getattr(node, 'id', ''), getattr(node, 'attr', ''))]
    assert len(below) > 45 and found == []
    for path in parse:
        assert {*re.findall(r'FLAGS\.(\w+)', path.read_text())} <= {*dir(flags.FlagValues)}


# What changes the value or the default of a flag.
WRITES = re.compile(r'FLAGS(\[.*\])?\.(?!allow_override)\w+ [+*/-]?= |setattr\(\S*FLAGS|'
                    r'\.(set_default|unparse)\(')


def test_nothing_changes_a_flag():
    """Apart from `cifar10.parser`, whose values become flags."""
    files = {*ROOT.glob('cifar10*.py'), *LIBRARY} - {
        ROOT / 'cifar10_lib/program/command_line.py'}
    found = [f'{path.relative_to(ROOT)}: {line}' for path in files
             for line in path.read_text().splitlines() if WRITES.search(line)]
    assert len(files) > 60 and found == []
