"""What a data set is, CIFAR-10, and the check of record files.

A record is one or two bytes of labels and 3,072 bytes of pixels: the red, green and blue planes of
a 32 x 32 image, each row by row. A file is a sequence of records and nothing else.
https://www.cs.toronto.edu/~kriz/cifar.html
"""
import dataclasses
import os
from collections.abc import Mapping

from cifar10_lib import errors

import numpy as np

HEIGHT, WIDTH, DEPTH = 32, 32, 3
IMAGE_BYTES = HEIGHT * WIDTH * DEPTH
LABEL = -IMAGE_BYTES - 1  # Index of the label in a record.

# Copies of the archives, those that Swift for TensorFlow and MindSpore use. The published host
# sends 66 to 85 kB/s: https://github.com/pytorch/vision/issues/9536
_SWIFT = 'https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/'
MINDSPORE = 'https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/'


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Where the files of a data set are, what they hold, and where to download them."""

    name: str  # The value of --dataset.
    folder: str  # Relative to the data folder, or absolute for a user's own set.
    # {name: number of records in the published file}; files with other numbers are accepted.
    train_files: Mapping[str, int]
    test_files: Mapping[str, int]
    classes: tuple[str, ...]  # Their names; a label is an index into them.
    record_bytes: int = 1 + IMAGE_BYTES  # The pixels are last, and before them is the label.
    url: str = ''  # Of the published archive; empty for a user's own set.
    copies: tuple[str, ...] = ()  # URLs that are tried before `url`.
    archive_bytes: int = 0
    sha256: str = ''

    @property
    def files(self) -> dict[str, int]:
        """All files of the set, {name: number of records in the published file}."""
        return {**self.train_files, **self.test_files}

    def remedy(self, folder: str) -> str:
        """What to do about a missing or damaged file: the end of a message."""
        if not self.url:
            return 'Restore the file, or recreate the data set with cifar10_convert.py.'
        return f'Restore the file, or move {folder} away and run again to download the data set.'


CIFAR10 = DataSet(
    name='cifar10',
    folder='cifar-10-batches-bin',
    train_files={'data_batch_%d.bin' % i: 10000 for i in range(1, 6)},
    test_files={'test_batch.bin': 10000},
    classes=('airplane', 'automobile', 'bird', 'cat', 'deer',
             'dog', 'frog', 'horse', 'ship', 'truck'),
    url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
    copies=(_SWIFT + 'cifar-10-binary.tar.gz', MINDSPORE + 'cifar-10-binary.tar.gz'),
    archive_bytes=170052171,
    sha256='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd')


def check(data_set: DataSet, folder: str) -> None:
    """Checks the sizes and labels of those files of a data set that exist in a folder.

    Raises `errors.UserError` that names the file, the record and the remedy.
    """
    for path in [os.path.join(folder, name) for name in data_set.files]:
        if not os.path.exists(path):
            continue
        size = os.path.getsize(path)
        if size == 0 or size % data_set.record_bytes:
            raise errors.UserError(f'{path} has {size} bytes; expected one or more records of '
                                    f'{data_set.record_bytes} bytes. {data_set.remedy(folder)}')
        labels = np.memmap(path, np.uint8, 'r').reshape(-1, data_set.record_bytes)[:, LABEL]
        wrong = np.flatnonzero(labels >= len(data_set.classes))
        if wrong.size:
            raise errors.UserError(
                f'{path} has label {labels[wrong[0]]} in record {wrong[0]} (counted from 0); '
                f'expected 0 to {len(data_set.classes) - 1}. {data_set.remedy(folder)}')


def class_names(folder: str) -> tuple[str, ...] | None:
    """Returns the names of the classes in `batches.meta.txt`, one per line; None without it."""
    path = os.path.join(folder, 'batches.meta.txt')
    if not os.path.exists(path):
        return None
    with open(path, encoding='utf-8', errors='replace') as stream:
        return tuple(line.strip() for line in stream if line.strip())
