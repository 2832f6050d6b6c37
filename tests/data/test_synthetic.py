import hashlib

import numpy as np

from cifar10_lib.datasets import synthetic, table


def test_the_bytes_are_the_same_everywhere():
    """Recorded once: any NumPy and any processor must draw the same images."""
    drawn = synthetic.draw(100, seed=7)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == (
        '7a4131745652cb684929f9cbd5f7ff471bac2c8fc0c09844e55069b8892e0783')
    assert not np.array_equal(drawn, synthetic.draw(100, seed=8))


def test_the_written_files_are_complete(tmp_path):
    synthetic.write(table.SYNTHETIC, tmp_path)
    folder = tmp_path / table.SYNTHETIC.folder
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {
        'data_batch_1.bin': 10000 * 3073, 'test_batch.bin': 2000 * 3073}
    table.SYNTHETIC.check(folder)
