"""Which images a graph reads."""
import contextlib
import dataclasses
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import custom, table
from cifar10_lib.program import errors

# Every tenth training record is for validation: 5,000 of CIFAR-10's, as in He et al., "Deep
# Residual Learning" (2016), section 4.2.
_HELD_OUT_EVERY = 10


def find(name, num_classes=table.CIFAR10.num_classes, url=table.CIFAR10.url):
    """The row of a data set: of a name in the table, or of the folder of the user's own set.

    `num_classes` and `url` are the tutorial's constants, which replace those of CIFAR-10. Raises
    `errors.DataError` if the folder holds no valid data set.
    """
    if name == table.CIFAR10.name:
        return table.edited_cifar10(num_classes, url)
    return table.TABLE.get(name) or custom.read(name)


@dataclasses.dataclass(frozen=True)
class Source:
    """The images that a graph reads; built once, and passed whole.

    Attributes:
        data_set: a `table.DataSet`.
        folder: path of the folder with its record files.
        batch_size: number of images per batch.
        eval_data: whether to read the test files instead of the training files.
        subset: 'all' images; 'training' without those that `--validate_on=held_out` reserves for
            validation; or only the 'held_out' ones. They are the training records numbered 9, 19,
            29 and so on, counted from 0 over all files in the order of the table.
        shard: (index, count) to read only the records of the subset whose number modulo `count` is
            `index`: the worker's part.
        examples_per_epoch: NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN or _FOR_EVAL, which count for CIFAR-10
            if they were edited; None for the number of records.
    """

    data_set: table.DataSet
    folder: str
    batch_size: int
    eval_data: bool = False
    subset: str = 'all'
    shard: tuple[int, int] = (0, 1)
    examples_per_epoch: int | None = None

    def paths(self):
        """Paths of the record files, a list; raises `errors.MissingFile` if one is missing."""
        return list(self.data_set.count(self.folder, self.eval_data))

    def num_records(self):
        """Number of records of the subset, over all shards.

        If the folder does not exist yet, uses the sizes of the published files. Raises
        `errors.MissingFile` if the folder exists, but one of its record files is missing.
        """
        if os.path.isdir(self.folder):
            return self._in_subset(sum(self.data_set.count(self.folder, self.eval_data).values()))
        return self._in_subset(self._published())

    def num_examples(self):
        """Number of images in an epoch: the edited constant, or else `num_records`.

        Held-out images are for validation, which reads all of them.

        Raises:
            errors.MissingFile: see `num_records`.
            errors.DataError: the constant is less than 1.
        """
        if self.examples_per_epoch is None or self.subset == 'held_out':
            return self.num_records()
        if self.examples_per_epoch < 1:
            raise errors.DataError(
                f'NUM_EXAMPLES_PER_EPOCH_FOR_{"EVAL" if self.eval_data else "TRAIN"} is '
                f'{self.examples_per_epoch}; expected at least 1: edit it')
        if self.data_set.name == 'cifar10' and self.examples_per_epoch != self._published():
            return self._in_subset(self.examples_per_epoch)
        return self.num_records()

    def examples_per_step(self, batches_per_step=1):
        """Number of images in a step of several towers or workers, with a batch each."""
        return self.batch_size * batches_per_step

    def steps_per_epoch(self, batches_per_step=1):
        """Number of steps in which the network sees each image once, a float."""
        return self.num_examples() / self.examples_per_step(batches_per_step)

    def selected(self, keys):
        """Whether records belong to the subset and the shard: bool [records], or None for all.

        Args:
            keys: string [records], a reader's 'file:number', all of one file.

        Raises:
            errors.DataError: there are fewer records than shards.
        """
        index, shards = self.shard
        if shards == 1 and self.subset == 'all':
            return None
        if self.num_records() < shards:
            raise errors.DataError(f'{self.num_records()} records are not enough for {shards} '
                                   f'workers: start at most {self.num_records()}')
        numbers = self._numbers(keys)
        held_out = tf.equal(numbers % _HELD_OUT_EVERY, _HELD_OUT_EVERY - 1)
        if self.subset == 'held_out':
            return held_out
        if self.subset == 'all':
            return tf.equal(numbers % shards, index)
        # Renumbers the remaining records, so that shards have the same size.
        in_shard = tf.equal((numbers - numbers // _HELD_OUT_EVERY) % shards, index)
        return in_shard & ~held_out

    def sample(self, count):
        """Pixels of records spread evenly over the subset: uint8 [count, 3 * 32 * 32].

        Repeats records if there are fewer. Raises an `OSError` or `ValueError` if a file was
        removed or truncated.
        """
        numbers = np.arange(count) * self.num_records() // count
        if self.subset == 'training':
            numbers += numbers // (_HELD_OUT_EVERY - 1)  # Skips every tenth.
        found = []
        for path, records in self.data_set.count(self.folder, self.eval_data).items():
            with open(path, 'rb') as stream:
                for number in numbers[numbers < records]:
                    stream.seek(number * self.data_set.record_bytes + self.data_set.label_bytes)
                    found.append(stream.read(table.IMAGE_BYTES))
            numbers = numbers[numbers >= records] - records
        return np.frombuffer(b''.join(found), np.uint8).reshape(count, table.IMAGE_BYTES)

    def _numbers(self, keys):
        """Converts keys to the numbers of the records over all files, int64 [records].

        Workers read the files in different orders, which change with each epoch; these numbers do
        not.
        """
        counts = self.data_set.count(self.folder, self.eval_data)
        before = np.cumsum([0, *counts.values()])[:-1]  # The number of each file's first record.
        file = tf.strings.regex_replace(keys[0], ':[0-9]+$', '')
        start = tf.boolean_mask(before, tf.equal(list(counts), file))  # One number.
        return start + tf.strings.to_number(tf.strings.regex_replace(keys, '^.*:', ''), tf.int64)

    def _in_subset(self, records):
        held_out = records // _HELD_OUT_EVERY
        return {'all': records, 'training': records - held_out, 'held_out': held_out}[self.subset]

    def _published(self):
        return sum(self.data_set.split(self.eval_data).values())

    @contextlib.contextmanager
    def damage_reported(self):
        """Turns the error of a session that reads an invalid label into `errors.DataError`.

        TensorFlow's error is only text. Checking the files again raises one that names the file,
        the record and the remedy.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError:
            self.data_set.check(self.folder)
            raise


def checked(values, keys, data_set):
    """Returns raw records; running the result raises if a label is not a class.

    `DataSet.check` has checked the files, but they may have been replaced since. `values` is string
    [...], the records of a `table.DataSet`; `keys` their 'file:number', as a reader returns them.
    """
    labels = tf.reshape(tf.cast(tf.decode_raw(
        tf.strings.substr(values, data_set.label_index, 1), tf.uint8), tf.int32), [-1])
    worst = tf.argmax(labels)
    message = tf.strings.join([
        tf.reshape(keys, [-1])[worst], ' has label ', tf.as_string(labels[worst]),
        f'; expected 0 to {data_set.num_classes - 1}'])
    with tf.control_dependencies([tf.debugging.Assert(
            labels[worst] < data_set.num_classes, [message])]):
        return tf.identity(values)
