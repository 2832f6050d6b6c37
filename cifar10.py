"""Builds the CIFAR-10 network: inputs, inference, loss and training.

    images, labels = distorted_inputs()        # a batch of training images
    logits = inference(images)                 # the network's predictions for them
    total_loss = loss(logits, labels)          # how wrong the predictions are
    train_op = train(total_loss, global_step)  # one step that makes them better

The network is Alex Krizhevsky's (https://code.google.com/p/cuda-convnet/) with a different top. It
has 1,068,298 parameters and takes 18.5 million multiply-adds per image. The tutorial reports an
accuracy of about 86 %.
"""
import os
import re

from cifar10_lib import download, lrn
from cifar10_lib import parser as command_line

import tensorflow.compat.v1 as tf

import cifar10_input

# Flags of the model. They are parsed on first use, so scripts without `tf.app.run` work.
FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.', lower_bound=1)
tf.app.flags.DEFINE_string('data_dir', '/tmp/cifar10_data', 'Folder for the data sets.')
tf.app.flags.DEFINE_boolean('use_fp16', False,
                            'Compute in float16 with float32 variables; for GPUs.')
tf.app.flags.DEFINE_boolean('use_bf16', False, 'Compute in bfloat16 with float32 variables; for '
                            'GPUs, and CPUs with AMX or AVX512_BF16.')
tf.app.flags.mark_bool_flags_as_mutual_exclusive(['use_fp16', 'use_bf16'])
parser = command_line.Parser(allow_abbrev=False)  # For programs of 2017.

# The constants of the data. Edit them in cifar10_input.py.
IMAGE_SIZE = cifar10_input.IMAGE_SIZE
NUM_CLASSES = cifar10_input.NUM_CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL

# How the network is trained.
MOVING_AVERAGE_DECAY = 0.9999     # For the moving averages of the weights.
NUM_EPOCHS_PER_DECAY = 350.0      # Epochs between two drops of the learning rate.
LEARNING_RATE_DECAY_FACTOR = 0.1  # Each drop multiplies the learning rate by this.
INITIAL_LEARNING_RATE = 0.1       # The learning rate before the first drop.

# Each GPU runs a copy of the network, a tower. The names of its ops start with `tower_0/` etc.
TOWER_NAME = 'tower'

DATA_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
_DATA_FOLDER = 'cifar-10-batches-bin'  # In the archive, and in --data_dir.


def _activation_summary(x):
    """Adds the distribution of a layer's output, float, and the fraction of it that is zero.

    Not for a network that shares the variables of another one, as the towers after the first do.
    """
    if tf.get_variable_scope().reuse is True:
        return
    # All trainers use the same tags, so drop the name scope of a tower.
    tensor_name = re.sub('%s_[0-9]*/' % TOWER_NAME, '', x.op.name)
    sparsity = tf.nn.zero_fraction(x)
    with tf.name_scope(None):  # Otherwise the tag would repeat the scope: conv1/conv1/sparsity.
        tf.summary.histogram(tensor_name + '/activations', x)
        tf.summary.scalar(tensor_name + '/sparsity', sparsity)


def _variable_on_cpu(name, shape, initializer):
    """Creates or shares a float32 variable in the memory of the CPU."""
    # Resource variables order their reads and writes. With TensorFlow 1's variables, an update may
    # come before a gradient has read the old value.
    with tf.device('/cpu:0'):
        return tf.get_variable(name, shape, initializer=initializer, dtype=tf.float32,
                               use_resource=True)


def _variable_with_weight_decay(name, shape, stddev, wd):
    """Creates or shares weights, initially from a truncated normal distribution.

    Args:
        name: name of the variable within the variable scope.
        shape: list of int.
        stddev: standard deviation of the distribution before truncation.
        wd: the loss wd * |weights|^2 / 2 is added to the collection `losses`; None: no decay.
    """
    var = _variable_on_cpu(name, shape, tf.truncated_normal_initializer(stddev=stddev))
    if wd is not None:
        weight_decay = tf.multiply(tf.nn.l2_loss(var), wd, name='weight_loss')
        tf.add_to_collection('losses', weight_decay)
    return var


def distorted_inputs():
    """Endless batches of --batch_size distorted training images: `cifar10_input.distorted_inputs`.

    Returns images, float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], and labels, int32 [batch_size].
    """
    data_dir = os.path.join(FLAGS.data_dir, _DATA_FOLDER)
    return cifar10_input.distorted_inputs(data_dir=data_dir, batch_size=FLAGS.batch_size)


def inputs(eval_data):
    """Endless batches of --batch_size images for evaluation: `cifar10_input.inputs`.

    `eval_data` is a bool, whether to read the test set instead of the training set; or 'test', or
    'train_eval' for the training set.

    Returns images, float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], and labels, int32 [batch_size].
    """
    data_dir = os.path.join(FLAGS.data_dir, _DATA_FOLDER)
    return cifar10_input.inputs(eval_data=eval_data, data_dir=data_dir,
                                batch_size=FLAGS.batch_size)


def num_examples(eval_data):
    """Number of images in an epoch of `inputs`: the records in the files, at most the constant."""
    size = NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    if eval_data:
        size = NUM_EXAMPLES_PER_EPOCH_FOR_EVAL
    if hasattr(cifar10_input, 'num_records'):  # A program's own cifar10_input.py may lack it.
        data_dir = os.path.join(FLAGS.data_dir, _DATA_FOLDER)
        size = min(size, cifar10_input.num_records(eval_data, data_dir))
    return size


def compute_type():
    """The type in which layers compute. Variables, losses and updates are float32 with any."""
    if FLAGS.use_fp16:
        return tf.float16
    if FLAGS.use_bf16:
        return tf.bfloat16
    return tf.float32


def inference(images, *, num_classes=None):
    """Builds the network.

    Args:
        images: float [batch, height, width, 3], as `distorted_inputs` returns them.
        num_classes: number of classes; by default NUM_CLASSES.

    Returns:
        float32 [batch, num_classes], unnormalised logits: `loss` applies the softmax.

    Raises:
        TypeError: the height or width of the images is not known when the graph is built.
    """
    if num_classes is None:
        num_classes = NUM_CLASSES
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
        reshape = tf.reshape(pool2, [-1, pool2.shape[1:].num_elements()])
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

    Sums the collection `losses`: to add a term, put it there first. As in the original, those of
    `tf.get_variable(regularizer=...)` are in another collection, and are not part of the loss.

    Args:
        logits: float32 [batch, classes], from `inference`.
        labels: [batch] of any integer type, 0 to classes - 1.

    Returns the total loss, float32 [].
    """
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
    losses = tf.get_collection('losses') + [total_loss]
    loss_averages_op = loss_averages.apply(losses)

    # Two curves for each loss.
    for each in losses:
        tf.summary.scalar(each.op.name + ' (raw)', each)
        tf.summary.scalar(each.op.name, loss_averages.average(each))
    return loss_averages_op


def learning_rate(global_step, images_per_step, *, initial=None, images_per_epoch=None):
    """The tutorial's schedule: every 350 epochs, the rate drops to a tenth.

    Args:
        global_step: int [], the number of earlier steps.
        images_per_step: number of images in a step, over all towers.
        initial: the rate before the first drop; by default INITIAL_LEARNING_RATE.
        images_per_epoch: by default NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN.

    Returns float32 [].
    """
    if initial is None:
        initial = INITIAL_LEARNING_RATE
    if images_per_epoch is None:
        images_per_epoch = NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    # Recorded in checkpoints, so that a resume with another number is reported.
    tf.add_to_collection('images_per_step', images_per_step)

    num_batches_per_epoch = images_per_epoch / images_per_step
    decay_steps = max(1, int(num_batches_per_epoch * NUM_EPOCHS_PER_DECAY))

    # In stairs: the rate is constant between two drops.
    return tf.train.exponential_decay(float(initial), global_step, decay_steps,
                                      LEARNING_RATE_DECAY_FACTOR, staircase=True)


def optimizer(lr):
    """The `tf.train.Optimizer` of all trainers, with this learning rate, float32 [].

    To train with another one, edit this function.
    """
    return scaled(tf.train.GradientDescentOptimizer(lr))


def scaled(opt):
    """Returns the optimizer; with --use_fp16, one whose gradients do not underflow.

    That one multiplies the loss by 128, and divides the gradients in float32: float16 has no
    numbers below 6e-8. Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
    """
    if FLAGS.use_fp16:
        opt = tf.mixed_precision.MixedPrecisionLossScaleOptimizer(
            opt, tf.mixed_precision.FixedLossScale(128.0))
    return opt


def compute_gradients(opt, total_loss):
    """The gradients of a loss: a list of (gradient, variable)."""
    # By default, the gradients of an operation are gated: none is used before all are computed.
    # Without gates, one operation computes those of a convolution's filter and bias, which saves an
    # eighth of a step in bfloat16. In float32, a step is faster with gates, and they protect a
    # variable that is not a resource from an update while another gradient reads it.
    gate_gradients = opt.GATE_OP
    if compute_type() == tf.bfloat16:
        gate_gradients = opt.GATE_NONE
    return opt.compute_gradients(total_loss, gate_gradients=gate_gradients)


def update(opt, grads, global_step, *, averages=True):
    """Adds the ops that end a step: the update, moving averages and histograms.

    Args:
        opt: a `tf.train.Optimizer`.
        grads: list of (gradient, variable), means over towers or workers.
        global_step: int [], the variable that counts steps.
        averages: whether to average the variables.

    Returns:
        An operation that applies the gradients, then moves the averages of the trainable variables,
        and of those in the collection MOVING_AVERAGE_VARIABLES, towards the new values.
    """
    apply_gradient_op = opt.apply_gradients(grads, global_step=global_step)

    with tf.device('/cpu:0'):
        for var in tf.trainable_variables():
            tf.summary.histogram(var.op.name, var)

        for grad, var in grads:
            if grad is not None:
                tf.summary.histogram(var.op.name + '/gradients', grad)

    # Average the variables over the steps. An average must follow the new value, so it comes after
    # the update. Other networks have batch norms: their statistics are updated and averaged, too.
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    if not averages:
        return tf.group(apply_gradient_op, *update_ops)
    with tf.control_dependencies([apply_gradient_op, *update_ops]):
        # Not float32: TensorFlow's graph optimiser runs a cast to a smaller type without the wait.
        num_updates = tf.cast(global_step.read_value(), tf.float64)
        variable_averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY, num_updates)
        return variable_averages.apply(
            list(dict.fromkeys([*tf.trainable_variables(), *tf.moving_average_variables()])))


def train(total_loss, global_step):
    """Adds the ops that train the network: gradient descent and moving averages.

    Args:
        total_loss: float32 [], from `loss`.
        global_step: int [], the variable that counts steps.

    Returns:
        An operation that runs one step.
    """
    with tf.device('/cpu:0'):
        lr = learning_rate(global_step, FLAGS.batch_size)
        tf.summary.scalar('learning_rate', lr)
        loss_averages_op = _add_loss_summaries(total_loss)

    with tf.control_dependencies([loss_averages_op]):
        opt = optimizer(lr)
        grads = compute_gradients(opt, total_loss)

    return update(opt, grads, global_step)


def maybe_download_and_extract():
    """Downloads and unpacks CIFAR-10 into --data_dir, unless its folder is there.

    Checks the record files that `cifar10_input` reads, if it is not a program's own module that
    lacks `record_files` or the size of a record.

    Raises `errors.UserError` if a record file is damaged, or the download failed.
    """
    download.maybe_download_and_extract(DATA_URL, FLAGS.data_dir, _DATA_FOLDER)
    data_dir = os.path.join(FLAGS.data_dir, _DATA_FOLDER)
    if not all(hasattr(cifar10_input, name)
               for name in ('record_files', '_RECORD_BYTES', '_LABEL_BYTES')):
        return
    for eval_data in (False, True):
        try:
            paths = cifar10_input.record_files(eval_data, data_dir)
        except FileNotFoundError:  # `inputs` raises it again, if the program needs this set.
            continue
        for path in paths:
            download.check_records(
                path, cifar10_input._RECORD_BYTES, cifar10_input._LABEL_BYTES - 1, NUM_CLASSES,
                if_torn='restore the file, choose another --data_dir, or change the record size in '
                'cifar10_input.py',
                if_too_large='change NUM_CLASSES in cifar10_input.py, or restore the file')
