"""Pytest plugin of the drills: options, how many cases to try, and a summary line per drill."""
import collections
import random

import pytest


def pytest_addoption(parser):
    group = parser.getgroup('drills')
    group.addoption('--all', action='store_true',
                    help='try all cases of each drill; fuzz reads 10,000 files of each kind')
    group.addoption('--sample', type=int, metavar='N',
                    help='try N random cases of each drill, N files of each kind, N flag values '
                    'of each script')
    group.addoption('--seed', type=int, default=1, help='seed of everything random in the drills')
    group.addoption('--kills', type=int, metavar='N', help='kill each run N times')
    group.addoption('--trainer_flags', default='', metavar='FLAGS',
                    help='additional flags of the trainers in the kills drill')
    group.addoption('--data_dir', metavar='DIR',
                    help='data for the kills; small files of noise by default')


def pytest_configure(config):
    config.addinivalue_line('markers', (
        'drill(title, short=None): feeds the scripts faults; counted in the summary under `title`. '
        'Without --all or --sample, only `short` of its cases are tried'))


@pytest.hookimpl(trylast=True)  # After -k and -m, so that the sample is drawn from what they leave.
def pytest_collection_modifyitems(config, items):
    is_long = any(map(config.getoption, ('all', 'sample', 'kills')))
    cases = collections.defaultdict(list)
    for item in items:
        marker = item.get_closest_marker('drill')
        if marker:
            item.add_marker(pytest.mark.timeout(0 if is_long else 1200))
            item.user_properties.append(('drill', marker.args[0]))
            cases[marker.args[0], marker.kwargs.get('short')].append(item)
    for (_, short), of_one_drill in cases.items():
        count = _count(config, short, full=None)
        if short is not None and count is not None and count < len(of_one_drill):
            tried = random.Random(config.getoption('seed')).sample(of_one_drill, count)
            dropped = [item for item in of_one_drill if item not in tried]
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if item not in dropped]


def _count(config, short, full):
    if config.getoption('all'):
        return full
    return config.getoption('sample') or short


@pytest.fixture
def how_many(request):
    """A function of a short and a full count that returns the one to use, or --sample's."""
    return lambda short, full: _count(request.config, short, full)


@pytest.fixture
def tally(record_property):
    """A function that counts an outcome, in a few words, for the summary."""
    return lambda outcome, count=1: record_property('outcome', [outcome, count])


def pytest_terminal_summary(terminalreporter):
    counts = collections.defaultdict(collections.Counter)
    for result in ('passed', 'failed', 'error'):
        for report in terminalreporter.stats.get(result, ()):
            title = dict(getattr(report, 'user_properties', ())).get('drill')
            if title:
                counts[title]['FAILED'] += result != 'passed'
                for key, value in report.user_properties:
                    if key == 'outcome':
                        counts[title][value[0]] += value[1]
    if counts:
        terminalreporter.section('drills')
    for title, outcomes in sorted(counts.items()):
        terminalreporter.write_line(summary(title, +outcomes))


def summary(title, outcomes):
    """The line of a drill, from a `Counter` of its outcomes."""
    tried = ', '.join(f'{count} {outcome}' for outcome, count in sorted(outcomes.items()))
    return (f'{title}: {sum(outcomes.values())} tried: {tried}. '
            f'{outcomes["FAILED"]} failed.')
