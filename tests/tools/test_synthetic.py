import hashlib
import os

from cifar10_lib import errors
from classification_lib import data_sets, synthetic

import numpy as np
import pytest

import cifar10_convert


def test_the_bytes_are_the_same_everywhere():
    """Recorded once: any NumPy and any processor must draw the same images."""
    drawn = synthetic.draw(100, seed=7)
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == (
        'f88f19211c84f9ef71eaab3d83ac0b330be3da460cf3e4fa995d9763cf52a7e2')
    assert not np.array_equal(drawn, synthetic.draw(100, seed=8))
    labels = drawn[:, 0].tolist()  # Each form equally often, in random order.
    assert np.bincount(labels).tolist() == [10] * 10 and labels != sorted(labels)


def test_the_demo_has_cifar10s_layout(tmp_path, capsys):
    data_dir = tmp_path / 'demo'
    cifar10_convert.main(['synthetic', str(data_dir)])
    folder = data_dir / 'cifar-10-batches-bin'
    assert capsys.readouterr().out == (
        f'{folder} holds generated images: use cifar10_train.py --data_dir="{data_dir}"\n')
    assert {path.name for path in folder.iterdir()} == {
        *data_sets.CIFAR10.files, 'batches.meta.txt'}
    data_sets.check(data_sets.CIFAR10, folder)
    assert data_sets.class_names(folder) == (
        'disc', 'square', 'triangle', 'ring', 'cross', 'bars', 'columns', 'slope', 'checks', 'dots')
    images = {}
    for name in data_sets.CIFAR10.files:
        found = np.fromfile(folder / name, np.uint8).reshape(-1, 3073)
        assert len(found) == 2000
        images[name] = {record.tobytes() for record in found}
    assert len(set.union(*images.values())) == 12000  # No image occurs twice.

    before = (folder / 'test_batch.bin').stat().st_mtime_ns
    cifar10_convert.main(['synthetic', str(data_dir)])  # It is there.
    assert (folder / 'test_batch.bin').stat().st_mtime_ns == before


@pytest.mark.parametrize('name', ['cifar-10-batches-bin/data_batch_1.bin', 'test_batch.bin'])
def test_other_record_files_are_never_replaced(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b'mine')
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(errors.UserError, match='choose another DATA_DIR'):
        cifar10_convert.main(['synthetic', str(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / name).read_bytes() == b'mine'
