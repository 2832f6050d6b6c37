"""The recipes: one row per network.

To add a network, write its functions in a file of `nets/` and add a row here.
"""
import dataclasses
import functools

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_input
from cifar10_lib import settings
from cifar10_lib.nets import one_cycle, recipe, resnet, variables

flags.DEFINE_string('net', 'tutorial', 'The network and how it trains: tutorial, '
                    'tutorial_fast (the same network in 30 epochs) or resnet23.', short_name='n')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.


def chosen(training=False):
    """The row of `--net`, a `nets.recipe.Recipe`, whose `inference` takes only images.

    `training` is whether that is the network as it trains; in the tutorial's, nothing differs.
    """
    row = TABLE[FLAGS.net]
    inference = (functools.partial(row.inference, training=training) if row.inference else
                 cifar10.inference)
    return dataclasses.replace(row, inference=inference)


def _crop_and_flip(pixels_chw):
    """The tutorial's distortions without those of brightness and contrast."""
    drawn = cifar10_input.draw_distortions(pixels_chw.shape.as_list()[0])
    return cifar10_input.distort(pixels_chw, drawn._replace(
        brightness=tf.zeros_like(drawn.brightness), contrast=tf.ones_like(drawn.contrast)))


def _one_cycle(global_step, batches_per_step):
    """One cycle over `--max_steps`; its peak is `--learning_rate`, if given."""
    del batches_per_step
    peak = one_cycle.PEAK if FLAGS.learning_rate is None else FLAGS.learning_rate
    return one_cycle.rate(global_step, FLAGS.max_steps, peak)


def _resnet23_inference(images, training):
    classes = cifar10.source().data_set.num_classes
    return resnet.inference(images, classes, training, variables.compute_type())


def _resnet23_schedule(global_step, batches_per_step):
    """The constant rate of NNabla's example, or `--learning_rate`.

    The data set's rate does not apply: it is for gradient descent, and this network uses Adam.
    """
    del global_step, batches_per_step
    return tf.constant(
        resnet.LEARNING_RATE if FLAGS.learning_rate is None else FLAGS.learning_rate)


TABLE = {row.name: row for row in (
    recipe.Recipe(
        name='tutorial',
        inference=None,
        augment=cifar10_input.distort,
        prepare=cifar10_input.standardise,
        schedule=cifar10.learning_rate,
        optimizer=tf.train.GradientDescentOptimizer,
        batch_size=128),
    recipe.Recipe(
        name='tutorial_fast',
        inference=None,
        augment=_crop_and_flip,
        prepare=cifar10_input.standardise,
        schedule=_one_cycle,
        optimizer=functools.partial(
            tf.train.MomentumOptimizer, momentum=0.9, use_nesterov=True),
        batch_size=128,
        epochs=30,
        ends_with_run=True),
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
        linear_scaling=True))}


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
