"""Runs that were trained, also by earlier versions, and what is counted."""
import os
import shutil

from cifar10_lib import checkpoints, console, data_sets, evaluate, recipes, records, run

import numpy as np
import pytest
import small_nets
import spawn
import tensorflow.compat.v1 as tf

AVERAGE = '/ExponentialMovingAverage'
MODEL = str(spawn.ROOT / 'models' / 'airbench94')
CLASSES = ('lower', 'upper')


def content(net='small', classes=CLASSES):
    return {'net': net, 'dataset': 'halves', 'classes': list(classes), 'settings': {}}


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
    with tf.Graph().as_default(), tf.Session() as session:
        for suffix in suffixes:
            flip = -1 if suffix else 1
            tf.get_variable('linear/weights' + suffix, initializer=flip * weights)
            for name, value in (('gamma', 1.0), ('beta', 0.0), ('moving_mean', 128.0),
                                ('moving_variance', 4000.0)):
                tf.get_variable(f'bn/{name}' + suffix, initializer=np.full([3], value, np.float32))
        counter = tf.get_variable('global_step', initializer=np.int64(step))
        session.run(tf.global_variables_initializer())
        os.makedirs(folder, exist_ok=True)
        return tf.train.Saver().save(
            session, os.path.join(folder, 'model.ckpt'), global_step=counter)


def halves(folder, classes=CLASSES, counts=(3, 8)):
    """Test images: so many bright below, with label 0, then so many bright above, with label 1."""
    os.makedirs(folder, exist_ok=True)
    rows = np.full([sum(counts), 1 + data_sets.IMAGE_BYTES], 20, np.uint8)
    planes = rows[:, 1:].reshape(-1, 3, 32, 32)
    planes[:counts[0], :, 16:] = planes[counts[0]:, :, :16] = 220
    rows[:, 0] = np.repeat([0, 1], counts)
    rows.tofile(os.path.join(folder, 'test.bin'))
    row = data_sets.DataSet('halves', 'halves', str(folder), {}, {'test.bin': sum(counts)}, classes)
    return records.Images(row, str(folder), 'test')


@pytest.mark.parametrize('net, sign', [('small', -1), ('raw', 1)])
def test_the_row_says_whether_averages_count(tmp_path, net, sign):
    """The result classifies all images correctly, the other one none."""
    images = halves(tmp_path / 'images')
    for name, expected in (('right', [[3, 0], [0, 8]]), ('wrong', [[0, 3], [8, 0]])):
        folder = str(tmp_path / name)
        save(folder, sign if name == 'right' else -sign)
        run.write(folder, content(net))
        counts = evaluate.confusion(evaluate.find(folder), images, batch_size=4)
        np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize('net', ['small', 'raw'])
@pytest.mark.parametrize('suffix', ['', AVERAGE])
def test_a_checkpoint_may_have_only_one_of_them(tmp_path, net, suffix):
    """As models/airbench94, which has only averages."""
    save(tmp_path, -1 if suffix else 1, [suffix])
    run.write(str(tmp_path), content(net))
    images = halves(tmp_path / 'images')
    counts = evaluate.confusion(evaluate.find(str(tmp_path)), images, batch_size=4)
    np.testing.assert_array_equal(counts, [[3, 0], [0, 8]])


def test_classes_in_another_order(tmp_path):
    save(tmp_path, -1)
    run.write(str(tmp_path), content(classes=['upper', 'lower']))
    counts = evaluate.confusion(
        evaluate.find(str(tmp_path)), halves(tmp_path / 'images'), batch_size=100)
    np.testing.assert_array_equal(counts, [[0, 8], [3, 0]])


@pytest.mark.parametrize('classes', [('lower', 'middle'), ('lower', 'upper', 'middle')])
def test_other_classes_are_refused(tmp_path, classes):
    save(tmp_path, -1)
    run.write(str(tmp_path), content())
    with pytest.raises(console.UserError, match='have other classes .middle is only in one'):
        evaluate.confusion(
            evaluate.find(str(tmp_path)), halves(tmp_path / 'images', classes), batch_size=4)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    save(tmp_path, 1, num_classes=3)
    run.write(str(tmp_path), content())
    with pytest.raises(console.UserError, match=r'does not fit this network: linear/weights.* has '
                       r'shape \[768, 3\]; expected \[768, 2\]'):
        evaluate.confusion(
            evaluate.find(str(tmp_path)), halves(tmp_path / 'images'), batch_size=4)


def test_a_folder_with_brackets(tmp_path):
    folder = str(tmp_path / 'run[1]')
    save(str(tmp_path / 'run'), -1)
    shutil.move(tmp_path / 'run', folder)
    run.write(folder, content())
    counts = evaluate.confusion(
        evaluate.find(folder), halves(tmp_path / 'images'), batch_size=4)
    np.testing.assert_array_equal(counts, [[3, 0], [0, 8]])


def test_find(tmp_path):
    folder = str(tmp_path)
    run.write(folder, content())
    with pytest.raises(console.UserError, match='No checkpoint in .*: train first'):
        evaluate.find(folder)
    first, last = save(folder, 1, step=7), save(folder, 1, step=9)
    best = save(os.path.join(folder, 'best'), 1, step=5)
    run.write(os.path.join(folder, 'best'), content(classes=['a', 'b']))
    assert evaluate.find(folder) == (last, recipes.TABLE['small'], CLASSES, content())
    assert evaluate.find(folder, best=True).checkpoint == best
    assert evaluate.find(folder, best=True).classes == ('a', 'b')
    for ending in ('', '.index', '.data-00000-of-00001'):
        assert evaluate.find(first + ending).checkpoint == first


def test_find_reports_what_is_missing(tmp_path):
    save(tmp_path, 1)
    run.write(str(tmp_path), content(net='tutorial_fast'))
    with pytest.raises(console.UserError, match='is of --net=tutorial_fast; expected one of'):
        evaluate.find(str(tmp_path))
    with pytest.raises(console.UserError, match='train with --validate_every, or leave out --best'):
        evaluate.find(str(tmp_path), best=True)


@pytest.mark.parametrize('count, expected', [
    (3, ('airplane', 'automobile', 'bird')), (10, data_sets.CIFAR10.classes),
    (12, (*data_sets.CIFAR10.classes, '10', '11'))])
@pytest.mark.parametrize('suffix', ['', AVERAGE])
def test_a_run_without_run_json_is_the_tutorials(tmp_path, count, expected, suffix):
    with tf.Session() as session:
        tf.get_variable('softmax_linear/biases' + suffix, [count])
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), global_step=4)
    assert evaluate.find(str(tmp_path)) == (path, recipes.TABLE['tutorial'], expected, {})


def test_names_of_the_tutorials_classes_are_those_of_its_images(tmp_path):
    folder = tmp_path / 'data' / 'cifar-10-batches-bin'
    folder.mkdir(parents=True)
    (folder / 'batches.meta.txt').write_text('disc\nring\n\n')
    with tf.Session() as session:
        tf.get_variable('softmax_linear/biases', [2])
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'), global_step=4)
    found = evaluate.find(str(tmp_path), data_dir=str(tmp_path / 'data'))
    assert found.classes == ('disc', 'ring')


def test_classifier(tmp_path):
    """Pixels, prepared images, logits and probabilities of any number of images."""
    path = save(tmp_path, -1)
    classifier = evaluate.Classifier(recipes.TABLE['small'], 2)
    assert classifier.images.shape.as_list() == [None, 16, 16, 3]
    pixels = np.full([3, 32, 32, 3], 20, np.uint8)
    pixels[1:, :16] = 220
    with classifier.restored(path) as session:
        images, logits, probabilities = session.run(
            [classifier.images, classifier.logits, classifier.probabilities],
            {classifier.pixels: pixels})
    np.testing.assert_array_equal(images, pixels[:, ::2, ::2])
    # Each class has the pixels of a half: (20 - 128) / sqrt(4000) or (220 - 128) / sqrt(4000).
    dark, bright = -384 * 108 / 4000 ** 0.5, 384 * 92 / 4000 ** 0.5
    np.testing.assert_allclose(logits, [[-dark, -dark], [-bright, -dark], [-bright, -dark]],
                               rtol=1e-4)
    np.testing.assert_allclose(probabilities, [[0.5, 0.5], [0, 1], [0, 1]], atol=1e-6)


def test_per_class():
    """Seven of ten discs are recognised, and seven of eight predictions of a disc are right."""
    lines = evaluate.per_class(np.array([[7, 3, 0], [1, 19, 0], [0, 0, 0]]), ['disc', 'ring', 'x'])
    assert [line.split() for line in lines] == [
        ['class', 'images', 'predicted', 'right', 'recall', 'precision'],
        ['ring', '20', '22', '19', '0.950', '0.864'],
        ['disc', '10', '8', '7', '0.700', '0.875'],
        ['x', '0', '0', '0', '-', '-']]
    assert len(set(map(len, lines))) == 1


def test_starting_weights(tmp_path):
    """Of the result, all layers that fit; the last one only for the same classes."""
    save(tmp_path, 1)
    run.write(str(tmp_path), content())
    trained = evaluate.find(str(tmp_path))
    stored = checkpoints.read(trained.checkpoint)

    def found(num_classes, classes):
        with tf.Graph().as_default():
            small_nets.inference(tf.zeros([4, 16, 16, 3]), num_classes, training=True)
            weights = evaluate.starting_weights(trained, tf.global_variables(), classes)
            return {variable.op.name: value for variable, value in weights.items()}

    same = found(2, CLASSES)
    assert sorted(same) == ['bn/beta', 'bn/gamma', 'bn/moving_mean', 'bn/moving_variance',
                            'linear/weights']
    for name, value in same.items():
        np.testing.assert_array_equal(value, stored[name + AVERAGE])
    assert sorted({*same} - {*found(2, ('a', 'b'))}) == ['linear/weights']
    assert sorted({*same} - {*found(3, (*CLASSES, 'c'))}) == ['linear/weights']


def test_starting_weights_that_do_not_fit(tmp_path):
    save(tmp_path, np.nan)
    run.write(str(tmp_path), content())
    trained = evaluate.find(str(tmp_path))
    other = tf.get_variable('other/weights', [3])
    with pytest.raises(console.UserError, match='has no layer of this network'):
        evaluate.starting_weights(trained, [other], CLASSES)
    same = tf.get_variable('linear/weights', [768, 2])
    with pytest.raises(console.UserError, match='has values that are not finite'):
        evaluate.starting_weights(trained, [same], CLASSES)


def test_the_shipped_model_fits():
    trained = evaluate.find(MODEL)
    assert trained.recipe.name == 'airbench94' and trained.classes == data_sets.CIFAR10.classes
    classifier = evaluate.Classifier(trained.recipe, 10)
    with classifier.restored(trained.checkpoint) as session:
        got = session.run(classifier.probabilities,
                          {classifier.pixels: np.full([1, 32, 32, 3], 200, np.uint8)})
    np.testing.assert_allclose(got.sum(), 1, rtol=1e-5)
