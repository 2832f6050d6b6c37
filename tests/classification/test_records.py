import os

from cifar10_lib import errors
from classification_lib import data_sets, records

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

SIZES = (7, 13, 99)  # Of the record files.


def row(folder, sizes=SIZES, label_bytes=1):
    """A data set whose k-th image has the value k in all pixels, and the label k % 3."""
    names = [f'{index}.bin' for index in range(len(sizes))]
    numbers = np.arange(sum(sizes))
    rows = np.zeros([len(numbers), label_bytes + data_sets.IMAGE_BYTES], np.uint8)
    rows[:, label_bytes - 1] = numbers % 3
    rows[:, label_bytes:] = numbers[:, np.newaxis]
    for name, part in zip(names, np.split(rows, np.cumsum(sizes)[:-1])):
        part.tofile(os.path.join(folder, name))
    return data_sets.DataSet(
        'numbers', str(folder), dict(zip(names, sizes)), {names[0]: sizes[0]},
        ('a', 'b', 'c'), label_bytes + data_sets.IMAGE_BYTES)


@pytest.fixture
def images(tmp_path):
    """119 images for training and 7 for the test."""
    return records.Images(row(tmp_path), str(tmp_path), 'all')


def as_numbers(pixels):
    return tf.cast(pixels[:, :1, :1, :1], tf.float32)


def trained_on(images, batches, batch_size=10, **options):
    """The numbers of the images in the first batches: int [batches, batch_size]."""
    options = {'seed': 5, **options}
    with tf.Graph().as_default():
        tf.set_random_seed(options.get('first_step', 0))  # It must not matter.
        batch, labels = images.distorted_batches(batch_size, as_numbers, **options)
        assert batch.shape == [batch_size, 1, 1, 1] and labels.shape == [batch_size]
        with tf.Session() as session:
            session.run(tf.tables_initializer())
            found = [session.run([batch, labels]) for _ in range(batches)]
    numbers = np.array([batch.ravel() for batch, _ in found]).astype(int)
    np.testing.assert_array_equal(numbers % 3, [labels for _, labels in found])
    return numbers


def evaluated_on(images, batch_size=10, **options):
    """The numbers of all images."""
    with tf.Graph().as_default():
        pixels, labels, initializer = images.batches(batch_size, **options)
        assert pixels.shape.as_list() == [None, 32, 32, 3] and pixels.dtype == tf.uint8
        for _ in range(2):  # The second time like the first.
            found = []
            with tf.Session() as session:
                session.run(initializer)
                with pytest.raises(tf.errors.OutOfRangeError):
                    while True:
                        found.append(session.run([pixels, labels]))
    numbers = [int(image[0, 0, 0]) for pixels, _ in found for image in pixels]
    assert [number % 3 for number in numbers] == [label for _, labels in found for label in labels]
    return numbers


def test_each_epoch_has_each_image_once_in_another_order(images):
    """The order follows from the seed."""
    numbers = trained_on(images, 24)
    first, second = numbers.ravel()[:119], numbers.ravel()[119:238]
    assert sorted(first) == sorted(second) == list(range(119))
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, np.arange(119))[0, 1]) < 0.3  # Three deviations.
    np.testing.assert_array_equal(trained_on(images, 12), numbers[:12])
    assert not np.array_equal(trained_on(images, 12, seed=6), numbers[:12])


@pytest.mark.parametrize('first_step', [1, 11, 30])
def test_a_resumed_run_continues_the_order(images, first_step):
    """Within the first epoch, at a batch with images of two epochs, and later."""
    np.testing.assert_array_equal(
        trained_on(images, 6, first_step=first_step), trained_on(images, first_step + 6)[-6:])


def test_a_resumed_run_draws_other_distortions(images):
    """Batches are distorted in parallel: the numbers drawn are the same, which batch gets which of
    them is not."""
    def noise(pixels):
        return tf.random_uniform([tf.shape(pixels)[0], 1, 1, 1])

    def drawn(**options):
        with tf.Graph().as_default():
            batch, _ = images.distorted_batches(10, noise, 5, **options)
            with tf.Session() as session:
                session.run(tf.tables_initializer())
                return {tuple(session.run(batch).ravel().tolist()) for _ in range(40)}

    first = drawn()
    assert len(first & drawn()) > 20
    assert not first & drawn(first_step=1)
    assert not drawn(rank=0, workers=2) & drawn(rank=1, workers=2)


@pytest.mark.parametrize('subset, total', [('all', 119), ('held_out', 11), ('training', 108)])
def test_workers_share_the_images(images, subset, total):
    images = images._replace(subset=subset)
    assert images.count() == total
    for workers in (2, 3, total):
        shards = [images.chosen(rank, workers) for rank in range(workers)]
        assert set(map(np.sum, shards)) <= {total // workers, -(-total // workers)}
        np.testing.assert_array_equal(sum(shards), images.chosen())
    shard = np.flatnonzero(images.chosen(2, 3))
    trained = trained_on(images, len(shard), batch_size=1, rank=2, workers=3)
    assert sorted(trained.ravel()) == shard.tolist()


def test_a_tenth_is_held_out(images):
    """11 of 119, the same at each start, spread over the files as a random choice is: of files that
    are sorted by class, it has all classes."""
    held_out = images._replace(subset='held_out')
    numbers = evaluated_on(held_out)
    assert len(numbers) == held_out.count() == 11
    assert evaluated_on(held_out._replace(folder=images.folder)) == numbers
    assert 3 <= sum(number >= 60 for number in numbers) <= 8
    assert {number % 3 for number in numbers} == {0, 1, 2}
    assert len(set(np.diff(numbers))) > 4  # Not in steps.
    rest = trained_on(images._replace(subset='training'), 54, batch_size=2)
    assert sorted([*numbers, *rest.ravel()]) == list(range(119))


def test_evaluation_has_each_image_once(images):
    """Of nine workers, two have none of the seven images."""
    assert evaluated_on(images) == list(range(119))
    test = images._replace(subset='test')
    assert evaluated_on(test, batch_size=4) == list(range(7))
    parts = [evaluated_on(test, rank=rank, workers=9) for rank in range(9)]
    assert sorted(map(len, parts)) == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert sorted(sum(parts, [])) == list(range(7))


def test_two_label_bytes_and_any_name_of_a_folder(tmp_path):
    folder = tmp_path / 'a[1]*?\\{b}'
    folder.mkdir()
    images = records.Images(row(folder, label_bytes=2), str(folder), 'all')
    assert evaluated_on(images) == list(range(119))


def test_images_are_read_in_their_order(images):
    labels, pixels = images.read()
    assert pixels.shape == (119, 32, 32, 3) and pixels.dtype == np.uint8
    assert pixels[:, 3, 5, 1].tolist() == list(range(119))
    assert labels.tolist() == [number % 3 for number in range(119)]
    held_out = images._replace(subset='held_out')
    assert held_out.read()[1][:, 0, 0, 0].tolist() == np.flatnonzero(held_out.chosen()).tolist()


def test_mistakes(tmp_path, images):
    os.remove(tmp_path / '1.bin')
    with pytest.raises(errors.UserError, match=r'1\.bin is missing: restore the file'):
        images.count()
    small = records.Images(row(tmp_path, [9]), str(tmp_path), 'held_out')
    with pytest.raises(errors.UserError, match='9 training images, too few to hold out a tenth'):
        small.count()
    with pytest.raises(errors.UserError, match='9 training images are not enough for 10 workers'):
        small._replace(subset='all').distorted_batches(1, as_numbers, 5, workers=10)
