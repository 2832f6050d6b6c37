"""Parquet files of Hugging Face's data sets: images as encoded bytes, and labels with names.

`train-*.parquet` are for training, `test-*.parquet` (or `validation-*`) for testing. The names of
the classes are in the schema, https://huggingface.co/docs/datasets/about_dataset_features.
"""
import json
import pathlib

import numpy as np

from cifar10_lib.datasets import custom, images
from cifar10_lib.program import errors

_SPLITS = ('train', 'test', 'validation')  # The last is for testing if there is no other.
_LABELS = ('label', 'labels', 'fine_label')  # CIFAR-100 also has `coarse_label`.
_IMAGES = ('image', 'img')


def find(path):
    """Returns the paths for training and for testing, in a folder or one level below; or None."""
    found = sorted(each for pattern in ('*.parquet', '*/*.parquet')
                   for each in pathlib.Path(path).glob(pattern))
    train, *tests = ([each for each in found if each.name.startswith(name)] for name in _SPLITS)
    test = next(filter(None, tests), None)
    return (train, test) if train and test else None


def read(path, skipped):
    """Returns the classes, and the blocks of training and test records; see `forms.Form`."""
    try:
        from pyarrow import parquet  # Optional.
    except ImportError as error:
        raise errors.DataError(f'{path} has Parquet files, which require pyarrow: '
                               'pip install pyarrow') from error
    splits = find(path)
    try:
        found = json.loads(parquet.read_schema(splits[0][0]).metadata[b'huggingface'])
        features = found['info']['features']
        image, label = (next(filter(features.get, names)) for names in (_IMAGES, _LABELS))
        classes = features[label]['names']
    except Exception as error:  # Damaged files raise many types.
        raise errors.DataError(f'{splits[0][0]} is not a Parquet file of images and labels of '
                               f'Hugging Face ({error!r:.100})') from error

    def rows(split):
        for path_ in split:
            try:
                for batch in parquet.ParquetFile(path_).iter_batches(512, columns=[image, label]):
                    yield from ((path_, row[label], row[image]) for row in batch.to_pylist())
            except Exception as error:
                raise errors.DataError(f'{path_} is damaged ({errors.one_line(error)})') from error

    def blocks(split):
        for path_, label_, image_ in rows(split):
            try:
                pixels = images.decode((image_ or {}).get('bytes'))
            except images.ImageError as error:
                skipped.append((str(path_), f'has an image that {error}'))
            else:
                yield custom.records(pixels[np.newaxis], [label_], len(classes), path_)

    return classes, *map(blocks, splits)
