"""The walk-through: its quotations are the code, its examples print what it says."""
import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys

import nbformat
import numpy as np
import plain
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
from cifar10_lib import recipes
from docs import figures, notebook
from docs.examples import local

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / 'docs/tutorial.md').read_text()


def commented(word):
    """(rest of the comment, code) of each block below a comment that begins with a word."""
    return [(block['comment'].partition(' ')[2], block['code'])
            for block in notebook.blocks(TUTORIAL)
            if (block['comment'] or '').split()[:1] == [word]]


def source(path, name):
    """The lines of a file, or of the function, class or constant in it with that name."""
    text = (ROOT / path).read_text()
    lines = text.splitlines()
    if not name:
        return lines
    found, = (node for node in ast.walk(ast.parse(text)) if name == getattr(node, 'name', None)
              or isinstance(node, ast.Assign) and name == ast.unparse(node.targets[0]))
    return lines[found.lineno - 1:found.end_lineno]


def is_quoted_from(quotation, lines):
    """Whether the parts of a quotation, separated by `...`, are in the lines, in this order."""
    start = 0
    for part in re.split(r'^\.\.\.\n', quotation, flags=re.MULTILINE):
        wanted = part.splitlines()
        start = next((index + len(wanted) for index in range(start, len(lines) - len(wanted) + 1)
                      if lines[index:index + len(wanted)] == wanted), None)
        if start is None:
            return False
    return True


@pytest.mark.parametrize('where, quotation', [
    pytest.param(*block, id=block[0]) for block in commented('quote')])
def test_quotations_are_the_code(where, quotation):
    path, _, name = where.partition(': ')
    if name:  # Its first line says where it is from.
        first, _, quotation = quotation.partition('\n')
        brackets = '' if name.isupper() else '()'
        assert first == f'# {path}, {name}{brackets}'
    assert is_quoted_from(quotation, source(path, name)), where


@pytest.mark.parametrize('path', sorted({path for path, _ in commented('output')}))
def test_examples_print_what_the_text_shows(path, tmp_path):
    """An example that is quoted in stages has an output below each."""
    expected = ''.join(output for each, output in commented('output') if each == path)
    done = spawn.run_script(path, env={**spawn.environment(), 'TMPDIR': str(tmp_path)})
    assert done.stdout == expected, done.stderr


def test_every_example_is_quoted_with_its_output():
    paths = sorted(f'docs/examples/{path.name}' for path in (ROOT / 'docs/examples').glob('*.py')
                   if path.name not in ('ray_launcher.py', 'local.py'))  # See distributed.md, 13.
    assert sorted({path for path, _ in commented('output')}) == paths
    assert {path for path, _ in commented('quote')} >= set(paths)


def test_figures_show_what_tensorflow_computes():
    for draw in (figures.convolution, figures.gradient):
        assert (ROOT / f'docs/{draw.__name__}.svg').read_text() == draw()
    assert '24' in figures.gradient()


def test_the_trainer_is_quoted_whole():
    """What a reader types in from the text is the file, apart from its docstring."""
    quoted = [code for path, code in commented('quote') if path == 'docs/examples/trainer.py']
    assert len(quoted) == 4
    text = (ROOT / 'docs/examples/trainer.py').read_text()
    body = text[text.index('import numpy'):]
    assert '\n'.join(quoted).split() == body.split()


def test_the_notebook_has_the_anchors_of_its_links():
    """JupyterLab's own ids are not GitHub's."""
    text = '\n'.join(source for kind, source in notebook.cells(TUTORIAL) if kind == 'markdown')
    links = re.findall(r'\]\(#([\w-]+)\)', text)
    assert len(links) > 20  # The pattern finds them.
    assert set(links) <= set(re.findall(r'<a id="([\w-]+)"></a>', text))


def solutions(number):
    """The changes to the code, in the form of `diff -u`, that solve an exercise."""
    exercise = re.search(rf'^### Exercise {number}:.*?(?=^##)', TUTORIAL, re.MULTILINE | re.DOTALL)
    return [block['code'] for block in notebook.blocks(exercise.group())
            if block['language'] == 'diff']


def apply(solution, folder):
    """Makes the changes: each is below the line that its @@ names, where its old lines are once."""
    header, *hunks = re.split(r'^@@ ?', solution, flags=re.MULTILINE)
    path = folder / re.search(r'^--- (\S+)$', header, re.MULTILINE).group(1)
    text = original = path.read_text()
    for hunk in hunks:
        context, *lines = hunk.splitlines(keepends=True)
        old, new = (''.join(line[1:] for line in lines if line[0] in signs)
                    for signs in ('- ', '+ '))
        below = original[original.index(f'\n{context}'):] if context.strip() else original
        assert old and below.count(old) == 1, solution
        place = text.rindex(old)
        text = text[:place] + new + text[place + len(old):]
    path.write_text(text)


def solved(folder, *numbers):
    """Copies the project's modules into a folder, and makes the changes of these exercises."""
    for path in ROOT.glob('cifar10*'):
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy(path, folder)
    for number in numbers:
        for solution in solutions(number):
            apply(solution, folder)


# Builds the network for training and for evaluation, and makes a step. Prints the variables and
# types of operations of both graphs, the loss, and averages of a weight that moves from 1.0 to 0.8.
_BUILD = '''
import json
import tensorflow.compat.v1 as tf
import cifar10
from cifar10_lib import recipes
tf.app.flags.FLAGS(['test', '--data_dir=nowhere'])
found = []
for training in (True, False):
    with tf.Graph().as_default() as graph:
        images = tf.random_normal([4, cifar10.IMAGE_SIZE, cifar10.IMAGE_SIZE, 3])
        logits = recipes.chosen().logits(images, 10, training)
        found.append(({each.op.name: each.shape.as_list() for each in tf.global_variables()},
                      sorted({each.type for each in graph.get_operations()})))
        loss = cifar10.loss(logits, tf.range(4))
        train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(train_op)
            found.append(float(session.run(loss)))
print(json.dumps(found))
'''


@pytest.mark.slow
@pytest.mark.parametrize('number', [1, 7, 8, 9])
def test_solutions_that_change_the_code(tmp_path, number):
    """They fit it, build the same variables for training and evaluation, and do what they say."""
    solved(tmp_path, number)
    if number == 9:
        apply(solutions(8)[-1], tmp_path)
    done = subprocess.run(  # Not a fork, which has the project's own modules.
        [sys.executable, '-c', _BUILD], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    (variables_, in_training), loss, (evaluated, in_evaluation), _ = json.loads(
        done.stdout.splitlines()[-1])
    assert variables_ == evaluated
    assert variables_['local3/weights'] == [3136 if number == 7 else 2304, 384]
    assert ('norm1/moving_mean' in variables_) == (number == 9)
    assert ('Softmax' in in_evaluation) == (number == 1)
    dropout = {'RandomUniform'}
    assert dropout.issubset(in_training) == (number == 8)
    assert not dropout.issubset(in_evaluation)
    assert np.isfinite(loss)


@pytest.mark.slow
def test_solutions_that_change_the_queue_and_the_evaluation(tmp_path, half_bright):
    """A hundredth of the 80 images is none; the checkpoint's raw weights and averages differ."""
    solved(tmp_path, 3, 4)

    def run(script, *flags_):
        words = [str(script), f'--data_dir={FLAGS.data_dir}', *flags_]
        if script.parent == ROOT:
            done = spawn.run(words, capture_output=True)
        else:  # Not a fork, which has the project's own modules.
            done = subprocess.run([sys.executable, *words], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    trained = run(tmp_path / 'cifar10_train.py', f'--train_dir={tmp_path}/run', '--max_steps=1',
                  '--batch_size=8')
    assert 'Filling queue with 0 CIFAR images' in trained
    plain.save_checkpoint(FLAGS.train_dir)
    of_checkpoint = ['--run_once', '--per_class', f'--checkpoint_dir={FLAGS.train_dir}',
                     f'--eval_dir={tmp_path}/eval']
    edited, averaged, raw = (
        run(script, *of_checkpoint, *more).partition('precision @ 1')[2]
        for script, more in ((tmp_path / 'cifar10_eval.py', []), (ROOT / 'cifar10_eval.py', []),
                             (ROOT / 'cifar10_eval.py', ['--use_moving_averages=false'])))
    assert edited == raw != averaged


def test_a_solution_that_adds_a_network_never_mirrors():
    """All rows of the images rise from left to right, and those of their crops."""
    (_, solution), = commented('solution')[:1]
    table = dict(recipes.TABLE)
    exec(solution, {**vars(recipes), 'TABLE': table})
    pixels = np.tile(np.arange(32, dtype=np.uint8)[:, np.newaxis], [40, 32, 1, 3])
    with tf.Session() as session:
        images = session.run(table['digits'].distort(tf.constant(pixels)))
    assert images.shape == (40, 24, 24, 3) and (np.diff(images, axis=2) > 0).all()


def plain_locally_connected(net, weights):
    """In NumPy, one position and one neighbour at a time."""
    height, width, rows, columns, _, filters = weights.shape
    result = np.zeros([len(net), height, width, filters])
    for y, x, row, column in np.ndindex(height, width, rows, columns):
        from_y, from_x = y + row - rows // 2, x + column - columns // 2
        if 0 <= from_y < height and 0 <= from_x < width:
            result[:, y, x] += net[:, from_y, from_x] @ weights[y, x, row, column]
    return result


@pytest.mark.parametrize('shape', [
    (3, 5, 7, 3, 3, 4, 2), (2, 4, 3, 1, 5, 1, 3), (1, 1, 1, 3, 3, 2, 2), (5, 2, 9, 5, 3, 3, 1)])
def test_locally_connected_layers_equal_plain_numpy(shape):
    """With a different size for each axis."""
    batch, height, width, rows, columns, channels, filters = shape
    random = np.random.RandomState(1)
    net = random.normal(size=[batch, height, width, channels]).astype(np.float32)
    weights = random.normal(
        size=[height, width, rows, columns, channels, filters]).astype(np.float32)
    result = local.locally_connected(tf.constant(net), tf.constant(weights))
    with tf.Session() as session:
        np.testing.assert_allclose(
            session.run(result), plain_locally_connected(net, weights), atol=1e-5)


def test_the_locally_connected_network():
    """conv1 25 x 3 x 64 + 64 and conv2 25 x 64 x 64 + 64, as in the tutorial; 36 positions of
    9 x 64 x 64 + 64 and of 9 x 64 x 32 + 32; 36 x 32 x 10 + 10. It memorises eight images."""
    images = np.random.RandomState(1).normal(size=[8, 24, 24, 3]).astype(np.float32)
    logits = local.inference(tf.constant(images))
    assert sum(each.shape.num_elements() for each in tf.trainable_variables()) == (
        4864 + 102464 + 1329408 + 664704 + 11530) == 2112970
    with flagsaver.flagsaver(learning_rate=0.01):
        loss = cifar10.loss(logits, tf.range(8))
        train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train_op])[0] for _ in range(30)]
    assert losses[-1] < losses[0] - 0.3, losses


@pytest.mark.slow
def test_the_locally_connected_example_trains_and_evaluates(half_bright):
    """With the flags of the trainer and of the evaluation, in folders of its own."""
    flags_ = [f'--data_dir={FLAGS.data_dir}', f'--train_dir={FLAGS.train_dir}', '--batch_size=8']
    for use in ('true', 'false'):  # The second run finds nothing to train.
        done = spawn.run_script('docs/examples/local.py', *flags_, '--max_steps=2',
                                f'--use_moving_averages={use}', f'--use_bf16={use}')
        assert re.search(r'model.ckpt-2 .*\n.*precision @ 1 = ', done.stdout), done.stderr
    assert pathlib.Path(f'{FLAGS.train_dir}_eval').is_dir()


def test_the_notebook_is_that_of_the_text():
    """Made by `python docs/notebook.py`, with the output of every cell that prints."""
    made = nbformat.read(ROOT / 'docs/tutorial.ipynb', as_version=4)
    assert [(cell.cell_type, cell.source) for cell in made.cells] == notebook.cells(TUTORIAL), (
        'run: python docs/notebook.py')
    for cell in made.cells:
        if cell.cell_type == 'code' and re.search(r'^ *(!|print|show)', cell.source, re.MULTILINE):
            assert cell.outputs, cell.source
            assert all(output.output_type != 'error' for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path, monkeypatch):
    """From top to bottom, with 11 steps: it trains, evaluates, predicts and shows pictures."""
    monkeypatch.setenv('TUTORIAL_STEPS', '11')
    monkeypatch.setenv('TUTORIAL_DATA_DIR', str(tmp_path))
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    made = notebook.build(TUTORIAL)
    notebook.execute(made)
    outputs = json.dumps([cell.get('outputs') for cell in made.cells])
    for expected in ('step 10, loss = ', 'precision @ 1 = ', '3.944056', 'image/jpeg',
                     'image/svg+xml', '2 towers', 'With queue runners: 3 numbers.'):
        assert expected in outputs
