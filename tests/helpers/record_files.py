"""Writes small record files for the tests."""
import os

from classification_lib import data_sets

import numpy as np


def write(path, labelled_images):
    """Writes records of uint8 [height, width, depth] images: a label byte, then the planes."""
    with open(path, 'wb') as stream:
        for label, image in labelled_images:
            stream.write(bytes([label]))
            stream.write(np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes())


def write_noise(data_dir, count=200, row=data_sets.CIFAR10):
    """Writes a data set's files with `count` records of noise each; returns their folder."""
    folder = os.path.join(data_dir, row.folder)
    os.makedirs(folder)
    for seed, name in enumerate(row.files):
        random = np.random.RandomState(seed)
        rows = random.randint(0, 256, [count, row.record_bytes]).astype(np.uint8)
        rows[:, data_sets.LABEL] %= len(row.classes)
        rows.tofile(os.path.join(folder, name))
    return folder


def unpacked(records):
    """uint8 [count, 3073] -> images, uint8 [count, 32, 32, 3], and labels, uint8 [count]."""
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def half_bright(count, seed):
    """(label, image) pairs: label k % 2, the upper or the lower half bright, with noise."""
    random = np.random.RandomState(seed)
    for k in range(count):
        image = random.randint(0, 60, [32, 32, 3])
        half = slice(0, 16) if k % 2 == 0 else slice(16, 32)
        image[half] += 150
        yield k % 2, image.astype(np.uint8)


def noise(count, seed):
    """(label, image) pairs of noise."""
    random = np.random.RandomState(seed)
    for _ in range(count):
        yield random.randint(10), random.randint(0, 256, [32, 32, 3]).astype(np.uint8)
