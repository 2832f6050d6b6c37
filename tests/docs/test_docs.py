"""The flags of the commands of all pages exist.

test_commands.py runs the commands of README.md and usage.md. Sphinx checks the links: `make docs`.
"""
import re
import shlex

import pytest
import spawn

ROOT = spawn.ROOT
# Not CHANGELOG.md, which names what is gone.
PAGES = ['README.md', 'CONTRIBUTING.md', 'models/README.md', 'docs/runs/README.md',
         *(f'docs/{page.name}' for page in ROOT.glob('docs/*.md'))]
_BLOCK = re.compile(r'^```[a-z]*\n(.*?)^```', re.DOTALL | re.MULTILINE)
# A command of ours, its script or package, and the arguments.
_COMMAND = re.compile(r'\bpython3? (?:-m )?((?:cifar10_\w+|classification|docs/\S+)\.py|benchmarks'
                      r'(?:\.\w+)?)([^|;&<>]*)')


def commands():
    """(script, arguments) of each command of ours, in blocks of code and in the text."""
    for page in PAGES:
        text = (ROOT / page).read_text().replace('\\\n', ' ')
        pieces = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
        pieces += [' '.join(piece.split()) for piece in re.findall(r'`([^`]+)`',
                                                                   _BLOCK.sub('', text))]
        for piece in pieces:
            yield from _COMMAND.findall(piece.partition(' #')[0])


@pytest.mark.slow
def test_every_flag_of_a_command_is_in_the_scripts_help():
    used = {}
    for script, arguments in commands():
        used.setdefault(script, set()).update(
            word.partition('=')[0] for word in shlex.split(arguments)
            if word.startswith('-') and word not in ('-', '-h', '--help'))
    for script in [each for each in used if used[each]]:
        if script.endswith('.py'):
            text = spawn.fork_script(script, '--help').stdout
        else:
            text = spawn.run(['-m', script, '--help']).stdout
        shown = set(re.findall(r'--?\w[\w-]*', text.replace('[no]', '')))
        assert used[script] <= shown | {flag.replace('--', '--no', 1) for flag in shown}, script
