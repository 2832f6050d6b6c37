"""The recipes: one row per network.

To add a network, write its functions in a file of `nets/` and add a row here.
"""
import collections
import dataclasses
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
import cifar10_input
from cifar10_lib import settings
from cifar10_lib.nets import airbench94, fast, losses, precision, resnet, schedules

_BATCH_SIZE = 128  # The tutorial's; for the linear scaling rule.
_WHITENING_IMAGES = 5000  # As in the paper of airbench94.

# What a schedule depends on:
#   initial: the rate of --learning_rate, of the row, or of the data set; None for none of them
#   epochs: the `EpochCounter` of the run
Plan = collections.namedtuple('Plan', 'initial epochs')


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A network, and how it trains.

    Attributes:
        name: value of `--net`.
        inference: function (images, num_classes, training, dtype) -> logits, float32 [batch,
            num_classes]; `training` is a bool, `dtype` the type in which layers compute.
        distort: function from images, uint8 [batch, 32, 32, 3], to images for training, float32
            [batch, height, width, 3]; may draw random numbers. None for the tutorial's.
        prepare: the same for evaluation, without random numbers.
        schedule: function (global_step, `Plan`) -> learning rate, float32 [], without the linear
            scaling rule.
        optimizer: function (learning rate, number of steps of the run) -> `tf.train.Optimizer`;
            None for the tutorial's.
        batch_size: default of `--batch_size`; None for that of cifar10.py.
        epochs: default of `--epochs`; if None, `--max_steps` applies.
        initial_learning_rate: default of `--learning_rate`; None for that of the data set.
        validate_every, linear_scaling: defaults of these flags.
        use_moving_averages: default of this flag.
        ends_with_run: whether the schedule depends on the number of steps of the run.
        loss: function (logits, labels) -> total loss, float32 [].
        initial_values: function from the `Source` of the training images to values of variables
            that a new run starts with, {name: array}.

    `chosen` sets the rest from the flags:
        dtype: the type in which layers compute.
        given_learning_rate: the rate of --learning_rate, or None.
        warmup_epochs: epochs of the warm-up of the linear scaling rule.
    """

    name: str
    inference: Callable
    prepare: Callable
    schedule: Callable
    optimizer: Callable | None = None
    distort: Callable | None = None
    batch_size: int | None = None
    epochs: float | None = None
    initial_learning_rate: float | None = None
    validate_every: int = 0
    linear_scaling: bool = False
    use_moving_averages: bool = True
    ends_with_run: bool = False
    loss: Callable = cifar10.loss
    initial_values: Callable = lambda source: {}
    dtype: tf.DType = tf.float32
    given_learning_rate: float | None = None
    warmup_epochs: float = 5.0

    def logits(self, images, num_classes, training=False):
        """Builds the network; see `inference`."""
        return self.inference(images, num_classes, training, self.dtype)

    def learning_rate(self, global_step, source, epochs):
        """The learning rate, float32 [].

        Args:
            global_step: int [], the number of earlier steps.
            source: the `Source` of the training images.
            epochs: the `EpochCounter` of the run.
        """
        rates = (self.given_learning_rate, self.initial_learning_rate,
                 source.data_set.learning_rate)
        initial = next((rate for rate in rates if rate is not None), None)
        lr = self.schedule(global_step, Plan(initial, epochs))
        if self.linear_scaling:
            batches = schedules.usual_batches(
                epochs.images_per_step, source.batch_size, self.batch_size or _BATCH_SIZE)
            lr *= schedules.linear_scaling(
                global_step, batches, epochs.steps_per_epoch * self.warmup_epochs)
        return lr

    def own_optimizer(self, lr, max_steps):
        """The `tf.train.Optimizer` for a learning rate, float32 [], in a run of `max_steps`; None
        for the tutorial's, gradient descent."""
        if self.optimizer is None:
            return None
        return precision.scaled(self.optimizer(lr, max_steps), self.dtype)

    def defaults_used(self, run, source, epochs):
        """A list with a line about the defaults of this row that apply, if any."""
        used = []
        if self.batch_size == source.batch_size:
            used.append(f'--batch_size={source.batch_size}')
        if run.epochs is not None and run.epochs == self.epochs:
            used.append(f'--max_steps={epochs.max_steps}')
        if not used:
            return []
        return [f'Defaults for --net={self.name}: {" ".join(used)}']


def _tutorial_inference(images, num_classes, training, dtype):
    del training, dtype  # `cifar10.inference` computes in the type of the flags.
    # It may be a user's own, with the images alone.
    if num_classes == cifar10.default_source().num_classes:
        return cifar10.inference(images)
    return cifar10.inference(images, num_classes)


def _tutorial_schedule(global_step, plan):
    return cifar10.learning_rate(global_step, plan.epochs.steps_per_epoch, plan.initial)


def _fast_inference(images, num_classes, training, dtype):
    return fast.inference(
        lambda: _tutorial_inference(images, num_classes, training, dtype), training)


def _fast_distort(images):
    """The tutorial's distortions without brightness and contrast, and with crops that are at most
    three pixels from the centre, instead of four."""
    images = cifar10_input.random_crop(images, cifar10_input.IMAGE_SIZE, margin=1)
    images = tf.image.random_flip_left_right(images)
    return tf.image.per_image_standardization(tf.cast(images, tf.float32))


def _fast_schedule(global_step, plan):
    return schedules.one_cycle(global_step, plan.epochs.max_steps, plan.initial)


def _resnet_schedule(global_step, plan):
    del global_step  # The example's rate, for Adam, is constant.
    return tf.constant(plan.initial)


def _airbench94_schedule(global_step, plan):
    return airbench94.learning_rate(global_step, plan.epochs.max_steps, plan.initial)


TABLE = {row.name: row for row in (
    Recipe(
        name='tutorial',
        inference=_tutorial_inference,
        prepare=cifar10.prepare_images,
        schedule=_tutorial_schedule),
    Recipe(
        name='tutorial_fast',
        inference=_fast_inference,
        distort=_fast_distort,
        prepare=cifar10.prepare_images,
        schedule=_fast_schedule,
        optimizer=lambda lr, max_steps: tf.train.MomentumOptimizer(lr, 0.9, use_nesterov=True),
        epochs=80,
        initial_learning_rate=0.06,
        ends_with_run=True,
        loss=lambda logits, labels: losses.smoothed(logits, labels, label_smoothing=0.1)),
    Recipe(
        name='resnet23',
        inference=resnet.inference,
        distort=resnet.augment,
        prepare=resnet.prepare,
        schedule=_resnet_schedule,
        optimizer=lambda lr, max_steps: tf.train.AdamOptimizer(lr),
        batch_size=64,
        epochs=300,
        initial_learning_rate=1e-3,
        validate_every=1,
        linear_scaling=True),
    Recipe(
        name='airbench94',
        inference=airbench94.inference,
        distort=airbench94.augment,
        prepare=airbench94.prepare,
        schedule=_airbench94_schedule,
        optimizer=airbench94.Optimizer,
        batch_size=1024,
        epochs=11,
        initial_learning_rate=1.5,
        use_moving_averages=False,  # Lookahead has averaged them.
        ends_with_run=True,
        loss=lambda logits, labels: losses.smoothed(logits, labels, label_smoothing=0.2),
        initial_values=lambda source: airbench94.initial_values(
            source.sample(_WHITENING_IMAGES))))}


def chosen(net=None):
    """The `Recipe` of the flags; `net`, the name of a row, replaces that of --net."""
    row = TABLE[net or settings.value('net')]
    linear_scaling = settings.value('linear_scaling')
    if linear_scaling is None:
        linear_scaling = row.linear_scaling
    return dataclasses.replace(
        row, dtype=cifar10.compute_type(), given_learning_rate=settings.value('learning_rate'),
        linear_scaling=linear_scaling, warmup_epochs=settings.value('warmup_epochs'))


# Not an enum: a program may add rows before the flags are parsed.
flags.register_validator('net', lambda name: name in TABLE, f'expected one of {", ".join(TABLE)}')

flags.register_multi_flags_validator(
    ['warmup_epochs', 'linear_scaling', 'net'],
    lambda values: settings.given('warmup_epochs') is None or _scales(values),
    'the learning rate warms up only with the linear scaling rule; expected --linear_scaling: add '
    'it, or remove --warmup_epochs')


def _scales(values):
    """Whether the linear scaling rule applies, by the values of flags."""
    if values['linear_scaling'] is None:
        return TABLE[values['net']].linear_scaling
    return values['linear_scaling']
