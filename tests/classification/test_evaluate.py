"""Runs that were trained, also by earlier versions, and what is counted."""
from cifar10_lib import errors
from classification_lib import data_sets, evaluate, recipes, records, run, trained

import numpy as np
import plain
import pytest
import run_settings
import small_nets

AVERAGE = '/ExponentialMovingAverage'
CLASSES = ('lower', 'upper')


def write(folder, net='small'):
    """Writes run.json."""
    run.write(str(folder), run_settings.of(net=net, classes=CLASSES))


@pytest.fixture(autouse=True)
def _small_row(monkeypatch):
    for averages in (True, False):
        name = 'small' if averages else 'raw'
        monkeypatch.setitem(recipes.TABLE, name,
                            small_nets.RECIPE._replace(name=name, averages=averages))


def save(folder, sign, suffixes=('', AVERAGE), num_classes=2, step=7):
    """Saves a network that tells which half of an image is brighter; with the averages, it says
    the opposite."""
    half = small_nets.SIZE ** 2 * 3 // 2
    weights = np.zeros([2 * half, num_classes], np.float32)
    weights[:half, 0] = weights[half:, 1] = -sign
    values = {'global_step': np.int64(step)}
    for suffix in suffixes:
        flip = -1 if suffix else 1
        values['linear/weights' + suffix] = flip * weights
        for name, value in (('gamma', 1.0), ('beta', 0.0), ('moving_mean', 128.0),
                            ('moving_variance', 4000.0)):
            values[f'bn/{name}{suffix}'] = np.full([3], value, np.float32)
    return plain.save(f'{folder}/model.ckpt-{step}', values)


def counted(folder, images=CLASSES, **options):
    """Writes run.json, and test images of these classes: 3 bright below, with label 0, then 8
    bright above, with label 1. Returns how the newest checkpoint classifies them."""
    write(folder, **options)
    rows = np.full([11, 1 + data_sets.IMAGE_BYTES], 20, np.uint8)
    planes = rows[:, 1:].reshape(-1, 3, 32, 32)
    planes[:3, :, 16:] = planes[3:, :, :16] = 220
    rows[:, 0] = np.repeat([0, 1], [3, 8])
    rows.tofile(folder / 'test.bin')
    row = data_sets.DataSet('halves', str(folder), {}, {'test.bin': 11}, images)
    return evaluate.confusion(trained.find(str(folder)), records.Images(
        row, str(folder), 'test'), batch_size=4).tolist()


@pytest.mark.parametrize('net, suffixes, sign', [
    ('small', ['', AVERAGE], -1), ('raw', ['', AVERAGE], 1), ('small', [''], 1),
    ('raw', [AVERAGE], -1)])
def test_which_variables_count(tmp_path, net, suffixes, sign):
    """The row says whether averages do; a checkpoint may have only the others, as that of
    models/airbench94. They classify all images correctly, and with another sign none."""
    save(tmp_path, sign, suffixes)
    assert counted(tmp_path, net=net) == [[3, 0], [0, 8]]
    save(tmp_path, -sign, suffixes, step=8)
    assert counted(tmp_path, net=net) == [[0, 3], [8, 0]]


def test_what_does_not_fit_is_refused(tmp_path):
    save(tmp_path, 1)
    for classes in (('lower', 'middle'), ('lower', 'upper', 'middle'), ('upper', 'lower')):
        with pytest.raises(errors.UserError, match='choose the data set of the run$'):
            counted(tmp_path, classes)
    save(tmp_path, 1, num_classes=3, step=8)
    with pytest.raises(errors.UserError, match=r'does not fit this network: linear/weights.* has '
                       r'shape \[768, 3\]; expected \[768, 2\]'):
        counted(tmp_path)


def test_find(tmp_path, monkeypatch):
    folder = str(tmp_path)
    with pytest.raises(errors.UserError, match=(
            '^No checkpoint in .*best: choose another run, train with classification.py '
            '--validate_every=1, or leave out --best$')):
        trained.find(folder, best=True)
    write(folder)
    first, last = save(folder, 1, step=7), save(folder, 1, step=9)
    assert trained.find(folder).checkpoint.path == last
    for ending in ('', '.index', '.meta', '.data-00000-of-00001'):
        assert trained.find(first + ending).checkpoint.path == first
    monkeypatch.chdir(folder)
    assert trained.find('model.ckpt-7').checkpoint.path == './model.ckpt-7'
    write(folder, net='tutorial_fast')
    with pytest.raises(errors.UserError, match='is of --net=tutorial_fast; expected one of'):
        trained.find(folder)


@pytest.mark.parametrize('count, suffix, expected', [
    (3, '', ('0', '1', '2')), (10, AVERAGE, data_sets.CIFAR10.classes)])
def test_a_run_without_run_json_is_the_tutorials(tmp_path, count, suffix, expected):
    """The names of its classes are those of CIFAR-10 if there are as many, otherwise numbers."""
    plain.save(f'{tmp_path}/model.ckpt-4', {
        f'softmax_linear/biases{suffix}': np.zeros(count, np.float32), 'global_step': np.int64(4)})
    found = trained.find(str(tmp_path), data_dir=str(tmp_path))
    assert found[1:] == (recipes.TABLE['tutorial'], expected, {})


def test_per_class():
    """Seven of ten discs are recognised, and seven of eight predictions of a disc are right."""
    lines = evaluate.per_class(np.array([[7, 3, 0], [1, 19, 0], [0, 0, 0]]), ['disc', 'ring', 'x'])
    assert [line.split() for line in lines] == [
        ['class', 'images', 'predicted', 'right', 'recall', 'precision'],
        ['ring', '20', '22', '19', '0.950', '0.864'],
        ['disc', '10', '8', '7', '0.700', '0.875'],
        ['x', '0', '0', '0', 'nan', 'nan']]
    assert len(set(map(len, lines))) == 1
