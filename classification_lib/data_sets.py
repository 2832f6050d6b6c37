"""What `--dataset` names: CIFAR-10, CIFAR-100, or a user's folder of record files.

A record is one or two bytes of labels and 3,072 bytes of pixels: the red, green and blue planes of
a 32 x 32 image, each row by row. A file is a sequence of records and nothing else.
https://www.cs.toronto.edu/~kriz/cifar.html

A user's folder has a `dataset.json` as its row, which cifar10_convert.py writes:

    {"name": "pets", "classes": ["cat", "dog"],
     "train_files": {"train.bin": 1000}, "test_files": {"test.bin": 200}}

A label is an index into the classes. Users may edit the file, to rename classes or add record
files. The numbers of records are for readers; the program counts the records in the files.
"""
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from cifar10_lib import download, errors

HEIGHT, WIDTH, DEPTH = 32, 32, 3
IMAGE_BYTES = HEIGHT * WIDTH * DEPTH
LABEL = -IMAGE_BYTES - 1  # Index of the label in a record.


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Where the files of a data set are, what they hold, and where to download them."""

    name: str
    folder: str  # Relative to the data folder, or absolute for a user's own set.
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    classes: tuple[str, ...]  # Their names; a label is an index into them.
    record_bytes: int = 1 + IMAGE_BYTES  # The pixels are last, and before them is the label.
    # Of the archive; empty for a user's own set. For CIFAR-10, `cifar10.DATA_URL` counts.
    url: str = ''

    @property
    def flag(self) -> str:
        """The value of --dataset: the name, or the folder of a user's own set."""
        if os.path.isabs(self.folder):
            return self.folder
        return self.name

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files."""
        return self.train_files + self.test_files

    @property
    def remedy(self) -> str:
        """What to do about a missing or damaged file: the end of a message."""
        if self.url:
            return 'restore the file, or choose another --data_dir'
        return 'restore the file, or recreate the data set with cifar10_convert.py'


CIFAR10 = DataSet(
    name='cifar10',
    folder='cifar-10-batches-bin',
    train_files=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
    test_files=('test_batch.bin',),
    classes=('airplane', 'automobile', 'bird', 'cat', 'deer',
             'dog', 'frog', 'horse', 'ship', 'truck'),
    url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz')

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
    folder='cifar-100-binary',
    train_files=('train.bin',),
    test_files=('test.bin',),
    classes=tuple(_FINE_LABELS.split()),
    record_bytes=2 + IMAGE_BYTES,
    url='https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz')

TABLE = {row.name: row for row in (CIFAR10, CIFAR100)}

FILE = 'dataset.json'
MAX_CLASSES = 256  # A label is one byte.


def find(name_or_folder: str) -> DataSet:
    """Returns the row of a data set: of a name in the table, or of a user's folder.

    The `folder` of a user's set is absolute, so that `--data_dir` has no effect. Raises
    `errors.UserError` if it is neither, or its `dataset.json` is invalid.
    """
    if name_or_folder in TABLE:
        return TABLE[name_or_folder]
    folder = os.path.abspath(os.path.expanduser(name_or_folder))
    path = os.path.join(folder, FILE)
    try:
        with open(path, encoding='utf-8') as stream:
            fields = json.load(stream)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise errors.UserError(
            f'"{name_or_folder}" is not a data set; expected {", ".join(TABLE)}, or a '
            f'folder with a {FILE}, made by cifar10_convert.py: give it with --dataset') from error
    except (ValueError, RecursionError) as error:  # Not UTF-8, not JSON, or nested too deeply.
        raise errors.UserError(f'{path} is not JSON: {error}') from error
    if not isinstance(fields, dict):
        raise errors.UserError(f'{path} holds {json.dumps(fields):.80}; expected a JSON object')
    row: dict[str, Any] = {
        field: fields.get(field) for field in ('name', 'classes', 'train_files', 'test_files')}
    check_row(row, path)
    return DataSet(row['name'], folder, tuple(row['train_files']), tuple(row['test_files']),
                   tuple(row['classes']))


def check_row(fields: Mapping[str, Any], source: str) -> None:
    """Raises `errors.UserError`, which begins with `source`, if one of these fields of a
    `dataset.json` is wrong."""
    for field, value in fields.items():
        if field == 'name':
            expected = f'a name other than {", ".join(TABLE)}'
            is_valid = _is_name(value) and value not in TABLE
        elif field == 'classes':
            expected = f'a list of 2 to {MAX_CLASSES} different names of printable characters'
            is_valid = (isinstance(value, list) and all(map(_is_name, value))
                        and 2 <= len(value) <= MAX_CLASSES and len(set(value)) == len(value))
        else:
            expected = 'names of files in this folder, each with its number of records'
            is_valid = isinstance(value, dict) and value and all(
                _is_name(name) and name == os.path.basename(name) for name in value)
        if not is_valid:
            raise errors.UserError(
                f'{source}: "{field}" is {json.dumps(value):.80}; expected {expected}')


def _is_name(value):
    return isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()


def check(data_set: DataSet, folder: str) -> None:
    """Checks the sizes and labels of those files of a data set that exist in a folder.

    Raises `errors.UserError` that names the file, the record and the remedy.
    """
    for path in [os.path.join(folder, name) for name in data_set.files]:
        if os.path.exists(path):
            download.check_records(
                path, data_set.record_bytes, data_set.record_bytes + LABEL,
                len(data_set.classes), if_torn=data_set.remedy, if_too_large=data_set.remedy)


def class_names(folder: str) -> tuple[str, ...] | None:
    """Returns the names of the classes in `batches.meta.txt`, one per line; None without it."""
    path = os.path.join(folder, 'batches.meta.txt')
    if not os.path.exists(path):
        return None
    with open(path, encoding='utf-8', errors='replace') as stream:
        return tuple(line.strip() for line in stream if line.strip())
