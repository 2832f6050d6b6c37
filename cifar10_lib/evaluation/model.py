"""The graph that classifies images with a trained network."""
import contextlib
import functools

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib.datasets import table
from cifar10_lib.program import devices, interrupts
from cifar10_lib import recipes
from cifar10_lib.runs import checkpoints, folder as run_folder, names

FLAGS = flags.FLAGS


def use_run(folder, advice):
    """Takes `--net` and `--dataset` from the run in a folder unless they are given.

    Returns the run's settings, a dictionary; None without `run.json`. Raises `app.UsageError` if
    given flags, or the data set on disk, do not fit the run.
    """
    trained_with = run_folder.net_and_dataset(folder, advice)
    for name, value in zip(('net', 'dataset'), trained_with or ()):
        if FLAGS[name].using_default_value and FLAGS[name].value != value:
            try:
                FLAGS.set_default(name, value)
            except flags.IllegalFlagValueError as error:
                raise app.UsageError(f'{folder} was trained with --{name}={value}: {error}; '
                                     f'pass --{name}') from error
    return run_folder.check_run(folder, FLAGS.net, cifar10.source().data_set, advice)


class Model:
    """The network of `--net` with trained values, in a graph of its own that only classifies.

    Attributes:
        graph: the `tf.Graph`.
        images: the preprocessed images, float32 [batch, height, width, 3].
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class. The logits are the
            network's own tensor (`softmax_linear/softmax_linear:0` of the tutorial's), unless it
            requires a fixed batch size.
        pixels: placeholder of `of_pixels`, uint8 [batch, 32, 32, 3], values 0 to 255; else None.
    """

    def __init__(self, read, batch_size=None):
        """Builds the graph.

        Args:
            read: function that builds the input; returns images, float32 [batch, height, width, 3],
                preprocessed as for evaluation. It is called again if the network requires a fixed
                batch size.
            batch_size: the largest number of images in a run, and the batch size of such a network.

        Raises:
            app.UsageError: there is no `batch_size`, but `inference` requires a fixed one.
        """
        self.pixels = None
        try:
            self._build(read, _logits)
        except app.UsageError:
            if batch_size is None:
                raise
            self._build(read, functools.partial(_logits_of_whole_batch, batch_size=batch_size))

    def _build(self, read, logits_of):
        with tf.Graph().as_default() as self.graph:
            self.images = read()
            logits = logits_of(self.images)
            self.outputs = {'logits': logits,
                            'probabilities': tf.nn.softmax(logits, name='probabilities'),
                            'classes': tf.argmax(logits, axis=1, name='classes')}
            self._variables = {
                averaged: _variables_to_restore(averaged) for averaged in (False, True)}
            self._loader = checkpoints.Loader(tf.global_variables())
        interrupts.raise_lost()

    @classmethod
    def of_pixels(cls, batch_size=None):
        """A model whose input is the placeholder `pixels`; see `__init__` for the rest."""
        model = cls(_images_of_pixels, batch_size)
        model.pixels = model.graph.get_tensor_by_name('images:0')
        model.graph.finalize()
        return model

    @contextlib.contextmanager
    def session(self, path, use_moving_averages=True):
        """A session with the values of a checkpoint; for errors see `checkpoints.values_for`."""
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
        """Sets the variables to values, {name of a variable or average: array}; ignores others."""
        self._loader.assign(values, self._variables[use_moving_averages], session)


def _images_of_pixels():
    """Preprocessed images of the placeholder `images`, uint8 [batch, 32, 32, 3]."""
    pixels = tf.placeholder(
        tf.uint8, [None, table.HEIGHT, table.WIDTH, table.DEPTH], name='images')
    with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
        # Not `tf.transpose`: oneDNN has none for uint8, and logs that as an error.
        pixels_chw = tf.stack(tf.unstack(pixels, axis=3), axis=1)  # [batch, 3, 32, 32]
        return recipes.chosen().prepare(tf.reshape(pixels_chw, [-1, table.IMAGE_BYTES]))


def _variables_to_restore(use_moving_averages):
    """The network's variables by the names of their values in a checkpoint."""
    found = {variable.op.name: variable for variable in tf.global_variables()}
    if use_moving_averages:
        averages = tf.train.ExponentialMovingAverage(decay=0.0)  # Only for the names.
        for name, variable in list(found.items()):
            if variable.trainable or names.is_statistic(name):
                found[averages.average_name(variable)] = found.pop(name)
    return found


def _logits_of_whole_batch(images, batch_size):
    """Logits of a network with a static batch size, for a batch that may be smaller.

    float32 [1 to batch_size, height, width, 3] -> [1 to batch_size, classes]. Fills the batch by
    repeating its images. An `inference` written for the tutorial may require that: it flattened a
    layer by `tf.reshape(pool2, [FLAGS.batch_size, -1])`.
    """
    with tf.name_scope('whole_batch'):
        count = tf.shape(images)[0]
        whole = tf.gather(images, tf.range(batch_size) % count)
    logits = recipes.chosen().inference(whole)
    with tf.name_scope('whole_batch/'):
        return logits[:count]


def _logits(images):
    """Logits of any number of images: float32 [batch, height, width, 3] -> [batch, classes].

    Raises `app.UsageError` if `inference` requires a fixed batch size. One that trains can fail
    here for no other reason.
    """
    advice = ('inference requires a fixed batch size; expected any number of images: flatten by '
              'tf.reshape(net, [-1, UNITS]), not by tf.reshape(net, [FLAGS.batch_size, -1])')
    try:
        logits = recipes.chosen().inference(images)
    except (TypeError, ValueError) as error:
        raise app.UsageError(advice) from error
    if logits.shape.as_list()[0] is not None:
        raise app.UsageError(advice)
    return logits
