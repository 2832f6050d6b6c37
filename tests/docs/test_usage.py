"""Runs the programs in docs/usage.md on an exported model with random weights."""
import importlib.util
import re
import subprocess
import sys

import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import cifar10_export

IMAGES = np.stack([image for _, image in record_files.noise(200, seed=5)])


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with an exported model in `model` and a record file of `IMAGES`."""
    path = tmp_path_factory.mktemp('usage')
    record_files.write(path / 'test_batch.bin', record_files.noise(200, seed=5))
    plain.save_checkpoint(path / 'train')
    with flagsaver.flagsaver(checkpoint_dir=str(path / 'train'), export_dir=str(path / 'model')):
        cifar10_export.export()
    return path


@pytest.fixture(scope='module')
def expected(folder):
    """Probabilities of `IMAGES`, float32 [200, 10], from the signature for pixels."""
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(
            session, ['serve'], str(folder / 'model')).signature_def['serving_default']
        return session.run(signature.outputs['probabilities'].name,
                           {signature.inputs['images'].name: IMAGES})


def blocks(heading):
    """The programs below a heading of the page, with the paths of the test."""
    page = (spawn.ROOT / 'docs' / 'usage.md').read_text()
    section = re.search(rf'^#+ {heading}$(.*?)^#+ [A-Z]', page, re.MULTILINE | re.DOTALL).group(1)
    section = section.replace('/tmp/cifar10_model/1', 'model').replace(
        '/tmp/cifar10_data/cifar-10-batches-bin/', '')
    return re.findall(r'```(?:python)?\n(.*?)```', section, re.DOTALL)


def run(folder, arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True,
                          check=False, timeout=spawn.PATIENCE)  # Without our imports.
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def require(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f'requires {package}')


def agreement(folder, program, expected):
    """The fraction of images whose printed class is the expected one."""
    program = 'import numpy; numpy.set_printoptions(threshold=9999)\n' + program
    printed = run(folder, ['-c', program])
    found = re.findall(r'\d+', printed[printed.rindex('['):])
    assert len(found) == len(expected)
    return np.mean([int(word) == best for word, best in zip(found, expected.argmax(axis=1))])


@pytest.mark.slow
def test_litert(folder, expected):
    require('ai_edge_litert')
    convert, use, *_ = blocks('LiteRT and ONNX')
    run(folder, ['-c', convert])
    for name, least in (('float32', 1), ('float16', 0.99), ('dynamic_range', 0.95), ('int8', 0.95)):
        assert agreement(folder, use.replace('int8', name), expected) >= least, name


@pytest.mark.slow
def test_onnx(folder, expected):
    require('tf2onnx', 'onnxruntime')
    convert, _, command, use = blocks('LiteRT and ONNX')
    run(folder, ['-c', convert.partition('for name in')[0]])
    run(folder, command.splitlines()[1].split()[1:])
    assert agreement(folder, use, expected) == 1


@pytest.mark.slow
def test_keras(folder, expected):
    program, = blocks('In Keras')
    program = program.replace('np.zeros([1, 32, 32, 3], np.uint8)', 'numpy.load("pixels.npy")')
    np.save(folder / 'pixels.npy', IMAGES[:1])
    printed = run(folder, ['-c', 'import numpy\n' + program])
    found = re.search(r'\[\[(.*?)\]\]', printed, re.DOTALL).group(1).split()
    np.testing.assert_allclose([float(value) for value in found], expected[0], rtol=1e-3)


@pytest.mark.slow
def test_the_loop_over_seeds(tmp_path):
    """Two runs of two steps; the mean and the spread are those of the printed precisions."""
    loop, = blocks('Mean and spread of several runs')
    for old, new in (('1 2 3 4 5', '1 2'), ('=300', '=2'), ('/tmp/seeds', f'{tmp_path}/seeds'),
                     ('python ', f'{sys.executable} {spawn.ROOT}/'),
                     ('=synthetic', f'=synthetic --data_dir={tmp_path}')):
        assert old in loop
        loop = loop.replace(old, new)
    done = subprocess.run(['bash', '-c', loop], capture_output=True, text=True, check=False,
                          timeout=2 * spawn.PATIENCE)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    found = [float(line.split()[-1]) for line in lines if 'precision @ 1' in line]
    words = re.fullmatch(r'2 runs: (\S+) \+- (\S+)', last).groups()
    np.testing.assert_allclose([float(word) for word in words],
                               [np.mean(found), np.std(found, ddof=1)], rtol=1e-4, atol=1e-6)
