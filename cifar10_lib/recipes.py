"""The recipes: one row per network.

To add a network, write its functions in a file of `nets/` and add a row here.
"""
import dataclasses

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from cifar10_lib import settings
from cifar10_lib.nets import local, recipe, resnet, variables

flags.DEFINE_string('net', 'tutorial', 'The network: tutorial, resnet23 or local.',
                    short_name='n')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def chosen():
    """The row of `--net`, a `nets.recipe.Recipe`."""
    return TABLE[FLAGS.net]


def _local_inference(images, training):
    """The tutorial's convolutions below locally connected layers; 2,112,970 parameters for ten
    classes."""
    del training
    net = cifar10.convolutions(images)  # [batch, 6, 6, 64]
    for name, filters in local.LAYERS:  # [batch, 6, 6, 64], then [batch, 6, 6, 32]
        net = local.layer(net, name, filters, cifar10._activation_summary)
    return softmax_linear(net)


def softmax_linear(net):
    """The last layer on other networks: float [batch, ...] -> logits, float32 [batch, classes]."""
    with tf.variable_scope('softmax_linear') as scope:
        units, num_classes = net.shape[1:].num_elements(), _num_classes()
        net = tf.reshape(net, [-1, units], name='flatten')
        weights = cifar10._variable_with_weight_decay(
            'weights', [units, num_classes], stddev=1.0 / units, wd=None)
        biases = cifar10._variable_on_cpu('biases', [num_classes], tf.constant_initializer(0.0))
        net = tf.nn.bias_add(tf.matmul(net, weights), biases)
        net = tf.identity(tf.cast(net, tf.float32), name=scope.name)
        cifar10._activation_summary(net)
    return net


def _resnet23_inference(images, training, gather=None):
    return resnet.inference(images, _num_classes(), training, variables.compute_type(), gather)


def _num_classes():
    return cifar10.source().data_set.num_classes


def _resnet23_schedule(global_step, batches_per_step):
    """The constant rate of NNabla's example, or `--learning_rate`.

    The data set's rate does not apply: it is for gradient descent, and this network uses Adam.
    """
    del global_step, batches_per_step
    return tf.constant(
        resnet.LEARNING_RATE if FLAGS.learning_rate is None else FLAGS.learning_rate)


TABLE = {row.name: row for row in (
    cifar10.TUTORIAL,
    recipe.Recipe(
        name='resnet23',
        inference=_resnet23_inference,
        augment=resnet.augment,
        prepare=resnet.prepare,
        schedule=_resnet23_schedule,
        optimizer=tf.train.AdamOptimizer,
        batch_size=resnet.BATCH_SIZE,
        epochs=resnet.EPOCHS,
        validate_every=1,
        linear_scaling=True,
        has_batch_norm=True),
    dataclasses.replace(cifar10.TUTORIAL, name='local', inference=_local_inference))}


@flags.validator('net')
def _check_net(name):
    if name not in TABLE:  # Checked at parsing time, because a program may have added rows.
        raise flags.ValidationError(f'"{name}" is not one of {", ".join(TABLE)}')
    return True


@flags.multi_flags_validator(
    ['warmup_epochs', 'linear_scaling', 'net'], 'the learning rate warms up only with the linear '
    'scaling rule; expected --linear_scaling: add it, or remove --warmup_epochs')
def _check_warmup(values):
    return FLAGS['warmup_epochs'].using_default_value or settings.scales_linearly(
        TABLE[values['net']])


def describe_defaults(name):
    """Adds to the help of a flag, named like a field of `Recipe`, the defaults of networks."""
    for row in TABLE.values():
        value = getattr(row, name)
        if value and value != FLAGS[name].default:
            FLAGS[name].help += f' With --net={row.name}, the default is {value}.'
