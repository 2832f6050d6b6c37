"""The weights in `models/`, on pictures that the tests draw."""
import json
import os
import re

import numpy as np
import pytest
import record_files
import spawn
from absl import flags
from absl.testing import flagsaver
from PIL import Image, ImageDraw

import cifar10_eval
import cifar10_export
import cifar10_plot
from cifar10_lib.datasets import images, table
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
MODEL = str(spawn.ROOT / 'models' / 'airbench94')
GREY, WHITE = (180, 180, 180), (235, 235, 230)


def airplane(draw):
    draw.polygon([(10, 66), (20, 58), (100, 56), (118, 64), (100, 70), (20, 72)], fill=WHITE)
    draw.polygon([(60, 64), (30, 104), (44, 104), (82, 66)], fill=GREY)
    draw.polygon([(58, 58), (46, 34), (56, 34), (78, 58)], fill=GREY)
    draw.polygon([(14, 62), (6, 38), (16, 38), (30, 60)], fill=(200, 60, 60))


def ship(draw):
    draw.rectangle([0, 80, 128, 128], fill=(40, 80, 120))
    draw.polygon([(8, 66), (120, 66), (106, 90), (20, 90)], fill=(60, 60, 70))
    draw.rectangle([30, 50, 84, 66], fill=WHITE)
    draw.rectangle([40, 38, 70, 50], fill=WHITE)
    draw.rectangle([52, 22, 62, 38], fill=(200, 70, 50))


DRAWN = {'airplane': airplane, 'ship': ship}


@pytest.fixture
def paths(tmp_path):
    """Paths of a picture of each class in `DRAWN`, side views against a sky: {class: path}."""
    found = {name: str(tmp_path / f'{name}.png') for name in DRAWN}
    for name, path in found.items():
        picture = Image.new('RGB', (128, 128), (175, 200, 225))
        DRAWN[name](ImageDraw.Draw(picture))
        picture.save(path)
    return found


@pytest.fixture
def records(paths, tmp_path):
    """Sets the flags for the model, and for a CIFAR-10 folder whose test set is the pictures."""
    folder = record_files.write_noise(tmp_path / 'data', count=10)
    record_files.write(os.path.join(folder, 'test_batch.bin'), [
        (table.CIFAR10.classes.index(name), images.read(path)) for name, path in paths.items()])
    with flagsaver.flagsaver(
            data_dir=str(tmp_path / 'data'), checkpoint_dir=MODEL, run_once=True, batch_size=4,
            eval_dir=str(tmp_path / 'eval'), export_dir=str(tmp_path / 'model'),
            runs=[MODEL], output=str(tmp_path / 'confusion.png'), picture='confusion'):
        yield


@pytest.mark.skipif(os.path.exists('/tmp/cifar10_train'), reason='/tmp/cifar10_train exists')
@pytest.mark.parametrize('words, message', [
    ([f'--checkpoint_dir={MODEL}'], ''),
    ([], f'cifar10_predict.py: no run in /tmp/cifar10_train: using the weights in {MODEL}\n')])
def test_a_prediction_right_after_the_installation(paths, words, message):
    done = spawn.run_script('cifar10_predict.py', *paths.values(), *words, '--top_k=1', '--json')
    assert (done.returncode, done.stderr) == (0, message)
    assert [json.loads(line)['predictions'][0]['class']
            for line in done.stdout.splitlines()] == list(paths)


def test_other_scripts_read_the_weights(records, capsys):
    cifar10_eval.main()
    assert re.search(r'precision @ 1 = 1\.000$', capsys.readouterr().out, re.MULTILINE)
    cifar10_export.export()
    assert os.path.exists(os.path.join(FLAGS.export_dir, 'saved_model.pb'))
    cifar10_plot.plot()
    assert min(Image.open(FLAGS.output).size) > 100


def test_the_readme_writes_the_averages_of_a_run(trained, tmp_path):
    code, = re.findall('```python\n(.*?)```', (spawn.ROOT / 'models' / 'README.md').read_text(),
                       re.DOTALL)
    for old, new in (('/tmp/airbench94', FLAGS.train_dir), ('/tmp/weights', f'{tmp_path}/model')):
        assert old in code
        code = code.replace(old, new)
    done = spawn.run(['-c', code], cwd=spawn.ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, '')
    run, ours = (checkpoints.read(checkpoints.latest(folder))
                 for folder in (FLAGS.train_dir, str(tmp_path / 'model')))
    averages = {name for name in run if name.endswith('/ExponentialMovingAverage')}
    assert len(averages) == 10 and ours.keys() == averages
    for name, value in ours.items():
        np.testing.assert_array_equal(value, run[name])
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'model'), run_once=True):
        cifar10_eval.main()
