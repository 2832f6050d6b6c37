"""Builds the CIFAR-10 network: inputs, inference, loss and training.

    images, labels = distorted_inputs()        # a batch of training images
    logits = inference(images)                 # the network's predictions for them
    total_loss = loss(logits, labels)          # how wrong the predictions are
    train_op = train(total_loss, global_step)  # one step that makes them better

The network is Alex Krizhevsky's (https://code.google.com/p/cuda-convnet/) with a different top. It
has 1,068,298 parameters and takes 18.5 million multiply-adds per image. The tutorial reports an
accuracy of about 86 %.
"""
import contextlib
import dataclasses
import os
import re

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10_input
from cifar10_lib.datasets import custom
from cifar10_lib.datasets import download
from cifar10_lib.datasets import table
from cifar10_lib.nets import linear_scaling
from cifar10_lib.nets import lrn
from cifar10_lib.nets import recipe as recipe_
from cifar10_lib.nets import variables
from cifar10_lib.program import errors
from cifar10_lib.program import paths

flags.DEFINE_integer('batch_size', 128, 'Number of images per batch.', lower_bound=1,
                     upper_bound=1 << 16, short_name='b')
paths.define('dataset', 'cifar10', f'The images to use: {", ".join(table.TABLE)}, or a folder '
             'made by cifar10_convert.py.')
paths.define('data_dir', '/tmp/cifar10_data', 'Folder for downloaded and generated data sets.')
flags.DEFINE_string('data_url', None, 'URL (http, https or file) to download the archive from; by '
                    "default the data set's own.")
flags.DEFINE_enum('validate_on', 'test', ['test', 'held_out'], 'Images for --validate_every: '
                  'the test set, or every tenth training image, which is then excluded from '
                  'training.')
flags.DEFINE_float('learning_rate', None, 'Initial learning rate. The default depends on --net and '
                   '--dataset.', lower_bound=0.0, upper_bound=1e6, short_name='l')
flags.DEFINE_boolean('linear_scaling', None, 'With k batches per step, use k times the learning '
                     'rate after a warm-up. Counts the batches of all towers and workers; a batch '
                     'of k times the default --batch_size counts as k. The default is false.')
flags.DEFINE_float('warmup_epochs', linear_scaling.WARMUP_EPOCHS, 'Length of the warm-up of '
                   '--linear_scaling; 0 starts at the full rate.',
                   lower_bound=0.0, upper_bound=1e6, short_name='e')
flags.DEFINE_boolean('use_fp16', False, 'Compute in float16 with float32 variables; for GPUs.')
flags.DEFINE_boolean('use_bf16', False, 'Compute in bfloat16 with float32 variables; for GPUs, and '
                     'CPUs with AMX or AVX512_BF16.')
flags.DEFINE_float('min_fraction_of_examples_in_queue',
                   cifar10_input.MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                   'Fraction of the training images to keep in the shuffle queue.',
                   lower_bound=0.0, upper_bound=1.0)

# Scripts that do not train, or do not read record files, omit these from --help.
TRAINING_FLAGS = ('learning_rate', 'linear_scaling', 'min_fraction_of_examples_in_queue',
                  'validate_on', 'warmup_epochs')
INPUT_FLAGS = ('batch_size', 'data_dir', 'data_url')

# The tutorial does not have these flags, so programs written against it may define their own flags
# of the same names, which then replace ours.
for _name in ('dataset', 'data_url', 'validate_on', 'learning_rate', 'linear_scaling',
              'warmup_epochs', 'use_bf16', 'min_fraction_of_examples_in_queue'):
    flags.FLAGS[_name].allow_override = True

# TensorFlow's wrapper parses the command line on first use, so scripts without `app.run` work.
FLAGS = tf.app.flags.FLAGS

# Facts about CIFAR-10. The image size is that of cifar10_input.py: edit it there.
IMAGE_SIZE = cifar10_input.IMAGE_SIZE
NUM_CLASSES = cifar10_input.NUM_CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = cifar10_input.NUM_EXAMPLES_PER_EPOCH_FOR_EVAL
DATA_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'

# The tutorial's training constants.
MOVING_AVERAGE_DECAY = 0.9999
NUM_EPOCHS_PER_DECAY = 350.0
LEARNING_RATE_DECAY_FACTOR = 0.1
INITIAL_LEARNING_RATE = 0.1

# Each GPU runs a copy of the network, a tower. The names of its ops start with `tower_0/` etc.
TOWER_NAME = 'tower'

# Multiplies the loss before differentiation; the gradients are divided by it in float32. Otherwise
# small ones underflow: float16 has no numbers below 6e-8. Micikevicius et al., "Mixed Precision
# Training" (2018), section 3.2.
_LOSS_SCALE = 128.0

_LOSS_AVERAGE_DECAY = 0.9  # For the losses in TensorBoard; the tutorial's value.


@flags.multi_flags_validator(['use_fp16', 'use_bf16'], 'both set the type in which layers compute; '
                             'expected at most one of them: remove the other')
def _check_types(values):
    return not all(values.values())


@flags.validator('data_url')
def _check_data_url(url):
    if url is not None and not download.is_url(url):
        raise flags.ValidationError(f'"{url}" does not start with http:, https: or file:')
    if url is not None and not url.isascii():
        raise flags.ValidationError('a URL has only ASCII characters: encode others as in %C3%A9')
    return True


@flags.validator('dataset')
def _check_dataset(name):
    try:
        custom.find(name)
    except errors.DataError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def data_set():
    """The `table.DataSet` of `--dataset`, from the table or from the user's folder."""
    row = custom.find(FLAGS.dataset)
    if row is table.CIFAR10:
        row = dataclasses.replace(cifar10_input.cifar10_row(NUM_CLASSES), url=DATA_URL)
    return row


def data_folder():
    """Path of the folder with the record files of `--dataset`.

    A user's own data set has an absolute path, which does not depend on `--data_dir`.
    """
    return os.path.join(FLAGS.data_dir, data_set().folder)


def maybe_download_and_extract():
    """Makes sure that the record files exist and are valid; downloads or generates missing ones.

    Raises:
        errors.DataError: a file is damaged, or the download failed.
    """
    download.maybe_download_and_extract(data_set(), FLAGS.data_dir, FLAGS.data_url)


def distorted_inputs(recipe=None, shard=(0, 1)):
    """Endless batches of distorted training images in random order.

    Args:
        recipe: a `Recipe`; by default the tutorial's.
        shard: (index, count): use only the records whose number modulo count is index.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or the size that `recipe.augment`
            makes.
        labels: int32 [batch_size].

    Raises:
        errors.MissingFile: a record file is missing; see `maybe_download_and_extract`.
    """
    return cifar10_input.distorted_inputs(
        data_folder(), FLAGS.batch_size, data_set(), FLAGS.min_fraction_of_examples_in_queue,
        (recipe or TUTORIAL).augment, shard, _holds_out())


def distorted_inputs_queue(capacity, recipe=None):
    """The queue behind `distorted_inputs`, from which several towers dequeue their own batches.

    Args:
        capacity: number of batches to prefetch.
        recipe: a `Recipe`; by default the tutorial's.

    Returns:
        A queue of (images, labels) for `cifar10_input.dequeue`; shapes as in `distorted_inputs`.

    Raises:
        errors.MissingFile: a record file is missing.
    """
    return cifar10_input.distorted_inputs_queue(
        data_folder(), FLAGS.batch_size, data_set(), FLAGS.min_fraction_of_examples_in_queue,
        (recipe or TUTORIAL).augment, capacity, held_out=_holds_out())


def inputs(eval_data, recipe=None, held_out=False, num_epochs=None):
    """Batches of images for evaluation, in order.

    Args:
        eval_data: True for the test set, False for the training set.
        recipe: a `Recipe`; by default the tutorial's.
        held_out: with `eval_data` False, whether to read only the held-out training images.
        num_epochs: how often to read each image; None for endless batches.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or the size that `recipe.prepare`
            makes.
        labels: int32 [batch_size].
        With `num_epochs`, the last batch may be smaller: see `cifar10_input.inputs`.

    Raises:
        errors.MissingFile: a record file of the set is missing; see `maybe_download_and_extract`.
    """
    return cifar10_input.inputs(eval_data, data_folder(), FLAGS.batch_size, data_set(),
                                (recipe or TUTORIAL).prepare, held_out, num_epochs)


@contextlib.contextmanager
def damage_reported():
    """Names the damaged record file if a session in this block reads an invalid label.

    TensorFlow's error is only text. Checking the files again raises an error that names the file,
    the record and the remedy.

    Raises:
        errors.DataError: a record file is damaged.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        data_set().check(data_folder())
        raise


def num_examples(eval_data):
    """Number of images to evaluate or, with `eval_data` False, to train on in an epoch.

    `--validate_on=held_out` leaves nine tenths of the training set.

    Raises:
        errors.MissingFile: see `examples_per_epoch`.
    """
    examples = examples_per_epoch(eval_data)
    if eval_data or not _holds_out():
        return examples
    return examples - cifar10_input.num_held_out(examples)


def examples_per_epoch(eval_data):
    """Number of images in an epoch of the test set or, with `eval_data` False, the training set.

    That is the number of records. If the folder does not exist yet, uses the sizes of the published
    files. For CIFAR-10, NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN and NUM_EXAMPLES_PER_EPOCH_FOR_EVAL have
    priority if they were edited.

    Raises:
        errors.MissingFile: the folder exists, but one of its record files is missing.
        errors.DataError: an edited constant is less than 1.
    """
    edited = cifar10_input.edited_examples_per_epoch(
        data_set(), eval_data,
        NUM_EXAMPLES_PER_EPOCH_FOR_EVAL if eval_data else NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN)
    return num_records(eval_data) if edited is None else edited


def num_held_out():
    """Number of training images that `--validate_on=held_out` reserves for validation.

    Raises:
        errors.MissingFile: see `examples_per_epoch`.
    """
    return cifar10_input.num_held_out(num_records(eval_data=False))


def num_records(eval_data):
    """Number of records in the files of the test set or, with `eval_data` False, the training set.

    Raises:
        errors.MissingFile: see `examples_per_epoch`.
    """
    if os.path.isdir(data_folder()):
        return data_set().count(data_folder(), eval_data)
    return sum(data_set().split(eval_data).values())


def _holds_out():
    return FLAGS.validate_on == 'held_out'


def examples_per_step(replicas=1):
    """Number of images in one step of several towers or workers with `--batch_size` each."""
    return FLAGS.batch_size * replicas


def steps_per_epoch(replicas=1):
    """Number of steps in which the network sees each training image once, a float.

    Args:
        replicas: number of batches of `--batch_size` in one step.

    Raises:
        errors.MissingFile: a record file is missing.
    """
    return num_examples(eval_data=False) / examples_per_step(replicas)


def compute_type():
    """The type in which layers compute; variables, losses and updates are float32 with any."""
    return tf.float16 if FLAGS.use_fp16 else tf.bfloat16 if FLAGS.use_bf16 else tf.float32


def inference(images):
    """Builds the network.

    Args:
        images: float [batch, IMAGE_SIZE, IMAGE_SIZE, 3], as `distorted_inputs` returns them.

    Returns:
        float32 [batch, classes], unnormalised logits: `loss` applies the softmax.

    Raises:
        ValueError: the images have a different size, which would change the network.
    """
    net = convolutions(images)  # [batch, 6, 6, 64]
    net = _local(net, 'local3', 384)  # [batch, 384]
    net = _local(net, 'local4', 192)  # [batch, 192]
    return softmax_linear(net)  # [batch, classes]


def convolutions(images):
    """The lower half of the network, up to pool2; `--net=local` uses it, too.

    Args:
        images: float [batch, IMAGE_SIZE, IMAGE_SIZE, 3].

    Returns:
        float [batch, 6, 6, 64] for images of 24 x 24, of type `compute_type()`.

    Raises:
        ValueError: the images have a different size.
    """
    images = tf.convert_to_tensor(images)  # From an array, too.
    if images.shape.as_list()[1:] != [IMAGE_SIZE, IMAGE_SIZE, 3]:
        raise ValueError(f'images have shape {images.shape}; expected '
                         f'[batch, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]')
    net = tf.cast(images, compute_type())
    net = _pooled_conv(net, 'conv1', 'pool1', 64, bias=0.0)  # [batch, 12, 12, 64]
    net = _normalise(net, 'norm1')
    net = _conv(net, 'conv2', 64, bias=0.1)  # [batch, 12, 12, 64]
    net = _normalise(net, 'norm2')
    return _max_pool(net, 'pool2')  # [batch, 6, 6, 64]


def softmax_linear(net):
    """The last layer: float [batch, ...] -> logits, float32 [batch, classes]."""
    with tf.variable_scope('softmax_linear') as scope:
        net = _flatten(net)
        inputs_ = net.shape.as_list()[-1]
        units = data_set().num_classes
        weights = _variable_with_weight_decay(
            'weights', [inputs_, units], stddev=1.0 / inputs_, wd=None)
        biases = _variable_on_cpu('biases', [units], tf.constant_initializer(0.0))
        net = tf.cast(tf.nn.bias_add(tf.matmul(net, weights), biases), tf.float32)
        net = tf.identity(net, name=scope.name)
        _activation_summary(net)
    return net


def _conv(net, name, filters, bias):
    """5x5 convolution, bias and ReLU; keeps height and width.

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
        _activation_summary(net)
    return net


def _pooled_conv(net, name, pool_name, filters, bias):
    """`_conv` and `_max_pool` in the cheaper order.

    max(relu(x + b)) = relu(max(x) + b), because adding a constant and ReLU are monotonic. After
    pooling, bias and ReLU have a quarter of the work, forward and backward. The activations before
    pooling exist only for their summary.

    Args:
        net, name, filters, bias: as for `_conv`.
        pool_name: name of the result.

    Returns:
        float [batch, height / 2, width / 2, filters].
    """
    with tf.variable_scope(name) as scope:
        net, biases = _convolve(net, filters, bias)
        _activation_summary(tf.nn.relu(tf.nn.bias_add(net, biases), name=scope.name))
    with tf.name_scope(pool_name) as scope:
        return tf.nn.relu(tf.nn.bias_add(_max_pool(net, 'max_pool'), biases), name=scope)


def _convolve(net, filters, bias):
    """Convolves with the current scope's 5x5 `weights`; returns (result, `biases` to add)."""
    channels = net.shape.as_list()[-1]
    kernel = _variable_with_weight_decay(
        'weights', [5, 5, channels, filters], stddev=5e-2, wd=None)
    biases = _variable_on_cpu('biases', [filters], tf.constant_initializer(bias))
    net = tf.nn.conv2d(net, kernel, strides=[1, 1, 1, 1], padding='SAME')
    return net, tf.convert_to_tensor(biases)  # One read, for all uses.


def _max_pool(net, name):
    """Overlapping 3x3 max pooling; halves height and width."""
    return tf.nn.max_pool(net, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding='SAME', name=name)


def _normalise(net, name):
    """Local response normalisation over nine channels."""
    return lrn.lrn(net, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name=name)


def _flatten(net):
    """[batch, ...] -> [batch, units]."""
    return tf.reshape(net, [-1, net.shape[1:].num_elements()], name='flatten')


def _local(net, name, units):
    """Fully connected layer with ReLU and weight decay: [batch, ...] -> [batch, units]."""
    with tf.variable_scope(name) as scope:
        net = _flatten(net)
        weights = _variable_with_weight_decay(
            'weights', [net.shape.as_list()[-1], units], stddev=0.04, wd=0.004)
        biases = _variable_on_cpu('biases', [units], tf.constant_initializer(0.1))
        net = tf.nn.relu(tf.nn.bias_add(tf.matmul(net, weights), biases), name=scope.name)
        _activation_summary(net)
    return net


def _variable_on_cpu(name, shape, initializer):
    """Gets or creates a float32 variable in host memory.

    Args:
        name: name within the variable scope.
        shape: list of int.
        initializer: a TensorFlow initializer.

    Returns:
        The variable; with `--use_fp16` or `--use_bf16`, its value in that type.
    """
    return _to_compute_with(variables.on_cpu(name, shape, initializer))


def _variable_with_weight_decay(name, shape, stddev, wd):
    """Gets or creates weights in host memory, initially from a truncated normal distribution.

    Args:
        name: name within the variable scope.
        shape: list of int.
        stddev: standard deviation of the distribution before truncation.
        wd: the loss wd * |weights|^2 / 2 is added to the collection `losses`; None for none.

    Returns:
        The variable or, with `wd`, `--use_fp16` or `--use_bf16`, its value as `compute_type()`.
    """
    weights = variables.on_cpu(name, shape, tf.truncated_normal_initializer(stddev=stddev))
    if wd is None:
        return _to_compute_with(weights)
    value = variables.read(weights)  # Once: with a GPU, each read crosses to it separately.
    variables.add_weight_decay(value, wd)
    return tf.cast(value, compute_type())


def _to_compute_with(variable):
    """The variable itself, or its value if the layers compute in another type."""
    if compute_type() == tf.float32:
        return variable
    return variables.read(variable, compute_type())


def loss(logits, labels):
    """Mean cross entropy of the batch plus the weight decay of all layers.

    Sums the collection `losses`; within a tower's name scope, only that tower's losses. Adds the
    fraction of images whose top prediction is wrong to the collection `errors`.

    Args:
        logits: float32 [batch, classes], from `inference`.
        labels: [batch] of any integer type, 0 to classes - 1.

    Returns:
        float32 [], the total loss.
    """
    labels = tf.cast(labels, tf.int64)
    with tf.name_scope('error'):
        predictions = tf.argmax(logits, axis=1)
        wrong = tf.cast(tf.not_equal(predictions, labels), tf.float32)
        tf.add_to_collection('errors', tf.reduce_mean(wrong))
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits, name='cross_entropy_per_example')
    tf.add_to_collection('losses', tf.reduce_mean(cross_entropy, name='cross_entropy'))
    return tf.add_n(_losses_in_scope(), name='total_loss')


def _losses_in_scope():
    """Losses of the collection `losses` in the current name scope."""
    scope = tf.get_default_graph().get_name_scope()
    return tf.get_collection('losses', scope + '/' if scope else None)


def losses_by_name(total_loss):
    """All losses of the current name scope and their total.

    Args:
        total_loss: float32 [], from `loss`.

    Returns:
        Dictionary from name without the tower, such as 'local3/weight_loss', to float32 [].
    """
    return {_without_tower(loss_.op.name): loss_
            for loss_ in _losses_in_scope() + [total_loss]}


def learning_rate(global_step, replicas=1):
    """The tutorial's schedule: every 350 epochs, the rate falls to a tenth.

    The schedule counts images, so it does not depend on the batch size or the number of replicas.

    Args:
        global_step: int [].
        replicas: number of batches of `--batch_size` in one step.

    Returns:
        float32 [].

    Raises:
        errors.MissingFile: a record file is missing.
    """
    steps = int(steps_per_epoch(replicas) * NUM_EPOCHS_PER_DECAY)
    return tf.train.exponential_decay(_initial_learning_rate(), global_step, max(1, steps),
                                      LEARNING_RATE_DECAY_FACTOR, staircase=True)


def _initial_learning_rate():
    """`--learning_rate`, or else the rate of the data set's row, or else the tutorial's."""
    rates = (FLAGS.learning_rate, data_set().learning_rate, INITIAL_LEARNING_RATE)
    return next(rate for rate in rates if rate is not None)


def scales_linearly(recipe):
    """Whether the linear scaling rule applies: `--linear_scaling`, or else the `Recipe`'s own."""
    return recipe.linear_scaling if FLAGS.linear_scaling is None else FLAGS.linear_scaling


def scheduled_rate(global_step, replicas=1, recipe=None):
    """The learning rate of a step: the recipe's, multiplied if the linear scaling rule applies.

    Args:
        global_step: int [].
        replicas: number of batches of `--batch_size` in one step, over all towers and workers.
        recipe: a `Recipe`; by default the tutorial's.

    Returns:
        float32 [].

    Raises:
        errors.MissingFile: a record file is missing.
    """
    recipe = recipe or TUTORIAL
    rate = recipe.schedule(global_step, replicas)
    if not scales_linearly(recipe):
        return rate
    batches = linear_scaling.batches_per_step(FLAGS.batch_size, replicas, recipe.batch_size)
    return rate * linear_scaling.factor(
        global_step, steps_per_epoch(replicas), batches, FLAGS.warmup_epochs)


def train(total_loss, global_step, recipe=None):
    """Adds the ops that train the network: gradient descent and moving averages.

    Args:
        total_loss: float32 [], from `loss`.
        global_step: int [], the variable that counts steps.
        recipe: a `Recipe`; by default the tutorial's.

    Returns:
        An operation that runs one step.
    """
    gradients = compute_gradients(total_loss)
    # If the caller's scope reuses the variables of the network, averages and slots are still new.
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE,
                           auxiliary_name_scope=False):
        return tf.group(apply_gradients(gradients, global_step, recipe=recipe),
                        _add_loss_summaries(total_loss), name='train')


def compute_gradients(total_loss):
    """Gradients of the loss in float32.

    Args:
        total_loss: float32 [].

    Returns:
        List of (gradient, variable) for all trainable variables. The gradient is None if the loss
        does not depend on the variable.
    """
    trained = tf.trainable_variables()
    scale = _LOSS_SCALE if FLAGS.use_fp16 else 1.0
    with tf.name_scope('gradients'):
        gradients = tf.gradients(total_loss * scale, trained)
        if FLAGS.use_fp16:
            gradients = [None if gradient is None else gradient / scale for gradient in gradients]
    return list(zip(gradients, trained))


def apply_gradients(gradients, global_step, replicas=1, recipe=None):
    """Updates all variables and their moving averages, and increments the global step.

    Also updates the moving statistics of batch norms (collection `UPDATE_OPS`) of the first tower.

    Args:
        gradients: list of (gradient, variable).
        global_step: int [], the variable that counts steps.
        replicas: number of batches of `--batch_size` in one step, over all towers and workers.
        recipe: a `Recipe`; by default the tutorial's.

    Returns:
        An operation that runs one step.
    """
    recipe = recipe or TUTORIAL
    with tf.device('/cpu:0'):
        with tf.name_scope('learning_rate'):
            rate = scheduled_rate(global_step, replicas, recipe)
            _scalar_summary('learning_rate', rate)
        tf.add_to_collection('learning_rate', rate)
        descent = recipe.optimizer(rate).apply_gradients(gradients, global_step)
        with tf.name_scope('summaries'):
            for gradient, variable in gradients:
                _histogram_summary(variable.op.name, variable)
                if gradient is not None:
                    _histogram_summary(variable.op.name + '/gradients', gradient)
        # The averages use the variables and the global step after this update.
        with tf.name_scope('moving_averages'), tf.control_dependencies([descent]):
            averages = tf.train.ExponentialMovingAverage(
                MOVING_AVERAGE_DECAY, num_updates=global_step.read_value())
            with tf.device(variables.device()):
                averaged = averages.apply(tf.trainable_variables())
    return tf.group(averaged, *of_first_tower(tf.get_collection(tf.GraphKeys.UPDATE_OPS)))


def of_first_tower(nodes):
    """The operations or tensors of a list without those of towers 1, 2 and so on."""
    later = re.compile(f'{TOWER_NAME}_[1-9]')
    return [node for node in nodes if not later.match(node.name)]


def variables_to_save():
    """The variables in every trainer's checkpoint, with moving averages and global step."""
    return tf.global_variables()


def variables_to_restore(use_moving_averages):
    """The network's variables, keyed by the names of their values in a checkpoint.

    For inference graphs. The moving statistics of batch norms are not averaged.

    Args:
        use_moving_averages: whether to read the moving averages or the raw weights.

    Returns:
        Dictionary from name to variable.
    """
    found = {variable.op.name: variable for variable in tf.global_variables()}
    if use_moving_averages:
        averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY)
        for variable in tf.trainable_variables():
            found[averages.average_name(variable)] = found.pop(variable.op.name)
    return found


def _add_loss_summaries(total_loss):
    """`loss_summaries` of all losses in the current name scope and their total."""
    return loss_summaries(losses_by_name(total_loss))


def loss_summaries(losses):
    """Adds summaries of each loss: its raw value and its moving average.

    A raw loss varies from batch to batch; its average (decay 0.9) shows the trend. The averages
    start at a session's first values. Their variable is in no collection, so that it needs no
    initializer and is not in checkpoints.

    Args:
        losses: dictionary from name to float32 [].

    Returns:
        An operation that updates the averages.
    """
    with tf.device('/cpu:0'), tf.name_scope('loss_averages'):
        values = tf.stack(list(losses.values()))
        averages = tf.get_variable(
            'loss_averages/averages', [len(losses)], initializer=tf.zeros_initializer(),
            trainable=False, use_resource=True, collections=[])
        moved = tf.cond(
            averages.is_initialized(),
            lambda: averages.read_value() + (1 - _LOSS_AVERAGE_DECAY) * (
                values - averages.read_value()),
            lambda: values)
        after = averages.assign(moved, read_value=False)
        for index, name in enumerate(losses):
            _scalar_summary(name + ' (raw)', values[index])
            _scalar_summary(name, moved[index])
    return after


def _activation_summary(x):
    """Adds a histogram of a layer's activations, and the fraction of them that is zero.

    The tags start with the name of the layer: 'conv1' for 'tower_0/conv1/conv1'.

    Args:
        x: float tensor, the layer's output.
    """
    name = re.sub(r'(^|/)([^/]+)/\2$', r'\1\2', _without_tower(x.op.name))
    with tf.name_scope('summaries'):
        _histogram_summary(name + '/activations', x)
        zeros = tf.cast(tf.equal(x, 0), tf.float32)  # `tf.nn.zero_fraction` takes 35 operations.
        _scalar_summary(name + '/sparsity', tf.reduce_mean(zeros))


def _without_tower(name):
    return re.sub(f'^{TOWER_NAME}_[0-9]+/', '', name)


# `tf.summary` would put the tower's name scope in front of the tag and make it unique. These ops
# use the tag unchanged, so the curves of all trainers have the same names.
def _scalar_summary(tag, value):
    """Adds a scalar under exactly this tag."""
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ScalarSummary(
        tags=tag, values=value))


def _histogram_summary(tag, values):
    """Adds a histogram under exactly this tag.

    Infinities and NaN count as zero: they would make the op fail before the loss is reported.
    """
    values = tf.cast(values, tf.float32)
    values = tf.where_v2(tf.is_finite(values), values, 0.0)
    tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.HistogramSummary(
        tag=tag, values=values))


TUTORIAL = recipe_.Recipe(
    name='tutorial',
    inference=lambda images, training: inference(images),
    augment=cifar10_input.distort_at_random,
    prepare=cifar10_input.standardise,
    schedule=learning_rate,
    optimizer=tf.train.GradientDescentOptimizer,
    batch_size=128)
