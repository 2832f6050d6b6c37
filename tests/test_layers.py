"""Imports point one way, as docs/architecture.md says."""
import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
FILES = [*ROOT.glob('cifar10*.py'), *ROOT.glob('cifar10_lib/**/*.py')]


def layers():
    """The layers of the page: list of sets of module or package names, 'scripts' among them."""
    page = (ROOT / 'docs/architecture.md').read_text()
    line, = re.findall(r'^```\n(program <- .*)\n```$', page, re.MULTILINE)
    return [set(layer.split(', ')) for layer in line.split(' <- ')]


def unit(parts):
    """The name in `layers` of a module: its package, itself, or 'scripts'."""
    parts = parts[1:] if parts[0] == 'cifar10_lib' else parts
    return parts[0] if any(parts[0] in layer for layer in layers()) else 'scripts'


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
    rank = {name: number for number, layer in enumerate(layers()) for name in layer}
    wrong = []
    for path in FILES:
        own = path.relative_to(ROOT).with_suffix('').parts
        for parts in imported(path):
            theirs = unit(parts)
            if rank[theirs] >= rank[unit(own)] and (theirs != unit(own) or theirs == 'scripts'):
                wrong.append(f'{"/".join(own)} imports {".".join(parts)}')
    assert len(FILES) > 60 and not wrong


def test_package_files_are_empty():
    assert not [path for path in FILES if path.name == '__init__.py' and path.read_text()]
