"""Loads the plugins of the tests, and decides how many processes run them."""
import os
import pathlib
import signal

import pytest

pytest_plugins = ['spawn']
_SLOW = {'workers', 'faults'}  # Folders of tests that start many processes.


def pytest_addoption(parser):
    group = parser.getgroup('kills', 'tests/faults/test_kills.py')
    group.addoption('--kills', type=int, metavar='N',
                    help='kill each run N times; add --timeout=0 for more than a few')
    group.addoption('--data_dir', metavar='DIR', help='train on this data, not on files of noise')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process per core and one more: many tests wait, for timeouts or for other processes."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items):
    for item in items:
        if not _SLOW.isdisjoint(pathlib.Path(item.path).parts):
            item.add_marker('slow')


@pytest.hookimpl(trylast=True)  # After pytest-xdist, whose plugin `dsession` starts the processes.
def pytest_configure(config):
    """Loads the fixtures, which import TensorFlow, in the processes that run tests.

    A script's background process ignores two signals, and so would all that the tests start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not config.pluginmanager.hasplugin('dsession'):
        config.pluginmanager.import_plugin('shared_fixtures')
