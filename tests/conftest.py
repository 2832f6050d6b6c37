"""What the tests share: TensorFlow 1 behaviour, parsed flags, a fresh graph, small record files."""
from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

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
import cifar10_train  # noqa: F401

flags.FLAGS(['pytest'])


@pytest.fixture(autouse=True)
def _fresh_graph_and_flags():
    with tf.Graph().as_default(), flagsaver.flagsaver():
        tf.set_random_seed(1)
        yield


@pytest.fixture
def half_bright(tmp_path, monkeypatch):
    """Flags for a small CIFAR-10 folder of two classes that any distortion leaves apart.

    Images of class 0 are bright above, those of class 1 below: 80 for training, 130 for testing.
    """
    # At 0.1 one training of thirty diverges on batches as small as the tests' are.
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.03)
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
