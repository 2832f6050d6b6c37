"""The recipes: one row per network.

To add a network, write its functions in a file of `nets/` and add a row here.
"""
import dataclasses
import inspect
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
import cifar10_input
from cifar10_lib import settings
from cifar10_lib.nets import airbench94, fast, losses, precision, resnet, schedules
from cifar10_lib.program import devices
from cifar10_lib.runs.epochs import EpochCounter

_BATCH_SIZE = 128  # The tutorial's; for the linear scaling rule.
_WHITENING_IMAGES = 5000  # The paper of airbench94 has this number.


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A network, and how it trains.

    Attributes:
        name: value of `--net`.
        inference: function (images, num_classes, training, dtype) -> logits, float32 [batch,
            num_classes]; `training` is a bool, `dtype` the type in which layers compute.
        distort: function from images, uint8 [batch, 32, 32, 3], to images for training, float32
            [batch, height, width, 3]; may draw random numbers. None for the tutorial's.
        prepare: the same for evaluation, without random numbers; None for the tutorial's.
        schedule: function (global_step, rate, epochs) -> learning rate, float32 [], without the
            linear scaling rule; `rate` comes from --learning_rate, the row or the data set, or is
            None, and `epochs` is the `EpochCounter` of the run. `global_step` counts in steps of
            today's size, of which a run has `epochs.max_steps + epochs.shift`.
        optimizer: function (learning rate, number of steps of the run) -> `tf.train.Optimizer`;
            None for the tutorial's.
        batch_size: default of `--batch_size`; None for that of cifar10.py.
        epochs: default of `--epochs`; if None, `--max_steps` applies.
        initial_learning_rate: default of `--learning_rate`; None for that of the data set.
        validate_every, linear_scaling: defaults of these flags.
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
    schedule: Callable
    optimizer: Callable | None = None
    distort: Callable | None = None
    prepare: Callable | None = None
    batch_size: int | None = None
    epochs: float | None = None
    initial_learning_rate: float | None = None
    validate_every: int = 0
    linear_scaling: bool = False
    ends_with_run: bool = False
    loss: Callable = cifar10.loss
    initial_values: Callable = lambda source: {}
    dtype: tf.DType = tf.float32
    given_learning_rate: float | None = None
    warmup_epochs: float = 5.0

    def logits(self, images, num_classes, training=False):
        """Builds the network; see `inference`. Variables without a device are on the CPU, where all
        towers share them.

        Raises `app.UsageError` if the network has another number of outputs.
        """
        with tf.device(devices.variables_on('cpu')):
            logits = self.inference(images, num_classes, training, self.dtype)
        outputs = tf.compat.dimension_value(logits.shape[-1])
        if outputs not in (None, num_classes):  # `inference` may have been written for CIFAR-10.
            raise app.UsageError(f'--net={self.name} has {outputs} outputs; expected '
                                 f'{num_classes}, one per class: give `inference` the parameter '
                                 'num_classes, and use that instead of NUM_CLASSES')
        return logits

    def prepared(self, images):
        """Preprocesses images for evaluation; see `prepare`."""
        if self.prepare:
            return self.prepare(images)
        if not hasattr(cifar10_input, 'prepare_images'):  # It may be somebody's own.
            raise app.UsageError('cifar10_input.py has no function prepare_images; expected one '
                                 'from images, uint8 [batch, 32, 32, 3], to what `inputs` makes '
                                 'of them: add it')
        return cifar10_input.prepare_images(images)

    def learning_rate(self, global_step, source, epochs):
        """The learning rate, float32 [].

        Args:
            global_step: int [], the number of earlier steps.
            source: the `Source` of the training images.
            epochs: the `EpochCounter` of the run.
        """
        initial = settings.first_rate(self.given_learning_rate, self.initial_learning_rate,
                                      source.data_set.learning_rate)
        global_step = global_step + epochs.shift  # The schedule counts images.
        lr = self.schedule(global_step, initial, epochs)
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

    def flags(self, epochs: EpochCounter) -> dict[str, object]:
        """The values of the recipe's flags whose change is reported when a run resumes."""
        found = {'learning_rate': self.given_learning_rate, 'linear_scaling': self.linear_scaling,
                 'use_fp16': self.dtype == tf.float16, 'use_bf16': self.dtype == tf.bfloat16}
        if self.linear_scaling:
            found['warmup_epochs'] = self.warmup_epochs
        if self.ends_with_run:  # The rate depends on the last step.
            found['max_steps'] = epochs.max_steps
        return found


def _tutorial_inference(images, num_classes, training, dtype):
    del training, dtype  # `cifar10.inference` computes in the type of the flags.
    if 'num_classes' not in inspect.signature(cifar10.inference).parameters:  # A user's own.
        return cifar10.inference(images)
    return cifar10.inference(images, num_classes)


def _fast_inference(images, num_classes, training, dtype):
    return fast.inference(
        lambda: _tutorial_inference(images, num_classes, training, dtype), training)


def _fast_distort(images):
    """The tutorial's distortions without brightness and contrast, and with crops that are at most
    three pixels from the centre, instead of four."""
    images = cifar10_input.random_crop(images, cifar10_input.IMAGE_SIZE, margin=1)
    images = tf.image.random_flip_left_right(images)
    return tf.image.per_image_standardization(tf.cast(images, tf.float32))


TABLE = {row.name: row for row in (
    Recipe(
        name='tutorial',
        inference=_tutorial_inference,
        schedule=lambda step, rate, epochs: cifar10.learning_rate(
            step, epochs.steps_per_epoch, rate)),
    Recipe(
        name='tutorial_fast',
        inference=_fast_inference,
        distort=_fast_distort,
        schedule=lambda step, rate, epochs: schedules.one_cycle(
            step, epochs.max_steps + epochs.shift, rate),
        optimizer=lambda lr, max_steps: tf.train.MomentumOptimizer(lr, 0.9, use_nesterov=True),
        epochs=80,
        initial_learning_rate=0.06,
        ends_with_run=True,
        loss=lambda logits, labels: losses.smoothed(logits, labels, label_smoothing=0.1)),
    Recipe(
        name='resnet23',
        inference=resnet.inference,
        distort=resnet.augment,
        prepare=lambda images: tf.cast(images, tf.float32),
        schedule=lambda step, rate, epochs: tf.constant(rate),  # Constant, for Adam.
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
        prepare=lambda images: tf.cast(images, tf.float32),
        schedule=lambda step, rate, epochs: airbench94.learning_rate(
            step, epochs.max_steps + epochs.shift, rate),
        optimizer=airbench94.Optimizer,
        batch_size=1024,
        epochs=14,
        initial_learning_rate=1.5,
        ends_with_run=True,
        loss=lambda logits, labels: losses.smoothed(logits, labels, label_smoothing=0.2),
        initial_values=lambda source: airbench94.initial_values(
            source.sample(_WHITENING_IMAGES))))}


def chosen(net: str | None = None) -> Recipe:
    """The `Recipe` of the flags; `net`, the name of a row, replaces that of --net."""
    given = settings.network()
    row = TABLE[net or given.net]
    linear_scaling = given.linear_scaling
    if linear_scaling is None:
        linear_scaling = row.linear_scaling
    return dataclasses.replace(
        row, dtype=cifar10.compute_type(), given_learning_rate=given.learning_rate,
        linear_scaling=linear_scaling, warmup_epochs=given.warmup_epochs)


# An enum would not do: a program may add rows before the flags are parsed.
flags.register_validator('net', lambda name: name in TABLE, f'expected one of {", ".join(TABLE)}')
