"""Small folders for the drills: record files in CIFAR-10's layout, and runs on them."""
import os

import numpy as np

from datasets import table
from drills import trial

RECORDS = 200  # In each of the six files.
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


def train(folder, *flags, **options):
    """Trains in the folders `data` and `train` of a folder; see `trial.script`."""
    return trial.script('cifar10_train.py', *train_flags(folder), *flags, **options)


def train_flags(folder):
    """Flags of a trainer for the folders `data` and `train` of a folder, and small batches."""
    return [f'--data_dir={folder}/data', f'--train_dir={folder}/train', '--batch_size=8',
            '--log_frequency=1']
