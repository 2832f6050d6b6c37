"""Which versions of TensorFlow are allowed, documented and tested."""
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def text(name):
    return (ROOT / name).read_text()


def test_the_documented_versions_are_allowed_and_tested():
    allowed, = set(re.findall(r'^tensorflow(?:-cpu)?>=2\.(\d+),<2\.(\d+)$', text(
        'requirements/tensorflow.txt') + text('requirements-cpu.txt'), re.MULTILINE))
    oldest, newest = int(allowed[0]), int(allowed[1]) - 1
    table = re.findall(r'^\| 2\.(\d+)\.\d+ \|', text('CONTRIBUTING.md'), re.MULTILINE)
    older = re.findall(r"tensorflow: '2\.(\d+)'", text('.github/workflows/ci.yml'))
    assert [int(minor) for minor in table] == [*map(int, older), newest]
    assert int(older[0]) == oldest
