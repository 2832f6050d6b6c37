"""The drills' own helpers detect faults and count cases."""
import collections
import subprocess
import sys

import pytest
import spawn

from drills import helpers
from drills import plugin


@pytest.mark.parametrize('code, error', [
    (0, 'x: /a\n'), (1, ''), (1, 'x: /b\n'), (1, 'x: /a\nTraceback\n'), (-11, 'x: /a\n')])
def test_anything_but_one_line_is_a_fault(code, error):
    with pytest.raises(AssertionError):
        helpers.expect_one_line(subprocess.CompletedProcess([], code, '', error), '/a')
    helpers.expect_one_line(subprocess.CompletedProcess([], 1, '', 'x: /a\n'), '/a')


def test_the_summary_line():
    outcomes = collections.Counter({'refused': 3, 'FAILED': 1})
    assert plugin.summary('Some', outcomes) == 'Some: 4 tried: 1 FAILED, 3 refused. 1 failed.'
    assert plugin.summary('Some', collections.Counter(b=2, a=1)) == (
        'Some: 3 tried: 1 a, 2 b. 0 failed.')


_DRILL = '''
import pytest

@pytest.mark.drill('Some', short=7)
@pytest.mark.parametrize('k', range(100))
def test_some(tally, k):
    assert k != 3
    tally('well')
'''


@pytest.mark.slow
@pytest.mark.parametrize('options, line', [
    ([], 'Some: 7 tried: 7 well. 0 failed.'),
    (['--sample=9'], 'Some: 9 tried: 9 well. 0 failed.'),
    (['--all'], 'Some: 100 tried: 1 FAILED, 99 well. 1 failed.')])
def test_a_sample_is_drawn_and_faults_are_counted(tmp_path, options, line):
    (tmp_path / 'test_some.py').write_text(_DRILL)
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'drills.plugin', '--seed=2', *options],
        env={**spawn.environment(), 'PYTHONPATH': str(spawn.ROOT / 'tests')}, cwd=tmp_path,
        capture_output=True, text=True, check=False)
    assert line in done.stdout.splitlines()
