"""Layers in NumPy, beside which the networks with batch norm are tested."""
import numpy as np
import tensorflow.compat.v1 as tf


class Reference:
    """The layers of a network with these values of its variables, for training or inference.

    Attributes:
        values: {name of a variable: its value}.
        statistics: {scope of a batch norm: mean and unbiased variance of each channel's input}.
    """

    def __init__(self, values, training):
        self.values = {name: value.astype(np.float64) for name, value in values.items()}
        self.training, self.statistics = training, {}

    def conv(self, net, name):
        """A convolution with the weights of this name, at each place of a padded image."""
        weights = self.values[name]
        size = len(weights)
        _, height, width, _ = net.shape
        padded = np.pad(net, [(0, 0), (size // 2, size // 2), (size // 2, size // 2), (0, 0)])
        return sum(padded[:, i:i + height, j:j + width] @ weights[i, j]
                   for i in range(size) for j in range(size))

    def batch_norm(self, net, scope):
        """With a scale, if the network has one."""
        mean, variance = net.mean(axis=(0, 1, 2)), net.var(axis=(0, 1, 2))
        self.statistics[scope] = mean, net.var(axis=(0, 1, 2), ddof=1)
        if not self.training:
            mean = self.values[scope + 'moving_mean']
            variance = self.values[scope + 'moving_variance']
        net = (net - mean) / np.sqrt(variance + 1e-5)
        return net * self.values.get(scope + 'gamma', 1.0) + self.values[scope + 'beta']

    @classmethod
    def compare(cls, logits, images, training, share, tolerance):
        """Checks a graph's logits of images, and that of all variables only the statistics move, by
        this share of the batch's. Returns the number of batch norms."""
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.Session() as session:
            ours = cls(load_noise(session), training)
            got, _ = session.run([logits, updates])
            moved = session.run({v.op.name: v for v in tf.global_variables()})
        expected = ours.logits(images)
        np.testing.assert_allclose(
            got, expected, rtol=tolerance, atol=tolerance * abs(expected).max())
        for scope, (mean, variance) in ours.statistics.items():
            for name, new in (('moving_mean', mean), ('moving_variance', variance)):
                updated = (1 - share) * ours.values[scope + name] + share * new
                np.testing.assert_allclose(
                    moved.pop(scope + name), updated, rtol=1e-3, atol=1e-3 * abs(new).max())
        for name, value in moved.items():
            np.testing.assert_array_equal(value, ours.values[name].astype(np.float32))
        return len(ours.statistics)


def pool(net):
    """The largest of each 2 x 2 values."""
    net = net[:, :net.shape[1] // 2 * 2, :net.shape[2] // 2 * 2]
    return np.max([net[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=0)


def load_noise(session):
    """Sets every variable to random values, positive ones for scales; returns them by name."""
    random = np.random.RandomState(0)
    values = {}
    for variable in tf.global_variables():
        value = random.normal(scale=0.1, size=variable.shape.as_list())
        if variable.op.name.endswith(('gamma', 'moving_variance')):
            value = 0.5 + abs(value)
        variable.load(value, session)
        values[variable.op.name] = value
    return values


def pixels(batch):
    """Noise, float32 [batch, 32, 32, 3], 0 to 255."""
    return np.random.RandomState(1).randint(0, 256, [batch, 32, 32, 3]).astype(np.float32)
