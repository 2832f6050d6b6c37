"""Builds the CIFAR-10 network: inputs, inference, loss, and the training of it.

    images, labels = distorted_inputs()     # a batch of training images
    logits = inference(images)              # the predictions for them
    total_loss = loss(logits, labels)       # how wrong they are
    train_op = train(total_loss, global_step)

The network follows Alex Krizhevsky's (https://code.google.com/p/cuda-convnet/) apart from the top
few layers. It has 1,068,298 parameters and takes 18.5 million multiply-adds an image; the tutorial
reports that it gets about 86 % of the test images right.
"""
import os
import re

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10_input
from datasets import custom
from datasets import download
from datasets import table
from nets import lrn
from program import errors
from program import paths

flags.DEFINE_integer('batch_size', 128, 'Number of images in a batch, per tower.', lower_bound=1,
                     upper_bound=1 << 16)
paths.define('dataset', 'cifar10', f'Which images to use: {", ".join(table.TABLE)}, or a '
             'folder that cifar10_convert.py made.')
paths.define('data_dir', '/tmp/cifar10_data', 'Folder of the data sets that have a name.')
flags.DEFINE_string('data_url', None, 'Where to download the archive from: http, https or file. '
                    'By default the place that the data set names.')
flags.DEFINE_enum('validate_on', 'test', ['test', 'held_out'], 'Images that --validate_every uses: '
                  'the test set, or every tenth training image, which is then not trained on.')
flags.DEFINE_float('learning_rate', None, 'Initial learning rate. By default that of the recipe of '
                   "--net, which for the tutorial's is lower on some data sets.", lower_bound=0.0,
                   upper_bound=1e6)
flags.DEFINE_boolean('use_fp16', False, 'Compute in float16; variables stay in float32.')
flags.DEFINE_float('min_fraction_of_examples_in_queue',
                   cifar10_input.MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                   'Share of the training images that wait in the shuffle queue.',
                   lower_bound=0.0, upper_bound=1.0)

# TensorFlow's own wrapper parses the command line by itself where no `app.run` did.
FLAGS = tf.app.flags.FLAGS

# Facts about CIFAR-10.
IMAGE_SIZE = cifar10_input.IMAGE_SIZE
NUM_CLASSES = cifar10_input.NUM_CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL
DATA_URL = table.CIFAR10.url

# How the network is trained: the tutorial's constants.
MOVING_AVERAGE_DECAY = 0.9999
NUM_EPOCHS_PER_DECAY = 350.0
LEARNING_RATE_DECAY_FACTOR = 0.1
INITIAL_LEARNING_RATE = 0.1

# Each GPU holds a copy of the network; its operations' names start with `tower_0/`, `tower_1/` ...
TOWER_NAME = 'tower'

# The loss is multiplied by this before it is differentiated, since float16 ends at 6e-8; gradients
# are divided by it in float32. Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
_LOSS_SCALE = 128.0

_LOSS_AVERAGE_DECAY = 0.9  # The tutorial's, of the losses shown in TensorBoard.


@flags.validator('data_url')
def _check_data_url(url):
    if url is not None and not download.is_url(url):
        raise flags.ValidationError(f'"{url}" starts with neither http:, https: nor file:')
    return True


@flags.validator('dataset')
def _check_dataset(name):
    try:
        custom.find(name)
    except errors.DataError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def data_set():
    """The row of the data-set table that `--dataset` names, or that of the folder it names."""
    return custom.find(FLAGS.dataset)


def data_folder():
    """Path of the folder that holds the record files of `--dataset`: one of the user's own is an
    absolute path, and `--data_dir` does not count."""
    return os.path.join(FLAGS.data_dir, data_set().folder)


def maybe_download_and_extract():
    """Sees to it that the record files are there and whole; downloads or draws them if need be.

    Raises:
        errors.DataError: they could not be had, or something is wrong with one of them.
    """
    download.maybe_download_and_extract(data_set(), FLAGS.data_dir, FLAGS.data_url)


def distorted_inputs(augment=cifar10_input.distort_at_random, shard=(0, 1)):
    """Distorted images for training, in random order, without end.

    Args:
        augment: what makes images of a record's pixels, see `cifar10_input.distorted_inputs`.
        shard: (index, count) of the records to use, see there.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `augment`'s size.
        labels: int32 [batch_size].

    Raises:
        FileNotFoundError: a record file is missing; see `maybe_download_and_extract`.
    """
    return cifar10_input.distorted_inputs(
        data_folder(), FLAGS.batch_size, data_set(), FLAGS.min_fraction_of_examples_in_queue,
        augment, shard, _holds_out())


def distorted_inputs_queue(capacity, augment=cifar10_input.distort_at_random):
    """The queue behind `distorted_inputs`, for `cifar10_input.dequeue` in each of several towers.

    Args:
        capacity: number of batches to prepare ahead.
        augment: see `distorted_inputs`.

    Returns:
        A queue of (images, labels), see `distorted_inputs`.

    Raises:
        FileNotFoundError: a record file is missing.
    """
    return cifar10_input.distorted_inputs_queue(
        data_folder(), FLAGS.batch_size, data_set(), FLAGS.min_fraction_of_examples_in_queue,
        augment, capacity, held_out=_holds_out())


def inputs(eval_data, prepare=cifar10_input.standardise, held_out=False):
    """Images for evaluation: each exactly once, in order; the last batch holds what is left.

    Args:
        eval_data: whether to read the test set, or else the training set.
        prepare: what makes images of a record's pixels, see `cifar10_input.inputs`.
        held_out: with `eval_data` False, whether to read the held-out training images only.

    Returns:
        images: float32 [at most batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `prepare`'s size.
        labels: int32 [at most batch_size].

    A record file that is missing raises `tf.errors.NotFoundError` when it is read.
    """
    return cifar10_input.inputs(
        eval_data, data_folder(), FLAGS.batch_size, data_set(), prepare, held_out)


def num_examples(eval_data):
    """Number of images in the test set, or of those to train on: all, or with
    `--validate_on=held_out` nine tenths.

    Where there is no folder yet, the number that the published files hold.

    Raises:
        FileNotFoundError: there is a folder, but a record file is missing in it.
    """
    records = _num_records(eval_data)
    return records if eval_data or not _holds_out() else records - num_held_out()


def num_held_out():
    """Number of training images that are left for validation with `--validate_on=held_out`.

    Raises:
        FileNotFoundError: see `num_examples`.
    """
    return cifar10_input.num_held_out(_num_records(eval_data=False))


def _num_records(eval_data):
    if os.path.isdir(data_folder()):
        return data_set().count(data_folder(), eval_data)
    return sum(data_set().split(eval_data).values())


def _holds_out():
    return FLAGS.validate_on == 'held_out'


def inference(images):
    """Builds the network.

    Args:
        images: float [batch, IMAGE_SIZE, IMAGE_SIZE, 3], as `distorted_inputs` returns them.

    Returns:
        float32 [batch, classes], logits, not normalised: `loss` applies the softmax.

    Raises:
        ValueError: the images have another size, which would make another network.
    """
    net = convolutions(images)  # [batch, 6, 6, 64]
    net = _local(_flatten(net), 'local3', 384)  # [batch, 384]
    net = _local(net, 'local4', 192)  # [batch, 192]
    return softmax_linear(net)  # [batch, classes]


def convolutions(images):
    """The network's lower half, which others share.

    Args:
        images: float [batch, IMAGE_SIZE, IMAGE_SIZE, 3].

    Returns:
        float [batch, 6, 6, 64], float16 with `--use_fp16`.

    Raises:
        ValueError: the images have another size.
    """
    if images.shape.as_list()[1:] != [IMAGE_SIZE, IMAGE_SIZE, 3]:
        raise ValueError(f'images have shape {images.shape}, wanted: '
                         f'[batch, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]')
    net = tf.cast(images, tf.float16 if FLAGS.use_fp16 else tf.float32)
    net = _pooled_conv(net, 'conv1', 'pool1', 64, bias=0.0)  # [batch, 12, 12, 64]
    net = _normalise(net, 'norm1')
    net = _conv(net, 'conv2', 64, bias=0.1)  # [batch, 12, 12, 64]
    net = _normalise(net, 'norm2')
    return _max_pool(net, 'pool2')  # [batch, 6, 6, 64]


def softmax_linear(net):
    """The last layer: float [batch, ...] -> float32 [batch, classes], logits."""
    return _linear(_flatten(net), 'softmax_linear', data_set().num_classes)


def _conv(net, name, filters, bias):
    """5x5 convolution, bias and ReLU; height and width are kept.

    Args:
        net: float [batch, height, width, channels].
        name: variable scope, owner of `weights` and `biases`.
        filters: number of output channels.
        bias: initial value of every bias.

    Returns:
        float [batch, height, width, filters].
    """
    with tf.variable_scope(name) as scope:
        net, biases = _convolve(net, filters, bias)
        net = tf.nn.relu(tf.nn.bias_add(net, biases), name=scope.name)
        activation_summary(net, name)
    return net


def _pooled_conv(net, name, pool_name, filters, bias):
    """`_conv` and then `_max_pool`, in the order that costs less.

    Adding a constant and ReLU keep the order of numbers, so that the largest of relu(x + b) is
    relu(largest x + b): after pooling, bias and ReLU have a quarter of the work, forward and
    backward. The activations before pooling are made for their summary alone.

    Args:
        net: float [batch, height, width, channels].
        name: variable scope, owner of `weights` and `biases`.
        pool_name: name of the pooling.
        filters: number of output channels.
        bias: initial value of every bias.

    Returns:
        float [batch, height / 2, width / 2, filters].
    """
    with tf.variable_scope(name) as scope:
        net, biases = _convolve(net, filters, bias)
        activations = tf.nn.relu(tf.nn.bias_add(net, biases), name=scope.name)
        activation_summary(activations, name)
    with tf.name_scope(pool_name):
        return tf.nn.relu(tf.nn.bias_add(_max_pool(net, 'max_pool'), biases))


def _convolve(net, filters, bias):
    """5x5 convolution with the current scope's `weights`; returns it and the `biases` to add."""
    channels = net.shape.as_list()[-1]
    weights = _weights([5, 5, channels, filters], stddev=5e-2, dtype=net.dtype)
    biases = _biases(filters, bias, net.dtype)
    return tf.nn.conv2d(net, weights, strides=[1, 1, 1, 1], padding='SAME'), biases


def _max_pool(net, name):
    """Overlapping 3x3 max pooling; height and width are halved."""
    return tf.nn.max_pool(net, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME', name=name)


def _normalise(net, name):
    """Local response normalisation over nine channels."""
    return lrn.lrn(net, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name=name)


def _flatten(net):
    """[batch, ...] -> [batch, units], so that one matrix product serves each image."""
    return tf.reshape(net, [-1, net.shape[1:].num_elements()], name='flatten')


def _local(net, name, units):
    """Fully connected layer with ReLU and decaying weights: [batch, inputs] -> [batch, units]."""
    with tf.variable_scope(name) as scope:
        weights = _weights(
            [net.shape.as_list()[-1], units], stddev=0.04, dtype=net.dtype, decay=0.004)
        biases = _biases(units, 0.1, net.dtype)
        net = tf.nn.relu(tf.nn.bias_add(tf.matmul(net, weights), biases), name=scope.name)
        activation_summary(net, name)
    return net


def _linear(net, name, units):
    """Fully connected layer as it is: [batch, inputs] -> float32 [batch, units]."""
    inputs_ = net.shape.as_list()[-1]
    with tf.variable_scope(name) as scope:
        weights = _weights([inputs_, units], stddev=1.0 / inputs_, dtype=net.dtype)
        biases = _biases(units, 0.0, net.dtype)
        net = tf.nn.bias_add(tf.matmul(net, weights), biases)
        net = tf.cast(net, tf.float32, name=scope.name)
        activation_summary(net, name)
    return net


def _weights(shape, stddev, dtype, decay=None):
    """`weights` of the current variable scope, drawn from a truncated normal distribution.

    With `decay`, a loss of decay * |weights|^2 / 2 is added to the collection `losses`.
    """
    initializer = tf.truncated_normal_initializer(stddev=stddev)
    weights = _variable_on_cpu('weights', shape, initializer, tf.float32)
    if decay is not None:
        weight_loss = tf.multiply(tf.nn.l2_loss(weights), decay, name='weight_loss')
        tf.add_to_collection('losses', weight_loss)
    return tf.cast(weights, dtype)


def _biases(units, value, dtype):
    """`biases` of the current variable scope, all of one value at first."""
    return _variable_on_cpu('biases', [units], tf.constant_initializer(value), dtype)


def _variable_on_cpu(name, shape, initializer, dtype):
    """A float32 variable in the host's memory, where all towers share it, read as `dtype`.

    A resource variable: its reads and writes have an order, which the moving averages rely on.
    """
    with tf.device('/cpu:0'):
        variable = tf.get_variable(
            name, shape, initializer=initializer, dtype=tf.float32, use_resource=True)
        return tf.cast(variable.read_value(), dtype)


def loss(logits, labels):
    """Mean cross entropy of the batch plus the weight decay of every layer that has one.

    They are in the collection `losses`; in a tower's name scope only that tower's count.

    The share of images whose top prediction is wrong goes to the collection `errors`.

    Args:
        logits: float32 [batch, classes], from `inference`.
        labels: int [batch], 0 to classes - 1.

    Returns:
        float32 [], the total loss.
    """
    with tf.name_scope('error'):
        predictions = tf.argmax(logits, axis=1, output_type=labels.dtype)
        wrong = tf.cast(tf.not_equal(predictions, labels), tf.float32)
        tf.add_to_collection('errors', tf.reduce_mean(wrong))
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits, name='cross_entropy_per_example')
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(_losses_in_scope(), name='total_loss')


def _losses_in_scope():
    """The collection `losses` as far as it belongs to the current name scope."""
    scope = tf.get_default_graph().get_name_scope()
    return tf.get_collection('losses', scope + '/' if scope else None)


def losses_by_name(total_loss):
    """All losses of the current name scope and their total, by names without the tower's.

    Args:
        total_loss: float32 [], from `loss`.

    Returns:
        Dictionary from name, such as 'local3/weight_loss', to float32 [].
    """
    return {re.sub(f'^{TOWER_NAME}_[0-9]+/', '', loss_.op.name): loss_
            for loss_ in _losses_in_scope() + [total_loss]}


def learning_rate(global_step, replicas=1):
    """A tenth of the rate after every 350 epochs, whatever the batch and the number of replicas.

    The initial rate is `--learning_rate`; by default that of the data set's row, or else
    INITIAL_LEARNING_RATE.

    Args:
        global_step: int [].
        replicas: on how many batches of `--batch_size` a step works.

    Returns:
        float32 [].

    Raises:
        FileNotFoundError: a record file is missing.
    """
    steps = int(steps_per_epoch(replicas) * NUM_EPOCHS_PER_DECAY)
    return tf.train.exponential_decay(_initial_learning_rate(), global_step, max(1, steps),
                                      LEARNING_RATE_DECAY_FACTOR, staircase=True)


def _initial_learning_rate():
    """The first that is given: by the user, by the data set, by the tutorial."""
    rates = (FLAGS.learning_rate, data_set().learning_rate, INITIAL_LEARNING_RATE)
    return next(rate for rate in rates if rate is not None)


def steps_per_epoch(replicas=1):
    """In how many steps every image is seen once: float, not a whole number of steps.

    Args:
        replicas: on how many batches of `--batch_size` a step works.

    Raises:
        FileNotFoundError: a record file is missing.
    """
    return num_examples(eval_data=False) / (FLAGS.batch_size * replicas)


def train(total_loss, global_step, schedule=learning_rate,
          optimizer=tf.train.GradientDescentOptimizer):
    """Adds what trains the network: descends the gradient and averages the variables.

    Args:
        total_loss: float32 [], from `loss`.
        global_step: int [], the variable that counts the steps.
        schedule, optimizer: see `apply_gradients`.

    Returns:
        An operation that makes one step.
    """
    gradients = compute_gradients(total_loss)
    return tf.group(apply_gradients(gradients, global_step, 1, schedule, optimizer),
                    loss_summaries(losses_by_name(total_loss)))


def compute_gradients(total_loss):
    """Gradients of the loss in float32.

    Args:
        total_loss: float32 [].

    Returns:
        List of (gradient, variable), one pair for each trainable variable; the gradient is None
        where the loss does not depend on the variable.
    """
    variables = tf.trainable_variables()
    scale = _LOSS_SCALE if FLAGS.use_fp16 else 1.0
    with tf.name_scope('gradients'):
        gradients = tf.gradients(total_loss * scale, variables)
        if FLAGS.use_fp16:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
    return list(zip(gradients, variables))


def apply_gradients(gradients, global_step, replicas=1, schedule=learning_rate,
                    optimizer=tf.train.GradientDescentOptimizer):
    """Updates every variable, then its moving average, and counts the step.

    So are the statistics of batch norms, in the collection `UPDATE_OPS`: those of the first tower.

    Args:
        gradients: list of (gradient, variable).
        global_step: int [], the variable that counts the steps.
        replicas: on how many batches of `--batch_size` a step works, over all towers and workers.
        schedule: function from (global_step, replicas) to the learning rate, float32 [].
        optimizer: function from the learning rate to a `tf.train.Optimizer`.

    Returns:
        An operation that makes one step.
    """
    with tf.device('/cpu:0'):
        with tf.name_scope('learning_rate'):
            rate = schedule(global_step, replicas)
            _scalar_summary('learning_rate', rate)
        tf.add_to_collection('learning_rate', rate)
        descent = optimizer(rate).apply_gradients(gradients, global_step)
        with tf.name_scope('summaries'):
            for gradient, variable in gradients:
                _histogram_summary(variable.op.name, variable)
                if gradient is not None:
                    _histogram_summary(variable.op.name + '/gradients', gradient)
        # The averages take in the variables, and the count of steps, as this step leaves them.
        with tf.name_scope('moving_averages'), tf.control_dependencies([descent]):
            averages = tf.train.ExponentialMovingAverage(
                MOVING_AVERAGE_DECAY, num_updates=global_step.read_value())
            averaged = averages.apply(tf.trainable_variables())
    return tf.group(averaged, *of_first_tower(tf.get_collection(tf.GraphKeys.UPDATE_OPS)))


def of_first_tower(nodes):
    """Those operations or tensors of a list that are not in the name scope of a later tower."""
    later = re.compile(f'{TOWER_NAME}_[1-9]')
    return [node for node in nodes if not later.match(node.name)]


def variables_to_save():
    """What a checkpoint of any trainer holds: variables, their moving averages, the global step."""
    return tf.global_variables()


def variables_to_restore(use_moving_averages):
    """The network's variables by the names under which a checkpoint holds the values to use.

    For a graph that only infers. Statistics of batch norms, averages themselves, have no others.

    Args:
        use_moving_averages: whether to use the variables' moving averages or their own values.
    """
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    if use_moving_averages:
        averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY)
        for variable in tf.trainable_variables():
            variables[averages.average_name(variable)] = variables.pop(variable.op.name)
    return variables


def loss_summaries(losses):
    """Adds a summary of each loss, as it is and averaged over the last steps.

    A raw loss jumps about from batch to batch; its average (decay 0.9) shows the trend. Averages
    start at the first values of a session: they are local variables, so no checkpoint holds them.

    Args:
        losses: dictionary from name to float32 [].

    Returns:
        An operation that updates the averages.
    """
    with tf.device('/cpu:0'), tf.name_scope('loss_averages'):
        values = tf.stack(list(losses.values()))
        averages = tf.get_variable(
            'loss_averages/averages', [len(losses)], trainable=False, use_resource=True,
            initializer=tf.constant_initializer(float('nan')),
            collections=[tf.GraphKeys.LOCAL_VARIABLES])
        before = averages.read_value()
        moved = before + (1 - _LOSS_AVERAGE_DECAY) * (values - before)
        after = averages.assign(tf.where(tf.is_nan(before), values, moved), read_value=False)
        with tf.control_dependencies([after]):
            shown = averages.read_value()
        for index, name in enumerate(losses):
            _scalar_summary(name + ' (raw)', values[index])
            _scalar_summary(name, shown[index])
    return after


def activation_summary(net, name):
    """Adds a histogram of a layer's activations, and how many of them are zero."""
    with tf.name_scope('summaries'):
        _histogram_summary(name + '/activations', net)
        _scalar_summary(name + '/sparsity', tf.nn.zero_fraction(net))


# `tf.summary` would put a tower's name scope before the tag, and number what is there already: the
# operations below take the tag as it is, so that all trainers' curves lie on one another.
def _scalar_summary(tag, value):
    """Adds a curve of a scalar, shown as `tag`."""
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ScalarSummary(
        tags=tag, values=value))


def _histogram_summary(tag, values):
    """Adds a histogram of a tensor, shown as `tag`.

    What is not finite counts as zero: the operation would fail, before anybody sees the loss.
    """
    values = tf.cast(values, tf.float32)
    values = tf.where(tf.is_finite(values), values, tf.zeros_like(values))
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.HistogramSummary(
        tag=tag, values=values))
