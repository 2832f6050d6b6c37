"""Set-up of the tests that run classification.py in their process."""
from classification_lib import recipes

import pytest
import small_nets
from absl import flags


@pytest.fixture
def small_rows(monkeypatch, tmp_path, half_bright):
    """80 images for training, 130 for the test, of two of ten classes; networks named 'small' and
    'steps'; an empty current folder; and the default of --batch_size."""
    for row in (small_nets.RECIPE, small_nets.STEPS):
        monkeypatch.setitem(recipes.TABLE, row.name, row)
    flags.FLAGS['batch_size'].unparse()
    flags.FLAGS['max_steps'].unparse()
    flags.FLAGS['train_dir'].unparse()
    (tmp_path / 'work').mkdir()
    monkeypatch.chdir(tmp_path / 'work')
    return half_bright
