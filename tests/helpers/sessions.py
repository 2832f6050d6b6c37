"""Training sessions as in cifar10_train.py, on graphs that a test may build itself."""
import tensorflow.compat.v1 as tf

import cifar10
import cifar10_train
from cifar10_lib import recipes, settings
from cifar10_lib.runs import starting
from cifar10_lib.training import monitored


def start(batches_per_step=1):
    """The `Start` of the flags."""
    recipe = recipes.chosen()
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    return starting.read(settings.run(recipe), source, recipe, batches_per_step)


def train():
    """`cifar10_train.train`, even if no steps are left."""
    begun = start()
    cifar10_train.train(begun.source, begun.recipe, begun)


def graph(begun):
    """Builds the network of a `Start`; returns the loss and the operation of a step."""
    recipe = begun.recipe
    global_step = tf.train.get_or_create_global_step()
    images, labels = cifar10.distorted_inputs(begun.source, recipe.distort)
    loss = recipe.loss(recipe.logits(images, begun.source.num_classes, training=True), labels)
    lr = recipe.learning_rate(global_step, begun.source, begun.epochs)
    return loss, cifar10.train(loss, global_step, lr, recipe.own_optimizer(lr, begun.max_steps))


def session(begun, loss, logger=cifar10_train._LoggerHook):
    """The session of a `Start`, with all hooks; `logger` makes the one that prints steps."""
    return monitored.session(begun, [
        tf.train.StopAtStepHook(last_step=begun.max_steps), tf.train.NanTensorHook(loss),
        logger(loss, begun), *monitored.shared_hooks(begun, loss)])
