"""A trained model: which checkpoint the flags name, and the graph that classifies images with it.

The flags are here and not in `checkpoints.py`, which trainers import too: a trainer would take them
and do nothing with them.
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

paths.define('checkpoint_dir', '/tmp/cifar10_train', 'Folder to read checkpoints from.')
flags.DEFINE_boolean('best', False, 'Take the best checkpoint of a validated run, in '
                     '--checkpoint_dir/best, not the latest.')
flags.DEFINE_boolean('use_moving_averages', True, 'Use the moving averages of the variables, not '
                     'the variables themselves.')

FLAGS = flags.FLAGS


def folder():
    """Path of the folder whose latest checkpoint the flags name."""
    return os.path.join(FLAGS.checkpoint_dir, 'best') if FLAGS.best else FLAGS.checkpoint_dir


def checkpoint():
    """Path of the checkpoint that the flags name, without `.index`.

    Raises:
        app.UsageError: there is none.
    """
    latest = checkpoints.latest(folder())
    if latest is None:
        advice = ('train with --validate_every, or leave --best out' if FLAGS.best else
                  'train first, or name the folder of a run with --checkpoint_dir')
        raise app.UsageError(f'No checkpoint in {folder()}: {advice}')
    return latest


def check_run():
    """Checks that `--checkpoint_dir` is of `--net` and `--dataset`, where it says what it is of.

    Returns:
        The run's settings, see `checkpoints.check_run`; None where nothing is noted.

    Raises:
        app.UsageError: it is of others.
    """
    return checkpoints.check_run(FLAGS.checkpoint_dir, FLAGS.net, cifar10.data_set(),
                                 'give those flags, or name another --checkpoint_dir')


class Model:
    """The graph that classifies images, by the network of `--net`.

    Attributes:
        graph: a `tf.Graph` of its own.
        images: placeholder, uint8 [batch, 32, 32, 3], pixels 0 to 255; the evaluation's
            preprocessing follows.
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class.
    """

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.images = tf.placeholder(
                tf.uint8, [None, table.HEIGHT, table.WIDTH, table.DEPTH], name='images')
            # No transposition: of uint8 oneDNN has none, and says so as an error.
            planes = tf.reshape(tf.stack(tf.unstack(self.images, axis=3), axis=1),
                                [-1, table.IMAGE_BYTES])
            net = recipes.net()
            logits = net.inference(net.prepare(planes), training=False)
            self.outputs = {'logits': tf.identity(logits, name='logits'),
                            'probabilities': tf.nn.softmax(logits, name='probabilities'),
                            'classes': tf.argmax(logits, axis=1, name='classes')}
            self._variables = cifar10.variables_to_restore(FLAGS.use_moving_averages)
            self._loader = checkpoints.Loader(tf.global_variables())
            self.graph.finalize()

    @contextlib.contextmanager
    def session(self, path):
        """A session whose variables have the values of a checkpoint.

        Args:
            path: of the checkpoint, without `.index`.

        Raises:
            app.UsageError: the checkpoint does not fit; names the variables.
            checkpoints.Unreadable: the checkpoint was deleted in the meantime.
        """
        with tf.Session(graph=self.graph, config=startup.session_config()) as session:
            self._loader.load(path, self._variables, session,
                              'Name its network and data with --net and --dataset, or use the '
                              'raw weights with --use_moving_averages=false')
            yield session
