"""Counts the images of a set that a network classifies correctly."""
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets.image_source import Source
from cifar10_lib.program import errors

TOP = 5  # For more than twice as many classes, precision @ 5 is reported, too.


def predictions(logits: tf.Tensor) -> tf.Tensor:
    """The `TOP` most probable classes, int32 [batch, TOP], the most probable first.

    In a tie, the lower class comes first: there is one prediction for each image. (`in_top_k` would
    count all classes of a tie.) The argument is float32 [batch, classes].
    """
    return tf.nn.top_k(logits, min(TOP, logits.shape.as_list()[-1])).indices


def each_image_once(session: tf.Session, top_k_op: Sequence[tf.Tensor],
                    num_examples: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs `top_k_op` on endless batches until the first `num_examples` images have been seen.

    Args:
        session: a session whose queues run.
        top_k_op: labels, int32 [batch], and `predictions` of the next batch.
        num_examples: number of images.

    Yields (labels, predictions) of each batch; the last one is cut off where images repeat.
    """
    left = num_examples
    while left > 0:
        labels, predicted = session.run(top_k_op)
        yield labels[:left], predicted[:left]
        left -= len(labels)


class Counts:
    """Counts of an evaluation.

    Attributes:
        confusion: int64 [classes, classes], number of images by label (row) and prediction.
        in_top: number of images whose label is one of the `TOP` most probable classes.
    """

    def __init__(self, num_classes: int) -> None:
        self.confusion = np.zeros([num_classes, num_classes], np.int64)
        self.in_top = 0

    def add(self, labels: np.ndarray, predicted: np.ndarray) -> None:
        """Counts a batch of `each_image_once`."""
        np.add.at(self.confusion, (labels, predicted[:, 0]), 1)
        self.in_top += int((predicted == labels[:, np.newaxis]).sum())

    @property
    def total(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """Number of images whose most probable class is their label."""
        return int(np.trace(self.confusion))

    @property
    def precision_of_top(self) -> float:
        """Precision @ `TOP`."""
        return self.in_top / self.total

    @property
    def error(self) -> float:
        """1 - precision."""
        return (self.total - self.correct) / self.total


def images_to_count(source: Source, at_most: int | None = None) -> tuple[int, int]:
    """Number of images to count, and of those in the set.

    Args:
        source: the images.
        at_most: maximum number of images to count, from the first; None for all.

    Raises `errors.MissingFile` if a record file is missing, and `errors.DataError` if there are too
    few training images to hold some out.
    """
    size = min(source.num_examples(), source.num_records())
    if not size:
        raise errors.DataError(f'{source.folder} has fewer than 10 training images, too few to '
                               'hold some out: use the test images')
    if at_most is None:
        return size, size
    return min(at_most, size), size
