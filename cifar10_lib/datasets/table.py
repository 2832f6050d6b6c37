"""The data sets, one row each, and the check of their record files.

A record is one or more bytes of labels and 3,072 bytes of pixels: the red, green and blue planes of
a 32 x 32 image, each row by row. A file is a sequence of records and nothing else.
https://www.cs.toronto.edu/~kriz/cifar.html
"""
import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from cifar10_lib.program import errors

HEIGHT, WIDTH, DEPTH = 32, 32, 3
IMAGE_BYTES = HEIGHT * WIDTH * DEPTH

# Copies of the archives, those that Swift for TensorFlow and MindSpore use. The published host
# sends 66 to 85 kB/s: https://github.com/pytorch/vision/issues/9536
_SWIFT = 'https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/'
_MINDSPORE = 'https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/'

CIFAR10_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A row of the table.

    Attributes:
        name: value of `--dataset`.
        title: name of its images on the console.
        folder: folder of the files, relative to the data folder, or absolute for a user's own set.
        train_files: {name: number of records in the published file}; other numbers are accepted.
        test_files: the same for evaluation.
        classes: names of the classes; a label is an index into them.
        record_bytes: size of a record in bytes, of which the last `IMAGE_BYTES` are the pixels.
        label_index: index of the label among the bytes before them.
        url: published URL of the archive; None if `synthetic.py` generates the files.
        copies: URLs of copies of the archive, which are tried before `url`.
        archive_bytes: size of the archive in bytes.
        sha256: checksum of the archive, in hexadecimal.
        learning_rate: initial rate for the tutorial's network and networks that share its recipe;
            None means the tutorial's rate, 0.1.
        label_remedy: what to do about an invalid label, if not the same as about other faults.
    """

    name: str
    title: str
    folder: str
    train_files: Mapping[str, int]
    test_files: Mapping[str, int]
    classes: tuple[str, ...]
    record_bytes: int = 1 + IMAGE_BYTES
    label_index: int = 0
    url: str | None = None
    copies: tuple[str, ...] = ()
    archive_bytes: int = 0
    sha256: str = ''
    learning_rate: float | None = None
    label_remedy: str | None = None

    @property
    def flag(self) -> str:
        """The value of `--dataset`: the name, or the folder of a user's own set."""
        if os.path.isabs(self.folder):
            return self.folder
        return self.name

    @property
    def files(self) -> dict[str, int]:
        """All files of the set, {name: number of records in the published file}."""
        return {**self.train_files, **self.test_files}

    def check(self, folder: str) -> None:
        """Reads every file of the set; raises `errors.DataError` if one is missing, empty or
        truncated, or contains an invalid label, and `OSError` if one cannot be read."""
        for path in [os.path.join(folder, name) for name in self.files]:
            try:
                size = os.path.getsize(path)
            except FileNotFoundError as error:
                raise errors.MissingFile(f'{path} is missing. {self.remedy(folder)}') from error
            if size == 0 or size % self.record_bytes:
                raise errors.DataError(f'{path} has {size} bytes; expected one or more records of '
                                       f'{self.record_bytes} bytes. {self.remedy(folder)}')
            labels = np.memmap(path, np.uint8, 'r')[self.label_index::self.record_bytes]
            wrong = np.flatnonzero(labels >= len(self.classes))
            if wrong.size:
                raise errors.DataError(
                    f'{path} has label {labels[wrong[0]]} in record {wrong[0]} (counted from 0); '
                    f'expected 0 to {len(self.classes) - 1}. '
                    f'{self.label_remedy or self.remedy(folder)}')

    def remedy(self, folder: str) -> str:
        """What to do about a missing or damaged file: the end of a message."""
        if os.path.isabs(self.folder):
            return 'Restore the file, or recreate the data set with cifar10_convert.py.'
        action = 'download' if self.url else 'regenerate'
        return f'Restore the file, or move {folder} away and run again to {action} the data set.'


CIFAR10 = DataSet(
    name='cifar10',
    title='CIFAR',
    folder='cifar-10-batches-bin',
    train_files={'data_batch_%d.bin' % i: 10000 for i in range(1, 6)},
    test_files={'test_batch.bin': 10000},
    classes=('airplane', 'automobile', 'bird', 'cat', 'deer',
             'dog', 'frog', 'horse', 'ship', 'truck'),
    url=CIFAR10_URL,
    copies=(_SWIFT + 'cifar-10-binary.tar.gz', _MINDSPORE + 'cifar-10-binary.tar.gz'),
    archive_bytes=170052171,
    sha256='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd')

# In the order of the archive's `fine_label_names.txt`.
_FINE_LABELS = '''
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach
    couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster
    house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket
    rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
    turtle wardrobe whale willow_tree wolf woman worm'''

# The first label byte, the coarse label (one of 20 groups of classes), is not used.
CIFAR100 = DataSet(
    name='cifar100',
    title='CIFAR-100',
    folder='cifar-100-binary',
    train_files={'train.bin': 50000},
    test_files={'test.bin': 10000},
    classes=tuple(_FINE_LABELS.split()),
    record_bytes=2 + IMAGE_BYTES,
    label_index=1,
    url='https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz',
    copies=(_MINDSPORE + 'cifar-100-binary.tar.gz',),
    archive_bytes=168513733,
    sha256='58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec')

SYNTHETIC = DataSet(
    name='synthetic',
    title='synthetic',
    folder='synthetic-batches-bin',
    train_files={'data_batch_1.bin': 10000},
    test_files={'test_batch.bin': 2000},
    classes=('disc', 'square', 'triangle', 'ring', 'cross',
             'bars', 'columns', 'slope', 'checks', 'dots'),
    # At the tutorial's 0.1, the loss sometimes jumps to 2 or more late in a run of 300 steps, and
    # not every run recovers in time. At 0.03, it still jumps, but the weights move less and their
    # averages barely move, so precision hardly suffers.
    learning_rate=0.03)

TABLE = {row.name: row for row in (CIFAR10, CIFAR100, SYNTHETIC)}


def edited_cifar10(num_classes: int, url: str = CIFAR10_URL) -> DataSet:
    """The row of CIFAR-10 with the tutorial's constants NUM_CLASSES and DATA_URL.

    An edited URL is the only place to download from.
    """
    names = [*CIFAR10.classes, *map(str, range(10, num_classes))]
    remedy = None
    if num_classes < len(CIFAR10.classes):
        remedy = (f'NUM_CLASSES is {num_classes}: raise it to 10, or remove the records of other '
                  'classes from the files.')
    copies: tuple[str, ...] = ()
    if url == CIFAR10_URL:
        copies = CIFAR10.copies
    return dataclasses.replace(CIFAR10, classes=tuple(names[:num_classes]), url=url,
                               copies=copies, label_remedy=remedy)
