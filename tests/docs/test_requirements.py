"""The lists of packages and the workflow agree."""
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def lines(name):
    return [line for line in (ROOT / name).read_text().splitlines() if not line.startswith('#')]


def test_the_lists_differ_only_in_tensorflows_package():
    assert lines('requirements-cpu.txt') == [
        line.replace('tensorflow>', 'tensorflow-cpu>') for line in lines('requirements.txt')]


def test_the_documented_versions_are_allowed_and_tested():
    allowed, = re.findall(r'^tensorflow>=2\.(\d+),<2\.(\d+)$',
                          (ROOT / 'requirements.txt').read_text(), re.MULTILINE)
    oldest, newest = int(allowed[0]), int(allowed[1]) - 1
    table = re.findall(
        r'^\| 2\.(\d+)\.\d+ \|', (ROOT / 'CONTRIBUTING.md').read_text(), re.MULTILINE)
    workflow = (ROOT / '.github' / 'workflows' / 'ci.yml').read_text()
    older = re.findall(r"tensorflow: '2\.(\d+)'", workflow)
    assert [int(minor) for minor in table] == [*map(int, older), newest]
    assert int(older[0]) == oldest
