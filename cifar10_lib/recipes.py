"""The recipes: one row per network.

To add a network, write its functions in a file of `nets/` and add a row here.
"""
import collections
import functools

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_input
from cifar10_lib import settings
from cifar10_lib.datasets import table
from cifar10_lib.nets import fast, resnet, schedules, variables

flags.DEFINE_string('net', 'tutorial', 'The network and how it trains: tutorial, tutorial_fast (80 '
                    'epochs) or resnet23 (300 epochs in batches of 64).', short_name='n')

FLAGS = tf.app.flags.FLAGS  # Parses the command line on first use, as in `cifar10`.

# A row:
#   name: value of `--net`
#   inference: function (images, training) -> logits, float32 [batch, classes]; `training` is a
#       bool. None for `cifar10.inference`, which takes only images
#   augment: function from the pixels of records, uint8 [records, 3 * 32 * 32], to images for
#       training, float32 [records, height, width, 3]; may draw random numbers
#   prepare: the same for evaluation, without random numbers
#   schedule: function (global_step, batches_per_step) -> learning rate, float32 [], without the
#       linear scaling rule
#   optimizer: function from the learning rate to a `tf.train.Optimizer`
#   batch_size, epochs, validate_every, linear_scaling: defaults of these flags; if `epochs` is
#       None, that of `--max_steps` applies
#   ends_with_run: whether the schedule depends on `--max_steps`; label_smoothing: `cifar10.loss`
Recipe = collections.namedtuple(
    'Recipe', 'name inference augment prepare schedule optimizer batch_size epochs validate_every '
    'linear_scaling ends_with_run label_smoothing', defaults=[None, 0, False, False, 0.0])


def chosen(training=False):
    """The row of `--net`, a `Recipe`, whose `inference` takes only images; with `training`, that
    is the network as it trains."""
    row = TABLE[FLAGS.net]
    inference = (functools.partial(row.inference, training=training) if row.inference else
                 cifar10.inference)
    return row._replace(inference=inference)


def _crop_and_flip(pixels_chw):
    """The tutorial's distortions without brightness and contrast, and with crops that are at most
    three pixels from the centre, instead of four."""
    drawn = cifar10_input.draw_distortions(pixels_chw.shape.as_list()[0])
    spare = table.HEIGHT - cifar10_input.IMAGE_SIZE  # 8
    return cifar10_input.distort(pixels_chw, drawn._replace(
        offsets=tf.random_uniform(
            tf.shape(drawn.offsets), spare // 8, spare - spare // 8 + 1, tf.int32),
        brightness=tf.zeros_like(drawn.brightness), contrast=tf.ones_like(drawn.contrast)))


def _resnet23_inference(images, training):
    classes = len(cifar10.source().data_set.classes)
    return resnet.inference(images, classes, training, variables.compute_type())


TABLE = {row.name: row for row in (
    Recipe(
        name='tutorial',
        inference=None,
        augment=cifar10_input.distort,
        prepare=cifar10_input.standardise,
        schedule=cifar10.learning_rate,
        optimizer=tf.train.GradientDescentOptimizer,
        batch_size=128),
    Recipe(
        name='tutorial_fast',
        inference=functools.partial(fast.inference, cifar10.inference),
        augment=_crop_and_flip,
        prepare=cifar10_input.standardise,
        schedule=schedules.one_cycle,
        optimizer=functools.partial(
            tf.train.MomentumOptimizer, momentum=0.9, use_nesterov=True),
        batch_size=128,
        epochs=80,
        ends_with_run=True,
        label_smoothing=0.1),
    Recipe(
        name='resnet23',
        inference=_resnet23_inference,
        augment=resnet.augment,
        prepare=resnet.prepare,
        schedule=resnet.schedule,
        optimizer=tf.train.AdamOptimizer,
        batch_size=64,
        epochs=300,
        validate_every=1,
        linear_scaling=True))}


# Not an enum: a program may add rows before the flags are parsed.
flags.register_validator('net', lambda name: name in TABLE, f'expected one of {", ".join(TABLE)}')

flags.register_multi_flags_validator(
    ['warmup_epochs', 'linear_scaling', 'net'], lambda values: (
        FLAGS['warmup_epochs'].using_default_value
        or settings.scales_linearly(TABLE[values['net']])),
    'the learning rate warms up only with the linear scaling rule; expected --linear_scaling: add '
    'it, or remove --warmup_epochs')
