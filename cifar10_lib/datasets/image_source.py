"""Which images a graph reads."""
import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import custom, table
from cifar10_lib.program import errors

# A tenth of the training records is for validation: 5,000 of CIFAR-10's, as in He et al., "Deep
# Residual Learning" (2016), section 4.2.
_HELD_OUT_ONE_IN = 10


def find(name: str, num_classes: int = 10, url: str = table.CIFAR10_URL) -> table.DataSet:
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
        folder: path of the folder with the record files of `data_set`.
        batch_size: number of images per batch.
        eval_data: whether to read the test files instead of the training files.
        subset: 'all' images; 'training' without the tenth that `--validate_on=held_out` reserves
            for validation; or only the 'held_out' ones.
        shard: (index, count) to read only one of `count` equal parts of the subset, a worker's.
        examples_per_epoch: NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN or _FOR_EVAL, which count for CIFAR-10
            if they were edited; None for the number of records.
        min_fraction: fraction of an epoch that waits in the shuffle queue; None for that of
            `cifar10_input.distorted_inputs`.
    """

    data_set: table.DataSet
    folder: str
    batch_size: int
    eval_data: bool = False
    subset: str = 'all'
    shard: tuple[int, int] = (0, 1)
    examples_per_epoch: int | None = None
    min_fraction: float | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.data_set.classes)

    @property
    def is_whole_cifar10(self) -> bool:
        """Whether it is all of CIFAR-10's training or test images, as in the tutorial."""
        return (self.data_set.name == table.CIFAR10.name and self.subset == 'all'
                and self.shard == (0, 1))

    def files(self) -> dict[str, int]:
        """The files to read, {path: number of complete records}. Raises `errors.MissingFile`, or
        `errors.DataError` for training on a set that is only for tests."""
        names = self.data_set.test_files if self.eval_data else self.data_set.train_files
        if not names:
            raise errors.DataError(f'{self.folder} has no training images: choose another '
                                   '--dataset, or use it with cifar10_eval.py --eval_data=test')
        try:
            return {path: os.path.getsize(path) // self.data_set.record_bytes
                    for path in [os.path.join(self.folder, name) for name in names]}
        except FileNotFoundError as error:
            raise errors.MissingFile(f'{error.filename} is missing. '
                                     f'{self.data_set.remedy(self.folder)}') from error

    def num_examples(self) -> int:
        """Number of images in an epoch, over all shards.

        That is the edited constant, or else the number of records of the subset, as published if
        there is no folder yet. Held-out images are for validation, which reads all of them. Raises
        what `files` raises, and `errors.DataError` if the constant is less than 1.
        """
        split, files = 'TRAIN', self.data_set.train_files
        if self.eval_data:
            split, files = 'EVAL', self.data_set.test_files
        constant = self.examples_per_epoch
        if self.subset == 'held_out':
            constant = None
        if constant is not None and constant < 1:
            raise errors.DataError(f'NUM_EXAMPLES_PER_EPOCH_FOR_{split} is {constant}; expected at '
                                   'least 1: edit it')
        published = sum(files.values())
        if self.data_set.name == 'cifar10' and constant not in (None, published):
            examples = constant
        elif os.path.isdir(self.folder):
            examples = sum(self.files().values())
        else:
            examples = published
        held_out = examples // _HELD_OUT_ONE_IN
        if self.subset == 'held_out':
            return held_out
        if self.subset == 'training':
            return examples - held_out
        return examples

    def num_records(self) -> int:
        """Number of records of the subset, over all shards: `num_examples` before any edit."""
        return dataclasses.replace(self, examples_per_epoch=None).num_examples()

    def selected(self, keys: tf.Tensor, *values: tf.Tensor) -> Sequence[tf.Tensor]:
        """Returns tensors [records, ...] without the records outside of the subset and the shard.

        `keys`, string [records], are a reader's 'file:number', all of one file. Raises
        `errors.DataError` if there are fewer records than shards.
        """
        index, shards = self.shard
        if shards == 1 and self.subset == 'all':
            return values
        counts, size = self.files(), self.num_records()
        if size < shards:
            raise errors.DataError(f'{size} records are not enough for {shards} workers: start at '
                                   f'most {size}')
        # Numbers the records over all files. Workers read the files in different orders, which
        # change with each epoch; these numbers do not.
        firsts = np.cumsum([0, *counts.values()], dtype=np.int64)[:-1]  # One per file.
        file = tf.strings.regex_replace(keys[0], ':[0-9]+$', '')
        numbers = tf.boolean_mask(firsts, tf.equal(list(counts), file)) + tf.strings.to_number(
            tf.strings.regex_replace(keys, '^.*:', ''), tf.int64)  # [1] + [records]
        places = self._places(numbers, sum(counts.values()))
        is_selected = (places >= 0) & (places < size) & tf.equal(places * shards // size, index)
        return [tf.boolean_mask(each, is_selected) for each in values]

    def _places(self, numbers, records):
        """Places of records in a fixed order, counted from the first one of the subset.

        Files may be sorted by class, or have the classes in turn. Steps of the golden ratio of all
        records spread each run and each regular pattern evenly. The first tenth is held out.
        """
        step = next(step for step in itertools.count(int(records * 0.618) + 1)
                    if math.gcd(step, records) == 1)
        first = records // _HELD_OUT_ONE_IN if self.subset == 'training' else 0
        return numbers * step % records - first

    def sample(self, count: int) -> np.ndarray:
        """Images spread evenly over the subset: uint8 [count, 32, 32, 3].

        Repeats records if there are fewer. Raises `errors.MissingFile` if a file is missing.
        """
        counts = self.files()
        total = sum(counts.values())
        places = self._places(np.arange(total, dtype=np.int64), total)
        size = self.num_records()
        numbers, = np.nonzero((places >= 0) & (places < size))
        numbers = numbers[np.arange(count) * size // count]
        found = []
        for path, records in counts.items():
            rows = np.memmap(path, np.uint8, 'r', shape=(records, self.data_set.record_bytes))
            found.append(rows[numbers[numbers < records], -table.IMAGE_BYTES:])
            numbers = numbers[numbers >= records] - records
        pixels = np.concatenate(found).reshape(-1, table.DEPTH, table.HEIGHT, table.WIDTH)
        return pixels.transpose([0, 2, 3, 1])

    @contextlib.contextmanager
    def damage_reported(self) -> Iterator[None]:
        """Turns the error of a session that reads an invalid label into `errors.DataError`.

        Checking the files again raises one that names the file, the record and the remedy.
        """
        try:
            yield
        except tf.errors.InvalidArgumentError:
            self.data_set.check(self.folder)
            raise
