"""Small folders for the drills: record files in CIFAR-10's layout, and runs on them."""
import os

import numpy as np

from datasets import table
from drills import trial

RECORDS = 200  # In each of the six files.
BMP = (b'BM' + (54 + 32 * 32 * 3).to_bytes(4, 'little') + bytes(4) + (54).to_bytes(4, 'little')
       + (40).to_bytes(4, 'little') + 2 * (32).to_bytes(4, 'little') + b'\1\0\x18\0' + bytes(24)
       + bytes(range(256)) * 12)  # 32 x 32 pixels of 24 bits.
# 2 x 2 pixels: a header, a palette of two colours, two frames, a trailer.
GIF = bytes.fromhex('474946383961' '02000200800000' '000000ffffff'
                    + 2 * ('21f904000a000000' '2c000000000200020000' '020344020500') + '3b')
RECORD_BYTES = table.CIFAR10.record_bytes


def write(data_dir):
    """Writes the six files of noise, and returns the folder that holds them."""
    folder = os.path.join(data_dir, table.CIFAR10.folder)
    os.makedirs(folder)
    for seed, name in enumerate(table.CIFAR10.files):
        random = np.random.RandomState(seed)
        rows = random.randint(0, 256, [RECORDS, RECORD_BYTES]).astype(np.uint8)
        rows[:, 0] %= 10
        rows.tofile(os.path.join(folder, name))
    return folder


def write_images(folder):
    """Writes BMP files of two classes, six of each, as `cifar10_convert.py` takes them."""
    for label in 'ab':
        os.makedirs(f'{folder}/{label}')
        for number in range(6):
            with open(f'{folder}/{label}/{number}.bmp', 'wb') as stream:
                stream.write(BMP)


def train(folder, *flags, **options):
    """Trains in the folders `data` and `train` of a folder; see `trial.script`."""
    return trial.script('cifar10_train.py', *train_flags(folder), *flags, **options)


def train_flags(folder):
    """Flags of a trainer for the folders `data` and `train` of a folder, and small batches."""
    return [f'--data_dir={folder}/data', f'--train_dir={folder}/train', '--batch_size=8',
            '--log_frequency=1']
