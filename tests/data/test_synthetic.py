import hashlib
import time

import numpy as np

from cifar10_lib.datasets import synthetic, table

def test_the_bytes_are_the_same_everywhere():
    """Recorded once: any NumPy and any processor must draw the same images."""
    drawn = synthetic.draw(100, seed=7)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == (
        '7a4131745652cb684929f9cbd5f7ff471bac2c8fc0c09844e55069b8892e0783')
    assert not np.array_equal(drawn, synthetic.draw(100, seed=8))


def test_writing_takes_seconds_and_is_complete(tmp_path):
    """Less than twenty times a loop of 0.15 s; about 3 s, if the machine is as fast."""
    start = time.process_time()
    sum(number * number for number in range(2_000_000))
    loop = time.process_time() - start
    start = time.process_time()
    row = table.SYNTHETIC
    synthetic.write(row, tmp_path)
    assert time.process_time() - start < 20 * loop
    folder = tmp_path / row.folder
    assert {path.name for path in folder.iterdir()} == set(row.files)
    row.check(folder)
    for eval_data in (False, True):
        assert list(row.count(folder, eval_data).values()) == list(row.split(eval_data).values())


def test_classes_are_balanced_in_random_order():
    labels = synthetic.draw(1000, seed=1)[:, 0]
    assert np.array_equal(np.bincount(labels), [100] * 10)
    assert len(np.unique(labels[:50])) == 10


def test_the_mean_colour_does_not_reveal_the_class():
    """Choosing the class with the nearest mean colour is hardly better than guessing."""
    train, test = synthetic.draw(4000, seed=1), synthetic.draw(1000, seed=2)

    def colours(drawn):
        return drawn[:, 1:].reshape(-1, 3, 1024).mean(axis=2)

    centres = np.stack([colours(train)[train[:, 0] == k].mean(axis=0) for k in range(10)])
    distances = np.square(colours(test)[:, np.newaxis] - centres).sum(axis=2)
    assert (distances.argmin(axis=1) == test[:, 0]).mean() < 0.2


def test_one_colour_is_lighter_in_every_channel():
    """So the channels are correlated. A disc covers less than half of the pixels, so the median is
    the background's colour; the mean is above it if the disc is light, in half of the images."""
    drawn = synthetic.draw(2000, seed=3)
    pixels_chw = drawn[:, 1:].reshape(-1, 3, 1024).astype(np.float64)
    assert min(np.corrcoef(image).min() for image in pixels_chw) > 0.25
    discs = pixels_chw[drawn[:, 0] == table.SYNTHETIC.classes.index('disc')]
    above = discs.mean(axis=2) > np.median(discs, axis=2)
    assert np.array_equal(above.all(axis=1), above.any(axis=1))
    assert 0.4 < above.mean() < 0.6
