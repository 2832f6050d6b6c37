"""A trained model: the checkpoint that the flags name, and the graph that classifies images.

The flags are here and not in `runs/checkpoints.py`, because trainers import that module and would
accept flags that have no effect.
"""
import contextlib
import os

import tensorflow.compat.v1 as tf
from absl import app
from absl import flags

import cifar10
from datasets import table
from program import paths
from program import startup
import recipes
from runs import checkpoints
from runs import folder as run_folder
from runs import names

paths.define('checkpoint_dir', '/tmp/cifar10_train', 'Folder to read checkpoints from.')
flags.DEFINE_boolean('best', False, 'Use the best checkpoint of a validated run, in '
                     '--checkpoint_dir/best, instead of the latest.')
flags.DEFINE_boolean('use_moving_averages', True, 'Use the moving averages of the variables '
                     'instead of the raw weights.')

FLAGS = flags.FLAGS


def folder():
    """Path of the folder whose latest checkpoint the flags name."""
    return os.path.join(FLAGS.checkpoint_dir, names.BEST) if FLAGS.best else FLAGS.checkpoint_dir


def checkpoint():
    """Path of the checkpoint that the flags name, without `.index`.

    Raises:
        app.UsageError: there is no checkpoint.
    """
    latest = checkpoints.latest(folder())
    if latest is None:
        advice = ('train with --validate_every, or leave out --best' if FLAGS.best else
                  'train first, or choose another --checkpoint_dir')
        raise app.UsageError(f'No checkpoint in {folder()}: {advice}')
    return latest


def check_run():
    """Checks that `--checkpoint_dir` holds a run of `--net` and `--dataset`.

    Returns:
        The run's settings, see `folder.check_run`; None without `run.json`.

    Raises:
        app.UsageError: the run has a different network or data set.
    """
    return run_folder.check_run(FLAGS.checkpoint_dir, FLAGS.net, cifar10.data_set(),
                                'pass those flags, or choose another --checkpoint_dir')


class Model:
    """The network of `--net` with trained values, in a graph that only classifies.

    Attributes:
        graph: the `tf.Graph`.
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class.
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
        self.outputs = {'logits': tf.identity(logits, name='logits'),
                        'probabilities': tf.nn.softmax(logits, name='probabilities'),
                        'classes': tf.argmax(logits, axis=1, name='classes')}
        self._variables = {
            averaged: cifar10.variables_to_restore(averaged) for averaged in (False, True)}
        self._loader = checkpoints.Loader(tf.global_variables())

    @classmethod
    def of_pixels(cls):
        """A model in a graph of its own, whose input is the placeholder `pixels`."""
        with tf.Graph().as_default() as graph:
            pixels = tf.placeholder(
                tf.uint8, [None, table.HEIGHT, table.WIDTH, table.DEPTH], name='images')
            # Not `tf.transpose`: oneDNN has none for uint8, and logs that as an error.
            planes = tf.reshape(tf.stack(tf.unstack(pixels, axis=3), axis=1),
                                [-1, table.IMAGE_BYTES])
            model = cls(recipes.chosen().prepare(planes), pixels)
            graph.finalize()
        return model

    @contextlib.contextmanager
    def session(self, path):
        """A session with the values of a checkpoint, averaged if `--use_moving_averages`.

        Args:
            path: path of the checkpoint, without `.index`.

        Raises:
            app.UsageError, checkpoints.Unreadable: see `load`.
        """
        with tf.Session(graph=self.graph, config=startup.session_config()) as session:
            self.load(path, session, FLAGS.use_moving_averages,
                      "Pass the run's --net and --dataset, or use the raw weights with "
                      '--use_moving_averages=false')
            yield session

    def load(self, path, session, use_moving_averages, advice):
        """Sets the variables to the values in a checkpoint.

        Args:
            path: path of the checkpoint, without `.index`.
            session: the session that holds the variables.
            use_moving_averages: whether to use the moving averages.
            advice: what the user can do if the checkpoint does not fit; ends the error's message.

        Raises:
            app.UsageError: the checkpoint does not fit; the message names the variables.
            checkpoints.Unreadable: the checkpoint was removed in the meantime.
        """
        self._loader.load(path, self._variables[use_moving_averages], session, advice)

    def assign(self, values, session, use_moving_averages):
        """Sets the variables to values from elsewhere.

        Args:
            values: dictionary from name of a variable or average to array; other items are ignored.
            session: the session that holds the variables.
            use_moving_averages: whether to use the moving averages.
        """
        self._loader.assign(values, self._variables[use_moving_averages], session)
