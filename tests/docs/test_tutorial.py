"""The walk-through: its quotations are the code, its examples print what it says."""
import ast
import json
import pathlib
import re

import nbformat
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10_input
from docs import figures, notebook
from cifar10_lib.nets import variables
from cifar10_lib import recipes

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


def test_each_section_quotes_code_and_ends_with_a_command():
    """Sections 1 to 12: 8 to 15 lines of the project's code, and something to run."""
    sections = re.split(r'^## (?=\d+\. )', TUTORIAL, flags=re.MULTILINE)[1:13]
    assert [int(section.partition('.')[0]) for section in sections] == list(range(1, 13))
    for section in sections:
        blocks = notebook.blocks(section)
        quoted = [block['code'].count('\n') for block in blocks
                  if (block['comment'] or '').startswith('quote')]
        assert any(8 <= lines <= 15 for lines in quoted), section[:40]
        assert blocks[-1]['language'] == 'bash', section[:40]


@pytest.mark.parametrize('path', sorted({path for path, _ in commented('output')}))
def test_examples_print_what_the_text_shows(path):
    """An example that is quoted in stages has an output below each."""
    expected = ''.join(output for each, output in commented('output') if each == path)
    done = spawn.run_script(path)
    assert done.stdout == expected, done.stderr


def test_every_example_is_quoted_with_its_output():
    paths = sorted(f'docs/examples/{path.name}' for path in (ROOT / 'docs/examples').glob('*.py')
                   if path.name != 'ray_launcher.py')  # It belongs to distributed.md.
    assert sorted({path for path, _ in commented('output')}) == paths
    assert {path for path, _ in commented('quote')} >= set(paths)


def test_each_section_asks_a_question_with_a_folded_answer():
    for section in re.split(r'^## (?=\d+\. )', TUTORIAL, flags=re.MULTILINE)[1:13]:
        found = re.findall(
            r'^\*\*Before you go on\.\*\* .*?\n\n<details><summary>Answer</summary>\n\n.+?\n\n'
            r'</details>$', section, re.MULTILINE | re.DOTALL)
        assert len(found) == 1, section[:40]


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
    assert len(links) > 30
    assert set(links) <= set(re.findall(r'<a id="([\w-]+)"></a>', text))


def test_solutions_that_change_the_code_fit_it():
    """The lines that a solution removes are in the file, once, below the line that @@ names."""
    solutions = [block['code'] for block in notebook.blocks(TUTORIAL)
                 if block['language'] == 'diff']
    assert len(solutions) >= 3
    for solution in solutions:
        header, *hunks = re.split(r'^@@ ?', solution, flags=re.MULTILINE)
        text = (ROOT / re.search(r'^--- (\S+)$', header, re.MULTILINE).group(1)).read_text()
        for hunk in hunks:
            context, _, lines = hunk.partition('\n')
            removed = ''.join(re.findall(r'^[- ](.*\n)', lines, re.MULTILINE))
            below = text[text.index(f'\n{context}'):] if context else text
            assert removed and below.count(removed) == 1, solution


def test_solutions_that_add_networks_build_them(half_bright, monkeypatch):
    """With the same variables in training and evaluation."""
    solutions = [code for path, code in commented('solution') if path == 'cifar10_lib/recipes.py']
    assert len(solutions) >= 3
    for solution in solutions:
        table = {}
        exec(solution, {**vars(recipes), 'TABLE': table, 'cifar10_input': cifar10_input,
                        'variables': variables})
        (name, recipe), = table.items()
        assert name == recipe.name
        built = []
        for training in (True, False):
            with tf.Graph().as_default():
                images = recipe.augment(tf.zeros([4, 3072], tf.uint8))
                assert recipe.inference(images, training).shape.as_list() == [4, 10]
                built.append([variable.op.name for variable in tf.global_variables()])
        assert built[0] == built[1]


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
