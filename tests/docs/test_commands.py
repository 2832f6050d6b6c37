"""Every command of README and usage.md that runs a script works, on small data and few steps."""
import re
import shlex
import shutil
import subprocess
import sys

from classification_lib import data_sets

import numpy as np
import pytest
import record_files
import spawn
from PIL import Image

pytestmark = pytest.mark.slow

# Flags before those of a command, in place of defaults below /tmp; and flags after them, whose
# values count, since they come last.
_TRAIN = (['--train_dir=cifar10_train'], ['--batch_size=4'])
_READ = (['--checkpoint_dir=cifar10_train'], [])
_FLAGS = {
    'cifar10_train.py': _TRAIN, 'cifar10_multi_gpu_train.py': _TRAIN,
    # Where a command names no network, the tutorial's takes the place of a larger one.
    'classification.py': (['--net=tutorial'], ['--batch_size=4']),
    'cifar10_predict.py': _READ, 'cifar10_export.py': _READ,
    'cifar10_eval.py': (['--checkpoint_dir=cifar10_train', '--eval_dir=cifar10_eval'],
                        ['--run_once', '--num_examples=8']),
    'cifar10_plot.py': (['--runs=cifar10_train'], []), 'cifar10_convert.py': ([], [])}


def commands(page):
    """The commands of a page's blocks that run a script."""
    blocks = re.findall(r'^```[a-z]*\n(.*?)^```', (spawn.ROOT / page).read_text(),
                        re.DOTALL | re.MULTILINE)
    lines = '\n'.join(blocks).replace('\\\n', ' ').splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith('python c')]
    return [line[1:] for line in words if line[1] in _FLAGS]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the commands expect: record files, the images of a user, and an array."""
    record_files.write_noise(tmp_path / 'cifar10_data', count=40)
    record_files.write_noise(tmp_path / 'cifar10_data', count=40, row=data_sets.CIFAR100)
    (tmp_path / 'models').symlink_to(spawn.ROOT / 'models')
    random = np.random.RandomState(1)
    for name in ('cat.jpg', 'dog.png', 'new.jpg', 'photo.jpg', 'holidays/1.jpg',
                 *(f'my_images/{label}/{k}.png' for label in ('cat', 'dog') for k in range(9))):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.randint(0, 256, [40, 50, 3]).astype(np.uint8)).save(path)
    images = random.randint(0, 256, [20, 32, 32, 3]).astype(np.uint8)
    np.savez(tmp_path / 'cifar10.npz', x_train=images, y_train=np.arange(20) % 2,
             x_test=images, y_test=np.arange(20) % 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(1800)
@pytest.mark.parametrize('page', ['README.md', 'docs/usage.md'])
def test_commands_run_as_written(folder, page):
    """In their order, so that each finds what those before it wrote."""
    folders = set()
    for script, *words in commands(page):
        before, after = _FLAGS[script]
        words = [*before, *(re.sub(r'(^|=|,|:)(/tmp|/srv|~)(?=/)', rf'\1{folder}', word)
                            for word in words), *after]  # No other folder is written to.
        if script != 'cifar10_convert.py':
            words.insert(0, '--data_dir=cifar10_data')
        elif words[-1] in folders:
            words[-1] += '2'  # An earlier example of the page has made that folder.
        folders.add(words[-1])
        if 'train' in script or script == 'classification.py':
            words = [word for word in words if not word.startswith('--epochs')]
            words.append('--max_steps=1')
        done = spawn.fork_script(script, *words)
        assert done.returncode == 0, (script, words, done.stderr)


def test_the_commands_for_docker(tmp_path):
    """With the files that `COPY . .` copies into the image, and a folder in place of the volume."""
    code = tmp_path / 'code'
    code.mkdir()
    for pattern in re.findall('^!(.*)', (spawn.ROOT / '.dockerignore').read_text(), re.MULTILINE):
        for path in spawn.ROOT.glob(pattern):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, code / path.name)
    record_files.write_noise(tmp_path / 'data', count=40)
    page = (spawn.ROOT / 'docs' / 'usage.md').read_text()
    for command in re.findall(r'^docker run --rm --init -v (.*)', page, re.MULTILINE):
        volume, image, *words = shlex.split(command)
        assert (volume, image) == ('cifar10:/runs', 'cifar10')
        words = [word.replace('/runs', str(tmp_path)) for word in words]
        if '--run_once' not in words:
            words += ['--max_steps=1', '--batch_size=8']
        done = spawn.run(words, cwd=code)
        assert done.returncode == 0, done.stderr
    assert 'precision @ 1 = ' in done.stdout


def test_tensorboard_starts(folder):
    words = [sys.executable, '-m', 'tensorboard.main', '--logdir', str(folder), '--port=0']
    process = spawn.until_the_end(
        subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    assert any('http://localhost:' in line for line in process.stderr)
