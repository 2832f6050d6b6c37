"""Runs the programs in docs/usage.md on an exported network, as users without this project do."""
import importlib.util
import json
import re
import subprocess
import sys

from cifar10_lib import checkpoints
from classification_lib import trained

import numpy as np
import plain
import pytest
import spawn
from PIL import Image

MODEL = '/tmp/cifar10_model/1'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with an exported network in `model`, a photo, and what this project predicts for it
    in `expected.json`."""
    path = tmp_path_factory.mktemp('usage')
    plain.save_checkpoint(path / 'train')
    done = spawn.fork_script('cifar10_export.py', f'--checkpoint_dir={path}/train',
                             f'--export_dir={path}/model')
    assert done.returncode == 0, done.stderr
    save_photo(path / 'cat.jpg')
    done = spawn.fork_script('cifar10_predict.py', path / 'cat.jpg', '--top_k=10', '--json',
                             f'--checkpoint_dir={path}/train')
    assert done.returncode == 0, done.stderr
    (path / 'expected.json').write_text(done.stdout)
    run(path, blocks('From a photo to a class')[0])
    return path


def save_photo(path):
    """A photo that is not square, and is stored on its side."""
    random = np.random.RandomState(1)
    coarse = Image.fromarray(random.randint(0, 256, [5, 7, 3]).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn it to the right.
    coarse.resize([280, 200], Image.Resampling.BICUBIC).save(path, exif=exif)


def blocks(heading):
    """The programs below a heading of the page, with the folder of the test."""
    page = (spawn.ROOT / 'docs' / 'usage.md').read_text()
    section = re.search(rf'^#+ {heading}$(.*?)^#+ [A-Z]', page, re.MULTILINE | re.DOTALL).group(1)
    return re.findall(r'```(?:python)?\n(.*?)```', section.replace(MODEL, 'model'), re.DOTALL)


def run(folder, program, code=0):
    """Runs a program in a process of its own; returns what it prints, also on standard error."""
    done = subprocess.run([sys.executable, '-c', program], cwd=folder, capture_output=True,
                          text=True, check=False, timeout=spawn.PATIENCE)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout + done.stderr * code


def check_on_photo_and_other_size(folder, program, tolerance, words):
    """The probabilities that a program prints are those of this project. An image of 64 x 64, which
    would be classified by its centre, is refused with these words."""
    numbers = [float(number) for number in re.findall(
        r'\d\.\d*(?:e-?\d+)?', run(folder, program))]
    expected = sorted(predictions(folder), key=lambda each: each[1])
    np.testing.assert_allclose(
        numbers[-10:], [probability for _, _, probability in expected], atol=tolerance)
    np.save(folder / 'large.npy', np.zeros([1, 64, 64, 3], np.uint8))
    assert words in run(folder, program.replace('images.npy', 'large.npy'), code=1)


def require(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f'requires {package}')


def predictions(folder):
    """What this project predicts: [(class, label, probability)], the most probable first."""
    found = json.loads((folder / 'expected.json').read_text())['predictions']
    return [(each['class'], each['label'], each['probability']) for each in found]


@pytest.mark.slow
def test_a_saved_model_classifies_a_photo_like_this_project(folder, monkeypatch):
    """The names are in UTF-8, also where that is not the encoding of other files."""
    with open(folder / 'model' / 'assets.extra' / 'labels.txt', 'a', encoding='utf-8') as stream:
        stream.write('grüner Hund\n')
    for variable, value in (('LC_ALL', 'C'), ('PYTHONUTF8', '0'), ('PYTHONCOERCECLOCALE', '0')):
        monkeypatch.setenv(variable, value)
    name, _, probability = predictions(folder)[0]
    printed = run(folder, blocks('From a photo to a class')[1]).split()
    assert printed[0] == name
    assert float(printed[1]) == pytest.approx(probability, abs=1e-5)


@pytest.mark.slow
def test_keras(folder):
    program, = blocks('In Keras')
    check_on_photo_and_other_size(folder, program, 1e-5, 'expected_images_of_32_x_32')


@pytest.mark.slow
@pytest.mark.parametrize('optimizations, tolerance', [(True, 0.1), (False, 1e-5)])
def test_litert(folder, optimizations, tolerance):
    require('ai_edge_litert')
    convert, use, *_ = blocks('LiteRT and ONNX')
    line, = re.findall(r'^.*optimizations = .*\n', convert, re.MULTILINE)
    run(folder, convert if optimizations else convert.replace(line, ''))
    check_on_photo_and_other_size(folder, use, tolerance, '(CONCATENATION) failed')


@pytest.mark.slow
def test_onnx(folder):
    require('tf2onnx', 'onnxruntime')
    _, _, command, use = blocks('LiteRT and ONNX')
    done = spawn.run(command.splitlines()[1].split()[1:], cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    check_on_photo_and_other_size(folder, use, 1e-5, 'Got invalid dimensions for input: images')


def test_how_the_weights_in_models_were_made(tmp_path):
    """The program of models/README.md, with these weights in place of the run."""
    page = (spawn.ROOT / 'models' / 'README.md').read_text()
    program, = re.findall(r'```(?:python)?\n(import .*?)```', page, re.DOTALL)
    weights = spawn.ROOT / 'models' / 'airbench94'
    run(tmp_path, f'import sys; sys.path.insert(0, {str(spawn.ROOT)!r})\n' + program.replace(
        '/tmp/airbench94', str(weights)).replace('/tmp/weights', 'weights'))
    made = trained.find(str(tmp_path / 'weights'))
    given = trained.find(str(weights))
    assert made[1:] == given[1:]
    for name, value in made.checkpoint.values.items():
        stored = given.checkpoint.values.get(name + checkpoints.AVERAGE)
        np.testing.assert_array_equal(value, given.checkpoint.values.get(name, stored))
