"""Draws grids of images and learning curves with Matplotlib.

The figures need no screen, and use Matplotlib's defaults and fonts whatever the user's settings.
"""
import logging
import textwrap

import numpy as np
from absl import app

# Distinguishable for colour-blind readers: Okabe and Ito, https://jfly.uni-koeln.de/color/.
_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_INCHES_PER_IMAGE = 0.8
_DOTS_PER_INCH = 100


def require_matplotlib():
    """Imports Matplotlib, an optional package.

    Raises:
        app.UsageError: Matplotlib is not installed.
        OSError: Matplotlib cannot write its cache.
    """
    logging.getLogger('matplotlib').setLevel(logging.ERROR)  # It warns about its cache folders.
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise app.UsageError('This picture requires Matplotlib, which is not installed: '
                             'pip install matplotlib') from error


def grid(stream, rows, title, row_names=None):
    """Writes a PNG with rows of images to a binary stream or path.

    Args:
        rows: list of rows, each a list of (image, name) or (image, name, right): float [height,
            width, 3], 0 to 1; the text above it or None; and whether to draw the text in black. A
            place that has None instead stays empty.
        title: title of the picture.
        row_names: text to the left of each row, or None.
    """
    columns = max(map(len, rows))
    named = any(cell[1] for row in rows for cell in row if cell)
    figure = _figure([_INCHES_PER_IMAGE * (columns + (1.5 if row_names else 0)),
                      _INCHES_PER_IMAGE * (1.5 if named else 1) * len(rows) + 0.6])
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for cell in axes.flat:
        cell.set(xticks=[], yticks=[], frame_on=False)
    for i, row in enumerate(rows):
        for axis, cell in zip(axes[i], row):
            if cell is None:
                continue
            image, name, *right = cell
            axis.imshow(image, interpolation='nearest')
            axis.set_title(textwrap.fill((name or '').replace('_', ' '), 13), fontsize=7, pad=2,
                           color='black' if all(right) else _COLOURS[1])
        if row_names:
            axes[i, 0].set_ylabel(row_names[i], rotation=0, ha='right', va='center', fontsize=9)
    figure.savefig(stream, format='png')


def curves(stream, losses, errors):
    """Writes a PNG with losses and errors by step to a binary stream or path.

    Both are lists of curves, (name, run, marker, points): the name in the legend, the index of the
    run for the colour, a Matplotlib marker or None, and {step: value}.
    """
    figure = _figure([10, 4.2])
    panels = figure.subplots(1, 2)
    _panel(panels[0], losses, 'loss: cross entropy + weight decay',
           'loss (nats), mean since the previous point')
    _panel(panels[1], errors, 'error: 1 - precision @ 1', 'error (fraction of images)')
    figure.savefig(stream, format='png')


def validations(stream, raw, averaged):
    """Writes a PNG with validation errors by epoch, of the raw weights and of their averages.

    Both are lists of curves as for `curves`, with {epoch: error} instead.
    """
    figure = _figure([8, 4])
    panels = figure.subplots(1, 2, sharey=True)
    for axes, shown, what in zip(panels, (raw, averaged), ('raw weights', 'averaged weights')):
        _panel(axes, shown, f'validation error, {what}', 'fraction of images',
               'epochs: passes over the images')
    panels[1].set_ylabel(None)  # That of the left panel.
    figure.savefig(stream, format='png')


def lines(stream, shown, title, unit):
    """Writes a PNG with one panel; arguments as for `curves`, and the unit of the values."""
    figure = _figure([7, 4])
    _panel(figure.subplots(), shown, title, unit)
    figure.savefig(stream, format='png')


def _panel(axes, shown, title, unit, unit_of_x='step'):
    for name, run, marker, points in shown:
        lone = 's' if len(points) == 1 else None  # A single point is not a visible line.
        axes.plot(list(points), list(points.values()), label=name, marker=marker or lone,
                  markersize=4, color=_COLOURS[run % len(_COLOURS)],
                  linewidth=2 if marker else 1.2, linestyle='--' if marker == 'o' else '-')
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(unit_of_x)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(fontsize=8)


def _figure(size):
    import matplotlib.figure
    matplotlib.rcdefaults()
    return matplotlib.figure.Figure(figsize=size, dpi=_DOTS_PER_INCH, layout='constrained')


def scaled(images):
    """Scales values, float of any shape, to 0 to 1: from the 1st to the 99th percentile of all."""
    low, high = np.percentile(images, [1, 99])
    return np.clip((images - low) / max(high - low, 1e-9), 0, 1)
