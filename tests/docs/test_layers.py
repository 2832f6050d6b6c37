"""Imports point one way, as docs/architecture.md says."""
import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
FILES = [*ROOT.glob('cifar10*.py'), *ROOT.glob('cifar10_lib/**/*.py')]


def ranks():
    """The layers of the page: dictionary from a module, package or 'scripts' to its number."""
    page = (ROOT / 'docs/architecture.md').read_text()
    line, = re.findall(r'^```\n(program <- .*)\n```$', page, re.MULTILINE)
    return {name: number for number, layer in enumerate(line.split(' <- '))
            for name in layer.split(', ')}


def unit(parts, rank):
    """The name in `ranks` of a module: its package, itself, or 'scripts'."""
    name = parts[parts[0] == 'cifar10_lib']
    return name if name in rank else 'scripts'


def imported(path):
    """The modules of the project that a file imports, anywhere in it: tuples of names."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f'{node.module}.{alias.name}' for alias in node.names]
        yield from (tuple(name.split('.')) for name in names if name.startswith('cifar10'))


def test_imports_point_one_way():
    rank, wrong = ranks(), []
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix('').parts
        own = unit(parts, rank)
        for others in imported(path):
            theirs = unit(others, rank)
            if rank[theirs] >= rank[own] and (theirs != own or theirs == 'scripts'):
                wrong.append(f'{"/".join(parts)} imports {".".join(others)}')
    assert len(FILES) > 60 and not wrong
