"""The nets: one row for each, with the recipe by which it is trained.

A further net is a file with its functions, and a row here.
"""
import dataclasses
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_input
from nets import local
from nets import resnet

flags.DEFINE_string('net', 'tutorial', 'Which network: tutorial, resnet23 or local.')
flags.DEFINE_float('warmup_epochs', resnet.WARMUP_EPOCHS, 'Epochs in which the learning rate of a '
                   'batch several times the recipe\'s rises; resnet23 only.', lower_bound=0.0,
                   upper_bound=1e6)

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Net:
    """A row of the table.

    Attributes:
        name: what `--net` takes.
        inference: function from (images, training) to logits, float32 [batch, classes] for the
            classes of `--dataset`; `training` is a bool.
        augment: function from pixels, uint8 [records, 3 * 32 * 32], to training images,
            float32 [records, height, width, 3].
        prepare: the same for evaluation, without chance.
        schedule: function from (global_step, replicas) to the learning rate, float32 [];
            `replicas` is on how many batches of `--batch_size` a step works.
        optimizer: function from the learning rate to a `tf.train.Optimizer`.
        batch_size: default of `--batch_size`.
        epochs: how long to train where `--max_steps` is not given; None means that flag's default.
        validate_every: default of `--validate_every`, in epochs; 0 is never.
    """

    name: str
    inference: Callable
    augment: Callable
    prepare: Callable
    schedule: Callable
    optimizer: Callable
    batch_size: int
    epochs: int | None = None
    validate_every: int = 0


def net():
    """The row that `--net` names."""
    return TABLE[FLAGS.net]


def _tutorial_inference(images, training):
    del training  # It has no layer that trains otherwise than it evaluates.
    return cifar10.inference(images)


def _local_inference(images, training):
    """The tutorial's convolutions below locally connected layers; 2,112,970 parameters for ten
    classes."""
    del training
    net = cifar10.convolutions(images)  # [batch, 6, 6, 64]
    for name, filters in local.LAYERS:  # [batch, 6, 6, 64], then [batch, 6, 6, 32]
        net = local.layer(net, name, filters, cifar10.activation_summary)
    return cifar10.softmax_linear(net)


def _resnet23_inference(images, training):
    return resnet.inference(images, cifar10.data_set().num_classes, training,
                            tf.float16 if FLAGS.use_fp16 else tf.float32)


def _resnet23_schedule(global_step, replicas):
    """The example's rate or `--learning_rate`; a warm-up where the batch is a multiple of the
    recipe's. The data set's rate does not count: it is for gradient descent, and this is Adam."""
    multiple, rest = divmod(FLAGS.batch_size * replicas, resnet.BATCH_SIZE)
    return resnet.learning_rate(
        global_step, cifar10.steps_per_epoch(replicas),
        multiple if multiple and not rest else 1, FLAGS.warmup_epochs,
        resnet.LEARNING_RATE if FLAGS.learning_rate is None else FLAGS.learning_rate)


_TUTORIAL = Net(
    name='tutorial',
    inference=_tutorial_inference,
    augment=cifar10_input.distort_at_random,
    prepare=cifar10_input.standardise,
    schedule=cifar10.learning_rate,
    optimizer=tf.train.GradientDescentOptimizer,
    batch_size=128)

TABLE = {row.name: row for row in (
    _TUTORIAL,
    Net(name='resnet23',
        inference=_resnet23_inference,
        augment=resnet.augment,
        prepare=resnet.prepare,
        schedule=_resnet23_schedule,
        optimizer=tf.train.AdamOptimizer,
        batch_size=resnet.BATCH_SIZE,
        epochs=resnet.EPOCHS,
        validate_every=1),
    dataclasses.replace(_TUTORIAL, name='local', inference=_local_inference))}


@flags.validator('net')
def _check_net(name):
    if name not in TABLE:  # Looked up when flags are parsed: a row may be added before.
        raise flags.ValidationError(f'"{name}" is none of {", ".join(TABLE)}')
    return True
