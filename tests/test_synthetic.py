import hashlib
import os
import resource
import time

import numpy as np
import pytest

from datasets import synthetic
from datasets import table

# (number of classes, label bytes) -> SHA-256 of 100 records of seed 7.
DIGESTS = {
    (10, 1): '7a4131745652cb684929f9cbd5f7ff471bac2c8fc0c09844e55069b8892e0783',
    (100, 2): '8ed7354e11be63f36cbadc79a32f01fbdb0315fdbc3e9299c8cef2911c52e619'}


@pytest.mark.parametrize('num_classes, label_bytes', DIGESTS)
def test_same_bytes_everywhere(num_classes, label_bytes):
    """Set down once: another NumPy or processor must draw the same images."""
    drawn = synthetic.draw(100, num_classes, 7, label_bytes)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == DIGESTS[num_classes, label_bytes]
    assert not np.array_equal(drawn, synthetic.draw(100, num_classes, 8, label_bytes))


@pytest.mark.parametrize('row', [table.SYNTHETIC, table.SYNTHETIC100])
def test_written_in_three_seconds_and_whole(tmp_path, row):
    start = time.process_time()
    synthetic.write(row, tmp_path)
    assert time.process_time() - start < 3
    folder = tmp_path / row.folder
    assert {path.name for path in folder.iterdir()} == set(row.files)
    row.check(folder)
    for eval_data in (False, True):
        assert row.count(folder, eval_data) == sum(row.split(eval_data).values())


def test_classes_are_balanced_in_random_order():
    labels = synthetic.draw(1000, 10, seed=1)[:, 0]
    assert np.array_equal(np.bincount(labels), [100] * 10)
    assert len(np.unique(labels[:50])) == 10


def test_label_names_the_upper_and_the_lower_form():
    """Told by the forms that are of one colour along rows, or along columns."""
    drawn = synthetic.draw(4000, 100, 1, label_bytes=2)
    coarse, fine = drawn[:, 0], drawn[:, 1]
    assert np.array_equal(np.bincount(fine), [40] * 100)
    assert np.array_equal(coarse, fine // 10)
    images = drawn[:, 2:].reshape(-1, 3, 32, 32).astype(np.float32)
    bars, columns = (table.SYNTHETIC.classes.index(name) for name in ('bars', 'columns'))
    for half, form in [(images[:, :, :16], fine // 10), (images[:, :, 16:], fine % 10)]:
        along = half.std(axis=3).mean(axis=(1, 2))  # Noise alone in each row of bars: 14 levels.
        across = half.std(axis=2).mean(axis=(1, 2))
        assert along[form == bars].max() < 16 < 25 < along[form == columns].min()
        assert across[form == columns].max() < 16 < 25 < across[form == bars].min()


def test_mean_colour_does_not_tell_the_class():
    """The nearest mean colour of a class is little better than a guess of one in ten."""
    train, test = synthetic.draw(4000, 10, seed=1), synthetic.draw(1000, 10, seed=2)

    def colours(drawn):
        return drawn[:, 1:].reshape(-1, 3, 1024).mean(axis=2)

    centres = np.stack([colours(train)[train[:, 0] == k].mean(axis=0) for k in range(10)])
    distances = np.square(colours(test)[:, np.newaxis] - centres).sum(axis=2)
    assert (distances.argmin(axis=1) == test[:, 0]).mean() < 0.2


def test_one_of_the_two_colours_is_lighter_in_every_channel():
    """So the channels rise and fall together. A disc covers a minority of the pixels, the ground's
    colour is the median: the mean is above it where the disc is light, in half of the images."""
    drawn = synthetic.draw(2000, 10, seed=3)
    planes = drawn[:, 1:].reshape(-1, 3, 1024).astype(np.float64)
    assert min(np.corrcoef(image).min() for image in planes) > 0.25
    discs = planes[drawn[:, 0] == table.SYNTHETIC.classes.index('disc')]
    above = discs.mean(axis=2) > np.median(discs, axis=2)
    assert np.array_equal(above.all(axis=1), above.any(axis=1))
    assert 0.4 < above.mean() < 0.6


def test_an_unwritable_place_leaves_nothing(tmp_path):
    (tmp_path / 'file').write_text('in the way')
    with pytest.raises(OSError):
        synthetic.write(table.SYNTHETIC, tmp_path / 'file')
    assert os.listdir(tmp_path) == ['file']


def test_a_full_disk_is_reported_as_such(tmp_path):
    """A limit on the size of files stands for the disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100000, limit[1]))
    try:
        with pytest.raises(OSError, match=f'^File too large in {tmp_path}. .*make room'):
            synthetic.write(table.SYNTHETIC, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / 'synthetic-batches-bin.0123456789abcdef.part').mkdir()
    (tmp_path / 'synthetic-batches-bin.0123456789abcdef.part' / 'test_batch.bin').touch()
    synthetic.write(table.SYNTHETIC, tmp_path)
    assert os.listdir(tmp_path) == ['synthetic-batches-bin']
