"""The graph that classifies images with a trained network."""
import contextlib

import tensorflow.compat.v1 as tf

import cifar10
from datasets import table
from program import devices
from program import interrupts
import recipes
from runs import checkpoints


class Model:
    """The network of `--net` with trained values, in a graph that only classifies.

    Attributes:
        graph: the `tf.Graph`.
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class. The logits are the
            network's own tensor: `softmax_linear/softmax_linear:0` of the tutorial's.
        pixels: placeholder of `of_pixels`, uint8 [batch, 32, 32, 3], values 0 to 255; else None.
    """

    def __init__(self, images, pixels=None):
        """Builds the network in the default graph, which has no other variables.

        Args:
            images: float32 [batch, height, width, 3], preprocessed as for evaluation.
            pixels: see above.
        """
        self.graph = tf.get_default_graph()
        self.pixels = pixels
        logits = recipes.chosen().inference(images, training=False)
        self.outputs = {'logits': logits,
                        'probabilities': tf.nn.softmax(logits, name='probabilities'),
                        'classes': tf.argmax(logits, axis=1, name='classes')}
        self._variables = {
            averaged: cifar10.variables_to_restore(averaged) for averaged in (False, True)}
        self._loader = checkpoints.Loader(tf.global_variables())
        interrupts.raise_lost()

    @classmethod
    def of_pixels(cls):
        """A model in a graph of its own, whose input is the placeholder `pixels`."""
        with tf.Graph().as_default() as graph:
            pixels = tf.placeholder(
                tf.uint8, [None, table.HEIGHT, table.WIDTH, table.DEPTH], name='images')
            with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
                # Not `tf.transpose`: oneDNN has none for uint8, and logs that as an error.
                planes = tf.reshape(tf.stack(tf.unstack(pixels, axis=3), axis=1),
                                    [-1, table.IMAGE_BYTES])
                images = recipes.chosen().prepare(planes)
            model = cls(images, pixels)
            graph.finalize()
        return model

    @contextlib.contextmanager
    def session(self, path, use_moving_averages=True):
        """A session with the values of a checkpoint.

        Args:
            path: path of the checkpoint, without `.index`.
            use_moving_averages: whether to use the moving averages.

        Raises:
            app.UsageError, checkpoints.Unreadable: see `checkpoints.values_for`.
        """
        values = self.read(path, use_moving_averages,
                           "Pass the run's --net and --dataset, or use the raw weights with "
                           '--use_moving_averages=false')
        with tf.Session(graph=self.graph, config=devices.session_config()) as session:
            self.assign(values, session, use_moving_averages)
            yield session

    def read(self, path, use_moving_averages, advice):
        """The values of the variables in a checkpoint; see `checkpoints.values_for`."""
        return checkpoints.values_for(path, self._variables[use_moving_averages], advice)

    def assign(self, values, session, use_moving_averages):
        """Sets the variables to values.

        Args:
            values: dictionary from name of a variable or average to array; other items are ignored.
            session: the session that holds the variables.
            use_moving_averages: whether to use the moving averages.
        """
        self._loader.assign(values, self._variables[use_moving_averages], session)
