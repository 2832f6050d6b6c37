"""Loads the plugins of the tests, and decides how many processes run them."""
import os
import signal

import pytest

pytest_plugins = ['drills.plugin', 'spawn']


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process per core and one more: many tests wait, for timeouts or for other processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)  # After pytest-xdist, whose plugin `dsession` starts the processes.
def pytest_configure(config):
    """Loads the fixtures, which import TensorFlow, in the processes that run tests.

    A script's background process ignores two signals, and so would all that the tests start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not config.pluginmanager.hasplugin('dsession'):
        config.pluginmanager.import_plugin('shared_fixtures')
