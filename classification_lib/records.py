"""Which images a run reads, and how they get into the graph: record files -> `tf.data` -> batches.

    FixedLengthRecordDataset -> shard of the worker, without held-out images -> shuffle -> batch
    -> decode and distort whole batches -> prefetch

`cifar10_input` does the same for the tutorial with the queues of TensorFlow 1.
"""
import dataclasses
import os
import zlib
from typing import NamedTuple

from cifar10_lib import download, errors
from classification_lib import data_sets

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10

# A tenth of the training images is for validation: 5,000 of CIFAR-10's, as in He et al., "Deep
# Residual Learning" (2016), section 4.2.
_HELD_OUT_ONE_IN = 10
_SEED = 20151111  # The same images are held out in all runs.


def checksum(data_set, folder, validate_on):
    """A checksum of the record files of `training_and_validation`, eight hexadecimal digits."""
    training, validation = training_and_validation(data_set, folder, validate_on)
    found = 0
    for path in {**training.files(), **validation.files()}:
        found = zlib.crc32(np.memmap(path, np.uint8, 'r').data, found)
    return f'{found:08x}'


def fetch(data_set, data_dir):
    """Makes sure that the files of a data set are in `data_dir`, unless it is a user's own.

    Returns the `data_sets.DataSet`, with the names of the classes that are beside the records, and
    the folder of the files. Raises `errors.UserError` if they are damaged, or the download failed.
    """
    url = data_set.url
    if data_set is data_sets.CIFAR10:
        url = cifar10.DATA_URL  # The tutorial's constant, which readers may edit.
    if url:
        download.maybe_download_and_extract(url, data_dir, data_set.folder)
    folder = os.path.join(data_dir, data_set.folder)
    data_sets.check(data_set, folder)
    names = data_sets.class_names(folder) or ()
    if len(names) == len(data_set.classes):  # Those of generated images, for example.
        data_set = dataclasses.replace(data_set, classes=names)
    return data_set, folder


def training_and_validation(data_set, folder, validate_on):
    """The `Images` to train on, and those to validate on: 'test', or 'held_out' ones."""
    subset = 'all'
    if validate_on == 'held_out':
        subset = 'training'
    return Images(data_set, folder, subset), Images(data_set, folder, validate_on)


class Images(NamedTuple):
    """The images of a data set that are used for something."""

    data_set: data_sets.DataSet
    folder: str  # Of its record files.
    # 'test' images, 'all' training images, the 'held_out' tenth of them, or the rest: 'training'.
    subset: str

    def files(self):
        """The record files, {path: number of records}; raises `errors.UserError` if one is
        missing."""
        names = self.data_set.train_files
        if self.subset == 'test':
            names = self.data_set.test_files
        counts = {}
        for path in [os.path.join(self.folder, name) for name in names]:
            if not os.path.exists(path):
                raise errors.UserError(f'{path} is missing: {self.data_set.remedy}')
            counts[path] = os.path.getsize(path) // self.data_set.record_bytes
        return counts

    def chosen(self, rank=0, workers=1):
        """Which records to read, bool [records of all files]: those of the subset, and of those the
        shard of worker `rank`, one of as many nearly equal shards as workers.

        Raises `errors.UserError` if the subset is empty.
        """
        records = sum(self.files().values())
        held_out = records // _HELD_OUT_ONE_IN
        # Files may be sorted by class. The first tenth of a random order is held out.
        places = np.random.RandomState(_SEED).permutation(records)
        first, end = 0, records
        if self.subset == 'held_out':
            end = held_out
        elif self.subset == 'training':
            first = held_out
        size = end - first
        if size == 0:
            raise errors.UserError(f'{self.folder} has {records} training images, too few to hold '
                                    'out a tenth: use --validate_on=test')
        shards = (places - first) * workers // size
        return (places >= first) & (places < end) & (shards == rank)

    def count(self):
        """Number of images."""
        return int(self.chosen().sum())

    def read(self):
        """Reads the images: labels, uint8 [count], and pixels, uint8 [count, 32, 32, 3]."""
        rows = np.concatenate([np.fromfile(path, np.uint8) for path in self.files()])
        rows = rows.reshape(-1, self.data_set.record_bytes)[self.chosen()]
        planes = rows[:, -data_sets.IMAGE_BYTES:].reshape(
            -1, data_sets.DEPTH, data_sets.HEIGHT, data_sets.WIDTH)
        return rows[:, data_sets.LABEL], planes.transpose([0, 2, 3, 1])

    def distorted_batches(self, batch_size, distort, seed, first_step=0, rank=0, workers=1):
        """Adds endless batches of distorted images to the graph, each epoch in a new random order.

        The order follows from the seed and the number of the epoch alone, so that a run which
        resumes continues it: earlier starts have read `first_step` batches. See `chosen` for `rank`
        and `workers`.

        `distort` maps uint8 [batch, 32, 32, 3] to float32 [batch, height, width, 3]. Returns its
        images, and their labels, int32 [batch_size]. Raises `errors.UserError` if a file is
        missing, or there are too few images.
        """
        if self.count() < workers:
            raise errors.UserError(f'{self.count()} training images are not enough for {workers} '
                                    'workers: start fewer')
        size = int(self.chosen(rank, workers).sum())
        first_epoch, position = divmod(first_step * batch_size, size)

        # The distortions of a start that resumes do not repeat those of the first one.
        entropy = np.random.SeedSequence([seed, first_step, rank])

        def epoch(number):
            tf.set_random_seed(seed)  # Of this function.
            return self._records(rank, workers).shuffle(size, seed=number)

        def distorted(records):
            tf.set_random_seed(int(entropy.generate_state(1)[0]))
            pixels, labels = self._decoded(records)
            return distort(pixels), labels

        with tf.device('/cpu:0'), tf.name_scope('input'):
            batches = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max).flat_map(epoch)
            # Endless, so `drop_remainder` drops nothing, and makes the shape known.
            batches = batches.skip(position).batch(batch_size, drop_remainder=True)
            batches = batches.map(distorted, num_parallel_calls=tf.data.AUTOTUNE).prefetch(4)
            iterator = tf.data.make_initializable_iterator(batches)
            # A session initialises tables before the first step.
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            return iterator.get_next()

    def batches(self, batch_size, rank=0, workers=1):
        """Adds batches of the images to the graph, each image once; the last batch may be smaller.

        Returns pixels, uint8 [batch, 32, 32, 3], labels, int32 [batch], and the operation that
        begins with the first image. After the last batch, they raise `tf.errors.OutOfRangeError`.
        See `chosen` for `rank` and `workers`. Raises `errors.UserError` if a file is missing, or
        there are too few images.
        """
        with tf.device('/cpu:0'), tf.name_scope('input'):
            batches = self._records(rank, workers).batch(batch_size).map(self._decoded).prefetch(2)
            iterator = tf.data.make_initializable_iterator(batches)
            pixels, labels = iterator.get_next()
            return pixels, labels, iterator.initializer

    def _records(self, rank, workers):
        """A data set of the records `chosen`, string [], in the order of the files."""
        records = tf.data.FixedLengthRecordDataset(
            list(self.files()), self.data_set.record_bytes)
        chosen = self.chosen(rank, workers)
        if chosen.all():
            return records
        numbered = tf.data.Dataset.zip((records, tf.data.Dataset.from_tensor_slices(chosen)))
        return numbered.filter(lambda record, is_chosen: is_chosen).map(lambda record, _: record)

    def _decoded(self, records):
        """Records, string [batch] -> uint8 [batch, 32, 32, 3], labels int32 [batch]."""
        content = tf.io.decode_raw(records, tf.uint8)
        count = records.shape.as_list()[0] or -1  # The last batch of an evaluation may be smaller.
        content = tf.reshape(content, [count, self.data_set.record_bytes])
        labels = tf.cast(content[:, data_sets.LABEL], tf.int32)
        planes = tf.reshape(content[:, -data_sets.IMAGE_BYTES:],
                            [count, data_sets.DEPTH, data_sets.HEIGHT, data_sets.WIDTH])
        return tf.transpose(planes, [0, 2, 3, 1]), labels
