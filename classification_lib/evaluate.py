"""Classifies images with a trained network, and counts what it gets right."""
import contextlib

from cifar10_lib import checkpoints, errors
from classification_lib import data_sets, trained

import numpy as np
import tensorflow.compat.v1 as tf
import tqdm

import cifar10


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
        names = trained.names_of_result(self._variables, checkpoint.values, self._recipe.averages)
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


def confusion(network, images, batch_size):
    """Counts how images are classified, each once: int [classes, classes].

    The row is the label, the column the most probable class; in a tie, the first one. `network` is
    a `trained.Network`, `images` are `records.Images`. Shows progress on a terminal.

    Raises `errors.UserError` if the classes differ, or the checkpoint does not fit.
    """
    classes, names = network.classes, images.data_set.classes
    if classes != names:
        raise errors.UserError(
            f'{network.checkpoint.path} has the classes {", ".join(classes):.80}; --dataset='
            f'{images.data_set.name} has {", ".join(names):.80}: choose the data set of the run')
    counts = np.zeros([len(classes), len(classes)], np.int64)
    classifier = Classifier(network.recipe, len(classes))
    with classifier.graph.as_default():
        pixels, labels, initializer = images.batches(batch_size)
    with classifier.restored(network.checkpoint) as session, tqdm.tqdm(
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
