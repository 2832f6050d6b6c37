"""The weights in `models/`, on pictures that the tests draw."""
import json
import os
import re
import shutil

import numpy as np
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image, ImageDraw

import cifar10_eval
import cifar10_export
import cifar10_plot
import cifar10_train
from cifar10_lib.datasets import images, table
from cifar10_lib.runs import checkpoints

FLAGS = flags.FLAGS
MODEL = str(spawn.ROOT / 'models' / 'resnet23')
GREY, WHITE, BLACK, GLASS = (180, 180, 180), (235, 235, 230), (20, 20, 20), (170, 205, 225)


def airplane(draw):
    draw.polygon([(10, 66), (20, 58), (100, 56), (118, 64), (100, 70), (20, 72)], fill=WHITE)
    draw.polygon([(60, 64), (30, 104), (44, 104), (82, 66)], fill=GREY)
    draw.polygon([(58, 58), (46, 34), (56, 34), (78, 58)], fill=GREY)
    draw.polygon([(14, 62), (6, 38), (16, 38), (30, 60)], fill=(200, 60, 60))


def automobile(draw):
    draw.rectangle([0, 92, 128, 128], fill=(110, 110, 110))
    draw.polygon([(36, 62), (48, 42), (84, 42), (98, 62)], fill=(90, 20, 20))
    draw.polygon([(42, 60), (52, 46), (64, 46), (64, 60)], fill=GLASS)
    draw.polygon([(68, 60), (68, 46), (82, 46), (92, 60)], fill=GLASS)
    draw.polygon([(10, 88), (10, 66), (36, 60), (98, 60), (120, 68), (120, 88)], fill=(190, 30, 30))
    for x in (34, 96):
        draw.ellipse([x - 13, 78, x + 13, 104], fill=BLACK)
        draw.ellipse([x - 6, 85, x + 6, 97], fill=GREY)


def ship(draw):
    draw.rectangle([0, 80, 128, 128], fill=(40, 80, 120))
    draw.polygon([(8, 66), (120, 66), (106, 90), (20, 90)], fill=(60, 60, 70))
    draw.rectangle([30, 50, 84, 66], fill=WHITE)
    draw.rectangle([40, 38, 70, 50], fill=WHITE)
    draw.rectangle([52, 22, 62, 38], fill=(200, 70, 50))


def truck(draw):
    draw.rectangle([0, 98, 128, 128], fill=(120, 115, 105))
    draw.rectangle([8, 30, 84, 92], fill=WHITE)
    draw.polygon([(86, 92), (86, 46), (108, 46), (120, 66), (120, 92)], fill=(40, 80, 170))
    draw.polygon([(92, 64), (92, 50), (106, 50), (114, 64)], fill=GLASS)
    for x in (28, 66, 104):
        draw.ellipse([x - 11, 84, x + 11, 106], fill=BLACK)


DRAWN = {'airplane': airplane, 'automobile': automobile, 'ship': ship, 'truck': truck}


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
            train_dir=str(tmp_path / 'train'), initial_checkpoint=MODEL, runs=[MODEL],
            output=str(tmp_path / 'confusion.png'), picture='confusion', max_steps=0):
        yield


def test_a_prediction_right_after_the_installation(paths):
    done = spawn.run_script('cifar10_predict.py', *paths.values(), f'--checkpoint_dir={MODEL}',
                            '--top_k=1', '--json')
    assert (done.returncode, done.stderr) == (0, '')
    assert [json.loads(line)['predictions'][0]['class']
            for line in done.stdout.splitlines()] == list(paths)


def test_other_scripts_read_the_weights(records, capsys):
    cifar10_eval.evaluate()
    assert re.search(r'precision @ 1 = 1\.000$', capsys.readouterr().out, re.MULTILINE)
    cifar10_export.export()
    assert os.path.exists(os.path.join(FLAGS.export_dir, 'saved_model.pb'))
    cifar10_plot.plot()
    assert min(Image.open(FLAGS.output).size) > 100


def test_a_training_starts_with_the_weights(records):
    """At step 0; the weights and their averages start with the averages of the checkpoint."""
    with flagsaver.flagsaver(net='resnet23'):
        cifar10_train.train()
    given, ours = (checkpoints.read(tf.train.latest_checkpoint(folder))
                   for folder in (MODEL, FLAGS.train_dir))
    assert given.pop('global_step') > ours['global_step'] == 0
    assert sum(value.size for name, value in given.items() if 'moving_' not in name) == 97482
    for name, value in given.items():
        for copy in {name, name.removesuffix('/ExponentialMovingAverage')}:
            np.testing.assert_array_equal(ours[copy], value)


@pytest.mark.slow
def test_writing_weights(half_bright, tmp_path):
    """The averages of a run, statistics of batch norms included."""
    with flagsaver.flagsaver(net='resnet23', max_steps=2, validate_every=0):
        cifar10_train.train()
    command = ['models/weights.py', f'--checkpoint_dir={FLAGS.train_dir}',
               f'--model_dir={tmp_path}/model']
    done = spawn.run_script(*command)
    path = tf.train.latest_checkpoint(FLAGS.train_dir)
    assert (done.stdout, done.stderr) == (
        f'{tmp_path}/model holds the averaged weights of {path}.\n', '')
    run, ours = checkpoints.read(path), checkpoints.read(str(tmp_path / 'model' / 'model.ckpt-2'))
    assert ours['global_step'] == 2
    averages = {name for name in run if name.endswith('/ExponentialMovingAverage')}
    assert len(averages) == 68 + 44
    assert ours.keys() == {*averages, 'global_step'}
    for name in averages:
        np.testing.assert_array_equal(ours[name], run[name])
    assert spawn.run_script(*command).stderr == (
        f'weights.py: {tmp_path}/model exists and is not an empty folder: remove it, or choose '
        'another --model_dir\n')


def test_weights_without_statistics_for_the_averages(tmp_path):
    """As of earlier versions: such averages are imprecise, so `weights.py` does not write them."""
    earlier = shutil.copytree(MODEL, tmp_path / 'earlier')
    path = tf.train.latest_checkpoint(earlier)
    with tf.Graph().as_default(), tf.Session() as session:
        kept = [tf.Variable(value, name=name.removesuffix('/ExponentialMovingAverage')
                            if 'moving_' in name else name)
                for name, value in checkpoints.read(path).items()]
        session.run(tf.variables_initializer(kept))
        tf.train.Saver(kept).save(session, path, write_meta_graph=False)
    done = spawn.run_script('models/weights.py', f'--checkpoint_dir={earlier}',
                            f'--model_dir={tmp_path}/model')
    assert done.returncode == 1 and not os.path.exists(tmp_path / 'model')
    assert re.fullmatch('weights.py: .* has no statistics for its averages.*\n', done.stderr)
