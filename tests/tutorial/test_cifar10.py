"""The network, its loss and its step, beside values worked out by hand and TensorFlow's own
operations."""
import numpy as np
import plain
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

import cifar10

IMAGES = np.random.RandomState(3).normal(size=[13, 24, 24, 3]).astype(np.float32)
LABELS = np.random.RandomState(4).randint(0, 10, 13).astype(np.int32)


def build():
    """(logits, total loss) of the network on 13 images, with labels of another integer type."""
    logits = cifar10.inference(tf.constant(IMAGES))
    return logits, cifar10.loss(logits, tf.constant(LABELS, tf.uint8))


def load(session, values):
    for variable in tf.trainable_variables():
        variable.load(values[variable.op.name], session)


def test_published_constants():
    assert (cifar10.IMAGE_SIZE, cifar10.NUM_CLASSES) == (24, 10)
    assert cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN == 50000
    assert cifar10.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL == 10000
    assert (cifar10.MOVING_AVERAGE_DECAY, cifar10.NUM_EPOCHS_PER_DECAY) == (0.9999, 350.0)
    assert (cifar10.LEARNING_RATE_DECAY_FACTOR, cifar10.INITIAL_LEARNING_RATE) == (0.1, 0.1)
    assert cifar10.TOWER_NAME == 'tower'
    assert cifar10.DATA_URL == 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'


def test_variables_and_their_first_values():
    build()
    variables = {variable.op.name: variable for variable in tf.trainable_variables()}
    assert {name: variable.shape.as_list() for name, variable in variables.items()} == plain.SHAPES
    assert sum(variable.shape.num_elements() for variable in variables.values()) == 1068298
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run(variables)
    # Truncation at two standard deviations leaves 0.88 of the standard deviation.
    for name, stddev in [('conv1', 5e-2), ('conv2', 5e-2), ('local3', 0.04), ('local4', 0.04),
                         ('softmax_linear', 1 / 192)]:
        weights = values[name + '/weights']
        np.testing.assert_allclose(weights.std(), 0.88 * stddev, rtol=0.05)
        assert abs(weights).max() <= 2 * stddev
    for name, bias in [('conv1', 0.0), ('conv2', 0.1), ('local3', 0.1), ('local4', 0.1),
                       ('softmax_linear', 0.0)]:
        assert set(values[name + '/biases']) == {np.float32(bias)}


def test_equals_the_plain_network():
    """Logits, loss and all gradients with the same weights."""
    logits, loss = build()
    values = plain.weights(seed=5, scale=2.0)
    constants = {name: tf.constant(value) for name, value in values.items()}
    plain_logits = plain.logits(tf.constant(IMAGES), constants)
    plain_loss = plain.loss(plain_logits, LABELS, constants)
    pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
    names = [variable.op.name for _, variable in pairs]
    with tf.Session() as session:
        load(session, values)
        ours = session.run([logits, loss, [gradient for gradient, _ in pairs]])
        expected = session.run([plain_logits, plain_loss, tf.gradients(
            plain_loss, [constants[name] for name in names])])
    assert abs(expected[0]).max() > 0.5  # Not all zero.
    np.testing.assert_allclose(ours[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(ours[1], expected[1], atol=1e-5)
    for name, got, gradient in zip(names, ours[2], expected[2]):
        assert abs(got - gradient).max() <= 1e-4 * abs(gradient).max(), name


@pytest.mark.parametrize('images_per_step, decay_steps', [(128, 136718), (256, 68359)])
def test_the_learning_rate(images_per_step, decay_steps):
    """A tenth after each 350 epochs of 50,000 images: 136718.75 steps of 128, 68359.375 of 256."""
    step = tf.placeholder(tf.int64, [])
    rate = cifar10.learning_rate(step, images_per_step)
    with tf.Session() as session:
        # TensorFlow multiplies by 1 / decay_steps: a product just below 1 falls a step later.
        rates = [session.run(rate, {step: value})
                 for value in (0, decay_steps - 1, decay_steps + 1, 2 * decay_steps + 1)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.001], rtol=1e-5)


@pytest.mark.parametrize('use_resource', [True, False])
@pytest.mark.parametrize('step_type', [tf.int64, tf.float32])
def test_the_update_and_the_average_by_hand(step_type, use_resource):
    """The loss 2 w at rate 0.1: w = 1, 0.8, 0.6, ...; the average then moves by 1 - decay.

    decay is (1 + step) / (10 + step) as long as that is below 0.9999, with the step that was made.
    So does the average of a batch norm's statistic, which another operation updates.
    """
    with tf.variable_scope('layer'):
        variable = cifar10._variable_on_cpu('weights', [1], tf.constant_initializer(1.0))
    statistic = tf.get_variable('statistic', initializer=[1.0], trainable=False)
    tf.add_to_collection(tf.GraphKeys.MOVING_AVERAGE_VARIABLES, statistic)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(statistic, [0.2]))
    step = tf.Variable(tf.cast(0, step_type), trainable=False, use_resource=use_resource)
    tf.add_to_collection('losses', tf.identity(2 * variable[0], name='twice'))
    train_op = cifar10.train(tf.add_n(tf.get_collection('losses'), name='total_loss'), step)
    averages = [v for v in tf.global_variables() if v.op.name.endswith(plain.AVERAGE)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = 1.0
        for made, weight in enumerate([0.8, 0.6, 0.4, 0.2], start=1):
            session.run(train_op)
            decay = (1 + made) / (10 + made)
            expected = decay * expected + (1 - decay) * weight
            got = session.run([variable, averages, step])
            np.testing.assert_allclose(got[0], [weight], atol=1e-6)
            np.testing.assert_allclose(got[1], [[expected], [expected]], atol=1e-6)
            assert got[2] == made


def test_loss_averages_by_hand():
    """As in the tutorial, from 0: 0.9 of the average plus 0.1 of the value; and the raw value."""
    value = tf.placeholder(tf.float32, [], name='cross_entropy')
    tf.add_to_collection('losses', value)
    tf.add_to_collection('losses', tf.constant(10.0, name='local3/weight_loss'))
    total_loss = tf.add_n(tf.get_collection('losses'), name='total_loss')
    update = cifar10._add_loss_summaries(total_loss=total_loss)
    summary = tf.summary.merge_all()
    shown = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for fed in (4.0, 2.0, 1.0):
            session.run(update, {value: fed})
            text = session.run(summary, {value: fed})
            shown.append({v.tag: v.simple_value for v in tf.Summary.FromString(text).value})
    for name, raw, averages in [
            ('cross_entropy', [4.0, 2.0, 1.0], [0.4, 0.56, 0.604]),
            ('local3/weight_loss', [10.0, 10.0, 10.0], [1.0, 1.9, 2.71]),
            ('total_loss', [14.0, 12.0, 11.0], [1.4, 2.46, 3.314])]:
        assert [tags[f'{name}__raw_'] for tags in shown] == raw
        np.testing.assert_allclose([tags[f'{name}_1'] for tags in shown], averages, rtol=1e-6)
    assert {v.op.name for v in tf.global_variables()} == {
        'cross_entropy/avg', 'local3/weight_loss/avg', 'total_loss/avg'}
    assert tf.trainable_variables() == []


def test_names_and_summaries_of_a_training_graph():
    _, loss = build()
    cifar10.train(loss, tf.train.get_or_create_global_step())
    losses = ['cross_entropy', 'local3/weight_loss', 'local4/weight_loss', 'total_loss']
    expected = [*plain.SHAPES, *(name + plain.AVERAGE for name in plain.SHAPES),
                *(name + '/avg' for name in losses)]
    types = {variable.op.name: variable.dtype.base_dtype for variable in tf.global_variables()}
    assert types == {**dict.fromkeys(expected, tf.float32), 'global_step': tf.int64}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        summary = tf.Summary.FromString(session.run(tf.summary.merge_all()))
    tags = [value.tag for value in summary.value]
    layers = ['conv1', 'conv2', 'local3', 'local4', 'softmax_linear']
    expected = [
        f'{layer}/{layer}/{what}' for layer in layers for what in ('activations', 'sparsity')]
    expected += [name + end for name in plain.SHAPES for end in ('_1', '/gradients')]
    expected += [name + end for name in losses for end in ('_1', '__raw_')]
    assert sorted(tags) == sorted(expected + ['learning_rate'])


@pytest.mark.slow
@pytest.mark.parametrize('flag, dtype', [('use_fp16', tf.float16), ('use_bf16', tf.bfloat16)])
def test_half_precision_learns_and_keeps_float32_variables(monkeypatch, flag, dtype):
    """Ten steps on two images, at a low rate: the loss stays finite and falls."""
    monkeypatch.setattr(cifar10, 'INITIAL_LEARNING_RATE', 0.01)
    with flagsaver.flagsaver(**{flag: True}):
        assert cifar10.compute_type() == dtype
        logits = cifar10.inference(tf.constant(IMAGES[:2]))
        loss = cifar10.loss(logits, tf.constant(LABELS[:2]))
        train_op = cifar10.train(loss, tf.train.get_or_create_global_step())
    types = {(op.type, op.get_attr('T')) for op in tf.get_default_graph().get_operations()
             if op.type in ('Conv2D', 'L2Loss', 'SparseSoftmaxCrossEntropyWithLogits')}
    assert types == {('Conv2D', dtype), ('L2Loss', tf.float32),
                     ('SparseSoftmaxCrossEntropyWithLogits', tf.float32)}
    assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32, tf.int64}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = [session.run([loss, train_op])[0] for _ in range(10)]
    assert np.all(np.isfinite(found))
    assert found[-1] < found[0] - 1


@pytest.mark.parametrize('use_fp16, expected', [(True, 2e-8), (False, 0.0)])
def test_float16_gradients_are_scaled(use_fp16, expected):
    """2e-8 is below the smallest float16, 6e-8: without scaling the gradient is zero."""
    weight = cifar10._variable_on_cpu('weights', [], tf.constant_initializer(1.0))
    loss = 2e-8 * tf.cast(tf.cast(weight, tf.float16), tf.float32)
    with flagsaver.flagsaver(use_fp16=use_fp16):
        opt = cifar10.scaled(tf.train.GradientDescentOptimizer(0.1))
        (gradient, _), = opt.compute_gradients(loss)
    assert gradient.dtype == tf.float32
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(gradient), expected, rtol=0.05)
