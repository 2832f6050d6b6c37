"""Set-up of all tests: TensorFlow 1 behaviour, parsed flags, a fresh graph, small record files and
a trained run."""
# ruff: noqa: E402, TensorFlow is imported quietly first.
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import contextlib
import shutil

import pytest
import record_files
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_distributed_train  # noqa: F401, all scripts at once: no flag is defined twice.
import cifar10_eval  # noqa: F401
import cifar10_export  # noqa: F401
import cifar10_multi_gpu_train  # noqa: F401
import cifar10_plot  # noqa: F401
import cifar10_predict  # noqa: F401
import cifar10_train

flags.FLAGS(['pytest', '--data_dir=/nonexistent'])  # Not a user's own data.


@pytest.fixture(autouse=True)
def _fresh_graph_and_flags():
    with tf.Graph().as_default(), flagsaver.flagsaver():
        tf.set_random_seed(1)
        yield


@pytest.fixture
def half_bright(tmp_path, monkeypatch):
    """Flags for a small CIFAR-10 folder of two classes that stay distinct under any distortion.

    Images of class 0 are bright above, those of class 1 below: 80 for training, 130 for testing.
    """
    # At a rate of 0.1, one run in thirty diverges on batches as small as these.
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.03)
    with _half_bright(tmp_path) as folder:
        yield folder


@pytest.fixture
def trained(half_bright, _ten_steps):
    """`half_bright`, and a run of ten steps on it in --train_dir."""
    shutil.copytree(_ten_steps, flags.FLAGS.train_dir)
    return half_bright


@pytest.fixture(scope='session')
def _ten_steps(tmp_path_factory):
    path = tmp_path_factory.mktemp('ten_steps')
    with _half_bright(path), tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.03)
        cifar10_train.main()
    return path / 'train'


@contextlib.contextmanager
def _half_bright(tmp_path):
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
