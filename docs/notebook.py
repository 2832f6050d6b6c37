"""Writes docs/tutorial.ipynb from docs/tutorial.md, and runs it to include the outputs.

    python docs/notebook.py

Requires nbclient, nbformat and ipykernel (pip install -r requirements-dev.txt). A comment above a
block of code in tutorial.md says what becomes of it:

    <!-- quote docs/examples/FILE.py -->     a code cell
    <!-- quote FILE.py -->                   text, because the code is part of something larger
    <!-- output docs/examples/FILE.py -->    left out; the cell prints it
    <!-- notebook CODE -->                   a cell with that code; for "skip", text

Other blocks are text. A line with only a picture becomes a cell that shows it.
"""
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent

# (comment, language, code) of each block; the comment may be missing.
_BLOCK = re.compile(r'^(?:<!-- (?P<comment>(?:(?!-->).)*?)\s*-->\n)?'
                    r'```(?P<language>\w*)\n(?P<code>.*?)^```\n', re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r'^!\[[^\]]*\]\(([\w.-]+)\)\n', re.MULTILINE)

# A block of code, or a heading: (hashes, title).
_HEADING = re.compile(r'^```.*?^```$|^(#+) ([^\n]*)$', re.MULTILINE | re.DOTALL)

_INTRODUCTION = '''\
This notebook is made from [tutorial.md](tutorial.md). Its commands use generated images and 300
steps, and take about five minutes on two CPU cores. For CIFAR-10, change `DATASET` and `STEPS` in
the second cell of code. On Colab, set `REPOSITORY` in the first one.'''

_SET_UP = '''\
REPOSITORY = ''  # On Colab: the address of this repository, as for `git clone`.

import io
import os
import re
import subprocess
import sys
import tempfile

if os.path.exists('../cifar10.py'):
    os.chdir('..')
elif not os.path.exists('cifar10.py'):
    assert REPOSITORY, "REPOSITORY is empty; expected this repository's address: set it above"
    subprocess.run(['git', 'clone', REPOSITORY, 'cifar10_tutorial'], check=True)
    os.chdir('cifar10_tutorial')
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '-r', 'requirements.txt',
                    'matplotlib'], check=True)
os.environ['PATH'] = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
sys.path.insert(0, os.getcwd())
from cifar10_lib import quiet  # Imports TensorFlow without the lines that it prints.

import tensorflow.compat.v1 as tf
import IPython.display
import PIL.Image

tf.logging.set_verbosity(tf.logging.ERROR)  # Queues are deprecated.
tf.disable_v2_behavior()


def show(path):
    """Shows a picture file; a PNG as a small JPEG, which keeps the notebook small."""
    if path.endswith('.svg'):
        return IPython.display.SVG(path)
    jpeg, picture = io.BytesIO(), PIL.Image.open(path).convert('RGB')
    picture.thumbnail([800, 800])
    picture.save(jpeg, 'JPEG', quality=60)
    return IPython.display.Image(jpeg.getvalue())'''

_CHOICES = '''\
DATASET = 'generated'  # Or 'cifar10', which downloads 170 MB.
STEPS = int(os.environ.get('TUTORIAL_STEPS', 300))  # Of training; for CIFAR-10, try 2000.

DATA_DIR = os.environ.get('TUTORIAL_DATA_DIR', f'/tmp/{DATASET}_data')
if DATASET == 'generated':
    subprocess.run([sys.executable, 'cifar10_convert.py', 'synthetic', DATA_DIR], check=True)
DATA = f'--data_dir={DATA_DIR}'
RECORDS = f'{DATA_DIR}/cifar-10-batches-bin'
FOLDER = tempfile.mkdtemp(prefix='tutorial-')  # Of the runs; new, so that none is resumed.'''


def blocks(text):
    """Returns a `re.Match` with the groups comment, language and code for each block of code."""
    return list(_BLOCK.finditer(text))


def cells(text):
    """Converts the walk-through to cells.

    Args:
        text: the text of tutorial.md.

    Returns:
        List of (kind, source); kind is 'markdown' or 'code'. Headings have anchors with GitHub's
        names, because JupyterLab and exported HTML name them differently.
    """
    found = [('markdown', _INTRODUCTION), ('code', _SET_UP), ('code', _CHOICES)]
    pending, end = [], 0

    def flush():
        source = _HEADING.sub(_with_anchor, ''.join(pending).strip('\n'))
        pending.clear()
        if source:
            found.append(('markdown', source))

    for match in sorted([*blocks(text), *_PICTURE.finditer(text)], key=lambda match: match.start()):
        pending.append(text[end:match.start()])
        end = match.end()
        code = _cell(match)
        if code is None:
            pending.append(match.group())
        elif code:
            flush()
            found.append(('code', code))
    pending.append(text[end:])
    flush()
    return found


def _with_anchor(match):
    """A heading with an anchor of GitHub's name for it; a block of code as it is."""
    hashes, title = match.groups()
    if hashes is None:
        return match.group()
    anchor = re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')
    return f'{hashes} <a id="{anchor}"></a>{title}'


def _cell(match):
    """The code of the cell that replaces a block or picture; '' for none, None to keep the text."""
    if match.re is _PICTURE:
        return f"show('docs/{match.group(1)}')"
    what, argument = re.match(r'(\S*)\s?(.*)', match['comment'] or '', re.DOTALL).groups()
    if what == 'output':
        return ''
    if what == 'notebook' and argument != 'skip':
        return argument
    if what == 'quote' and argument.startswith('docs/examples/'):
        return match['code'].strip('\n')
    return None


def build(text):
    """The notebook without outputs, an `nbformat.NotebookNode`."""
    import nbformat
    make = {'markdown': nbformat.v4.new_markdown_cell, 'code': nbformat.v4.new_code_cell}
    made = [make[kind](source, id=f'cell-{number}')
            for number, (kind, source) in enumerate(cells(text))]
    return nbformat.v4.new_notebook(cells=made, metadata={
        'kernelspec': {'name': 'python3', 'display_name': 'Python 3', 'language': 'python'},
        'language_info': {'name': 'python'}})


def execute(notebook):
    """Runs a notebook in `docs/` and adds its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient
    nbclient.NotebookClient(
        notebook, timeout=1800, startup_timeout=600, iopub_timeout=60, record_timing=False,
        resources={'metadata': {'path': str(DOCS)}}).execute()


def main():
    import nbformat
    notebook = build((DOCS / 'tutorial.md').read_text())
    execute(notebook)
    nbformat.write(notebook, DOCS / 'tutorial.ipynb')


if __name__ == '__main__':
    main()
