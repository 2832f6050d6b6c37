"""Set-up of all tests: parsed flags, a fresh graph, small record files and a trained run."""
import contextlib
import importlib
import logging
import os
import pathlib
import shutil
import signal

# Otherwise, a warning that TensorFlow logs while it is imported comes after the results.
logging.getLogger('tensorflow').setLevel(logging.FATAL)

from cifar10_lib import quiet  # noqa: F401, imports TensorFlow quietly.

import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_input

pytest_plugins = ['spawn']
FLAGS = flags.FLAGS

_SLOW = 'faults'  # Folder of tests that start many processes.
_IS_LINUX = hasattr(os, 'sched_getaffinity')
# Files that also run on macOS and Windows. Others use parts of Linux, or write paths with '/'.
_PORTABLE = {
    'test_cifar10.py', 'test_cifar10_input.py', 'test_cifar10_train.py', 'test_lrn.py',
    'test_old_checkpoints.py'}
# Each defines its own flags, some of the same names. Here, where all are in one process, a flag is
# shared by those that define it, and has the default of the last.
_SCRIPTS = ('classification', 'cifar10_convert', 'cifar10_predict', 'cifar10_export',
            'cifar10_plot', 'cifar10_multi_gpu_train', 'cifar10_train', 'cifar10_eval')


def pytest_addoption(parser):
    group = parser.getgroup('cifar10', 'test_kills.py, test_published_images.py')
    group.addoption('--kills', type=int, metavar='N',
                    help='kill each run N times; add --timeout=0 for more than a few')
    group.addoption('--data_dir', metavar='DIR', help='folder of CIFAR-10, which is downloaded if '
                    'missing; without it, test_kills.py trains on noise')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process per core and one more: many tests wait, for timeouts or for other processes."""
    return 1 + (len(os.sched_getaffinity(0)) if _IS_LINUX else os.cpu_count())


def pytest_ignore_collect(collection_path):
    name = collection_path.name
    if not _IS_LINUX and name.startswith('test_') and name not in _PORTABLE:
        return True
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        if _SLOW in pathlib.Path(item.path).parts:
            item.add_marker('slow')


def pytest_configure():
    """Loads all scripts, handles Ctrl-C, and uses no proxies, which do not reach loopback.

    A script's background process ignores two signals, and so would all that the tests start.
    """
    for name in [name for name in os.environ if name.lower().endswith('_proxy')]:
        del os.environ[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, 'SIGQUIT'):  # Not on Windows.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    tf.logging.set_verbosity(tf.logging.FATAL)  # The scripts hide its warnings, too.
    for script in _SCRIPTS:
        importlib.import_module(script)
        for name in FLAGS:
            FLAGS[name].allow_override = True
    FLAGS(['pytest', '--data_dir=/nonexistent'])  # Not a user's own data.


@pytest.fixture(autouse=True)
def _fresh_graph_and_flags():
    with tf.Graph().as_default(), flagsaver.flagsaver():
        tf.set_random_seed(1)
        yield


@pytest.fixture
def hangup():
    """SIGHUP has its effect, as in a terminal. After `nohup`, it is ignored, and the other tests
    leave it so: they survive the end of the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def half_bright(tmp_path, monkeypatch):
    """Flags for a small CIFAR-10 folder of two classes that stay distinct under any distortion.

    Images of class 0 are bright above, those of class 1 below: 80 for training, 130 for testing.
    """
    with _half_bright(tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def trained(half_bright, _ten_steps):
    """`half_bright`, and a run of cifar10_train.py of ten steps on it in --train_dir."""
    shutil.copytree(_ten_steps, FLAGS.train_dir)
    return half_bright


@pytest.fixture(scope='session')
def _ten_steps(tmp_path_factory):
    path = tmp_path_factory.mktemp('ten_steps')
    with pytest.MonkeyPatch.context() as patch, _half_bright(path, patch), tf.Graph().as_default():
        importlib.import_module('cifar10_train').main()
    return path / 'train'


@contextlib.contextmanager
def _half_bright(tmp_path, patch):
    # At a rate of 0.1, one run in thirty diverges on batches as small as the tests'. A queue for
    # 50,000 images would take longer to fill than the test.
    patch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.03)
    patch.setattr(cifar10_input, 'NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN', 80)
    folder = tmp_path / 'data' / 'cifar-10-batches-bin'
    folder.mkdir(parents=True)
    for index in range(1, 6):
        record_files.write(folder / f'data_batch_{index}.bin',
                           record_files.half_bright(16, seed=index))
    record_files.write(folder / 'test_batch.bin', record_files.half_bright(130, seed=0))
    with flagsaver.flagsaver(
            data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'train'), batch_size=8,
            checkpoint_dir=str(tmp_path / 'train'), eval_dir=str(tmp_path / 'eval'), max_steps=10):
        yield folder
