"""The yardstick: the tutorial's graph and session as they were published.

16 threads read, decode, distort (`tf.image`) and shuffle one record at a time. The network is
`plain_net`, with `tf.nn.lrn`, and its variables are reference variables. Summaries and checkpoints
are as frequent as in the tutorial. Only `benchmarks` and a test that compares it with this
project's graph use it.

Source: https://github.com/tensorflow/models, tutorials/image/cifar10, cifar10_input.py, cifar10.py
and cifar10_train.py.
"""
import dataclasses
import datetime
import os
import time

import tensorflow.compat.v1 as tf

from benchmarks import plain_net
import cifar10
import cifar10_input
from cifar10_lib.datasets import table

_IMAGE_SIZE = 24
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of the published code that may cost time; False replaces one by this project's.

    Attributes:
        input: one record at a time, by 16 threads; otherwise `cifar10.distorted_inputs`.
        reader: a reader that checks nothing; otherwise `cifar10_input.read_cifar10`, which checks
            each label, one record at a time.
        layers: TensorFlow's own layers; otherwise those of `cifar10.inference`.
        references: reference variables; otherwise resource variables.
        losses_first: the gradients wait for the moving averages of the losses.
        averages_beside: the moving averages of the variables do not wait for their update, so that
            they may miss it.
    """

    input: bool = True
    reader: bool = True
    layers: bool = True
    references: bool = True
    losses_first: bool = True
    averages_beside: bool = True


PUBLISHED = Parts()


def _read(paths, parts=PUBLISHED, **options):
    """One record per run: float32 [32, 32, 3] and int32 []."""
    files = tf.train.string_input_producer(paths, **options)
    if not parts.reader:
        result = cifar10_input.read_cifar10(files)
        return tf.cast(result.uint8image, tf.float32), result.label[0]
    reader = tf.FixedLengthRecordReader(record_bytes=table.CIFAR10.record_bytes)
    record = tf.decode_raw(reader.read(files)[1], tf.uint8)  # A label, then three planes.
    planes = tf.reshape(record[1:table.CIFAR10.record_bytes], [3, 32, 32])
    image = tf.cast(tf.transpose(planes, [1, 2, 0]), tf.float32)
    return image, tf.cast(record[0], tf.int32)


def distorted_inputs(data_dir, batch_size, parts=PUBLISHED):
    """Training batches: float32 [batch_size, 24, 24, 3] and int32 [batch_size]."""
    if not parts.input:
        return cifar10.distorted_inputs()
    image, label = _read(table.CIFAR10.paths(data_dir, eval_data=False), parts)
    image = tf.random_crop(image, [_IMAGE_SIZE, _IMAGE_SIZE, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    image = tf.image.per_image_standardization(image)
    minimum = int(0.4 * table.CIFAR10.count(data_dir, eval_data=False))
    images, labels = tf.train.shuffle_batch(
        [image, label], batch_size, num_threads=_THREADS, capacity=minimum + 3 * batch_size,
        min_after_dequeue=minimum)
    tf.summary.image('images', images)
    return images, labels


def inputs(data_dir, batch_size):
    """Endless test batches: float32 [batch_size, 24, 24, 3] and int32 [batch_size]."""
    image, label = _read(table.CIFAR10.paths(data_dir, eval_data=True), shuffle=False)
    image = tf.image.resize_with_crop_or_pad(image, _IMAGE_SIZE, _IMAGE_SIZE)
    image = tf.image.per_image_standardization(image)
    image.set_shape([_IMAGE_SIZE, _IMAGE_SIZE, 3])
    minimum = int(0.4 * table.CIFAR10.count(data_dir, eval_data=True))
    images, labels = tf.train.batch([image, label], batch_size, num_threads=_THREADS,
                                    capacity=minimum + 3 * batch_size)
    tf.summary.image('images', images)
    return images, labels


_STDDEV = {'conv1': 5e-2, 'conv2': 5e-2, 'local3': 0.04, 'local4': 0.04, 'softmax_linear': 1 / 192}
_BIAS = {'conv1': 0.0, 'conv2': 0.1, 'local3': 0.1, 'local4': 0.1, 'softmax_linear': 0.0}


def _kind_of_variables(parts):
    """In this context, `tf.get_variable` makes reference variables, or else resource variables."""
    return tf.variable_scope(tf.get_variable_scope(), use_resource=not parts.references)


def _variable(name, shape):
    layer, _, kind = name.partition('/')
    initializer = (tf.constant_initializer(_BIAS[layer]) if kind == 'biases'
                   else tf.truncated_normal_initializer(stddev=_STDDEV[layer]))
    with tf.device('/cpu:0'):
        return tf.get_variable(name, shape, initializer=initializer)


def _summarise(net, name):
    tf.summary.histogram(name + '/activations', net)
    tf.summary.scalar(name + '/sparsity', tf.nn.zero_fraction(net))


def inference(images, parts=PUBLISHED):
    """Logits, float32 [batch, 10], of float32 [batch, 24, 24, 3]."""
    if not parts.layers:
        return cifar10.inference(images)
    with _kind_of_variables(parts):
        variables = {name: _variable(name, shape) for name, shape in plain_net.SHAPES.items()}
    for name in plain_net.DECAYED:
        tf.add_to_collection('losses', tf.multiply(
            tf.nn.l2_loss(variables[name]), plain_net.WEIGHT_DECAY,
            name=name.replace('weights', 'weight_loss')))
    return plain_net.logits(images, variables, observe=_summarise)


def loss(logits, labels):
    """Mean cross entropy plus weight decay: float32 []."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses'), name='total_loss')


def _loss_summaries(total_loss):
    losses = tf.get_collection('losses') + [total_loss]
    averages = tf.train.ExponentialMovingAverage(0.9, name='avg')
    update = averages.apply(losses)
    for each in losses:
        tf.summary.scalar(each.op.name + '_raw', each)
        tf.summary.scalar(each.op.name, averages.average(each))
    return update


def train(total_loss, global_step, parts=PUBLISHED):
    """An operation that runs one training step."""
    rate = tf.train.exponential_decay(
        0.1, global_step, int(50000 / 128 * 350.0), 0.1, staircase=True)
    tf.summary.scalar('learning_rate', rate)
    loss_averages = _loss_summaries(total_loss)
    with tf.control_dependencies([loss_averages] if parts.losses_first else []):
        optimizer = tf.train.GradientDescentOptimizer(rate)
        gradients = optimizer.compute_gradients(total_loss)
    descent = optimizer.apply_gradients(gradients, global_step)
    for variable in tf.trainable_variables():
        tf.summary.histogram(variable.op.name, variable)
    for gradient, variable in gradients:
        tf.summary.histogram(variable.op.name + '/gradients', gradient)
    averages = tf.train.ExponentialMovingAverage(0.9999, global_step)
    with tf.control_dependencies([] if parts.averages_beside else [descent]):
        averaged = averages.apply(tf.trainable_variables())
    return tf.group(descent, averaged, loss_averages, name='train')


def training(images, labels, parts=PUBLISHED):
    """The graph of a training step and its variables: (an operation that runs it, the loss)."""
    with _kind_of_variables(parts):
        global_step = tf.train.get_or_create_global_step()
        total_loss = loss(inference(images, parts), labels)
        return train(total_loss, global_step, parts), total_loss


class _Logger(tf.train.SessionRunHook):
    """Prints loss and speed every `frequency` steps."""

    def __init__(self, total_loss, batch_size, frequency):
        self._loss, self._batch_size, self._frequency = total_loss, batch_size, frequency

    def begin(self):
        self._step, self._start = -1, time.time()

    def before_run(self, run_context):
        self._step += 1
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        if self._step % self._frequency == 0:
            now = time.time()
            seconds, self._start = (now - self._start) / self._frequency, now
            print(f'{datetime.datetime.now()}: step {self._step}, loss = {run_values.results:.2f} '
                  f'({self._batch_size / seconds:.1f} examples/sec; {seconds:.3f} sec/batch)')


def run(data_dir, train_dir, max_steps, batch_size, log_frequency, parts=PUBLISHED):
    """Trains as the tutorial's script does, with its session and hooks."""
    with tf.Graph().as_default():
        with tf.device('/cpu:0'):
            images, labels = distorted_inputs(data_dir, batch_size, parts)
        train_op, total_loss = training(images, labels, parts)
        hooks = [tf.train.StopAtStepHook(last_step=max_steps), tf.train.NanTensorHook(total_loss),
                 _Logger(total_loss, batch_size, log_frequency)]
        with tf.train.MonitoredTrainingSession(checkpoint_dir=train_dir, hooks=hooks) as session:
            while not session.should_stop():
                session.run(train_op)


def evaluate(data_dir, checkpoint, batch_size, num_examples):
    """Precision @ 1 as the tutorial counts it: in whole batches, some images twice."""
    with tf.Graph().as_default():
        images, labels = inputs(data_dir, batch_size)
        top_k = tf.nn.in_top_k(inference(images), labels, 1)
        averages = tf.train.ExponentialMovingAverage(0.9999)
        saver = tf.train.Saver(averages.variables_to_restore())
        tf.summary.merge_all()
        with tf.Session() as session:
            saver.restore(session, os.path.abspath(checkpoint))
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            batches = -(-num_examples // batch_size)
            right = sum(int(session.run(top_k).sum()) for _ in range(batches))
            coordinator.request_stop()
            coordinator.join(threads)
    return right / (batches * batch_size)
