"""The yardstick: the tutorial's graph and session as they were published.

    python -m benchmarks.tutorial --data_dir=/tmp/cifar10_data --train_dir=/tmp/tutorial

16 threads read, decode, distort (`tf.image`) and shuffle one record at a time. The network uses
`tf.nn.lrn` and reference variables. The gradients wait for the averages of the losses; the averages
of the variables do not wait for their update. Summaries and checkpoints are as frequent as in the
tutorial. Nothing here comes from this project, so changes to it do not move the yardstick.

Source: https://github.com/tensorflow/models, tutorials/image/cifar10, cifar10_input.py, cifar10.py
and cifar10_train.py.
"""
import argparse
import datetime
import os

import tensorflow.compat.v1 as tf

_RECORD_BYTES = 1 + 3 * 32 * 32  # A label, then three planes.


def distorted_inputs(data_dir, batch_size):
    """Training batches: float32 [batch_size, 24, 24, 3] and int32 [batch_size]."""
    files = tf.train.string_input_producer(
        [os.path.join(data_dir, f'data_batch_{i}.bin') for i in range(1, 6)])
    record = tf.decode_raw(tf.FixedLengthRecordReader(_RECORD_BYTES).read(files)[1], tf.uint8)
    label = tf.cast(record[0], tf.int32)
    pixels_chw = tf.reshape(record[1:], [3, 32, 32])
    image = tf.cast(tf.transpose(pixels_chw, [1, 2, 0]), tf.float32)
    image = tf.random_crop(image, [24, 24, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    image = tf.image.per_image_standardization(image)
    minimum = int(0.4 * 50000)
    images, labels = tf.train.shuffle_batch(
        [image, label], batch_size, num_threads=16, capacity=minimum + 3 * batch_size,
        min_after_dequeue=minimum)
    tf.summary.image('images', images)
    return images, labels


def inference(images):
    """Logits, float32 [batch, 10], of float32 [batch, 24, 24, 3]."""
    def variable_on_cpu(name, shape, initializer):
        with tf.device('/cpu:0'):
            return tf.get_variable(name, shape, initializer=initializer, use_resource=False)

    def weights(shape, stddev, decay=0.0):
        kernel = variable_on_cpu('weights', shape, tf.truncated_normal_initializer(stddev=stddev))
        if decay:
            tf.add_to_collection('losses', tf.multiply(
                tf.nn.l2_loss(kernel), decay, name='weight_loss'))
        return kernel

    def biases(count, value):
        return variable_on_cpu('biases', [count], tf.constant_initializer(value))

    def convolution(net, name, channels, bias):
        with tf.variable_scope(name) as scope:
            conv = tf.nn.conv2d(net, weights([5, 5, channels, 64], 5e-2), [1, 1, 1, 1], 'SAME')
            return _summarised(tf.nn.relu(tf.nn.bias_add(conv, biases(64, bias)), name=scope.name))

    def dense(net, name, inputs, outputs):
        with tf.variable_scope(name) as scope:
            product = tf.matmul(net, weights([inputs, outputs], 0.04, 0.004))
            return _summarised(tf.nn.relu(product + biases(outputs, 0.1), name=scope.name))

    norm1 = _lrn(_pool(convolution(images, 'conv1', 3, 0.0)))  # [batch, 12, 12, 64]
    pool2 = _pool(_lrn(convolution(norm1, 'conv2', 64, 0.1)))  # [batch, 6, 6, 64]
    local3 = dense(tf.reshape(pool2, [-1, 2304]), 'local3', 2304, 384)
    local4 = dense(local3, 'local4', 384, 192)
    with tf.variable_scope('softmax_linear') as scope:
        product = tf.matmul(local4, weights([192, 10], 1 / 192))
        return _summarised(tf.add(product, biases(10, 0.0), name=scope.name))


def _pool(net):
    return tf.nn.max_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')


def _lrn(net):
    return tf.nn.lrn(net, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def _summarised(net):
    tf.summary.histogram(net.op.name + '/activations', net)
    tf.summary.scalar(net.op.name + '/sparsity', tf.nn.zero_fraction(net))
    return net


def loss(logits, labels):
    """Mean cross entropy plus weight decay: float32 []."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses'), name='total_loss')


def train(total_loss, global_step):
    """An operation that runs one training step."""
    rate = tf.train.exponential_decay(
        0.1, global_step, int(50000 / 128 * 350.0), 0.1, staircase=True)
    tf.summary.scalar('learning_rate', rate)
    losses = tf.get_collection('losses') + [total_loss]
    loss_averages = tf.train.ExponentialMovingAverage(0.9, name='avg')
    update_averages = loss_averages.apply(losses)
    for each in losses:
        tf.summary.scalar(each.op.name + '_raw', each)
        tf.summary.scalar(each.op.name, loss_averages.average(each))
    with tf.control_dependencies([update_averages]):
        optimizer = tf.train.GradientDescentOptimizer(rate)
        gradients = optimizer.compute_gradients(total_loss)
    descent = optimizer.apply_gradients(gradients, global_step)
    for variable in tf.trainable_variables():
        tf.summary.histogram(variable.op.name, variable)
    for gradient, variable in gradients:
        tf.summary.histogram(variable.op.name + '/gradients', gradient)
    averages = tf.train.ExponentialMovingAverage(0.9999, global_step)
    return tf.group(descent, averages.apply(tf.trainable_variables()), name='train')


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks.tutorial')
    parser.add_argument('--data_dir', default='/tmp/cifar10_data')
    parser.add_argument('--train_dir', default='/tmp/cifar10_train')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--max_steps', type=int, default=100000)
    parser.add_argument('--log_frequency', type=int, default=10)
    options, _ = parser.parse_known_args()  # Not all flags of this project's trainers.
    tf.disable_v2_behavior()
    with tf.device('/cpu:0'):
        images, labels = distorted_inputs(
            os.path.join(options.data_dir, 'cifar-10-batches-bin'), options.batch_size)
    global_step = tf.train.get_or_create_global_step()
    total_loss = loss(inference(images), labels)
    train_op = train(total_loss, global_step)
    hooks = [tf.train.StopAtStepHook(last_step=options.max_steps),
             tf.train.NanTensorHook(total_loss)]
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=options.train_dir, hooks=hooks) as session:
        step = 0
        while not session.should_stop():
            _, value = session.run([train_op, total_loss])
            if step % options.log_frequency == 0:
                print(f'{datetime.datetime.now()}: step {step}, loss = {value:.2f}')
            step += 1


if __name__ == '__main__':
    main()
