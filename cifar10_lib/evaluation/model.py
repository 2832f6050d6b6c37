"""The graph that classifies images with a trained network."""
import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib import recipes
from cifar10_lib.datasets import table
from cifar10_lib.program import devices
from cifar10_lib.runs import checkpoints


class Model:
    """A network with trained values, in a graph of its own that only classifies.

    Attributes:
        graph: the `tf.Graph`.
        pixels: placeholder of the images, uint8 [batch, 32, 32, 3].
        images: the preprocessed images, float32 [batch, height, width, 3].
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class. The logits are the
            network's own tensor (`softmax_linear/softmax_linear:0` of the tutorial's).
    """

    def __init__(self, recipe: recipes.Recipe, num_classes: int,
                 batch_size: int | None = None) -> None:
        """Builds the graph.

        `batch_size` is the number of images of each run; None for any number, which a network may
        not accept.
        """
        with tf.Graph().as_default() as self.graph:
            self.pixels = tf.placeholder(
                tf.uint8, [batch_size, table.HEIGHT, table.WIDTH, table.DEPTH], name='images')
            with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
                self.images = recipe.prepared(self.pixels)
            logits = recipe.logits(self.images, num_classes)
            self.outputs = {'logits': logits,
                            'probabilities': tf.nn.softmax(logits, name='probabilities'),
                            'classes': tf.argmax(logits, axis=1, name='classes')}
            self._variables = {
                averaged: variables_to_restore(averaged) for averaged in (False, True)}
            # Not a `tf.train.Saver`: whoever reads first can name all variables that do not fit.
            self._loader = checkpoints.Loader(tf.global_variables())

    @contextlib.contextmanager
    def session(self, path: str, use_moving_averages: bool = True) -> Iterator[tf.Session]:
        """A session with the variables of a checkpoint, or with the averages of the learned ones.

        Raises `app.UsageError`, which names the variables, if the checkpoint does not fit, and
        `checkpoints.Unreadable` if it was removed in the meantime.
        """
        variables = self._variables[use_moving_averages]
        values = checkpoints.values_for(path, variables, advice(use_moving_averages))
        with tf.Session(graph=self.graph, config=devices.session_config()) as session:
            self._loader.assign(values, variables, session)
            yield session

    def probabilities(self, session: tf.Session, pixels: np.ndarray) -> np.ndarray:
        """The probabilities of the classes, float32 [count, classes], of any number of images.

        `session` is from the function above, `pixels` are uint8 [count, 32, 32, 3]. In a graph of a
        fixed batch size, the last batch is filled by repeating its images.
        """
        batch_size = self.pixels.shape.as_list()[0] or len(pixels)
        found = []
        for first in range(0, len(pixels), batch_size):
            images = pixels[first:first + batch_size]
            batch = np.resize(images, [batch_size, *images.shape[1:]])
            found.append(session.run(
                self.outputs['probabilities'], {self.pixels: batch})[:len(images)])
        return np.concatenate(found)


def variables_to_restore(use_moving_averages: bool) -> dict[str, tf.Variable]:
    """The variables of the default graph by their names in a checkpoint.

    With `use_moving_averages`, those of the averages of learned variables.
    """
    if not use_moving_averages:
        return {variable.op.name: variable for variable in tf.global_variables()}
    variable_averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
    return variable_averages.variables_to_restore()


def advice(use_moving_averages: bool) -> str:
    """What a user can do if a checkpoint does not fit: the end of an error's message."""
    text = "Pass the run's --net and --dataset"
    if use_moving_averages:
        text += ', or use the raw weights with --use_moving_averages=false'
    return text
