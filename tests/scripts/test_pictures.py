import numpy as np
import pytest
from PIL import Image

from cifar10_lib.evaluation import pictures


def pixels(path):
    return np.asarray(Image.open(path).convert('RGB')).astype(int)


def middle_of(image, colour):
    """Mean (row, column) of all pixels of a colour, as fractions of height and width."""
    found = np.argwhere((image == colour).all(axis=2))
    assert len(found) > 50
    return found.mean(axis=0) / image.shape[:2]


def test_grid_places_rows_and_columns(tmp_path):
    """Red and green, whose name is wrong; blue is below green, beside an empty place."""
    red, green, blue = (np.tile(row.astype(float), [4, 4, 1]) for row in np.eye(3))
    pictures.grid(tmp_path / 'a.png', [[(red, 'r', True), (green, '\u2588' * 9, False)],
                                       [None, (blue, None)]], 'Title', ['first', 'second'])
    image = pixels(tmp_path / 'a.png')
    assert middle_of(image, [0xD5, 0x5E, 0x00])[1] > 0.5
    (r_row, r_column), (g_row, g_column), (b_row, b_column) = (
        middle_of(image, colour) for colour in 255 * np.eye(3))
    assert abs(r_row - g_row) < 0.02 and r_column < g_column
    assert abs(g_column - b_column) < 0.02 and g_row < 0.5 < b_row


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('name', ['$x^$', r'$\\frac$', '\u732b', 'a%b#c'])
def test_names_are_text(tmp_path, capfd, name):
    """Not formulas, which may be wrong; without warnings about fonts."""
    black = np.zeros([4, 4, 3])
    pictures.grid(tmp_path / 'a.png', [[(black, name)]], name, [name])
    sizes = []
    for shown in (name, '.'):
        pictures.curves(tmp_path / 'b.png', [4, 4], [
            ([(shown, 0, '-', {1: 2.0, 3: 1.0})], name, name, name)])
        sizes.append((pixels(tmp_path / 'b.png') < 128).all(axis=2).sum())
    assert sizes[0] > sizes[1] + 10  # The name is in the legend.
    assert capfd.readouterr().err == ''


def test_curves_have_a_colour_for_each_run_and_a_legend_that_covers_none(tmp_path):
    pictures.curves(tmp_path / 'a.png', [10, 4.2], [
        ([('a', 0, '-', {1: 2.0, 3: 1.0})], 'loss', 'nats', 'step'),
        ([('a', 0, 's-', {1: 0.5}), ('b', 1, 'o--', {1: 0.5, 3: 0.4})],
         'error', 'fraction', 'step')])
    image = pixels(tmp_path / 'a.png')
    assert middle_of(image, [0x00, 0x72, 0xB2])[1] < middle_of(image, [0xD5, 0x5E, 0x00])[1]
    # The legend is below the axes: the frame's lower edge is the last long black line.
    edge = np.flatnonzero((image < 60).all(axis=2).sum(axis=1) > 200)[-1]
    assert (image[edge + 1:] == [0xD5, 0x5E, 0x00]).all(axis=2).any()
