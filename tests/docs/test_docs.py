"""The pages name only what exists: files, tests, and the options of every command.

Links are checked by sphinx, which makes the site: `make docs`.
"""
import functools
import os
import re
import subprocess

import pytest
import spawn

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))


def _files():
    """Paths of the files of the repository, those not committed yet included."""
    if not os.path.exists(os.path.join(ROOT, '.git')):
        pytest.skip('requires a clone of the repository', allow_module_level=True)
    listed = subprocess.run(
        ['git', '-c', 'safe.directory=*', 'ls-files', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [name for name in listed if os.path.exists(os.path.join(ROOT, name))]


FILES = _files()
PAGES = [name for name in FILES if name.endswith('.md')]
SCRIPTS = [name for name in FILES
           if re.fullmatch(r'cifar10_\w+\.py', name) and name != 'cifar10_input.py']

# That the text mentions: of pytest, tensorboard, mpirun, torchrun and NNabla's classification.py.
OF_OTHER_PROGRAMS = {'--timeout', '--logdir_spec', '--hostfile', '--oversubscribe',
                     '--allow-run-as-root', '--bind-to', '--max_restarts', '--sync-bn'}
_BLOCK = re.compile(r'^```[a-z]*\n(.*?)^```', re.DOTALL | re.MULTILINE)


def text(name):
    with open(os.path.join(ROOT, name)) as stream:
        return stream.read()


def prose(page):
    """A page without its blocks of code."""
    return _BLOCK.sub('', text(page))


def code(page):
    """The lines of a page's blocks of code, and each piece of code in backticks."""
    lines = '\n'.join(_BLOCK.findall(text(page))).replace('\\\n', ' ').splitlines()
    return lines + [' '.join(piece.split()) for piece in re.findall(r'`([^`]+)`', prose(page))]


def sources(folder):
    """The text of all Python files below a folder."""
    return ''.join(text(name) for name in FILES
                   if name.startswith(f'{folder}/') and name.endswith('.py'))


@functools.cache
def options_of_script(script):
    """The options that a script's --help lists."""
    shown = spawn.run_script(script, '--help').stdout
    found = re.findall(r'^  (?:(-\w),)?--(?:\[no\])?(\w+):', shown, re.MULTILINE)
    return {'--help', *(short for short, _ in found if short), *(f'--{name}' for _, name in found)}


@pytest.mark.parametrize('page', PAGES)
def test_files_exist(page):
    """Python files, and files and folders in a folder of the repository; those of tests may be
    named without their folder."""
    folders = '|'.join({re.escape(name.partition('/')[0]) for name in FILES if '/' in name})
    ours = re.compile(rf'(?<![\w./-])(?:[\w/]+\.py\b|(?:{folders})/[\w./-]*(?:\.\w+|/))(?!\w)')
    for piece in code(page):
        for path in ours.findall(piece):
            in_tests = re.compile(rf'tests/(?:.*/)?{re.escape(path)}')
            assert path == 'classification.py' or any(  # NNabla's.
                name.startswith(path) or in_tests.match(name) for name in FILES), path


@pytest.mark.parametrize('page', PAGES)
def test_named_tests_exist(page):
    for name in re.findall(r'`(test_\w+)`', text(page)):
        assert f'def {name}(' in sources('tests')


def test_each_difference_names_a_test_that_is_in_the_named_file():
    rows = re.findall(r'^\|[^|]*\|[^|]*\|([^|]*)\| ([^|]*) \|$', text('docs/differences.md'),
                      re.MULTILINE)
    differences = [row for row in rows if row[1] not in ('test', '---')]
    assert len(differences) > 38
    for reason, cell in differences:
        assert reason.strip() and 'test_' in cell
        for group in cell.split('; '):
            files, _, names = group.partition(': ')
            for file in re.findall(r'test_\w+\.py', files):
                for name in re.findall(r'test_\w+', names):
                    assert f'def {name}(' in text(next(
                        path for path in FILES if path.endswith(f'/{file}')))


@functools.cache
def all_options():
    """Those of the scripts and of our other programs, and those above."""
    ours = ''.join(map(sources, ('benchmarks', 'docs', 'tests')))
    flags = re.findall(r"DEFINE_\w+\('(\w+)'", ours)
    return OF_OTHER_PROGRAMS.union(
        re.findall(r"\('(--\w+)'", ours), (f'--{flag}' for flag in flags),
        *map(options_of_script, SCRIPTS))


_OURS = re.compile(r'python (?:-m )?(cifar10_\w+\.py|docs/\S+\.py|benchmarks)(.*)')


@pytest.mark.parametrize('page', PAGES)
def test_options_exist(page):
    """In commands of our programs, and in the text."""
    for piece in code(page):
        if re.match('--[a-z]', piece):
            assert re.match(r'[\w-]+', piece).group() in all_options(), piece
        for command in re.split('[|;&]', piece.partition(' #')[0]):
            if ours := _OURS.search(command):
                program, words = ours.groups()
                known = options_of_script(program) if program in SCRIPTS else all_options()
                assert {*re.findall(r'(?<!\S)--?[a-z]\w*', words)} <= known, piece


def test_every_script_has_a_command():
    shown = '\n'.join(line for page in PAGES for line in code(page))
    assert all(f'python {script}' in shown for script in SCRIPTS)


@pytest.mark.parametrize('patch', [name for name in FILES if name.endswith('.patch')])
def test_a_patch_of_an_experiment_applies(patch):
    done = subprocess.run(['git', '-c', 'safe.directory=*', 'apply', '--check', patch], cwd=ROOT,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
