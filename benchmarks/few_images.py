"""What classification.py reaches on few images: three classes of CIFAR-100, three times.

    python -m benchmarks.few_images --data_dir=/tmp/cifar10_data --per_class 20 50

Prints the validation error on 300 test images after the last step of each run, and their means. The
runs start with models/airbench94, whose weights have never seen these classes. Flags that are not
listed, such as --batch_size=8, are passed to classification.py.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from cifar10_lib import quiet  # noqa: F401, it imports TensorFlow quietly.
from classification_lib import data_sets, records, run

import numpy as np

_CHOICES = (('apple', 'bicycle', 'castle'), ('leopard', 'lion', 'tiger'), ('bed', 'rose', 'shark'))
_ROOT = pathlib.Path(__file__).parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--data_dir', default='/tmp/cifar10_data')
    parser.add_argument('--per_class', type=int, nargs='+', default=[20, 50])
    options, given = parser.parse_known_args()
    for count in options.per_class:
        errors = [_error(options.data_dir, classes, count, given) for classes in _CHOICES]
        for classes, error in zip(_CHOICES, errors):
            print(f'{count:4} images of each of {", ".join(classes)}: {error:.3f}', flush=True)
        print(f'{count:4} images of each class, mean: {np.mean(errors):.3f}', flush=True)


def _error(data_dir, classes, count, given):
    """The last validation error of a run on `count` images of each class."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {'classes': classes}
        for split, subset, size in (('train', 'all', count), ('test', 'test', 100)):
            source = records.Images(*records.fetch(data_sets.CIFAR100, data_dir), subset)
            labels, pixels = source.read()
            places = [np.flatnonzero(labels == source.data_set.classes.index(name))[:size]
                      for name in classes]
            arrays[f'x_{split}'] = pixels[np.concatenate(places)]
            arrays[f'y_{split}'] = np.repeat(range(len(classes)), size)
        np.savez(f'{folder}/images.npz', **arrays)
        for command in (
                ['cifar10_convert.py', f'{folder}/images.npz', f'{folder}/set'],
                ['classification.py', '--net=airbench94', '--seed=1', '--validate_every=1000',
                 '--initial_checkpoint=models/airbench94', f'--dataset={folder}/set',
                 f'--train_dir={folder}/run', *given]):
            subprocess.run([sys.executable, *command], cwd=_ROOT, check=True,
                           stdout=subprocess.DEVNULL)
        return run.read_metrics(f'{folder}/run')[-1]['validation_error']


if __name__ == '__main__':
    main()
