"""Draws grids of images and learning curves with Matplotlib, whatever the user's settings."""
import logging
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from absl import app

# Distinguishable for colour-blind readers: Okabe and Ito, https://jfly.uni-koeln.de/color/.
_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')

Cell = tuple[np.ndarray, str | None] | tuple[np.ndarray, str | None, bool]  # See `grid`.
# See `curves`.
Curve = tuple[str, int, str, Mapping[int, float] | Mapping[float, float]]


def require_matplotlib() -> None:
    """Imports Matplotlib, an optional package; raises `app.UsageError` if it is not installed."""
    logging.getLogger('matplotlib').setLevel(logging.ERROR)  # It warns about missing fonts.
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise app.UsageError('This picture requires Matplotlib, which is not installed: '
                             'pip install matplotlib') from error


def grid(stream: BinaryIO | str, rows: Sequence[Sequence[Cell | None]], title: str,
         row_names: Sequence[str] | None = None) -> None:
    """Writes a PNG with rows of images to a binary stream or path.

    Args:
        rows: of (image, name) or (image, name, right): uint8, or float from 0 to 1, [height, width,
            3]; the text above it or None; and whether to draw the text in black. A place that has
            None instead stays empty.
        title: title of the picture.
        row_names: text to the left of each row.
    """
    def wrapped(name):
        return '\n'.join(textwrap.fill(line, 13) for line in name.replace('_', ' ').splitlines())

    columns = max(map(len, rows))
    lines = max(wrapped(cell[1] or '').count('\n') + bool(cell[1])
                for row in rows for cell in row if cell)
    figure = _figure([0.8 * (columns + (1.5 if row_names else 0)),  # Inches.
                      (0.8 + 0.13 * lines) * len(rows) + 0.6])
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for cell in axes.flat:
        cell.set(xticks=[], yticks=[], frame_on=False)
    for i, row in enumerate(rows):
        for axis, cell in zip(axes[i], row):
            if cell is not None:
                image, name, *right = cell
                axis.imshow(image, interpolation='nearest')
                axis.set_title(wrapped(name or ''), fontsize=7, pad=2,
                               color='black' if all(right) else _COLOURS[1])
        if row_names:
            axes[i, 0].set_ylabel(row_names[i], rotation=0, ha='right', va='center', fontsize=9)
    figure.savefig(stream, format='png')


def curves(stream: BinaryIO | str, size: Sequence[float],
           panels: Sequence[tuple[Sequence[Curve], str, str, str]],
           same_scale: bool = False, logarithmic: bool = False) -> None:
    """Writes a PNG with panels of curves, side by side, to a binary stream or path.

    Args:
        size: width and height of the picture, in inches of 100 pixels.
        panels: of (curves, title, label of the y axis, label of the x axis). A curve is (name,
            colour, style, points): the name in the legend, the index of its colour, Matplotlib's
            marker and line such as 'o--', and {x: y}. A line without markers is thinner.
        same_scale: whether the panels share the y axis and the label of the first.
        logarithmic: whether the x axes are logarithmic.
    """
    figure = _figure(size)
    row = figure.subplots(1, len(panels), sharey=same_scale, squeeze=False)[0]
    for axes, (shown, title, y_label, x_label) in zip(row, panels):
        for name, colour, style, points in shown:
            label = textwrap.fill(name, 28)  # Longer lines do not fit.
            if label.startswith('_'):  # Matplotlib hides such labels.
                label = f' {label}'
            width = 2.0
            if style == '-':
                width = 1.2
                if len(points) == 1:  # A line would not be visible.
                    style = 's'
            axes.plot(list(points), list(points.values()), style, label=label, linewidth=width,
                      color=_COLOURS[colour % len(_COLOURS)], markersize=4)
        axes.set_title(title, fontsize=11)
        axes.set(xlabel=x_label, ylabel=None if same_scale and axes is not row[0] else y_label)
        if logarithmic:
            axes.set_xscale('log')
            axes.xaxis.set_major_formatter('{x:g}')  # The default is mathematical text, not parsed.
            axes.xaxis.set_minor_formatter('')
        axes.grid(alpha=0.3)
        if shown:
            axes.legend(  # Below the axes, where it hides no curve.
                fontsize=8, loc='upper center', bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.savefig(stream, format='png')


def _figure(size):
    import matplotlib.figure
    warnings.filterwarnings('ignore', 'Glyph')  # A character that no font has becomes a box.
    matplotlib.rcdefaults()
    # The first font has most alphabets; the others, if installed, have other characters.
    matplotlib.rcParams.update({'text.parse_math': False, 'font.family': [
        'DejaVu Sans', 'Noto Sans CJK JP', 'WenQuanYi Micro Hei']})
    return matplotlib.figure.Figure(figsize=size, dpi=100, layout='constrained')
