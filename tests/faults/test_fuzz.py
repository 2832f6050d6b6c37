"""Reads random files of each kind that a user may provide, 200 of each, or 10,000 with --all.

The files are intact ones with bytes changed, removed, doubled or added, or random bytes. A process
of its own reads them, so that a crash of TensorFlow is noticed and counted. `fuzz.py` describes the
expected outcomes of each kind.
"""
import collections

import pytest
import spawn

_FILES_PER_PROCESS = 1000
_READ = """
import sys
sys.path[:0] = sys.argv[1:3]
import fuzz
fuzz.main(*sys.argv[3:])
"""
_KINDS = ['records', 'checkpoints', 'images', 'events', 'run', 'dataset', 'metrics', 'mat']


@pytest.mark.slow
@pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=pytest.mark.drill(f'Fuzz, {kind}')) for kind in _KINDS])
def test_fuzz(request, tmp_path, tally, how_many, kind):
    count = how_many(200, 10000)
    outcomes = []
    while len(outcomes) < count:
        first = len(outcomes)
        last = min(first + _FILES_PER_PROCESS, count)
        folder = tmp_path / str(first)
        folder.mkdir()
        outcomes += _read(kind, folder, first, last, request.config.getoption('seed'))
    faults = [f'{number}: {outcome}' for number, outcome in enumerate(outcomes)
              if outcome.startswith('FAILED')]
    for outcome, number in collections.Counter(outcomes).items():
        if not outcome.startswith('FAILED'):
            tally(outcome, number)
    assert not faults


def _read(kind, folder, first, last, seed):
    """Outcomes of the files of these numbers, up to one that ended the process: list of words."""
    arguments = [spawn.ROOT, spawn.HELPERS, kind, folder, first, last, seed]
    done = spawn.run(['-c', _READ, *map(str, arguments)], capture_output=True, timeout=None)
    crash = [f'FAILED: exit code {done.returncode} {done.stderr[-1000:]}']
    return done.stdout.splitlines() + crash * bool(done.returncode)
