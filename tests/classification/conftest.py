"""Set-up of the tests that run classification.py in their process."""
from classification_lib import recipes

import pytest
import small_nets
import tensorflow.compat.v1 as tf
from absl import flags


@pytest.fixture
def small_rows(monkeypatch, tmp_path, half_bright):
    """80 images for training, 130 for the test, of two of ten classes; networks named 'small' and
    'steps'; an empty current folder; and no flags that are given."""
    for row in (small_nets.RECIPE, small_nets.STEPS):
        monkeypatch.setitem(recipes.TABLE, row.name, row)
    flags.FLAGS.set_default('max_steps', None)  # Other scripts have another default.
    for name in ('batch_size', 'max_steps'):
        flags.FLAGS[name].unparse()
    (tmp_path / 'work').mkdir()
    monkeypatch.chdir(tmp_path / 'work')
    tf.summary.FileWriterCache.clear()  # Of folders with the same name in another one.
    return half_bright
