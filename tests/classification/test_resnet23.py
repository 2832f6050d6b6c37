from classification_lib import batch_norm, resnet23

import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


class Reference(reference.Reference):
    """The network in NumPy."""

    def logits(self, images):
        activation = relu if len(self.values['affine/biases']) == 10 else elu
        net = activation(self.normed(images.astype(np.float64), 'conv1'))
        for number in range(2, 9):
            inner = activation(self.normed(net, f'conv{number}/conv1'))
            inner = activation(self.normed(inner, f'conv{number}/conv2'))
            net = activation(self.normed(inner, f'conv{number}/conv3') + net)
            if number in (3, 5, 7):
                net = reference.pool(net)
        return net.mean(axis=(1, 2)) @ self.values['affine/weights'] + self.values['affine/biases']

    def normed(self, net, scope):
        return self.batch_norm(self.conv(net, scope + '/weights'), scope + '/bn/')


@pytest.mark.parametrize('classes, parameters, training', [
    (10, 97482, False), (100, 3415012, True)])
def test_inference_equals_numpy(classes, parameters, training):
    """Training moves the statistics: 0.9 times the old value plus 0.1 times the batch's, with the
    unbiased variance."""
    images = reference.pixels(3)
    logits = resnet23.inference(tf.constant(images), classes, training)
    assert sum(v.shape.num_elements() for v in tf.trainable_variables()) == parameters
    assert Reference.compare(
        logits, images, training, share=0.1 if training else 0.0, tolerance=1e-4) == 22


def test_batch_norm_of_blank_images():
    """All pixels of a channel are the same: the variance is 0, and not below."""
    net = tf.constant(np.full([4, 8, 8, 2], [10.1, -3.3]), tf.float32)
    normal = batch_norm.batch_norm(
        net, tf.constant([1.0, 1.0]), tf.constant([0.0, 5.0]), True, momentum=0.9, epsilon=1e-5)
    gradient, = tf.gradients(tf.reduce_sum(normal * normal), net)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, slope, _ = session.run(
            [normal, gradient, tf.get_collection(tf.GraphKeys.UPDATE_OPS)])
        moving = session.run(tf.global_variables())
    np.testing.assert_allclose(found, np.full([4, 8, 8, 2], [0.0, 5.0]), atol=0.1)
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(moving, [[1.01, -0.33], [0.9, 0.9]], rtol=1e-4)


def test_initial_values():
    """Uniform up to the square root of 6 / (inputs + outputs), each times the kernel's area."""
    resnet23.inference(tf.zeros([1, 32, 32, 3]), 10, training=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({v.op.name: v for v in tf.global_variables()})
    for name, bound in [('conv1/weights', 6 / (9 * (3 + 64))), ('affine/weights', 6 / (64 + 10)),
                        ('conv5/conv2/weights', 6 / (9 * (32 + 32)))]:
        largest, deviation = abs(values[name]).max(), values[name].std()
        assert 0.95 * bound ** 0.5 < largest <= bound ** 0.5
        np.testing.assert_allclose(deviation, (bound / 3) ** 0.5, rtol=0.1)
    for name, value in [('gamma', 1), ('beta', 0), ('moving_mean', 0), ('moving_variance', 1)]:
        assert np.array_equal(values['conv5/conv2/bn/' + name], [value] * 32)
    assert np.array_equal(values['affine/biases'], [0] * 10)


def test_a_graph_without_training_is_the_same_on_all_machines():
    """A CPU trains 1 x 1 convolutions as matrix products, which an exported model does not have."""
    resnet23.inference(tf.zeros([1, 32, 32, 3]), 10, training=False)
    types = [op.type for op in tf.get_default_graph().get_operations()]
    assert (types.count('Conv2D'), types.count('MatMul')) == (22, 1)


def rotated(image, angle, flip):
    """Mirrors an image, then rotates it counterclockwise about its centre, pixel by pixel."""
    image = (image[:, ::-1] if flip else image).astype(np.float64)
    result = np.empty_like(image)
    for row, column in np.ndindex(32, 32):
        y, x = row - 15.5, column - 15.5
        y, x = np.cos(angle) * y + np.sin(angle) * x, np.cos(angle) * x - np.sin(angle) * y
        y, x = np.clip([y + 15.5, x + 15.5], 0, 31)  # Outside, the nearest pixel of the border.
        top, left = min(int(y), 30), min(int(x), 30)
        down, right = y - top, x - left
        result[row, column] = (
            (1 - down) * ((1 - right) * image[top, left] + right * image[top, left + 1])
            + down * ((1 - right) * image[top + 1, left] + right * image[top + 1, left + 1]))
    return result


def test_distortion_equals_numpy():
    """A positive angle rotates counterclockwise, like `np.rot90`."""
    images = np.random.RandomState(0).randint(0, 256, [8, 32, 32, 3]).astype(np.uint8)
    angles = [0.25, -0.25, 0.1, -0.17, 0.0, 0.0, np.pi / 2, -np.pi / 2]
    flips = [False, False, True, True, True, False, False, True]
    result = resnet23.rotate(
        tf.constant(images), tf.constant(angles, tf.float32), tf.constant(flips))
    assert result.shape.as_list() == [8, 32, 32, 3]
    with tf.Session() as session:
        got = session.run(result)
    expected = [rotated(*each) for each in zip(images, angles, flips)]
    np.testing.assert_allclose(got, expected, atol=0.01)
    np.testing.assert_allclose(got[6], np.rot90(images[6]), atol=0.01)
    np.testing.assert_allclose(got[7], np.rot90(images[7][:, ::-1], -1), atol=0.01)


def test_angles_and_flips_are_uniform_in_their_ranges():
    """A ramp of columns shows both: its gradient turns with the image, and flips with it."""
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8)[:, np.newaxis], [4000, 32, 1, 3])
    with tf.Session() as session:
        images = session.run(resnet23.distort(tf.constant(ramp)))
    across, down = (images[:, 16, 17, 0] - images[:, 16, 15, 0],
                    images[:, 17, 16, 0] - images[:, 15, 16, 0])
    flips, angles = across < 0, np.arctan(down / across)
    assert abs(angles).max() < 0.2501
    counts, _ = np.histogram(angles, bins=10, range=(-0.2501, 0.2501))
    np.testing.assert_allclose(counts / 4000, 0.1, atol=0.024)  # Five deviations.
    assert abs(flips.mean() - 0.5) < 0.04
    assert abs(np.corrcoef(angles, flips)[0, 1]) < 0.08
