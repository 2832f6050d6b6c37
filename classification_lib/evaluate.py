"""Finds a trained network, and classifies images with it; counts what it gets right.

For runs of classification.py and of the tutorial's programs.
"""
import contextlib
import dataclasses
import os
from typing import NamedTuple

from cifar10_lib import checkpoints, errors
from classification_lib import data_sets, recipes, records, run

import numpy as np
import tensorflow.compat.v1 as tf
import tqdm

import cifar10
import cifar10_input


class Trained(NamedTuple):
    """A trained network."""

    checkpoint: checkpoints.Found
    recipe: recipes.Recipe
    classes: tuple  # Their names.
    settings: dict  # Those of `run.Settings` by name; {} if it is a run of the tutorial.


def find(checkpoint_dir, best=False, data_dir=None):
    """Finds the `Trained` network of a run: its newest checkpoint or, with `best`, the one with the
    lowest validation error. `checkpoint_dir` may also be a checkpoint.

    A run of the tutorial does not record its classes: their names come from `data_dir`, if the user
    has given it, or else from the folder of the record files that it was trained on, or they are
    those of CIFAR-10. Raises `errors.UserError`.
    """
    advice = 'train first, or choose another run'
    if best:
        checkpoint_dir = os.path.join(checkpoint_dir, run.BEST)
        advice = ('choose another run, train with classification.py --validate_every=1, or leave '
                  'out --best')
    path = run.best_checkpoint(checkpoint_dir)
    if path is None and not best:
        path = checkpoint_dir
    found = path and checkpoints.newest(path)
    if not found:
        raise errors.UserError(f'No checkpoint in {checkpoint_dir}: {advice}')
    content = run.read(os.path.dirname(found.path))
    if content is None:
        return Trained(
            found, recipes.TABLE['tutorial'], _tutorial_classes(found, data_dir), {})
    recipe, _ = recipes.find(content['net'])
    return Trained(found, recipe, tuple(content['classes']), content)


def _tutorial_classes(found, data_dir):
    """Names of the classes of a checkpoint of the tutorial, as many as its last layer has.

    If they may be wrong, a line says whose names they are.
    """
    folders = record_folders(found)
    if data_dir:
        folders.insert(0, os.path.join(data_dir, data_sets.CIFAR10.folder))
    names = next(filter(None, map(data_sets.class_names, folders)), ())
    last = 'softmax_linear/biases'
    biases = found.values.get(last, found.values.get(last + checkpoints.AVERAGE))
    count = len(names or data_sets.CIFAR10.classes) if biases is None else len(biases)
    if not names and count == len(data_sets.CIFAR10.classes):
        names = data_sets.CIFAR10.classes
        if not any(map(os.path.isdir, folders)):
            where = ' in ' + ' or '.join(folders) if folders else ''
            errors.note(f'the images of the run were not found{where}, so the names of the classes '
                        'are those of CIFAR-10: if it had other images, add their --data_dir')
    return (*names, *map(str, range(len(names), count)))[:count]


def data_dir(trained):
    """The folder of the data sets of a `Trained` network: --data_dir if given, or its own."""
    return given_data_dir() or trained.settings.get('data_dir', cifar10.FLAGS.data_dir)


def given_data_dir():
    """The value of --data_dir; None if the user has not given it."""
    if cifar10.FLAGS['data_dir'].using_default_value:
        return None
    return cifar10.FLAGS.data_dir


def record_folders(checkpoint):
    """The folders of the record files on which a run of the tutorial was trained.

    The graph beside the checkpoint holds the names of the files, relative to the folder in which
    the training was started.
    """
    graph = checkpoints.graph(checkpoint.path).graph_def
    constants = [node.attr['value'].tensor.string_val for node in graph.node
                 if node.op == 'Const']
    names = [os.fsdecode(name) for values in constants for name in values]
    return sorted({os.path.dirname(name) for name in names if name.endswith('.bin')})


def images(trained, dataset, subset):
    """The `records.Images` of a value of --dataset or, if it is None, of a `Trained` network.

    `subset` is a field of theirs. Raises `errors.UserError`.
    """
    data_set = data_sets.find(dataset or trained.settings.get('dataset', 'cifar10'))
    if not dataset and not trained.settings:
        data_set = _tutorial_set(data_set, trained)
    return records.Images(*records.fetch(data_set, data_dir(trained)), subset)


def _tutorial_set(row, trained):
    """The `data_sets.DataSet` that cifar10_input.py reads: `row`, CIFAR-10's, unless it is edited.

    It is in --data_dir, or, if the user has not given it, where a run of the tutorial has read it.
    """
    folder = os.path.join(cifar10.FLAGS.data_dir, row.folder)
    if given_data_dir() is None:
        folder = next(filter(os.path.isdir, record_folders(trained.checkpoint)), folder)
    if not os.path.isdir(folder):
        return row  # To be downloaded.
    training, test = (cifar10_input.record_files(eval_data, folder) for eval_data in (False, True))
    classes = row.classes
    if len(classes) != cifar10_input.NUM_CLASSES:
        classes = tuple(map(str, range(cifar10_input.NUM_CLASSES)))
    return dataclasses.replace(
        row, folder=os.path.abspath(folder), classes=classes,
        train_files=tuple(map(os.path.basename, training)),
        test_files=tuple(map(os.path.basename, test)),
        record_bytes=cifar10_input._RECORD_BYTES)


def names_of_result(variables, stored, averages):
    """Under which of the `stored` names to look for the result of a training: {name: variable}.

    With `averages`, the moving averages are the result, otherwise the variables themselves. Where
    one is missing, it is the other: some variables have no average, and a checkpoint may be reduced
    to its averages.
    """
    found = {}
    for variable in variables:
        name = variable.op.name
        choices = [name, name + checkpoints.AVERAGE]
        if averages:
            choices.reverse()
        found[next((choice for choice in choices if choice in stored), name)] = variable
    return found


def starting_weights(trained, variables, classes):
    """The values of a `Trained` network with which a new one can start: {variable: array}.

    Layers of another shape start anew, and so does the last one if the classes are others.
    `variables` are those of the new network, in its order, `classes` the names of its classes.

    Raises `errors.UserError` if no layer fits, or a value is not finite.
    """
    path, stored = trained.checkpoint
    layers = [variable.op.name.rpartition('/')[0] for variable in variables if variable.trainable]
    found = {}
    for name, variable in names_of_result(variables, stored, trained.recipe.averages).items():
        is_last = variable.op.name.rpartition('/')[0] == layers[-1]
        if name in stored and list(stored[name].shape) == variable.shape.as_list() and not (
                is_last and trained.classes != tuple(classes)):
            found[variable] = stored[name]
    if not any(variable.trainable for variable in found):
        raise errors.UserError(f'{path} has no layer of this network: choose another '
                                '--initial_checkpoint, or its --net')
    if not all(np.isfinite(value).all() for value in found.values()):
        raise errors.UserError(f'{path} has values that are not finite: choose another '
                                '--initial_checkpoint')
    return found


def _checked_size(pixels):
    """Returns the images, uint8 [batch, 32, 32, 3]; fails in the session if they have another size.

    TensorFlow, Keras and LiteRT do not compare the input of an exported model with its signature,
    and would classify the centre of a larger image. A concatenation requires images of equal size,
    and no converter removes it.
    """
    image = tf.zeros([1, data_sets.HEIGHT, data_sets.WIDTH, data_sets.DEPTH], tf.uint8)
    return tf.concat([pixels, image], axis=0, name='expected_images_of_32_x_32')[:-1]


class Classifier:
    """A network that classifies, in a graph of its own.

    Attributes:
        graph: the `tf.Graph`.
        batch_size: the only batch size that the network accepts; None if it accepts any.
        pixels: placeholder of the images, uint8 [batch, 32, 32, 3].
        images: the preprocessed images, float32 [batch, height, width, 3].
        logits, probabilities: float32 [batch, classes].
    """

    def __init__(self, recipe, num_classes):
        """Builds the graph. Layers compute in the type of the flags."""
        self._recipe = recipe
        is_built = False
        # Code for the tutorial may contain `[FLAGS.batch_size, -1]` or `images.shape[0]`, which
        # require a known batch size. Other errors occur again.
        with contextlib.suppress(TypeError, ValueError):
            self._build(num_classes, None)
            is_built = True
        if not is_built:
            self._build(num_classes, cifar10.FLAGS.batch_size)
        self.batch_size = tf.compat.dimension_value(self.logits.shape[0])

    def _build(self, num_classes, batch_size):
        """Builds the graph for batches of this size; None: of any size."""
        recipe = self._recipe
        with tf.Graph().as_default() as self.graph:
            tf.set_random_seed(1)  # For TF_DETERMINISTIC_OPS. Initial values are replaced.
            self.pixels = tf.placeholder(
                tf.uint8, [batch_size, data_sets.HEIGHT, data_sets.WIDTH, data_sets.DEPTH],
                name='images')
            with tf.device('/cpu:0'):  # Half of the operations on uint8 have no GPU kernel.
                self.images = recipe.prepare(_checked_size(self.pixels))
            self.logits = recipe.inference(
                self.images, num_classes, training=False, dtype=cifar10.compute_type())
            self.probabilities = tf.nn.softmax(self.logits, name='probabilities')
            self._variables = tf.global_variables()

    @contextlib.contextmanager
    def restored(self, checkpoint):
        """A `tf.Session` with the result of a training, the values in a `checkpoints.Found`.

        Raises `errors.UserError` if the checkpoint does not fit the network.
        """
        names = names_of_result(self._variables, checkpoint.values, self._recipe.averages)
        checkpoints.check_fit(checkpoint, names, 'Use the network that was trained')
        with tf.Session(graph=self.graph, config=tf.ConfigProto(allow_soft_placement=True)) as sess:
            checkpoints.assign(sess, {variable: checkpoint.values[name]
                                      for name, variable in names.items()})
            yield sess

    def classify(self, session, pixels):
        """Classifies images, uint8 [count, 32, 32, 3], in a session of `restored`.

        If the network accepts only one batch size, black images fill the last batch.

        Returns logits and probabilities, float32 [count, classes].
        """
        count, size = len(pixels), self.batch_size or len(pixels)
        batches = -(-count // size)
        padded = np.zeros([batches * size, *np.shape(pixels)[1:]], np.uint8)
        padded[:count] = pixels
        found = [session.run([self.logits, self.probabilities], {self.pixels: batch})
                 for batch in np.split(padded, batches)]
        logits, probabilities = (np.concatenate(parts)[:count] for parts in zip(*found))
        return logits, probabilities


def confusion(trained, images, batch_size):
    """Counts how images are classified, each once: int [classes, classes].

    The row is the label, the column the most probable class; in a tie, the first one. `images` are
    `records.Images`. Shows progress on a terminal.

    Raises `errors.UserError` if the classes differ, or the checkpoint does not fit.
    """
    classes, names = trained.classes, images.data_set.classes
    if classes != names:
        raise errors.UserError(
            f'{trained.checkpoint.path} has the classes {", ".join(classes):.80}; --dataset='
            f'{images.data_set.name} has {", ".join(names):.80}: choose the data set of the run')
    counts = np.zeros([len(classes), len(classes)], np.int64)
    classifier = Classifier(trained.recipe, len(classes))
    with classifier.graph.as_default():
        pixels, labels, initializer = images.batches(batch_size)
    with classifier.restored(trained.checkpoint) as session, tqdm.tqdm(
            total=images.count(), unit=' images', leave=False, disable=None) as bar:
        session.run(initializer)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                batch, batch_labels = session.run([pixels, labels])
                logits, _ = classifier.classify(session, batch)
                np.add.at(counts, (batch_labels, logits.argmax(axis=1)), 1)
                bar.update(len(batch))
    return counts


def per_class(counts, names):
    """The lines of a table with a line per class, the best recall first.

    Recall is the fraction of a class's images that are classified correctly, precision the fraction
    of a class's predictions that are correct. `counts` are those of `confusion`, `names` of the
    classes.
    """
    right, images, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    with np.errstate(invalid='ignore'):  # A class without images, or never predicted: nan.
        recall, precision = right / images, right / predicted
    width = max(map(len, (*names, 'class')))
    lines = [f'{"class":{width}}  images  predicted   right  recall  precision']
    for k in np.argsort(-np.nan_to_num(recall), kind='stable'):
        lines.append(f'{names[k]:{width}}  {images[k]:6}  {predicted[k]:9}  {right[k]:6}  '
                     f'{recall[k]:6.3f}  {precision[k]:9.3f}')
    return lines
