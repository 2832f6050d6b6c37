import io

import numpy as np
import pytest
from PIL import Image

from cifar10_lib.datasets import table
from cifar10_lib.evaluation import confusion

# Four cats, three of them classified as dogs; two dogs, both correct; no bird, and none predicted.
NAMES = ('cat', 'dog', 'bird')
MATRIX = np.array([[1, 3, 0], [0, 2, 0], [0, 0, 0]])


def test_the_table_starts_with_the_best_recall():
    assert confusion.table(MATRIX, NAMES)[:4] == [
        'class  images  predicted   right  recall  precision',
        'dog         2          5       2   1.000      0.400',
        'cat         4          1       1   0.250      1.000',
        'bird        0          0       0       -          -']


def test_the_matrix_has_labels_in_rows():
    assert confusion.matrix(MATRIX, NAMES)[1:] == [
        '          0    1    2',
        '0 cat     1    3    0',
        '1 dog     0    2    0',
        '2 bird    0    0    0']


@pytest.mark.parametrize('name', list(table.TABLE))
def test_text_fits_80_columns(name):
    """With 10,000 images per class; a matrix that does not fit is omitted."""
    names = table.TABLE[name].classes
    matrix = np.full([len(names)] * 2, 10000 // len(names))
    text = '\n'.join(confusion.lines(matrix, names))
    assert max(map(len, text.splitlines())) <= 80
    assert ('too wide' in text) == (len(names) == 100)


def test_summary_has_scalars_and_a_picture():
    values = {value.tag: value for value in confusion.summary(MATRIX, NAMES).value}
    picture = values.pop('confusion_matrix').image
    drawn = Image.open(io.BytesIO(picture.encoded_image_string))
    assert drawn.size == (picture.width, picture.height)
    first = drawn.width - 20 - 3 * 173  # Three cells of 173 pixels end 20 pixels before the edge.
    assert [[drawn.getpixel((first + 173 * column + 10, first + 173 * row + 10))[0]
             for column in range(3)] for row in range(3)] == [
        [131, 41, 255], [255, 8, 255], [255, 255, 255]]  # Red: 255 - 247 sqrt(share of the row).
    assert {tag: value.simple_value for tag, value in values.items()} == pytest.approx({
        'classes/cat/recall': 0.25, 'classes/cat/precision': 1.0,
        'classes/dog/recall': 1.0, 'classes/dog/precision': 0.4})
