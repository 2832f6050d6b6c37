"""The pages name only what exists: links, files, tests, and the flags of every command."""
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

# Of other programs, by the words that call them.
OPTIONS_OF_OTHERS = {
    'mpirun': {'-n', '--mca', '--hostfile', '--allow-run-as-root', '--bind-to', '--oversubscribe'},
    'pytest': {'-m', '-k', '-rP', '--timeout'},
    'tensorboard': {'--logdir', '--logdir_spec'},
    'torchrun': {'--nproc_per_node', '--max_restarts'},
    'classification.py': {'--sync-bn'}}
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


def anchor(heading):
    """GitHub's name for a heading: lower case, no punctuation, a hyphen for each space."""
    words = re.sub(r'[^\w\- ]', '', heading.replace('`', '').lower())
    return words.strip().replace(' ', '-')


def anchors(page):
    return {anchor(heading) for heading in re.findall(r'^#+ (.*)$', prose(page), re.MULTILINE)}


@functools.cache
def options_of_script(script):
    """The options that a script's --help lists."""
    shown = spawn.run_script(script, '--help').stdout
    found = re.findall(r'^  (?:(-\w),)?--(?:\[no\])?(\w+):', shown, re.MULTILINE)
    return {'--help', *(short for short, _ in found if short), *(f'--{name}' for _, name in found)}


def options_of_all_scripts():
    return set().union(*map(options_of_script, SCRIPTS))


def has_option(program, option):
    """Whether a program of the project or of others has an option."""
    if program in (*SCRIPTS, 'docs/examples/local.py'):  # It takes the scripts' flags.
        return option in options_of_script(program)
    if option in OPTIONS_OF_OTHERS.get(program, ()):
        return True
    if program.startswith('docs/'):
        return f"'{option}'" in text(program)
    if program.startswith('benchmarks') and option in options_of_all_scripts():
        return True  # Some take the flags of a trainer.
    defined = sources('tests' if program == 'pytest' else 'benchmarks')
    return f"('{option}'" in defined or f"('{option[2:]}'" in defined


def commands(page):
    """Yields (program, options) of each command in a page: a script, a benchmark, or a program
    that OPTIONS_OF_OTHERS names."""
    programs = (r'python (cifar10_\w+\.py|docs/[/\w]+\.py)|python -m (benchmarks[.\w]*)|'
                r'\b(pytest|tensorboard)\b')
    for piece in code(page):
        for command in re.split(r'[|;&]', piece.partition(' #')[0]):
            found = re.search(programs, command)
            if found:
                options = re.findall(r'(?<!\S)--?[a-z][\w-]*', command[found.end():])
                yield next(filter(None, found.groups())), options


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r'\]\(([^)\s]+)\)', prose(page)):
        if re.match('https?:', target):
            continue
        path, _, heading = target.partition('#')
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        assert path in FILES, target
        assert not heading or heading in anchors(path), target


@pytest.mark.parametrize('page', PAGES)
def test_files_exist(page):
    """Python files, and files and folders in a folder of the repository; those of tests may be
    named without their folder."""
    folders = '|'.join({re.escape(name.partition('/')[0]) for name in FILES if '/' in name})
    ours = re.compile(rf'(?<![\w./-])(?:[\w/]+\.py\b|(?:{folders})/[\w./-]*(?:\.\w+|/))(?!\w)')
    for piece in code(page):
        for path in ours.findall(piece):
            in_tests = re.compile(rf'tests/(?:.*/)?{re.escape(path)}')
            assert path in OPTIONS_OF_OTHERS or any(
                name.startswith(path) or in_tests.match(name) for name in FILES), path


@pytest.mark.parametrize('page', PAGES)
def test_named_tests_exist(page):
    for name in re.findall(r'`(test_\w+)`', text(page)):
        assert f'def {name}(' in sources('tests')


def test_each_difference_names_a_test_that_is_in_the_named_file():
    rows = re.findall(r'^\|[^|]*\|[^|]*\|([^|]*)\| ([^|]*) \|$', text('docs/differences.md'),
                      re.MULTILINE)
    differences = [row for row in rows if row[1] not in ('test', '---')]
    assert len(differences) > 40
    for reason, cell in differences:
        assert reason.strip() and 'test_' in cell
        for group in cell.split('; '):
            files, _, names = group.partition(': ')
            for file in re.findall(r'test_\w+\.py', files):
                for name in re.findall(r'test_\w+', names):
                    assert f'def {name}(' in text(next(
                        path for path in FILES if path.endswith(f'/{file}')))


@pytest.mark.parametrize('page', PAGES)
def test_options_in_commands_exist(page):
    for program, options in commands(page):
        if program.startswith('benchmarks'):
            assert {program.replace('.', '/') + end for end in ('.py', '/__main__.py')} & set(FILES)
        for option in options:
            assert has_option(program, option), f'{program} {option}'


def test_every_script_has_a_command():
    shown = {program for page in PAGES for program, _ in commands(page)}
    assert set(SCRIPTS) <= shown


@pytest.mark.parametrize('page', PAGES)
def test_options_in_prose_exist(page):
    programs = ['pytest', 'benchmarks', 'docs/migration/stage_4_keras.py', *OPTIONS_OF_OTHERS]
    for option in re.findall(r'`(--[a-z][\w-]*)', prose(page)):
        assert option in options_of_all_scripts() or any(
            has_option(program, option) for program in programs), option
