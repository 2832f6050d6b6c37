"""Records of real files become images and labels; each distortion equals TensorFlow's own."""
import numpy as np
import plain
import pytest
import record_files
import tensorflow.compat.v1 as tf

import cifar10
import cifar10_input

# A session that runs the queue runners of the default graph.
Running = tf.train.SingularMonitoredSession


def test_three_records(tmp_path):
    """One record per run, with its label and the colours of each pixel; then the end."""
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    images = [np.broadcast_to(np.array(colour, np.uint8), [32, 32, 3]).copy() for colour in colours]
    images[1][2, 5] = (7, 8, 9)
    path = tmp_path / 'three.bin'
    record_files.write(path, zip((3, 9, 0), images))
    result = cifar10_input.read_cifar10(tf.train.string_input_producer([str(path)], num_epochs=1))
    assert (result.height, result.width, result.depth) == (32, 32, 3)
    assert (result.label.shape, result.label.dtype) == ([1], tf.int32)
    assert (result.uint8image.shape, result.uint8image.dtype) == ([32, 32, 3], tf.uint8)
    found = []
    with Running() as session:  # Ends with OutOfRangeError.
        while True:
            found.append(session.run([result.key, result.label, result.uint8image]))
    assert [key.decode() for key, _, _ in found] == [f'{path}:{n}' for n in range(3)]
    assert [label.tolist() for _, label, _ in found] == [[3], [9], [0]]
    for (_, _, got), image in zip(found, images):
        np.testing.assert_array_equal(got, image)


def by_channel(images):
    """Each channel with mean 0 and norm 1; its mean and its deviation, both [count, 1, 1, 3]."""
    mean = images.mean((1, 2), keepdims=True)
    deviation = images.std((1, 2), keepdims=True)
    return (images - mean) / deviation / 24, mean, deviation


def test_distortions_equal_those_of_tf_image():
    """4,000 copies of an image of noise: what was drawn for each can be read from the result. The
    crop and the flip are those that it equals in each channel, up to a factor and a constant; the
    contrast is how much less the means of two channels differ, beside the deviations."""
    image = np.random.RandomState(0).randint(0, 200, [32, 32, 3]) + [50, 0, 0]
    with tf.Session() as session:
        found = session.run(cifar10_input.distort(
            tf.constant(np.tile(image, [4000, 1, 1, 1]), tf.uint8)))
    crops = np.stack([image[top:top + 24, left:left + 24][:, ::step].astype(np.float32)
                      for top in range(9) for left in range(9) for step in (1, -1)])
    shapes, means, deviations = by_channel(found)
    similarity = shapes.reshape(4000, -1) @ by_channel(crops)[0].reshape(162, -1).T / 3
    crops = crops[similarity.argmax(axis=1)]
    _, their_means, their_deviations = by_channel(crops)
    contrast = ((deviations[..., :1] / (means[..., :1] - means[..., 1:2]))
                / (their_deviations[..., :1] / (their_means[..., :1] - their_means[..., 1:2])))
    # tf.image.adjust_contrast and per_image_standardization.
    expected = contrast * (crops - their_means) + their_means
    expected -= expected.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, expected / expected.std((1, 2, 3), keepdims=True), atol=1e-3)

    # Each is uniform in its range, within five standard deviations.
    top, left, flip = np.unravel_index(similarity.argmax(axis=1), (9, 9, 2))
    for drawn, values in ((top, 9), (left, 9), (flip, 2)):
        share = np.bincount(drawn, minlength=values) / 4000
        np.testing.assert_allclose(share, 1 / values, atol=0.04 if values == 2 else 0.025)
    assert abs(np.corrcoef(top, left)[0, 1]) < 0.08
    assert 0.199 < contrast.min() < 0.21 and 1.79 < contrast.max() < 1.801
    assert abs(contrast.mean() - 1) < 0.04


def test_images_of_one_colour_are_distorted_to_zeros():
    """A bound avoids 0 / 0."""
    with tf.Session() as session:
        found = session.run(cifar10_input.distort(tf.fill([3, 32, 32, 3], tf.cast(100, tf.uint8))))
    np.testing.assert_allclose(found, 0, atol=5e-3)  # Rounding of 100, times 1 / the bound.


@pytest.mark.parametrize('eval_data, batch_size, counts', [
    (False, 7, (10, 3, 1, 0, 7)), (True, 8, (3,)), (True, 128, (1025,))])
def test_evaluation_reads_each_record_once_in_order(tmp_path, eval_data, batch_size, counts):
    """Records in one file, or in five that end within a batch; then again from the first. A read
    takes at most 512 records."""
    paths = [tmp_path / 'test_batch.bin']
    if not eval_data:
        paths = [tmp_path / f'data_batch_{number}.bin' for number in range(1, 6)]
    for path, count in zip(paths, counts):
        record_files.write(path, record_files.noise(count, seed=count))
    expected = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    assert cifar10_input.num_records(eval_data, str(tmp_path)) == len(expected)
    images, labels = cifar10_input.inputs(eval_data, str(tmp_path), batch_size)
    with Running() as session:
        found = [session.run([images, labels]) for _ in range(1 + 2 * len(expected) // batch_size)]
    assert {len(classes) for _, classes in found} == {batch_size}
    expected = np.resize(expected, [len(found) * batch_size, 3073])
    assert np.concatenate([each for _, each in found]).tolist() == expected[:, 0].tolist()
    np.testing.assert_allclose(
        np.concatenate([each for each, _ in found]), plain.centres(expected), atol=1e-4)


@pytest.mark.parametrize('make', [
    lambda folder: cifar10_input.distorted_inputs(data_dir=folder, batch_size=8),
    lambda folder: cifar10_input.inputs(eval_data=True, data_dir=folder, batch_size=8),
    lambda folder: cifar10.distorted_inputs(), lambda folder: cifar10.inputs(eval_data=False)])
def test_calls_as_the_tutorial_makes_them(half_bright, make):
    """Of class 0, the upper half is bright. TensorBoard gets three images."""
    images, labels = make(str(half_bright))
    assert (images.dtype, images.shape.as_list()) == (tf.float32, [8, 24, 24, 3])
    assert (labels.dtype, labels.shape.as_list()) == (tf.int32, [8])
    summary = tf.summary.merge_all()
    with Running() as session:
        found, classes, shown = session.run([images, labels, summary])
    upper, lower = found[:, :12].mean((1, 2, 3)), found[:, 12:].mean((1, 2, 3))
    assert (upper > lower).tolist() == (classes == 0).tolist()
    np.testing.assert_allclose(found.std((1, 2, 3)), 1, atol=1e-3)
    shown = {each.tag: (each.image.height, each.image.width)
             for each in tf.Summary.FromString(shown).value if each.HasField('image')}
    assert shown == {f'input/images/image/{number}': (24, 24) for number in range(3)}


def test_a_missing_file(half_bright):
    """Evaluation on the test set needs only its file."""
    (half_bright / 'data_batch_3.bin').unlink()
    cifar10_input.inputs(True, str(half_bright), 1)
    with pytest.raises(FileNotFoundError, match='Failed to find file: .*data_batch_3.bin'):
        cifar10_input.distorted_inputs(str(half_bright), 1)
    with pytest.raises(FileNotFoundError):
        cifar10_input.inputs(False, str(half_bright), 1)


def test_the_name_of_a_set(tmp_path):
    """As the tutorial's flag has it. Any other text would count as true."""
    record_files.write(tmp_path / 'test_batch.bin', [(7, np.zeros([32, 32, 3], np.uint8))])
    for number in range(1, 6):
        record_files.write(
            tmp_path / f'data_batch_{number}.bin', [(2, np.zeros([32, 32, 3], np.uint8))])
    batches = [cifar10_input.inputs(name, str(tmp_path), 1) for name in ('test', 'train_eval')]
    with tf.train.SingularMonitoredSession() as session:
        assert [session.run(labels).tolist() for _, labels in batches] == [[7], [2]]
    with pytest.raises(TypeError, match="eval_data is 'train'; expected"):
        cifar10_input.inputs('train', str(tmp_path), 1)


def test_inputs_of_a_tower_are_on_the_cpu(half_bright):
    """Queues and readers have no GPU kernel, and cannot be placed anywhere else."""
    with tf.device('/gpu:0'):
        cifar10.distorted_inputs()
        cifar10.inputs('test')
    assert {op.device for op in tf.get_default_graph().get_operations()} == {'/device:CPU:0'}


def test_training_images_are_endless_and_mixed(tmp_path, monkeypatch, capsys):
    """A hundred records with their numbers as labels: all come, in another order than in the
    files, and again. The queue is 0.4 of the constant's images long."""
    for i in range(5):
        (tmp_path / f'data_batch_{i + 1}.bin').write_bytes(b''.join(
            bytes([k]) + bytes(3072) for k in range(20 * i, 20 * i + 20)))
    monkeypatch.setattr(cifar10_input, 'NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN', 100)
    _, labels = cifar10_input.distorted_inputs(str(tmp_path), 32)
    assert capsys.readouterr().out == (
        'Filling queue with 40 CIFAR images before starting to train.\n')
    with Running() as session:
        seen = np.concatenate([session.run(labels) for _ in range(40)])
    assert set(seen) == set(range(100))
    assert np.corrcoef(seen[:-1], seen[1:])[0, 1] < 0.5


@pytest.mark.parametrize('shuffle', [False, True])
def test_an_input_of_single_records(half_bright, shuffle):
    """The tutorial's own `distorted_inputs` and `inputs` consist of these calls."""
    paths = cifar10_input.record_files(False, str(half_bright))
    read = cifar10_input.read_cifar10(tf.train.string_input_producer(paths, shuffle=False))
    image = cifar10_input.crop_and_standardize(read.uint8image)
    images, labels = cifar10_input._generate_image_and_label_batch(
        image=image, label=read.label, min_queue_examples=20, batch_size=8, shuffle=shuffle,
        num_preprocess_threads=1)
    assert (images.shape, labels.shape) == ([8, 24, 24, 3], [8])
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    centres = plain.centres(records)
    with Running() as session:
        found, classes = session.run([images, labels])
    order = [abs(centres - each).max((1, 2, 3)).argmin() for each in found]
    assert (order == list(range(8))) == (not shuffle)
    np.testing.assert_allclose(found, centres[order], atol=1e-4)
    assert classes.tolist() == records[order, 0].tolist()
