"""Loads the plugins of the tests, and decides how many processes run them."""
import os
import pathlib
import signal

import pytest

pytest_plugins = ['spawn']
_SLOW = {'workers', 'faults'}  # Folders of tests that start many processes.
_IS_LINUX = hasattr(os, 'sched_getaffinity')
# Files that also run on macOS and Windows. Others use parts of Linux, or write paths with '/'.
_PORTABLE = {
    'test_arrays.py', 'test_best.py', 'test_cifar10.py', 'test_custom.py', 'test_epochs.py',
    'test_events.py', 'test_lrn.py', 'test_portable.py', 'test_synthetic.py', 'test_table.py'}


def pytest_addoption(parser):
    group = parser.getgroup('cifar10', 'test_kills.py, test_published_images.py')
    group.addoption('--kills', type=int, metavar='N',
                    help='kill each run N times; add --timeout=0 for more than a few')
    group.addoption('--data_dir', metavar='DIR', help='folder of CIFAR-10, which is downloaded if '
                    'missing; without it, test_kills.py trains on noise')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process per core and one more: many tests wait, for timeouts or for other processes."""
    cores = os.cpu_count()
    if _IS_LINUX:
        cores = len(os.sched_getaffinity(0))
    return cores + 1


def pytest_ignore_collect(collection_path):
    name = collection_path.name
    if not _IS_LINUX and name.startswith('test_') and name not in _PORTABLE:
        return True
    return None


def pytest_report_header():
    if _IS_LINUX:
        return ()
    return f'{len(_PORTABLE)} files of tests; the others are for Linux only, see tests/conftest.py'


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
    if hasattr(signal, 'SIGQUIT'):  # Not on Windows.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not config.pluginmanager.hasplugin('dsession'):
        config.pluginmanager.import_plugin('shared_fixtures')
