import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10_lib.nets import resnet


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


class Reference:
    """The network in NumPy, layer by layer; keeps the statistics of the batch.

    Attributes:
        values: {name of a variable: its value}.
        statistics: {scope of a batch norm: mean and unbiased variance of each channel's input}.
    """

    def __init__(self, values, activation, training):
        self.values = {name: value.astype(np.float64) for name, value in values.items()}
        self.activation, self.training, self.statistics = activation, training, {}

    def logits(self, images):
        net = self.activation(self.conv(images.astype(np.float64), 'conv1'))
        for number in range(2, 9):
            net = self.unit(net, f'conv{number}')
            if number in (3, 5, 7):
                net = self.pool(net)
        return net.mean(axis=(1, 2)) @ self.values['affine/weights'] + self.values['affine/biases']

    def unit(self, net, scope):
        inner = self.activation(self.conv(net, scope + '/conv1'))
        inner = self.activation(self.conv(inner, scope + '/conv2'))
        return self.activation(self.conv(inner, scope + '/conv3') + net)

    def conv(self, net, scope):
        weights = self.values[scope + '/weights']
        size = len(weights)
        _, height, width, _ = net.shape
        padded = np.pad(net, [(0, 0), (size // 2, size // 2), (size // 2, size // 2), (0, 0)])
        net = sum(padded[:, i:i + height, j:j + width] @ weights[i, j]
                  for i in range(size) for j in range(size))
        return self.batch_norm(net, scope + '/bn/')

    def batch_norm(self, net, scope):
        mean, variance = net.mean(axis=(0, 1, 2)), net.var(axis=(0, 1, 2))
        self.statistics[scope] = mean, net.var(axis=(0, 1, 2), ddof=1)
        if not self.training:
            mean = self.values[scope + 'moving_mean']
            variance = self.values[scope + 'moving_variance']
        net = (net - mean) / np.sqrt(variance + 1e-5)
        return net * self.values[scope + 'gamma'] + self.values[scope + 'beta']

    @staticmethod
    def pool(net):
        net = net[:, :net.shape[1] // 2 * 2, :net.shape[2] // 2 * 2]
        return np.max([net[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)


def load_noise(session):
    """Sets every variable to random values, positive ones for variances; returns them."""
    random = np.random.RandomState(0)
    values = {}
    for variable in tf.global_variables():
        value = random.normal(scale=0.1, size=variable.shape.as_list())
        if variable.op.name.endswith(('gamma', 'moving_variance')):
            value = 0.5 + abs(value)
        variable.load(value, session)
        values[variable.op.name] = value
    return values


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('classes, activation', [(10, relu), (100, elu)])
def test_inference_equals_numpy(classes, activation, training):
    """The whole network with random variables, on pixels from 0 to 255."""
    images = np.random.RandomState(1).randint(0, 256, [3, 32, 32, 3]).astype(np.float32)
    logits = resnet.inference(tf.constant(images), classes, training)
    with tf.Session() as session:
        values = load_noise(session)
        got = session.run(logits)
    expected = Reference(values, activation, training).logits(images)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())


@pytest.mark.parametrize('classes, parameters', [(10, 97482), (11, 97482 + 65), (100, 3415012)])
def test_number_of_parameters(classes, parameters):
    resnet.inference(tf.zeros([1, 32, 32, 3]), classes, training=True)
    assert sum(v.shape.num_elements() for v in tf.trainable_variables()) == parameters
    others = set(tf.global_variables()) - set(tf.trainable_variables())
    assert {v.op.name.split('/')[-1] for v in others} == {'moving_mean', 'moving_variance'}
    assert len(others) == 2 * 22


def test_names_and_initial_values():
    """Uniform up to the square root of 6 / (inputs + outputs), each times the kernel's area."""
    resnet.inference(tf.zeros([1, 32, 32, 3]), 10, training=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({v.op.name: v for v in tf.global_variables()})
    assert list(values)[:6] == [
        'conv1/weights', 'conv1/bn/gamma', 'conv1/bn/beta', 'conv1/bn/moving_mean',
        'conv1/bn/moving_variance', 'conv2/conv1/weights']
    assert list(values)[-3:] == [
        'conv8/conv3/bn/moving_variance', 'affine/weights', 'affine/biases']
    for name, bound in [('conv1/weights', 6 / (9 * (3 + 64))), ('affine/weights', 6 / (64 + 10)),
                        ('conv5/conv2/weights', 6 / (9 * (32 + 32)))]:
        largest, deviation = abs(values[name]).max(), values[name].std()
        assert 0.95 * bound ** 0.5 < largest <= bound ** 0.5
        np.testing.assert_allclose(deviation, (bound / 3) ** 0.5, rtol=0.1)
    for name, value in [('gamma', 1), ('beta', 0), ('moving_mean', 0), ('moving_variance', 1)]:
        assert np.array_equal(values['conv5/conv2/bn/' + name], [value] * 32)
    assert np.array_equal(values['affine/biases'], [0] * 10)


def test_moving_statistics_after_one_update():
    """0.9 times the old value plus 0.1 times the batch's, with the unbiased variance."""
    images = np.random.RandomState(1).normal(size=[3, 32, 32, 3]).astype(np.float32)
    logits = resnet.inference(tf.constant(images), 10, training=True)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.Session() as session:
        values = load_noise(session)
        session.run([logits, updates])
        moved = session.run({v.op.name: v for v in tf.global_variables()})
    reference = Reference(values, relu, training=True)
    reference.logits(images)
    assert len(reference.statistics) == 22
    for scope, (mean, variance) in reference.statistics.items():
        np.testing.assert_allclose(
            moved.pop(scope + 'moving_mean'), 0.9 * values[scope + 'moving_mean'] + 0.1 * mean,
            rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            moved.pop(scope + 'moving_variance'),
            0.9 * values[scope + 'moving_variance'] + 0.1 * variance, rtol=1e-4)
    for name, value in moved.items():
        np.testing.assert_array_equal(value, values[name].astype(np.float32))


@pytest.mark.parametrize('dtype, tolerance', [(tf.float16, 0.01), (tf.bfloat16, 0.05)])
def test_half_precision(dtype, tolerance):
    """The results are nearly the same; variables and logits stay float32."""
    images = tf.constant(np.random.RandomState(1).randint(0, 256, [5, 32, 32, 3]), tf.float32)
    logits = [resnet.inference(images, 10, training=True)]
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        logits.append(resnet.inference(images, 10, training=True, dtype=dtype))
    assert logits[1].dtype == tf.float32
    assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32}
    assert any(tensor.dtype == dtype for op in tf.get_default_graph().get_operations()
               if op.type == 'Conv2D' for tensor in op.outputs)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected, got = session.run(logits)
    np.testing.assert_allclose(got, expected, atol=tolerance * abs(expected).max())
    assert not np.array_equal(got, expected)


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


def test_augmentation_equals_numpy():
    """A positive angle rotates counterclockwise, like `np.rot90`."""
    images = np.random.RandomState(0).randint(0, 256, [8, 32, 32, 3]).astype(np.uint8)
    angles = [0.25, -0.25, 0.1, -0.17, 0.0, 0.0, np.pi / 2, -np.pi / 2]
    flips = [False, False, True, True, True, False, False, True]
    result = resnet.augment(
        tf.constant(images), tf.constant(angles, tf.float32), tf.constant(flips))
    assert result.shape.as_list() == [8, 32, 32, 3]
    with tf.Session() as session:
        got = session.run(result)
    expected = [rotated(*each) for each in zip(images, angles, flips)]
    np.testing.assert_allclose(got, expected, atol=0.01)
    np.testing.assert_array_equal(got[4], images[4][:, ::-1])
    np.testing.assert_array_equal(got[5], images[5])
    np.testing.assert_allclose(got[6], np.rot90(images[6]), atol=0.01)
    np.testing.assert_allclose(got[7], np.rot90(images[7][:, ::-1], -1), atol=0.01)


def test_angles_and_flips_are_uniform_in_their_ranges():
    """A ramp of columns shows both: its gradient turns with the image, and flips with it."""
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8)[:, np.newaxis], [4000, 32, 1, 3])
    with tf.Session() as session:
        images = session.run(resnet.augment(tf.constant(ramp)))
    across, down = (images[:, 16, 17, 0] - images[:, 16, 15, 0],
                    images[:, 17, 16, 0] - images[:, 15, 16, 0])
    flips, angles = across < 0, np.arctan(down / across)
    assert abs(angles).max() < 0.2501
    counts, _ = np.histogram(angles, bins=10, range=(-0.2501, 0.2501))
    np.testing.assert_allclose(counts / 4000, 0.1, atol=0.024)  # Five deviations.
    assert abs(flips.mean() - 0.5) < 0.04
    assert abs(np.corrcoef(angles, flips)[0, 1]) < 0.08


def test_augment_draws_for_each_image_and_run():
    image = np.random.RandomState(0).randint(0, 256, [32, 32, 3]).astype(np.uint8)
    fed = tf.placeholder(tf.uint8, [None, 32, 32, 3])
    augmented = resnet.augment(fed)
    assert augmented.dtype == tf.float32
    assert augmented.shape.as_list() == [None, 32, 32, 3]
    with tf.Session() as session:
        images = np.concatenate([session.run(augmented, {fed: [image] * 4}) for _ in range(2)])
    assert len(np.unique(images.reshape(8, -1), axis=0)) == 8
