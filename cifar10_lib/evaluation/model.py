"""The graph that classifies images with a trained network."""
import contextlib
import os

import tensorflow.compat.v1 as tf
from absl import app, flags

import cifar10
from cifar10_lib import recipes
from cifar10_lib.datasets import table
from cifar10_lib.program import devices, errors
from cifar10_lib.runs import checkpoints, names, run_folder

FLAGS = flags.FLAGS


def use_run(checkpoint, reads_images=True):
    """Takes `--net` and `--dataset` from the run of a checkpoint unless they are given.

    If `reads_images` is false, only the names of the classes are needed, so the data set may have
    moved. Returns the content of `run.json`, or {} if it is missing. Raises `app.UsageError` if
    given flags, or the data set on disk, do not fit the run.
    """
    folder, advice = os.path.dirname(checkpoint), 'pass those flags, or choose another run'
    run = run_folder.read_run(folder, advice)
    if run is None:
        errors.say(f'{folder} has no {names.RUN}: using it with --net={FLAGS.net} '
                   f'--dataset={FLAGS.dataset}')
        return {}
    dataset = run.get('dataset_folder') or run['dataset']  # A user's own is given by its folder.
    if not reads_images and dataset not in table.TABLE:
        dataset = os.path.join(folder, names.RUN)
        table.TABLE[dataset] = table.DataSet(
            run['dataset'], run['dataset'], folder, {}, {}, tuple(run['classes']))
    for name, value in (('net', run['net']), ('dataset', dataset)):
        if FLAGS[name].using_default_value and FLAGS[name].value != value:
            try:
                FLAGS.set_default(name, value)
            except flags.IllegalFlagValueError as error:
                raise app.UsageError(f'{folder} was trained with --{name}={value}: {error}; '
                                     f'pass --{name}') from error
    run_folder.check_run(folder, run, FLAGS.net, cifar10.source().data_set, advice)
    return run


class Model:
    """The network of `--net` with trained values, in a graph of its own that only classifies.

    Attributes:
        graph: the `tf.Graph`.
        images: the preprocessed images, float32 [batch, height, width, 3].
        outputs: dictionary of `logits` and `probabilities`, float32 [batch, classes], and
            `classes`, int64 [batch], the index of the most probable class. The logits are the
            network's own tensor (`softmax_linear/softmax_linear:0` of the tutorial's), unless it
            requires a fixed batch size.
        pixels: placeholder of the images, uint8 [batch, 32, 32, 3]; None if `inputs` was given.
    """

    def __init__(self, inputs=None, batch_size=None):
        """Builds the graph.

        Args:
            inputs: function that builds the input; returns images, float32 [batch, height, width,
                3], preprocessed as for evaluation. By default, they are those of `pixels`.
            batch_size: the largest number of images in a run, for a network that requires a fixed
                batch size, which must be this one.

        Raises:
            app.UsageError: there is no `batch_size`, but `inference` requires a fixed one.
        """
        try:
            self._build(inputs)
        except (TypeError, ValueError) as error:
            # An `inference` that works in training fails here only if it fixes the batch size.
            if batch_size is None:
                raise app.UsageError(
                    'inference requires a fixed batch size; expected any number of images: flatten '
                    'by tf.reshape(net, [-1, UNITS]), not by tf.reshape(net, [FLAGS.batch_size, '
                    '-1])') from error
            self._build(inputs, batch_size)

    def _build(self, inputs, batch_size=None):
        """Builds the graph; fills each batch up to `batch_size` by repeating its images."""
        with tf.Graph().as_default() as self.graph:
            images = self.images = (inputs or _images_of_pixels)()
            self.pixels = None if inputs else self.graph.get_tensor_by_name('images:0')
            if batch_size:
                with tf.name_scope('whole_batch'):
                    count = tf.shape(self.images)[0]
                    images = tf.gather(self.images, tf.range(batch_size) % count)
            logits = recipes.chosen().inference(images)
            if batch_size:
                with tf.name_scope('whole_batch/'):
                    logits = logits[:count]
            elif logits.shape.as_list()[0] is not None:
                raise ValueError(f'the logits have shape {logits.shape}')
            self.outputs = {'logits': logits,
                            'probabilities': tf.nn.softmax(logits, name='probabilities'),
                            'classes': tf.argmax(logits, axis=1, name='classes')}
            self._variables_to_restore = {
                averaged: _variables_to_restore(averaged) for averaged in (False, True)}
            # Not a `tf.train.Saver`: a validation's values come from the session that trains, and
            # those of a checkpoint are read first, to name all variables that do not fit.
            self._loader = checkpoints.Loader(tf.global_variables())

    @contextlib.contextmanager
    def session(self, values, use_moving_averages=True):
        """A session with values of the variables, {name of a variable or average: array}."""
        with tf.Session(graph=self.graph, config=devices.session_config()) as session:
            self._loader.assign(values, self._variables_to_restore[use_moving_averages], session)
            yield session

    def read(self, path, use_moving_averages=True):
        """The values of the variables in a checkpoint; see `checkpoints.values_for`."""
        return checkpoints.values_for(
            path, self._variables_to_restore[use_moving_averages],
            "Pass the run's --net and --dataset" + (', or use the raw weights with '
            '--use_moving_averages=false' if use_moving_averages else ''))


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
    if not use_moving_averages:
        return {variable.op.name: variable for variable in tf.global_variables()}
    # Besides the learned variables, the statistics of batch norms have averages.
    averaged = [variable for variable in tf.global_variables()
                if variable.trainable or variable.op.name.endswith(names.STATISTICS)]
    variable_averages = tf.train.ExponentialMovingAverage(cifar10.MOVING_AVERAGE_DECAY)
    return variable_averages.variables_to_restore(averaged)
