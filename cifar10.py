"""Builds the CIFAR-10 network: inputs, inference, loss and training.

    images, labels = distorted_inputs()        # a batch of training images
    logits = inference(images)                 # the network's predictions for them
    total_loss = loss(logits, labels)          # how wrong the predictions are
    train_op = train(total_loss, global_step)  # one step that makes them better

The network is Alex Krizhevsky's (https://code.google.com/p/cuda-convnet/) with a different top. It
has 1,068,298 parameters and takes 18.5 million multiply-adds per image. The tutorial reports an
accuracy of about 86 %.
"""
import functools
import os

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10_input
from cifar10_lib import settings
from cifar10_lib.datasets import download, image_source
from cifar10_lib.nets import lrn, schedules, summaries, variables
from cifar10_lib.program import command_line

flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.', lower_bound=1,
                     upper_bound=1 << 16, short_name='b')
command_line.define_path('data_dir', '/tmp/cifar10_data', 'Folder for the data sets.')

# TensorFlow's wrapper parses the command line on first use, so scripts without `app.run` work.
FLAGS = tf.app.flags.FLAGS
FLAGS['batch_size'].allow_override = True  # Also for a program's own flag `b`.
parser = command_line.Parser()  # For code written against the tutorial's last version.

# Facts about CIFAR-10. The image size is that of cifar10_input.py: edit it there.
IMAGE_SIZE = cifar10_input.IMAGE_SIZE
NUM_CLASSES = cifar10_input.NUM_CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL

# The tutorial's training constants.
MOVING_AVERAGE_DECAY = 0.9999
NUM_EPOCHS_PER_DECAY = 350.0
LEARNING_RATE_DECAY_FACTOR = 0.1
INITIAL_LEARNING_RATE = 0.1

# Each GPU runs a copy of the network, a tower. The names of its ops start with `tower_0/` etc.
TOWER_NAME = 'tower'

DATA_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'


# The tutorial's names of these functions.
_activation_summary = functools.partial(summaries.activations, tower=TOWER_NAME)
_variable_on_cpu = variables.get
_variable_with_weight_decay = variables.with_weight_decay


def source(eval_data=False, subset=None, shard=(0, 1)):
    """The images of `--dataset` that a graph reads: a `Source`, which documents the arguments.

    By default, all of the test set, or the training images that `--validate_on` leaves.
    """
    if subset is None:
        held_out = not eval_data and FLAGS.validate_on == 'held_out'
        subset = 'training' if held_out else 'all'
    row = image_source.find(FLAGS.dataset, NUM_CLASSES, DATA_URL)
    examples = NUM_EXAMPLES_PER_EPOCH_FOR_EVAL if eval_data else NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    return image_source.Source(row, os.path.join(FLAGS.data_dir, row.folder), FLAGS.batch_size,
                               eval_data, subset, shard, examples)


def distorted_inputs(recipe=None, shard=(0, 1)):
    """Endless batches of distorted training images in random order.

    Args:
        recipe: a `Recipe`, whose distortions apply; by default the tutorial's.
        shard: (index, count) of the worker's part; see `Source`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of the size of the recipe.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing; see `maybe_download_and_extract`.
    """
    return cifar10_input.dequeue(cifar10_input.distorted_batches(
        source(shard=shard), recipe.augment if recipe else cifar10_input.distort,
        min_fraction=FLAGS.min_fraction_of_examples_in_queue))


def inputs(eval_data):
    """Endless batches of images for evaluation, in order.

    Args:
        eval_data: True for the test set, False for the training set.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3].
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing; see `maybe_download_and_extract`.
    """
    return cifar10_input.batches(source(bool(eval_data), 'all'))


def inference(images):
    """Builds the network.

    Args:
        images: float [batch, IMAGE_SIZE, IMAGE_SIZE, 3], as `distorted_inputs` returns them.

    Returns:
        float32 [batch, classes], unnormalised logits: `loss` applies the softmax.

    Raises:
        ValueError: the images have a different size, which would change the network.
    """
    images = tf.convert_to_tensor(images)  # From an array, too.
    if images.shape.as_list()[1:] != [IMAGE_SIZE, IMAGE_SIZE, 3]:
        raise ValueError(f'images have shape {images.shape}; expected '
                         f'[batch, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]')
    images = tf.cast(images, variables.compute_type())

    # conv1
    with tf.variable_scope('conv1') as scope:
        kernel = _variable_with_weight_decay('weights', [5, 5, 3, 64], stddev=5e-2, wd=None)
        conv = tf.nn.conv2d(images, kernel, strides=[1, 1, 1, 1], padding='SAME')
        biases = tf.convert_to_tensor(  # One read, for both uses.
            _variable_on_cpu('biases', [64], tf.constant_initializer(0.0)))
        conv1 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)  # [batch, 24, 24, 64]
        _activation_summary(conv1)  # Its only use: pool1 repeats it. Change both, or neither.

    # pool1. max(relu(x + b)) = relu(max(x) + b), because adding a constant and ReLU are monotonic.
    # Pooling first leaves bias and ReLU a quarter of the work, forward and backward.
    with tf.name_scope('pool1') as scope:
        pool1 = tf.nn.max_pool(conv, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME',
                               name='max_pool')
        pool1 = tf.nn.relu(tf.nn.bias_add(pool1, biases), name=scope)  # [batch, 12, 12, 64]
    # norm1
    norm1 = lrn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm1')

    # conv2
    with tf.variable_scope('conv2') as scope:
        kernel = _variable_with_weight_decay('weights', [5, 5, 64, 64], stddev=5e-2, wd=None)
        conv = tf.nn.conv2d(norm1, kernel, strides=[1, 1, 1, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [64], tf.constant_initializer(0.1))
        conv2 = tf.nn.relu(tf.nn.bias_add(conv, biases), name=scope.name)  # [batch, 12, 12, 64]
        _activation_summary(conv2)

    # norm2
    norm2 = lrn.lrn(conv2, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm2')
    # pool2
    pool2 = tf.nn.max_pool(norm2, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME',
                           name='pool2')  # [batch, 6, 6, 64]

    # local3
    with tf.variable_scope('local3') as scope:
        reshape = tf.reshape(pool2, [-1, pool2.shape[1:].num_elements()], name='flatten')
        dim = reshape.shape.as_list()[1]
        weights = _variable_with_weight_decay('weights', [dim, 384], stddev=0.04, wd=0.004)
        biases = _variable_on_cpu('biases', [384], tf.constant_initializer(0.1))
        local3 = tf.nn.relu(
            tf.nn.bias_add(tf.matmul(reshape, weights), biases), name=scope.name)  # [batch, 384]
        _activation_summary(local3)

    # local4
    with tf.variable_scope('local4') as scope:
        weights = _variable_with_weight_decay('weights', [384, 192], stddev=0.04, wd=0.004)
        biases = _variable_on_cpu('biases', [192], tf.constant_initializer(0.1))
        local4 = tf.nn.relu(
            tf.nn.bias_add(tf.matmul(local3, weights), biases), name=scope.name)  # [batch, 192]
        _activation_summary(local4)

    # softmax_linear, without the softmax
    with tf.variable_scope('softmax_linear') as scope:
        num_classes = len(source().data_set.classes)
        weights = _variable_with_weight_decay(
            'weights', [192, num_classes], stddev=1 / 192.0, wd=None)
        biases = _variable_on_cpu('biases', [num_classes], tf.constant_initializer(0.0))
        softmax_linear = tf.nn.bias_add(tf.matmul(local4, weights), biases)
        softmax_linear = tf.identity(
            tf.cast(softmax_linear, tf.float32), name=scope.name)  # [batch, classes]
        _activation_summary(softmax_linear)

    return softmax_linear


def loss(logits, labels, label_smoothing=0.0, scope=None):
    """Mean cross entropy of the batch plus the weight decay of local3 and local4.

    Sums the collection `losses`. Adds the fraction of images whose top prediction is wrong to the
    collection `errors`.

    Args:
        logits: float32 [batch, classes], from `inference`.
        labels: [batch] of any integer type, 0 to classes - 1.
        label_smoothing: the fraction of each label that is spread evenly over all classes: Szegedy
            et al., "Rethinking the Inception Architecture" (2015), section 7.
        scope: name scope of the losses to sum, such as 'tower_0/'; by default all.

    Returns the total loss, float32 [].
    """
    labels = tf.cast(labels, tf.int64)
    with tf.name_scope('error'):
        wrong = tf.cast(tf.not_equal(tf.argmax(logits, axis=1), labels), tf.float32)
        tf.add_to_collection('errors', tf.reduce_mean(wrong))
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits, name='cross_entropy_per_example')
    if label_smoothing:
        of_all_classes = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
        cross_entropy += label_smoothing * (of_all_classes - cross_entropy)
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses', scope), name='total_loss')


def _add_loss_summaries(total_loss):
    """Adds summaries of all losses and of `total_loss`, their sum.

    Returns an operation that updates their moving averages.
    """
    return summaries.losses(summaries.losses_by_name(total_loss, TOWER_NAME))


def learning_rate(global_step, batches_per_step=1):
    """The tutorial's schedule: every 350 epochs, the rate falls to a tenth.

    It starts at `--learning_rate`, or the rate of the data set's row in datasets/table.py, or the
    tutorial's. It counts images, so the size and number of batches do not matter.

    Args and errors are those of `train`. Returns float32 [].
    """
    trained_on = source()
    rates = (FLAGS.learning_rate, trained_on.data_set.learning_rate, INITIAL_LEARNING_RATE)
    initial = next(rate for rate in rates if rate is not None)
    decay_steps = int(trained_on.steps_per_epoch(batches_per_step) * NUM_EPOCHS_PER_DECAY)
    return tf.train.exponential_decay(initial, global_step, max(1, decay_steps),
                                      LEARNING_RATE_DECAY_FACTOR, staircase=True)


def train(total_loss, global_step, recipe=None, grads=None, loss_averages_op=None,
          batches_per_step=1):
    """Adds the ops that train the network: gradient descent and moving averages.

    Args:
        total_loss: float32 [], from `loss`.
        global_step: int [], the variable that counts steps.
        recipe: a `Recipe`, whose schedule and optimizer apply; by default the tutorial's.
        grads: list of (gradient, variable), means over towers or workers; by default those of
            `total_loss`.
        loss_averages_op: the operation that updates the losses' averages, if it exists already.
        batches_per_step: number of batches of `--batch_size`, over all towers and workers.

    Returns:
        An operation that runs one step.

    Raises `errors.MissingFile` if the data set's folder lacks a record file.
    """
    grads = grads or variables.compute_gradients(total_loss)
    # If the caller's scope reuses the variables of the network, averages and slots are still new.
    with tf.device('/cpu:0'), tf.variable_scope(
            tf.get_variable_scope(), reuse=tf.AUTO_REUSE, auxiliary_name_scope=False):
        loss_averages_op = loss_averages_op or _add_loss_summaries(total_loss)

        # The tutorial's rate falls in stairs; that of a recipe follows its own schedule.
        with tf.name_scope('learning_rate'):
            lr = (recipe.schedule if recipe else learning_rate)(global_step, batches_per_step)
            if settings.scales_linearly(recipe):
                lr *= schedules.linear_scaling(global_step, source(), batches_per_step,
                                               recipe.batch_size if recipe else 128)
            summaries.scalar('learning_rate', lr)
        tf.add_to_collection('learning_rate', lr)

        # In a trainer, the optimizer is that of its row in recipes.py.
        opt = (recipe.optimizer if recipe else tf.train.GradientDescentOptimizer)(lr)
        apply_gradient_op = opt.apply_gradients(grads, global_step)

        with tf.name_scope('summaries'):
            for grad, var in grads:
                summaries.histogram(var.op.name, var)
                if grad is not None:
                    summaries.histogram(var.op.name + '/gradients', grad)

        # After the update: each average must follow the new value.
        with tf.name_scope('moving_averages'), tf.control_dependencies([apply_gradient_op]):
            variable_averages = tf.train.ExponentialMovingAverage(
                MOVING_AVERAGE_DECAY, global_step.read_value())
            with tf.device(variables.device()):
                variables_averages_op = variable_averages.apply(tf.trainable_variables())

    # Networks with batch norm: the first tower updates the moving statistics of all.
    update_ops = summaries.of_first_tower(tf.get_collection(tf.GraphKeys.UPDATE_OPS), TOWER_NAME)
    return tf.group(variables_averages_op, loss_averages_op, *update_ops, name='train')


def maybe_download_and_extract():
    """Makes sure that the record files exist and are valid; downloads or generates missing ones.

    Raises `errors.DataError` if a file is damaged, or the download failed.
    """
    download.maybe_download_and_extract(source().data_set, FLAGS.data_dir, FLAGS.data_url)

