import hashlib
import time

import numpy as np
import pytest

from datasets import synthetic
from datasets import table

# SHA-256 of draw(100, 10, seed=7).
DIGEST = '3e545b6ca3d652d99868ec43ba40e11d81b4c75e65f6cbb5a48a9f5a183c8b44'


def test_same_bytes_everywhere():
    """Set down once: another NumPy or processor must draw the same images."""
    drawn = synthetic.draw(100, 10, seed=7)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == DIGEST
    assert not np.array_equal(drawn, synthetic.draw(100, 10, seed=8))


def test_written_in_three_seconds_and_whole(tmp_path):
    start = time.perf_counter()
    synthetic.write(table.SYNTHETIC, tmp_path)
    assert time.perf_counter() - start < 3
    folder = tmp_path / 'synthetic-batches-bin'
    assert sorted(path.name for path in folder.iterdir()) == ['data_batch_1.bin', 'test_batch.bin']
    table.SYNTHETIC.check(folder)
    assert table.SYNTHETIC.count(folder, eval_data=False) == 10000
    assert table.SYNTHETIC.count(folder, eval_data=True) == 2000


def test_classes_are_balanced_in_random_order():
    labels = synthetic.draw(1000, 10, seed=1)[:, 0]
    assert np.array_equal(np.bincount(labels), [100] * 10)
    assert len(np.unique(labels[:50])) == 10


def test_mean_colour_does_not_tell_the_class():
    """The nearest mean colour of a class is little better than a guess of one in ten."""
    train, test = synthetic.draw(4000, 10, seed=1), synthetic.draw(1000, 10, seed=2)

    def colours(drawn):
        return drawn[:, 1:].reshape(-1, 3, 1024).mean(axis=2)

    centres = np.stack([colours(train)[train[:, 0] == k].mean(axis=0) for k in range(10)])
    distances = np.square(colours(test)[:, np.newaxis] - centres).sum(axis=2)
    assert (distances.argmin(axis=1) == test[:, 0]).mean() < 0.2


def test_an_unwritable_place_leaves_nothing(tmp_path):
    (tmp_path / 'synthetic-batches-bin.part').write_text('in the way')
    with pytest.raises(OSError):
        synthetic.write(table.SYNTHETIC, tmp_path)
    assert not (tmp_path / 'synthetic-batches-bin').exists()
