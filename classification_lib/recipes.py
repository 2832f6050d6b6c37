"""The recipes: one row per network, with how it trains.

To add a network, write its functions in a file of its own, and add a row to `TABLE`.
"""
from collections.abc import Callable
from typing import NamedTuple

from cifar10_lib import errors
from classification_lib import airbench94, data_sets, resnet23

import tensorflow.compat.v1 as tf

import cifar10
import cifar10_input

# Of a run on few images: the least number of steps, and of images in a step if it has enough.
# benchmarks/few_images.py measures what they reach.
_MIN_STEPS, _MIN_IMAGES_PER_STEP = 100, 32


class Recipe(NamedTuple):
    """A network, and how it trains."""

    name: str  # The value of --net.
    # (images, num_classes, training: bool, dtype of the layers, synchrony=None) -> logits, float32
    # [batch, classes]; the last one is for batch norms, a `batch_norm.Synchrony`.
    inference: Callable
    # uint8 [batch, 32, 32, 3] -> float32 [batch, height, width, 3]: for training, with random
    # numbers, and for evaluation and prediction, without.
    distort: Callable
    prepare: Callable
    loss: Callable  # (logits, labels) -> total loss, float32 []
    schedule: Callable  # (global_step, run.Settings) -> learning rate, float32 []
    optimizer: Callable  # (rate, number of steps of the run) -> tf.train.Optimizer
    # Defaults of the flags. The rate is a function, which is called when it is used.
    learning_rate: Callable
    batch_size: int
    epochs: float
    # Whether the moving averages of the variables are the result, which is validated, evaluated and
    # used for prediction; if not, the variables themselves are.
    averages: bool = True
    # Training images, uint8 [count, 32, 32, 3] -> values that a new run starts with, {name: array}
    initial_values: Callable | None = None

    def defaults(self, images, workers):
        """Values of flags with which to train on a number of images: {name: value}.

        They are those of the row, unless one worker would make fewer than 100 steps. Then steps
        are smaller, down to 32 images, which the workers share, at a rate in proportion; if that is
        not enough, there are more epochs.
        """
        step = int(min(self.batch_size, images, max(
            _MIN_IMAGES_PER_STEP, self.epochs * images / _MIN_STEPS)))
        size = self.batch_size
        if step < self.batch_size:
            size = max(1, step // workers)
        return {'batch_size': size,
                'learning_rate': self.learning_rate() * (step / self.batch_size),
                'epochs': max(self.epochs, _MIN_STEPS * step / images)}


def smoothed_loss(logits, labels, label_smoothing):
    """`cifar10.loss` with smoothed labels: Szegedy et al., "Rethinking the Inception Architecture"
    (2015), section 7.

    `label_smoothing` is the fraction of each label that is spread evenly over all classes.
    """
    targets = tf.one_hot(tf.cast(labels, tf.int64), logits.shape.as_list()[-1])
    cross_entropy = tf.losses.softmax_cross_entropy(
        targets, logits, label_smoothing=label_smoothing, loss_collection=None)
    tf.add_to_collection('losses', tf.identity(cross_entropy, name='cross_entropy'))
    return tf.add_n(tf.get_collection('losses'), name='total_loss')


def linear_scaling(global_step, settings):
    """The learning rate of the linear scaling rule: k workers train at k times the rate.

    It rises linearly in the first `settings.warmup_epoch` epochs. Goyal et al., "Accurate, Large
    Minibatch SGD" (2017), sections 2.1 and 2.2, https://arxiv.org/abs/1706.02677.

    `global_step`, int [], is the number of earlier steps; `settings`, the `run.Settings`, have the
    rate of one worker. Returns float32 [].
    """
    rate = settings.learning_rate
    warmup_steps = settings.warmup_epoch * settings.steps_per_epoch
    if warmup_steps == 0:
        return tf.constant(float(rate * settings.workers))
    progress = tf.minimum(tf.cast(global_step, tf.float32) / warmup_steps, 1.0)
    return rate * (1.0 + (settings.workers - 1.0) * progress)


TABLE = {row.name: row for row in (
    Recipe(
        name='resnet23',
        inference=resnet23.inference,
        distort=resnet23.distort,
        prepare=lambda images: tf.cast(images, tf.float32),
        loss=cifar10.loss,
        schedule=linear_scaling,
        optimizer=lambda lr, max_steps: cifar10.scaled(tf.train.AdamOptimizer(lr)),
        learning_rate=lambda: 1e-3,
        batch_size=64,
        epochs=300),
    Recipe(
        name='airbench94',
        inference=airbench94.inference,
        distort=airbench94.distort,
        prepare=lambda images: tf.cast(images, tf.float32),
        loss=lambda logits, labels: smoothed_loss(logits, labels, label_smoothing=0.2),
        schedule=lambda global_step, settings: airbench94.learning_rate(
            global_step, settings.max_steps, settings.learning_rate),
        optimizer=lambda lr, max_steps: cifar10.scaled(airbench94.Optimizer(lr, max_steps)),
        learning_rate=lambda: 1.5,
        batch_size=1024,
        epochs=14,
        averages=False,  # Lookahead's slow copy is its average.
        initial_values=airbench94.initial_values),
    Recipe(
        name='tutorial',
        # It computes in the type of the flags by itself.
        inference=lambda images, num_classes, training, dtype, synchrony=None: cifar10.inference(
            images, num_classes=num_classes),
        distort=lambda images: cifar10_input.distort(images),
        prepare=lambda images: cifar10_input.crop_and_standardize(images),
        loss=cifar10.loss,
        schedule=lambda global_step, settings: cifar10.learning_rate(
            global_step, settings.images_per_step, initial=settings.learning_rate,
            images_per_epoch=settings.training_images),
        optimizer=lambda lr, max_steps: cifar10.optimizer(lr),
        learning_rate=lambda: cifar10.INITIAL_LEARNING_RATE,
        batch_size=128,
        epochs=256))}  # The tutorial's 100,000 steps.


def find(net):
    """The `Recipe` of a value of --net, and the name of a data set if it contains one, else None.

    'cifar100_resnet23' is `resnet23` with CIFAR-100, as in NNabla's example. Raises
    `errors.UserError` if there isn't such a row.
    """
    if net in TABLE:
        return TABLE[net], None
    data_set, _, name = net.partition('_')
    if data_set in data_sets.TABLE and name in TABLE:
        return TABLE[name], data_set
    raise errors.UserError(f'--net={net} is not a network; expected one of {", ".join(TABLE)}, or '
                            'with a data set in front, such as cifar100_resnet23')
