import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import cifar10
from cifar10_lib.nets import local
from cifar10_lib import recipes


def plain(net, weights):
    """The layer in NumPy, one position and one neighbour at a time."""
    height, width, rows, columns, _, filters = weights.shape
    result = np.zeros([len(net), height, width, filters])
    for y, x, row, column in np.ndindex(height, width, rows, columns):
        from_y, from_x = y + row - rows // 2, x + column - columns // 2
        if 0 <= from_y < height and 0 <= from_x < width:
            result[:, y, x] += net[:, from_y, from_x] @ weights[y, x, row, column]
    return result


@pytest.mark.parametrize('batch, height, width, rows, columns, channels, filters', [
    (3, 5, 7, 3, 3, 4, 2), (2, 4, 3, 1, 5, 1, 3), (1, 1, 1, 3, 3, 2, 2), (5, 2, 9, 5, 3, 3, 1)])
def test_equals_plain_numpy(batch, height, width, rows, columns, channels, filters):
    """With a different size for each axis."""
    random = np.random.RandomState(1)
    net = random.normal(size=[batch, height, width, channels]).astype(np.float32)
    weights = random.normal(
        size=[height, width, rows, columns, channels, filters]).astype(np.float32)
    fed = tf.placeholder(tf.float32, [None, height, width, channels])
    result = local.locally_connected(fed, tf.constant(weights))
    with tf.Session() as session:
        got = session.run(result, {fed: net})
    np.testing.assert_allclose(got, plain(net, weights), atol=1e-5)


def test_a_layer_adds_its_biases_applies_relu_and_decays_its_weights():
    """With zero weights, the result is relu(bias) at each position."""
    result = local.layer(tf.ones([2, 3, 4, 5]), 'layer', 6, lambda *_: None)
    weights, biases = tf.trainable_variables()
    decay, = tf.get_collection('losses')
    assert weights.shape.as_list() == [3, 4, 3, 3, 5, 6]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert (session.run(biases) == np.float32(0.1)).all()
        assert 0.03 < session.run(weights).std() < 0.04  # Truncated at two standard deviations.
        weights.load(np.ones(weights.shape, np.float32), session)
        np.testing.assert_allclose(session.run(decay), 0.004 * (3 * 4 * 9 * 5 * 6) / 2, rtol=1e-6)
        values = np.random.RandomState(1).normal(size=[3, 4, 6]).astype(np.float32)
        biases.load(values, session)
        weights.load(np.zeros(weights.shape, np.float32), session)
        np.testing.assert_array_equal(session.run(result), [np.maximum(values, 0)] * 2)


def test_the_net():
    """conv1 25 x 3 x 64 + 64 and conv2 25 x 64 x 64 + 64, as in the tutorial; 36 positions of
    9 x 64 x 64 + 64 and of 9 x 64 x 32 + 32; 36 x 32 x 10 + 10."""
    logits = recipes.TABLE['local'].inference(tf.zeros([7, 24, 24, 3]), training=True)
    assert logits.shape.as_list() == [7, 10]
    counts = {variable.op.name: variable.shape.num_elements()
              for variable in tf.trainable_variables()}
    assert counts == {
        'conv1/weights': 4800, 'conv1/biases': 64, 'conv2/weights': 102400, 'conv2/biases': 64,
        'local3/weights': 1327104, 'local3/biases': 2304,
        'local4/weights': 663552, 'local4/biases': 1152,
        'softmax_linear/weights': 11520, 'softmax_linear/biases': 10}
    assert sum(counts.values()) == 2112970
    assert sorted(loss.op.name for loss in tf.get_collection('losses')) == [
        'local3/weight_loss', 'local4/weight_loss']
    assert all(variable.device == '/device:CPU:0' for variable in tf.trainable_variables())


@pytest.mark.parametrize('precision', [{}, {'use_fp16': True}, {'use_bf16': True}])
def test_the_net_learns(precision):
    """It memorises eight images at a tenth of the tutorial's learning rate."""
    images = np.random.RandomState(1).normal(size=[8, 24, 24, 3]).astype(np.float32)
    with flagsaver.flagsaver(learning_rate=0.01, **precision):
        recipe = recipes.TABLE['local']
        loss = cifar10.loss(recipe.inference(tf.constant(images), training=True), tf.range(8))
        train_op = cifar10.train(loss, tf.train.get_or_create_global_step(), recipe)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train_op])[0] for _ in range(30)]
    assert losses[-1] < losses[0] - 0.3, losses
