import numpy as np
import pytest
import record_files
import tensorflow.compat.v1 as tf

import cifar10_input
from cifar10_lib.datasets import image_source, table
from cifar10_lib.program import errors

SMALL = table.DataSet('small', 'small', '', {'a.bin': 0, 'b.bin': 0}, {'c.bin': 0},
                      classes=table.CIFAR10.classes)


def distorted_inputs(folder, batch_size, data_set, **options):
    """Images and labels of a training set other than CIFAR-10."""
    return cifar10_input.distorted_inputs(
        folder, batch_size, image_source.Source(data_set, folder, batch_size, **options))


def inputs(folder, batch_size, eval_data, data_set=SMALL, **options):
    """Images and labels, in order, of a set other than CIFAR-10."""
    return cifar10_input.inputs(
        eval_data, folder, batch_size,
        image_source.Source(data_set, folder, batch_size, eval_data, **options))


def write_small(folder, a=0, b=0, c=0):
    """Writes the files of SMALL; returns uint8 [a + b + c, 3073]."""
    for index, (name, count) in enumerate([('a.bin', a), ('b.bin', b), ('c.bin', c)]):
        record_files.write(folder / name, record_files.noise(count, seed=index))
    return np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073)
                           for name in ('a.bin', 'b.bin', 'c.bin')])


# A session that runs the queue runners of the default graph.
Running = tf.train.SingularMonitoredSession


def test_three_records(tmp_path):
    """One record per run, with its label and the colours of each pixel; then the end."""
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    images = [np.broadcast_to(np.array(colour, np.uint8), [32, 32, 3]).copy() for colour in colours]
    images[1][2, 5] = (7, 8, 9)
    record_files.write(tmp_path / 'three.bin', zip((3, 9, 0), images))
    queue = tf.FIFOQueue(99, [tf.string], shapes=())
    result = cifar10_input.read_cifar10(queue)
    assert (result.height, result.width, result.depth) == (32, 32, 3)
    assert result.label.shape == [1] and result.label.dtype == tf.int32
    assert result.uint8image.shape == [32, 32, 3]
    with tf.Session() as session:
        session.run(queue.enqueue([str(tmp_path / 'three.bin')]))
        session.run(queue.close())
        for index, label in enumerate((3, 9, 0)):
            key, got, image = session.run([result.key, result.label, result.uint8image])
            assert key.decode() == f'{tmp_path}/three.bin:{index}'
            assert got.tolist() == [label]
            np.testing.assert_array_equal(image, images[index])
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run([result.key, result.uint8image])


def test_bulk_reads_are_shorter_at_the_end_of_a_file(tmp_path):
    expected = write_small(tmp_path, a=5, b=3)
    queue = tf.FIFOQueue(99, [tf.string], shapes=())
    result = cifar10_input.read_cifar10(queue, records=4)
    assert result.label.shape.as_list() == [None, 1]
    assert result.uint8image.shape.as_list() == [None, 32, 32, 3]
    got = []
    with tf.Session() as session:
        session.run(queue.enqueue_many([[str(tmp_path / name) for name in ('a.bin', 'b.bin')]]))
        session.run(queue.close())
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                got.append(session.run([result.value, result.label, result.uint8image]))
    assert [len(read[0]) for read in got] == [4, 1, 3]
    values = b''.join(np.concatenate([read[0] for read in got]))
    assert values == expected.tobytes()
    np.testing.assert_array_equal(np.concatenate([read[1] for read in got]), expected[:, :1])
    np.testing.assert_array_equal(np.concatenate([read[2] for read in got]),
                                  expected[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def test_two_label_bytes(tmp_path):
    """The second of two label bytes, and a label of shape [1]."""
    row = table.DataSet('fine', 'fine', '', {'a.bin': 1}, {'a.bin': 1}, classes=('x',) * 100,
                        record_bytes=3074, label_index=1)
    (tmp_path / 'a.bin').write_bytes(bytes([13, 77]) + bytes(range(256)) * 12)
    queue = tf.FIFOQueue(9, [tf.string], shapes=())
    result = cifar10_input.read_cifar10(queue, data_set=row)
    with tf.Session() as session:
        session.run(queue.enqueue([str(tmp_path / 'a.bin')]))
        label, image = session.run([result.label, result.uint8image])
    assert label.tolist() == [77]
    assert image[0, 1].tolist() == [1, 1, 1]  # Planes are 1,024 bytes apart, and 256 divides that.


class Draws:
    """The random numbers that `distort_images` draws, for images of any number."""

    def __init__(self, images):
        """Builds the distortions of images, uint8 [batch, 32, 32, 3], and finds their numbers."""
        before = len(tf.get_default_graph().get_operations())
        self.distorted = cifar10_input.distort_images(images)
        made = tf.get_default_graph().get_operations()[before:]
        top, left = (op.outputs[0] for op in made if op.type == 'RandomUniformInt')
        flip, brightness, contrast = (op.outputs[0] for op in made if op.type == 'RandomUniform')
        self.numbers = {
            'top': tf.reshape(top, [-1]), 'left': tf.reshape(left, [-1]), 'flip': flip > 0.5,
            'brightness': -63 + 126 * tf.reshape(brightness, [-1]),
            'contrast': 0.2 + 1.6 * tf.reshape(contrast, [-1])}


def test_distortions_equal_those_of_tf_image():
    """Image by image, with the same random numbers."""
    random = np.random.RandomState(0)
    images = random.randint(0, 256, [13, 32, 32, 3]).astype(np.uint8)
    images[0] = 100  # One colour: all zeros afterwards; the bound avoids 0 / 0.
    images[1, :, :, 0] = 3
    draws = Draws(tf.constant(images))
    assert draws.distorted.shape.as_list() == [13, 24, 24, 3]
    with tf.Session() as session:
        got, numbers = session.run([draws.distorted, draws.numbers])
        theirs = []
        for image, top, left, flip, brightness, contrast in zip(images, *numbers.values()):
            net = tf.constant(image)[top:top + 24, left:left + 24]
            net = tf.image.flip_left_right(net) if flip else net
            net = tf.cast(net, tf.float32)
            net = tf.image.adjust_brightness(net, brightness)
            net = tf.image.adjust_contrast(net, contrast)
            theirs.append(tf.image.per_image_standardization(net))
        expected = session.run(theirs)
    assert len({*numbers['top']}) > 1 and {*numbers['flip']} == {True, False}
    np.testing.assert_allclose(got[1:], expected[1:], atol=1e-4)
    np.testing.assert_allclose(got[0], 0, atol=5e-3)  # Rounding of 100, times 1 / the bound.


def test_draws_are_uniform_in_their_ranges():
    """Each image has its own."""
    images = tf.placeholder(tf.uint8, [None, 32, 32, 3])
    draws = Draws(images)
    with tf.Session() as session:
        drawn = session.run(draws.numbers, {images: np.zeros([20000, 32, 32, 3], np.uint8)})
    assert {values.shape for values in drawn.values()} == {(20000,)}
    for name in ('top', 'left'):
        counts = np.bincount(drawn[name], minlength=9)
        assert len(counts) == 9
        np.testing.assert_allclose(counts / 20000, 1 / 9, atol=0.012)  # Five deviations.
    assert abs(np.corrcoef(drawn['top'], drawn['left'])[0, 1]) < 0.04
    assert abs(drawn['flip'].mean() - 0.5) < 0.018
    for name, low, high in [('brightness', -63, 63), ('contrast', 0.2, 1.8)]:
        counts, _ = np.histogram(drawn[name], bins=10, range=(low, high))
        assert drawn[name].min() >= low and drawn[name].max() <= high
        np.testing.assert_allclose(counts / 20000, 0.1, atol=0.011)


@pytest.mark.parametrize('eval_data, batch_size, sizes', [
    (True, 64, (100, 30, 130)), (False, 64, (100, 30, 130)), (False, 7, (100, 30, 130)),
    (True, 200, (100, 30, 130)), (True, 5, (0, 0, 1)), (True, 8, (0, 0, 3)),
    (True, 128, (0, 0, 1025))])
def test_evaluation_reads_each_record_once_in_order(tmp_path, eval_data, batch_size, sizes):
    """Records in one file, or in two that end within a batch; then again from the first. A read
    takes at most 512 records."""
    written = write_small(tmp_path, *sizes)
    first_test = len(written) - sizes[2]
    expected = written[first_test:] if eval_data else written[:first_test]
    images, labels = inputs(str(tmp_path), batch_size, eval_data)
    with Running() as session:
        got = [session.run([images, labels]) for _ in range(1 + 2 * len(expected) // batch_size)]
    assert {len(batch[1]) for batch in got} == {batch_size}
    expected = np.resize(expected, [len(got) * batch_size, 3073])
    assert np.concatenate([batch[1] for batch in got]).tolist() == expected[:, 0].tolist()
    centre = expected[:, 1:].reshape(-1, 3, 32, 32)[:, :, 4:28, 4:28].transpose(0, 2, 3, 1)
    centre = centre.astype(np.float64)
    means = centre.mean(axis=(1, 2, 3), keepdims=True)
    deviations = centre.std(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(np.concatenate([batch[0] for batch in got]),
                               (centre - means) / deviations, atol=1e-4)


@pytest.mark.parametrize('make', [
    lambda folder: cifar10_input.distorted_inputs(folder, 8),
    lambda folder: cifar10_input.distorted_inputs(data_dir=folder, batch_size=8),
    lambda folder: cifar10_input.inputs(True, folder, 8),
    lambda folder: cifar10_input.inputs(eval_data=False, data_dir=folder, batch_size=8)])
def test_calls_as_the_tutorial_makes_them(half_bright, make):
    """Of class 0, the upper half is bright."""
    images, labels = make(str(half_bright))
    assert (images.dtype, images.shape.as_list()) == (tf.float32, [8, 24, 24, 3])
    assert (labels.dtype, labels.shape.as_list()) == (tf.int32, [8])
    with Running() as session:
        found, classes = session.run([images, labels])
    upper, lower = found[:, :12].mean((1, 2, 3)), found[:, 12:].mean((1, 2, 3))
    assert (upper > lower).tolist() == (classes == 0).tolist()
    np.testing.assert_allclose(found.std((1, 2, 3)), 1, atol=1e-3)


def test_training_on_fewer_images_than_a_batch(tmp_path):
    write_small(tmp_path, a=1, b=2)
    images, labels = distorted_inputs(str(tmp_path), 8, SMALL)
    with Running() as session:
        shapes = {session.run(images).shape for _ in range(3)}
        seen = np.concatenate([session.run(labels) for _ in range(150)])
    assert shapes == {(8, 24, 24, 3)}
    expected = [label for name in ('a.bin', 'b.bin')
                for label in np.fromfile(tmp_path / name, np.uint8)[::3073]]
    assert {*seen} == {*expected}


@pytest.mark.parametrize('make', [
    lambda folder: distorted_inputs(folder, 8, SMALL), lambda folder: inputs(folder, 8, False)])
def test_a_missing_file_is_a_value_error_when_the_graph_is_built(tmp_path, make):
    write_small(tmp_path)
    (tmp_path / 'b.bin').unlink()
    with pytest.raises(ValueError, match=f'^{tmp_path}/b.bin is missing. Restore the file'):
        make(str(tmp_path))


def test_evaluation_needs_only_the_files_of_its_set(tmp_path):
    write_small(tmp_path, c=2)
    (tmp_path / 'a.bin').unlink()
    inputs(str(tmp_path), 2, True)


@pytest.fixture
def numbered(tmp_path):
    """The row of 100 records in two files, in `tmp_path`, with their numbers as labels."""
    for name, numbers in (('a.bin', range(65)), ('b.bin', range(65, 100))):
        (tmp_path / name).write_bytes(b''.join(bytes([k]) + bytes(3072) for k in numbers))
    return table.DataSet('row', 'row', '', SMALL.train_files, {}, classes=('x',) * 100)


def test_training_images_are_endless_and_mixed(tmp_path, numbered, capsys):
    """More images than records, with all labels, in another order than in the files."""
    images, labels = distorted_inputs(str(tmp_path), 32, numbered)
    assert images.shape.as_list() == [32, 24, 24, 3]
    assert labels.shape.as_list() == [32]
    assert 'Filling queue with 40 row images before starting to train.' in capsys.readouterr().out
    with Running() as session:
        seen = np.concatenate([session.run(labels) for _ in range(40)])
    assert set(seen) == set(range(100))
    assert np.corrcoef(seen[:-1], seen[1:])[0, 1] < 0.5


@pytest.mark.parametrize('subset, count', [('training', 2), ('all', 3)])
def test_shards_are_disjoint_and_complete(tmp_path, numbered, subset, count):
    """Record n of 100 is at place 63 n % 100; worker k has a part of these places after the tenth
    that is held out."""
    order = sorted(range(100), key=lambda n: 63 * n % 100)[10 if subset == 'training' else 0:]
    batches = [distorted_inputs(str(tmp_path), 8, numbered, subset=subset,
                                shard=(k, count))[1] for k in range(count)]
    with Running() as session:
        found = [{label for _ in range(99) for label in session.run(labels)} for labels in batches]
    sizes = {'training': [45, 45], 'all': [34, 33, 33]}[subset]
    assert list(map(len, found)) == sizes
    assert found == [set(order[sum(sizes[:k]):sum(sizes[:k + 1])]) for k in range(count)]


@pytest.mark.parametrize('labels', [
    [k % 10 for k in range(200)], [k // 20 for k in range(200)], [k % 2 for k in range(200)]],
    ids=['in turn', 'sorted', 'alternating'])
def test_parts_do_not_follow_the_order_of_the_classes(tmp_path, labels):
    """Each class has about a tenth of its images held out, and half of them in each shard."""
    (tmp_path / 'a.bin').write_bytes(b''.join(bytes([k]) + bytes(3072) for k in labels))
    row = table.DataSet('row', 'row', '', {'a.bin': 200}, {}, classes=('x',) * 10)
    keys = tf.strings.join([f'{tmp_path}/a.bin:', tf.as_string(tf.range(200))])
    for options, share in (({'subset': 'held_out'}, 10), ({'shard': (1, 2)}, 2)):
        part, = image_source.Source(row, str(tmp_path), 8, **options).selected(keys, labels)
        with tf.Session() as session:
            chosen = session.run(part)
        for label in set(labels):
            expected = labels.count(label) / share
            assert abs((chosen == label).sum() - expected) <= max(2, expected / 4)


def test_more_workers_than_records(tmp_path):
    write_small(tmp_path, a=2, b=1)
    with pytest.raises(errors.DataError, match='3 records are not enough for 4 workers'):
        distorted_inputs(str(tmp_path), 8, SMALL, shard=(3, 4))
