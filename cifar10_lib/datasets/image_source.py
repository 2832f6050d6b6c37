"""Which images a graph reads."""
import contextlib
import dataclasses
import itertools
import math
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import custom, table
from cifar10_lib.program import errors

# A tenth of the training records is for validation: 5,000 of CIFAR-10's, as in He et al., "Deep
# Residual Learning" (2016), section 4.2.
_HELD_OUT_SHARE = 10


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
        subset: 'all' images; 'training' without the tenth that `--validate_on=held_out` reserves
            for validation; or only the 'held_out' ones.
        shard: (index, count) to read only one of `count` equal parts of the subset, a worker's.
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
        """Number of records of the subset, over all shards; as published if there is no folder yet.

        Raises `errors.MissingFile` if the folder exists, but lacks one of its record files.
        """
        counts = (self.data_set.count(self.folder, self.eval_data) if os.path.isdir(self.folder)
                  else self.data_set.split(self.eval_data))
        return self._in_subset(sum(counts.values()))

    def num_examples(self):
        """Number of images in an epoch: the edited constant, or else `num_records`.

        Held-out images are for validation, which reads all of them. Raises `errors.DataError` if
        the constant is less than 1, and what `num_records` raises.
        """
        examples = self.examples_per_epoch
        if examples is None or self.subset == 'held_out':
            return self.num_records()
        if examples < 1:
            split = 'EVAL' if self.eval_data else 'TRAIN'
            raise errors.DataError(f'NUM_EXAMPLES_PER_EPOCH_FOR_{split} is {examples}; expected at '
                                   'least 1: edit it')
        published = sum(self.data_set.split(self.eval_data).values())
        if self.data_set.name == 'cifar10' and examples != published:
            return self._in_subset(examples)
        return self.num_records()

    def _in_subset(self, records):
        held_out = records // _HELD_OUT_SHARE
        return {'all': records, 'training': records - held_out, 'held_out': held_out}[self.subset]

    def examples_per_step(self, batches_per_step=1):
        """Number of images in a step of several towers or workers, with a batch each."""
        return self.batch_size * batches_per_step

    def steps_per_epoch(self, batches_per_step=1):
        """Number of steps in which the network sees each image once, a float."""
        return self.num_examples() / self.examples_per_step(batches_per_step)

    def selected(self, keys):
        """Whether records belong to the subset and the shard: bool [records], or None for all.

        `keys`, string [records], are a reader's 'file:number', all of one file. Raises
        `errors.DataError` if there are fewer records than shards.
        """
        index, shards = self.shard
        if shards == 1 and self.subset == 'all':
            return None
        if self.num_records() < shards:
            raise errors.DataError(f'{self.num_records()} records are not enough for {shards} '
                                   f'workers: start at most {self.num_records()}')
        # Numbers the records over all files. Workers read the files in different orders, which
        # change with each epoch; these numbers do not.
        counts = self.data_set.count(self.folder, self.eval_data)
        firsts = np.cumsum([0, *counts.values()])[:-1]  # The number of each file's first record.
        file = tf.strings.regex_replace(keys[0], ':[0-9]+$', '')
        numbers = tf.boolean_mask(firsts, tf.equal(list(counts), file)) + tf.strings.to_number(
            tf.strings.regex_replace(keys, '^.*:', ''), tf.int64)  # [1] + [records]
        places = self._places(numbers, sum(counts.values()))
        size = self.num_records()
        return (places >= 0) & (places < size) & tf.equal(places * shards // size, index)

    def _places(self, numbers, records):
        """Places of records in a fixed order, counted from the first one of the subset.

        Files may be sorted by class, or have the classes in turn. Steps of the golden ratio of all
        records spread each run and each regular pattern evenly. The first tenth is held out.
        """
        step = next(step for step in itertools.count(int(records * 0.618) + 1)
                    if math.gcd(step, records) == 1)
        first = records // _HELD_OUT_SHARE if self.subset == 'training' else 0
        return numbers * step % records - first

    def sample(self, count):
        """Pixels of records spread evenly over the subset: uint8 [count, 3 * 32 * 32].

        Repeats records if there are fewer. Raises an `OSError` or `ValueError` if a file was
        removed or truncated.
        """
        counts = self.data_set.count(self.folder, self.eval_data)
        places = self._places(np.arange(sum(counts.values())), sum(counts.values()))
        size = self.num_records()
        numbers, = np.nonzero((places >= 0) & (places < size))
        numbers = numbers[np.arange(count) * size // count]
        found = []
        for path, records in counts.items():
            rows = np.memmap(path, np.uint8, 'r', shape=(records, self.data_set.record_bytes))
            found.append(rows[numbers[numbers < records], self.data_set.label_bytes:])
            numbers = numbers[numbers >= records] - records
        return np.concatenate(found)

    @contextlib.contextmanager
    def damage_reported(self):
        """Turns the error of a session that reads an invalid label into `errors.DataError`.

        Checking the files again raises one that names the file, the record and the remedy.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError:
            self.data_set.check(self.folder)
            raise


def checked(values, keys, data_set):
    """Returns raw records; running the result raises if a label is not a class.

    The files may have been replaced since `DataSet.check`. `values`, string [...], are the records
    of a `table.DataSet`; `keys` their 'file:number', as a reader returns them.
    """
    labels = tf.cast(
        tf.decode_raw(tf.strings.substr(values, data_set.label_index, 1), tf.uint8), tf.int32)
    with tf.control_dependencies([tf.debugging.assert_less(
            labels, data_set.num_classes, [keys, labels], message='A label is not a class.')]):
        return tf.identity(values)
