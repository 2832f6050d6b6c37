import collections

from classification_lib import airbench94

import numpy as np
import reference
import tensorflow.compat.v1 as tf

MEAN, DEVIATION = np.array([125.307, 122.95, 113.865]), np.array([62.993, 62.089, 66.705])


class Reference(reference.Reference):
    """The network in NumPy, for one copy of the images."""

    def logits(self, images):
        net = (images - MEAN) / DEVIATION
        weights = self.values['whitening/weights']
        net = sum(net[:, i:i + 31, j:j + 31] @ weights[i, j] for i in (0, 1) for j in (0, 1))
        net = np.maximum(net + self.values['whitening/biases'], 0)
        for group in ('group1', 'group2', 'group3'):
            net = reference.pool(self.conv(net, group + '/conv1/weights'))
            net = np.maximum(self.batch_norm(net, group + '/conv1/bn/'), 0)
            net = self.conv(net, group + '/conv2/weights')
            net = np.maximum(self.batch_norm(net, group + '/conv2/bn/'), 0)
        return net.max(axis=(1, 2)) @ self.values['linear/weights'] / 9


def test_training_equals_numpy_and_moves_the_statistics():
    """0.6 times the old value plus 0.4 times the batch's, with the unbiased variance."""
    images = reference.pixels(3)
    logits = airbench94.inference(tf.constant(images), 10, training=True)
    assert sum(v.shape.num_elements() for v in tf.trainable_variables()) == 1971352
    assert Reference.compare(logits, images, training=True, share=0.4, tolerance=1e-3) == 6


def test_inference_is_the_mean_over_six_copies():
    """Of batches of any size; copies are moved by NumPy's padding, one pixel down or up."""
    fed = tf.placeholder(tf.float32, [None, 32, 32, 3])
    logits = airbench94.inference(fed, 7, training=False)
    assert logits.shape.as_list() == [None, 7]
    assert not tf.get_collection('losses')
    images = reference.pixels(3)
    with tf.Session() as session:
        ours = Reference(reference.load_noise(session), training=False)
        got = session.run(logits, {fed: images})
        one = session.run(logits, {fed: images[1:2]})
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)], mode='reflect')
    expected = 0
    for copy, weight in ((images, 0.25), (padded[:, :32, :32], 0.125), (padded[:, 2:, 2:], 0.125)):
        expected += weight * ours.logits(copy)
        expected += weight * ours.logits(copy[:, :, ::-1])
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * abs(expected).max())
    np.testing.assert_allclose(one, expected[1:2], rtol=1e-3, atol=1e-4 * abs(expected).max())


def test_initial_values():
    """The first outputs of a convolution are its inputs."""
    airbench94.inference(tf.zeros([1, 32, 32, 3]), 10, training=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run({v.op.name: v for v in tf.global_variables()})
    for layer in [f'group{i}/conv{j}/weights' for i in (1, 2, 3) for j in (1, 2)]:
        weights = values.pop(layer)
        inputs, outputs = weights.shape[2:]
        identity = np.zeros([3, 3, inputs, inputs])
        identity[1, 1] = np.eye(inputs)
        np.testing.assert_array_equal(weights[..., :inputs], identity)
        if outputs > inputs:
            rest, bound = weights[..., inputs:], 1 / (9 * inputs) ** 0.5
            assert rest.shape == (3, 3, inputs, outputs - inputs)
            assert 0.99 * bound < abs(rest).max() <= bound
            np.testing.assert_allclose(rest.std(), bound / 3 ** 0.5, rtol=0.05)
    linear = values.pop('linear/weights')
    assert 0.98 / 16 < abs(linear).max() <= 1 / 16  # 256 inputs.
    for name, value in values.items():
        assert np.all(value == name.endswith('variance')), name


def test_whitened_patches_have_unit_covariance():
    """Of 50 images that are smooth along columns, rougher along rows, with similar channels."""
    noise = np.random.RandomState(0).normal(size=[50, 3, 33, 35])
    noise[:, 1] += 2 * noise[:, 0]
    noise = noise[:, :, 1:] + 0.3 * noise[:, :, :-1]
    noise = noise[..., 3:] + noise[..., 2:-1] + noise[..., 1:-2] + noise[..., :-3]
    pixels = np.clip(110 + 15 * noise, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    weights = airbench94.initial_values(pixels)['whitening/weights']
    assert weights.shape == (2, 2, 3, 24) and weights.dtype == np.float32
    images = (pixels - MEAN) / DEVIATION
    with tf.Session() as session:
        outputs = session.run(tf.nn.conv2d(
            tf.constant(images, tf.float32), tf.constant(weights), strides=1, padding='VALID'))
    outputs = outputs.reshape(-1, 24)
    np.testing.assert_allclose(outputs[:, 12:], -outputs[:, :12], atol=1e-4)
    covariance = outputs[:, :12].T @ outputs[:, :12] / len(outputs)
    # An eigenvalue e becomes e / (e + 5e-4); those of these patches are above 0.009.
    assert 0.94 < np.diag(covariance).min() < np.diag(covariance).max() <= 1.001
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-3)


def test_blank_images_are_whitened_too():
    """Their patches span one dimension. In float32, the other eigenvalues were below -5e-4."""
    pixels = np.full([600, 32, 32, 3], 255, np.uint8)
    pixels[300:, 5:7, 9:11] = 0
    for images in (pixels, pixels[:300]):
        weights = airbench94.initial_values(images)['whitening/weights']
        assert np.isfinite(weights).all()
        # All directions but those of the patches are multiplied by 1 / sqrt(5e-4).
        assert abs(np.linalg.norm(weights.reshape(12, 24), axis=0)).max() < 44.73


def test_distortion_moves_reflects_and_mirrors():
    """Each of 25 places and two directions is as likely as the others, for each image."""
    image = np.random.RandomState(0).randint(0, 256, [32, 32, 3]).astype(np.uint8)
    padded = np.pad(image, [(2, 2), (2, 2), (0, 0)], mode='reflect')
    moved = [padded[row:row + 32, column:column + 32] for row, column in np.ndindex(5, 5)]
    expected = {each.astype(np.float32).tobytes()
                for each in moved + [each[:, ::-1] for each in moved]}
    assert len(expected) == 50
    with tf.Session() as session:
        images = session.run(airbench94.distort(tf.constant(np.tile(image, [3001, 1, 1, 1]))))
    counts = collections.Counter(each.tobytes() for each in images)
    assert set(counts) == expected
    np.testing.assert_allclose(list(counts.values()), 3001 / 50, atol=39)  # Five deviations.


def test_weight_decay():
    """0.00133 / 2 times the squares, but for biases of batch norms, which learn faster, a 64th."""
    with tf.name_scope('tower_0'):
        airbench94.inference(tf.zeros([1, 32, 32, 3]), 10, training=True)
    losses = tf.get_collection('losses', 'tower_0/')
    assert len(losses) == len(tf.trainable_variables()) == 14
    with tf.Session() as session:
        values = reference.load_noise(session)
        got = dict(zip([loss.op.name for loss in losses], session.run(losses)))
    for name, rate in [('group2/conv1/weights', 0.00133), ('whitening/biases', 0.00133),
                       ('group3/conv2/bn/beta', 0.00133 / 64), ('linear/weights', 0.00133)]:
        layer = name.rpartition('/')[0]
        np.testing.assert_allclose(got[f'tower_0/{layer}/weight_decay'],
                                   rate / 2 * np.square(values[name]).sum(), rtol=1e-4)


def test_optimizer(tmp_path):
    """Each step in NumPy, with Nesterov's momentum as in `tf.train.MomentumOptimizer`.

    The loss is half of the squares of two variables, so the gradient of each is its value. After 3
    and 5 steps, the run is stopped and resumes.
    """
    values, path = [], str(tmp_path / 'model')
    for last_step in (3, 5, 14):
        with tf.Graph().as_default(), tf.Session() as session:
            weights = tf.get_variable(
                'conv/weights', initializer=[[1.0, -2.0, 3.0]], use_resource=True)
            beta = tf.get_variable('conv/bn/beta', initializer=[4.0], use_resource=True)
            tf.get_variable('unused', initializer=[5.0], use_resource=True)
            counter = tf.train.create_global_step()
            rate = airbench94.learning_rate(counter, 12, peak=0.01)
            train_op = airbench94.Optimizer(rate, max_steps=12).minimize(
                tf.nn.l2_loss(weights) + tf.nn.l2_loss(beta), counter)
            saver = tf.train.Saver()
            session.run(tf.global_variables_initializer())
            if values:
                saver.restore(session, path)
            while len(values) < last_step:
                session.run(train_op)
                values.append(session.run({v.op.name: v for v in tf.global_variables()}))
            saver.save(session, path)
    expected = {'conv/weights': np.array([[1.0, -2.0, 3.0]]), 'conv/bn/beta': np.array([4.0])}
    momentum = {name: np.zeros_like(value) for name, value in expected.items()}
    slow = dict(momentum)
    for step in range(1, 15):
        done = (step - 1) / 12
        rate = 0.01 * min(0.2 + 0.8 * done / 0.23, 1 - 0.93 * (done - 0.23) / 0.77)
        for name, factor in (('conv/weights', 1), ('conv/bn/beta', 64)):
            gradient = factor * expected[name]
            momentum[name] = 0.85 * momentum[name] + gradient
            expected[name] = expected[name] - rate * (gradient + 0.85 * momentum[name])
            if step == 5:
                slow[name] = expected[name]
            elif step in (10, 12):
                decay = 0.95 ** 5 * (step / 12) ** 3
                slow[name] = decay * slow[name] + (1 - decay) * expected[name]
                expected[name] = slow[name]
            after = values[step - 1]
            for suffix, wanted in (('', expected), ('/Lookahead', slow), ('/Momentum', momentum)):
                np.testing.assert_allclose(after[name + suffix], wanted[name], rtol=1e-4, atol=1e-6)
        assert after['global_step'] == step
        assert after['unused'] == 5 and 'unused/Lookahead' not in after
    assert np.array_equal(values[11]['conv/weights'], values[11]['conv/weights/Lookahead'])
    assert not np.array_equal(values[12]['conv/weights'], values[12]['conv/weights/Lookahead'])
