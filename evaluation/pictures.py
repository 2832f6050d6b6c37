"""Draws grids of images and learning curves, with Matplotlib.

Figures are objects of their own, so that no screen is needed, and are drawn by Matplotlib's
defaults with the fonts that come with it, whatever the machine's settings are.
"""
import logging
import textwrap

import numpy as np
from absl import app

# Okabe and Ito, https://jfly.uni-koeln.de/color/: also colour-blind readers tell them apart.
_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_INCHES_AN_IMAGE = 0.8
_DOTS_AN_INCH = 100


def require_matplotlib():
    """Imports Matplotlib, an extra: only these pictures need it.

    Raises:
        app.UsageError: it is not installed.
        OSError: it finds no folder to write its cache in; the message says what to do.
    """
    logging.getLogger('matplotlib').setLevel(logging.ERROR)  # It warns of each folder it tries.
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise app.UsageError('This picture is drawn by Matplotlib, which is not installed: '
                             'pip install matplotlib') from error


def grid(stream, rows, title, row_names=None):
    """Writes a PNG of images in rows.

    Args:
        stream: binary stream to write to, or a path.
        rows: list of rows, each a list of (image, name): float [height, width, 3], 0 to 1, whose
            pixels stay squares, and what stands above it, or None.
        title: above all of them.
        row_names: a name for each row, at its left, or None.
    """
    columns = max(map(len, rows))
    named = any(name for row in rows for _, name in row)
    figure = _figure([_INCHES_AN_IMAGE * (columns + (1.5 if row_names else 0)),
                      _INCHES_AN_IMAGE * (1.5 if named else 1) * len(rows) + 0.6])
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for cell in axes.flat:
        cell.set(xticks=[], yticks=[], frame_on=False)
    for i, row in enumerate(rows):
        for cell, (image, name) in zip(axes[i], row):
            cell.imshow(image, interpolation='nearest')
            cell.set_title(textwrap.fill((name or '').replace('_', ' '), 13), fontsize=7, pad=2)
        if row_names:
            axes[i, 0].set_ylabel(row_names[i], rotation=0, ha='right', va='center', fontsize=9)
    figure.savefig(stream, format='png')


def curves(stream, losses, errors):
    """Writes a PNG of losses and of errors by step.

    Args:
        stream: binary stream to write to, or a path.
        losses, errors: lists of (name, run, marker, points): the curve's name, the number of the
            run, which decides its colour, a Matplotlib marker or None for a line alone, and the
            dictionary from step to value.
    """
    figure = _figure([10, 4.2])
    panels = figure.subplots(1, 2)
    for axes, lines, what in zip(panels, (losses, errors), (
            'loss: cross entropy + weight decay', 'error: 1 - precision @ 1')):
        for name, run, marker, points in lines:
            lone = 's' if len(points) == 1 else None  # One point makes no line to see.
            axes.plot(list(points), list(points.values()), label=name, marker=marker or lone,
                      markersize=4, color=_COLOURS[run % len(_COLOURS)],
                      linewidth=2 if marker else 1.2, linestyle='--' if marker == 'o' else '-')
        axes.set_title(what, fontsize=11)
        axes.set_xlabel('step')
        axes.grid(alpha=0.3)
        if lines:
            axes.legend(fontsize=8)
    panels[0].set_ylabel('mean over the steps since the row before')
    panels[1].set_ylabel('share of images')
    figure.savefig(stream, format='png')


def _figure(size):
    import matplotlib.figure
    matplotlib.rcdefaults()
    return matplotlib.figure.Figure(figsize=size, dpi=_DOTS_AN_INCH, layout='constrained')


def scaled(images):
    """Images of any range so that they can be shown: float 0 to 1.

    All by the same rule: black is what one of a hundred values lies below, white what one of a
    hundred lies above.

    Args:
        images: float [..., height, width, channels].
    """
    low, high = np.percentile(images, [1, 99])
    return np.clip((images - low) / max(high - low, 1e-9), 0, 1)
