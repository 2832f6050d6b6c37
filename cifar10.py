"""Builds the CIFAR-10 network: inputs, inference, loss and training.

    images, labels = distorted_inputs()        # a batch of training images
    logits = inference(images)                 # the network's predictions for them
    total_loss = loss(logits, labels)          # how wrong the predictions are
    train_op = train(total_loss, global_step)  # one step that makes them better

The network is Alex Krizhevsky's (https://code.google.com/p/cuda-convnet/) with a different top. It
has 1,068,298 parameters and takes 18.5 million multiply-adds per image. The tutorial reports an
accuracy of about 86 %.
"""
import inspect
import os
import re

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10_input
from cifar10_lib import settings
from cifar10_lib.datasets import download, image_source
from cifar10_lib.nets import losses, lrn, precision
from cifar10_lib.program import command_line

tf.disable_v2_behavior()
# Orders the reads and writes of each variable: the moving averages rely on that.
tf.enable_resource_variables()

# The tutorial's flags of data and precision.
flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.', lower_bound=1,
                     upper_bound=1 << 16, short_name='b')
command_line.define_path('data_dir', '/tmp/cifar10_data', 'Folder for the data sets.')
flags.DEFINE_boolean('use_fp16', False, 'Compute in float16 with float32 variables; for GPUs.')
flags.register_multi_flags_validator(
    ['use_fp16', 'use_bf16'], lambda values: not all(values.values()), 'both set the type in which '
    'layers compute; expected at most one of them: remove the other')

# TensorFlow's wrapper parses the command line on first use, so scripts without `app.run` work.
FLAGS = tf.app.flags.FLAGS
FLAGS['batch_size'].allow_override = True  # A program may define its own flag `b`.
parser = command_line.Parser()  # For code written against the tutorial's last version.

# What cifar10_input.py says about the data. Edit the image size there.
IMAGE_SIZE = cifar10_input.IMAGE_SIZE
NUM_CLASSES = cifar10_input.NUM_CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL

# How the network is trained.
MOVING_AVERAGE_DECAY = 0.9999     # For the moving averages of the weights.
NUM_EPOCHS_PER_DECAY = 350.0      # From one fall of the learning rate to the next.
LEARNING_RATE_DECAY_FACTOR = 0.1  # Each fall multiplies the learning rate by this.
INITIAL_LEARNING_RATE = 0.1       # The learning rate before the first fall.

# Each GPU runs a copy of the network, a tower. The names of its ops start with `tower_0/` etc.
TOWER_NAME = 'tower'

DATA_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'


def _activation_summary(x):
    """Adds the distribution of a layer's output, float, and the fraction of it that is zero."""
    # All trainers use the same tags, so drop the name scope of a tower.
    tensor_name = re.sub('%s_[0-9]*/' % TOWER_NAME, '', x.op.name)
    with tf.name_scope(None):  # `tf.summary` puts the scope of the layer in front of a tag.
        tf.summary.histogram(tensor_name + '/activations', x)
        tf.summary.scalar(tensor_name + '/sparsity', tf.nn.zero_fraction(x))


def _variable_on_cpu(name, shape, initializer):
    """Creates or shares a float32 variable in the memory of the CPU.

    With `--variables=gpu`, the trainers move it to the GPU: `devices.variables_on`.

    Args:
        name: name of the variable within the variable scope.
        shape: list of int.
        initializer: initializer of the variable.

    Returns:
        The variable.
    """
    # A resource even after a second `tf.disable_v2_behavior()`: others may be updated too early.
    with tf.device('/cpu:0'):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                               use_resource=True)


def _variable_with_weight_decay(name, shape, stddev, wd):
    """Creates or shares weights, initially from a truncated normal distribution.

    Args:
        name: name of the variable within the variable scope.
        shape: list of int.
        stddev: standard deviation of the distribution before truncation.
        wd: the loss wd * |weights|^2 / 2 is added to the collection `losses`; None for none.

    Returns:
        The variable.
    """
    var = _variable_on_cpu(name, shape, tf.truncated_normal_initializer(stddev=stddev))
    if wd is not None:
        weight_decay = tf.multiply(tf.nn.l2_loss(var), wd, name='weight_loss')
        tf.add_to_collection('losses', weight_decay)
    return var


def compute_type():
    """The type in which layers compute. Variables, losses and updates are float32 with any."""
    if FLAGS.use_fp16:
        return tf.float16
    if FLAGS.use_bf16:
        return tf.bfloat16
    return tf.float32


def default_source(eval_data=False, subset=None, batch_size=None, data_set=None):
    """The images of `--dataset`: an `image_source.Source`, which documents the arguments.

    By default, all of the test set, or the training images that `--validate_on` leaves, in batches
    of `--batch_size`. A `table.DataSet` replaces that of the flag.
    """
    data_set = data_set or image_source.find(FLAGS.dataset, NUM_CLASSES, DATA_URL)
    if subset is None:
        subset = 'all'
        if FLAGS.validate_on == 'held_out' and not eval_data:
            subset = 'training'
    num_examples_per_epoch = NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    if eval_data:
        num_examples_per_epoch = NUM_EXAMPLES_PER_EPOCH_FOR_EVAL
    return image_source.Source(
        data_set, os.path.join(FLAGS.data_dir, data_set.folder), batch_size or FLAGS.batch_size,
        bool(eval_data), subset, examples_per_epoch=num_examples_per_epoch,
        min_fraction=FLAGS.min_fraction_of_examples_in_queue)


def _beyond_the_tutorial(function, source, **options):
    """The arguments of a function of cifar10_input.py that the tutorial's does not have.

    Only those with a value, because cifar10_input.py may be somebody's own. Raises `app.UsageError`
    if that function does not accept them.
    """
    options = {name: value for name, value in options.items() if value is not None}
    constants = (cifar10_input.NUM_CLASSES, cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN,
                 cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL)
    is_edited = constants != (NUM_CLASSES, NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN,
                              NUM_EXAMPLES_PER_EPOCH_FOR_EVAL)
    if is_edited or not source.is_whole_cifar10:
        options['source'] = source
    try:
        inspect.signature(function).bind_partial(**options)
    except TypeError as error:
        raise app.UsageError(f'{function.__name__} in cifar10_input.py {error}, needed '
                             'beyond CIFAR-10 and the tutorial\'s flags: add it') from error
    return options


def distorted_inputs(source=None, distort=None):
    """Endless batches of distorted training images in random order.

    Args:
        source: an `image_source.Source`; by default `default_source()`.
        distort: distortions other than the tutorial's; see `cifar10_input.distorted_inputs`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of the size of `distort`.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing, or as `_beyond_the_tutorial` does.
    """
    source = source or default_source()
    options = _beyond_the_tutorial(
        cifar10_input.distorted_inputs, source, distort=distort,
        min_fraction_of_examples_in_queue=source.min_fraction)
    return cifar10_input.distorted_inputs(
        data_dir=source.folder, batch_size=source.batch_size, **options)


def inputs(eval_data, source=None, prepare=None):
    """Endless batches of images for evaluation, each epoch in the order of the files.

    Args:
        eval_data: True for the test set, False for the training set.
        source: an `image_source.Source`; by default all images of that set.
        prepare: preprocessing other than the tutorial's; see `cifar10_input.inputs`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of the size of `prepare`.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing, or as `_beyond_the_tutorial` does.
    """
    source = source or default_source(eval_data, 'all')
    options = _beyond_the_tutorial(cifar10_input.inputs, source, prepare=prepare)
    return cifar10_input.inputs(eval_data=eval_data, data_dir=source.folder,
                                batch_size=source.batch_size, **options)


def inference(images, num_classes=None):
    """Builds the network.

    Args:
        images: float [batch, height, width, 3], as `distorted_inputs` returns them.
        num_classes: number of classes; by default that of `--dataset`.

    Returns:
        float32 [batch, num_classes], unnormalised logits: `loss` applies the softmax.

    Raises:
        ValueError: the height or width of the images is not known when the graph is built.
    """
    images = tf.convert_to_tensor(images)  # From an array, too.
    if not images.shape[1:].is_fully_defined():
        raise ValueError(f'images have shape {images.shape}; expected '
                         f'[batch, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]')
    if num_classes is None:
        num_classes = default_source().num_classes
    # Variables are float32. With --use_fp16 and --use_bf16, layers compute with their values in
    # this type; otherwise the casts below do nothing.
    dtype = compute_type()
    images = tf.cast(images, dtype)

    # tf.get_variable, unlike tf.Variable, lets several towers share one set of variables.

    # conv1
    with tf.variable_scope('conv1') as scope:
        kernel = _variable_with_weight_decay('weights', shape=[5, 5, 3, 64], stddev=5e-2, wd=None)
        conv = tf.nn.conv2d(images, tf.cast(kernel, dtype), [1, 1, 1, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [64], tf.constant_initializer(0.0))
        pre_activation = tf.nn.bias_add(conv, tf.cast(biases, dtype))
        conv1 = tf.nn.relu(pre_activation, name=scope.name)  # [batch, 24, 24, 64]
        _activation_summary(conv1)

    # pool1
    pool1 = tf.nn.max_pool(conv1, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME',
                           name='pool1')  # [batch, 12, 12, 64]
    # norm1. This function equals tf.nn.lrn and takes less time.
    norm1 = lrn.lrn(pool1, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm1')

    # conv2
    with tf.variable_scope('conv2') as scope:
        kernel = _variable_with_weight_decay('weights', shape=[5, 5, 64, 64], stddev=5e-2, wd=None)
        conv = tf.nn.conv2d(norm1, tf.cast(kernel, dtype), [1, 1, 1, 1], padding='SAME')
        biases = _variable_on_cpu('biases', [64], tf.constant_initializer(0.1))
        pre_activation = tf.nn.bias_add(conv, tf.cast(biases, dtype))
        conv2 = tf.nn.relu(pre_activation, name=scope.name)  # [batch, 12, 12, 64]
        _activation_summary(conv2)

    # norm2
    norm2 = lrn.lrn(conv2, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name='norm2')
    # pool2
    pool2 = tf.nn.max_pool(norm2, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME',
                           name='pool2')  # [batch, 6, 6, 64]

    # local3
    with tf.variable_scope('local3') as scope:
        # One row per image.
        reshape = tf.reshape(pool2, [-1, pool2.shape[1:].num_elements()], name='flatten')
        dim = reshape.shape.as_list()[1]
        weights = _variable_with_weight_decay('weights', shape=[dim, 384], stddev=0.04, wd=0.004)
        biases = _variable_on_cpu('biases', [384], tf.constant_initializer(0.1))
        pre_activation = tf.nn.bias_add(
            tf.matmul(reshape, tf.cast(weights, dtype)), tf.cast(biases, dtype))
        local3 = tf.nn.relu(pre_activation, name=scope.name)  # [batch, 384]
        _activation_summary(local3)

    # local4
    with tf.variable_scope('local4') as scope:
        weights = _variable_with_weight_decay('weights', shape=[384, 192], stddev=0.04, wd=0.004)
        biases = _variable_on_cpu('biases', [192], tf.constant_initializer(0.1))
        pre_activation = tf.nn.bias_add(
            tf.matmul(local3, tf.cast(weights, dtype)), tf.cast(biases, dtype))
        local4 = tf.nn.relu(pre_activation, name=scope.name)  # [batch, 192]
        _activation_summary(local4)

    # softmax_linear: the logits. `loss` applies the softmax.
    with tf.variable_scope('softmax_linear') as scope:
        weights = _variable_with_weight_decay(
            'weights', [192, num_classes], stddev=1 / 192.0, wd=None)
        biases = _variable_on_cpu('biases', [num_classes], tf.constant_initializer(0.0))
        softmax_linear = tf.nn.bias_add(
            tf.matmul(local4, tf.cast(weights, dtype)), tf.cast(biases, dtype))
        softmax_linear = tf.identity(
            tf.cast(softmax_linear, tf.float32), name=scope.name)  # [batch, num_classes]
        _activation_summary(softmax_linear)

    return softmax_linear


def loss(logits, labels):
    """Mean cross entropy of the batch plus the weight decay of local3 and local4.

    Sums the collection `losses`. Adds the fraction of images whose top prediction is wrong to the
    collection `errors`.

    Args:
        logits: float32 [batch, classes], from `inference`.
        labels: [batch] of any integer type, 0 to classes - 1.

    Returns the total loss, float32 [].
    """
    losses.add_training_error(logits, labels)
    # The mean over the batch.
    labels = tf.cast(labels, tf.int64)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits, name='cross_entropy_per_example')
    cross_entropy_mean = tf.reduce_mean(cross_entropy, name='cross_entropy')
    tf.add_to_collection('losses', cross_entropy_mean)

    # Cross entropy and the terms of the weight decay.
    return tf.add_n(tf.get_collection('losses'), name='total_loss')


def _add_loss_summaries(total_loss):
    """Adds summaries of the losses: the raw values, which are noisy, and their moving averages.

    Args:
        total_loss: float32 [], from `loss`; the collection `losses` has its parts.

    Returns:
        An operation that updates the moving averages.
    """
    # A loss varies from batch to batch; its average shows the trend.
    loss_averages = tf.train.ExponentialMovingAverage(0.9, name='avg')
    parts = tf.get_collection('losses')
    loss_averages_op = loss_averages.apply(parts + [total_loss])

    # Two curves for each loss.
    for part in parts + [total_loss]:
        tf.summary.scalar(part.op.name + ' (raw)', part)
        tf.summary.scalar(part.op.name, loss_averages.average(part))
    return loss_averages_op


def learning_rate(global_step, num_batches_per_epoch, initial_learning_rate=None):
    """The tutorial's schedule: every 350 epochs, the rate falls to a tenth.

    Args:
        global_step: int [], the number of earlier steps.
        num_batches_per_epoch: number of steps in which the network sees each image once, a float.
        initial_learning_rate: by default `INITIAL_LEARNING_RATE`.

    Returns float32 [].
    """
    if initial_learning_rate is None:
        initial_learning_rate = INITIAL_LEARNING_RATE
    decay_steps = max(1, int(num_batches_per_epoch * NUM_EPOCHS_PER_DECAY))
    # In stairs: the rate is constant between two falls.
    return tf.train.exponential_decay(initial_learning_rate, global_step, decay_steps,
                                      LEARNING_RATE_DECAY_FACTOR, staircase=True)


def train(total_loss, global_step, lr=None, opt=None, grads=None):
    """Adds the ops that train the network: gradient descent and moving averages.

    Args:
        total_loss: float32 [], from `loss`.
        global_step: int [], the variable that counts steps.
        lr: float32 [], the learning rate; by default that of `learning_rate`.
        opt: a `tf.train.Optimizer`; by default gradient descent.
        grads: list of (gradient, variable), means over towers or workers; by default those of
            `total_loss`.

    Returns:
        An operation that runs one step.

    Raises `errors.MissingFile` if the data set's folder lacks a record file.
    """
    # If the caller's scope reuses the variables of the network, averages and slots are still new.
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE,
                           auxiliary_name_scope=False):
        with tf.device('/cpu:0'):
            if lr is None:
                trained_on = default_source()
                lr = learning_rate(
                    global_step, trained_on.num_examples() / trained_on.batch_size,
                    settings.first_rate(FLAGS.learning_rate, trained_on.data_set.learning_rate))
            tf.summary.scalar('learning_rate', lr)
            tf.add_to_collection('learning_rate', lr)  # For metrics.csv.

            loss_averages_op = _add_loss_summaries(total_loss)

        if opt is None:
            opt = precision.scaled(tf.train.GradientDescentOptimizer(lr), compute_type())
        if grads is None:
            with tf.control_dependencies([loss_averages_op]):
                # Without gates, TensorFlow computes the gradients of filters and biases in one
                # operation.
                grads = opt.compute_gradients(total_loss, gate_gradients=opt.GATE_NONE)

        # The variables are on the CPU, or on a GPU with --variables=gpu.
        with tf.device(grads[0][1].device):
            apply_gradient_op = opt.apply_gradients(grads, global_step=global_step)

        with tf.device('/cpu:0'):
            for var in tf.trainable_variables():
                tf.summary.histogram(var.op.name, var)

            for grad, var in grads:
                if grad is not None:
                    tf.summary.histogram(var.op.name + '/gradients', grad)

        with tf.device(grads[0][1].device):
            # Networks with batch norm: the moving statistics follow those of the batch.
            update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)

            # Average the weights, and the statistics of batch norms, over the steps. An average
            # must follow the new value, so it comes after the update.
            variables = [*tf.trainable_variables(), *tf.moving_average_variables()]
            with tf.control_dependencies([apply_gradient_op, *update_ops]):
                variable_averages = tf.train.ExponentialMovingAverage(
                    MOVING_AVERAGE_DECAY, global_step)
                variables_averages_op = variable_averages.apply(list(dict.fromkeys(variables)))

    return tf.group(variables_averages_op, loss_averages_op, name='train')


def maybe_download_and_extract(source=None):
    """Makes sure that the record files exist and are valid; downloads or generates missing ones.

    `source` is an `image_source.Source`, by default `default_source()`. Raises `errors.DataError`
    if a file is damaged, or the download failed.
    """
    source = source or default_source()
    download.maybe_download_and_extract(source.data_set, FLAGS.data_dir, FLAGS.data_url)
