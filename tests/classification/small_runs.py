"""Runs of classification.py in the process of a test, on the images of `conftest.small_rows`."""
import json
import pathlib
import re

from cifar10_lib import checkpoints
from classification_lib import run

import record_files
from absl import flags
from absl.testing import flagsaver

import classification

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'
STEPS = [2, 4, 5, 6, 8, 10, 12, 14, 15]  # Of the rows of three epochs.


def started(main=classification.main, **options):
    """Runs classification.py with these flags alone; returns the folder of the run."""
    with flagsaver.flagsaver(**{'train_dir': 'run', **options}):
        main()
        return pathlib.Path(FLAGS.train_dir)


def ran(**options):
    """Runs a small network, with a row for every second step and validation."""
    return started(**{'net': 'small', 'log_frequency': 2, 'seed': 1, **options})


def own_images(classes=('above', 'below'), count=60):
    """Makes a data set of a user's own in the current folder."""
    for seed, name in enumerate(['train.bin', 'test.bin']):
        record_files.write(name, record_files.half_bright(count, seed))
    pathlib.Path('dataset.json').write_text(json.dumps({
        'name': 'halves', 'classes': classes, 'train_files': {'train.bin': count},
        'test_files': {'test.bin': count}}))


def rows(folder):
    return run.read_metrics(str(folder))


def figures(folder, name):
    """The steps at which a figure was measured, and the figure."""
    return [(row['step'], row[name]) for row in rows(folder) if row[name] is not None]


def values(folder):
    return checkpoints.newest(str(folder)).values


def precision(out):
    return float(re.search(r'precision @ 1 = (\S+)$', out, re.MULTILINE)[1])
