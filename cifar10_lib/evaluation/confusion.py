"""Shows a confusion matrix: recall and precision per class, as text, summaries and a picture.

In all functions, `confusion` is int [classes, classes], the number of images of each label (row)
with each prediction (column), and `names` are the names of the classes.
"""
import io
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image, ImageDraw, ImageFont


def shares(confusion: np.ndarray) -> list[np.ndarray]:
    """Computes recall and precision of each class, both float [classes].

    Recall is the fraction of a class's images classified correctly, precision the fraction of a
    class's predictions that are correct; NaN for a class without images, or without predictions.
    """
    with np.errstate(invalid='ignore'):
        return [np.diag(confusion) / confusion.sum(axis=axis) for axis in (1, 0)]


def table(confusion: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns the lines of a table with a line per class, the best recall first."""
    recall, precision = shares(confusion)
    width = max(map(len, (*names, 'class')))
    lines = [f'{"class":{width}}  images  predicted   right  recall  precision']
    for k in np.argsort(-recall, kind='stable'):
        shown = ('-' if np.isnan(share) else f'{share:.3f}' for share in (recall[k], precision[k]))
        lines.append('{:{}}  {:6}  {:9}  {:6}  {:>6}  {:>9}'.format(
            names[k], width, confusion[k].sum(), confusion[:, k].sum(), confusion[k, k], *shown))
    return lines


def matrix(confusion: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns the lines of the matrix or, if it is too wide, of a note on where to see it."""
    digits = len(str(len(names) - 1))
    heads = [f'{k:{digits}} {name}' for k, name in enumerate(names)]
    left = max(map(len, heads))
    cell = 1 + max(len(str(confusion.max())), 4)
    if left + cell * len(names) > 80:
        return [f'The confusion matrix of {len(names)} classes is too wide for a terminal:',
                'see TensorBoard, or run cifar10_plot.py --picture=confusion.']
    rows = [f'{head:{left}}' + ''.join(f'{number:{cell}}' for number in row)
            for head, row in zip(['', *heads], [range(len(names)), *confusion])]
    return ['Confusion matrix: labels in rows, predictions in columns.', *rows]


def lines(confusion: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns the lines of both, with an empty one in between."""
    return [*table(confusion, names), '', *matrix(confusion, names)]


def summary(confusion: np.ndarray, names: Sequence[str]) -> tf.Summary:
    """Returns the image `confusion_matrix` and, for each class, the scalars `classes/NAME/recall`
    and `classes/NAME/precision`, unless they are undefined."""
    result = tf.Summary()
    for name, *values in zip(names, *shares(confusion)):
        for what, value in zip(('recall', 'precision'), values):
            if not np.isnan(value):
                result.value.add(tag=f'classes/{name}/{what}', simple_value=value)
    drawn, png = picture(confusion, names), io.BytesIO()
    drawn.save(png, 'PNG')
    result.value.add(tag='confusion_matrix', image=tf.Summary.Image(
        width=drawn.width, height=drawn.height, colorspace=3, encoded_image_string=png.getvalue()))
    return result


def picture(confusion: np.ndarray, names: Sequence[str]) -> Image.Image:
    """Draws the matrix.

    A darker cell is a larger fraction of the images of its label. The numbers are omitted if the
    largest does not fit into a cell.
    """
    cell = max(12, 520 // len(names))
    height = min(15, cell - 1)
    font = ImageFont.load_default(height)
    upright = ImageFont.TransposedFont(font, Image.Transpose.ROTATE_90)
    margin = int(max(map(font.getlength, (*names, 'prediction')))) + 40
    size = margin + cell * len(names) + 20
    image = Image.new('RGB', [size, size], 'white')
    draw = ImageDraw.Draw(image)
    draw.text((margin, 8), 'prediction', 'black', font)
    draw.text((8, margin), 'label', 'black', upright)
    for k, name in enumerate(names):
        middle = margin + (k + 0.5) * cell
        draw.text((margin - 6, middle), name, 'black', font, anchor='rm')
        draw.text((middle - height / 2, margin - 6 - font.getlength(name)), name, 'black', upright)
    # The square root makes small fractions visible.
    darkness = np.sqrt(confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1))
    colours = 255 + darkness[:, :, np.newaxis] * (np.array([8, 48, 107]) - 255)  # White to blue.
    image.paste(Image.fromarray(colours.astype(np.uint8)).resize(
        [cell * len(names)] * 2, Image.Resampling.NEAREST), (margin, margin))
    if font.getlength(str(confusion.max())) < cell - 2:
        for row, column in np.argwhere(confusion):
            place = margin + cell * (column + 0.5), margin + cell * (row + 0.5)
            colour = 'white' if darkness[row, column] > 0.5 else 'black'
            draw.text(place, str(confusion[row, column]), colour, font, anchor='mm')
    draw.rectangle([margin, margin, size - 20, size - 20], outline='grey')
    return image
