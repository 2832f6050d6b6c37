"""What a confusion matrix tells: figures of each class, as text, as curves and as a picture.

A matrix is int [classes, classes]: how many images of each label (row) got each prediction
(column).
"""
import io

import numpy as np
import tensorflow.compat.v1 as tf

_COLUMNS = 80  # Of a terminal.
_LEGEND = (
    'recall: the share of a class\'s images that were classified rightly, best first;\n'
    'precision: the share of the predictions of a class that were right.')
_DARKEST = np.array([8.0, 48.0, 107.0])  # Red, green, blue of a share of 1; white is 0.


def shares(confusion):
    """Recall and precision of each class.

    Args:
        confusion: a matrix as above.

    Returns:
        recall: float [classes], the share of a class's images that were classified rightly; NaN
            where there are no images of it.
        precision: float [classes], the share of the predictions of a class that were right; NaN
            where there are none.
    """
    right = np.diag(confusion)
    with np.errstate(invalid='ignore'):
        return right / confusion.sum(axis=1), right / confusion.sum(axis=0)


def table(confusion, names):
    """Figures of each class as lines of text, the class with the best recall first.

    Args:
        confusion: a matrix as above.
        names: of the classes.
    """
    recall, precision = shares(confusion)
    width = max(len(name) for name in (*names, 'class'))
    lines = [f'{"class":{width}}  images  predicted   right  recall  precision']
    for k in np.argsort(-np.nan_to_num(recall, nan=-1), kind='stable'):
        lines.append(
            f'{names[k]:{width}}  {confusion[k].sum():6}  {confusion[:, k].sum():9}  '
            f'{confusion[k, k]:6}  {_share(recall[k]):>6}  {_share(precision[k]):>9}')
    return '\n'.join([*lines, _LEGEND])


def _share(value):
    return '-' if np.isnan(value) else f'{value:.3f}'


def matrix(confusion, names):
    """The matrix as lines of text, or a line that says where to see it if it is too wide.

    Args:
        confusion: a matrix as above.
        names: of the classes.
    """
    numbers = [str(k) for k in range(len(names))]
    heads = [f'{number:>{len(numbers[-1])}} {name}' for number, name in zip(numbers, names)]
    left = max(map(len, heads))
    cell = 1 + max(len(str(confusion.max())), len(numbers[-1]), 4)
    if left + cell * len(names) > _COLUMNS:
        return (f'The confusion matrix of {len(names)} classes is too wide for a terminal:\n'
                'see it in TensorBoard, or make a file of it with cifar10_plot.py.')
    rows = [f'{head:{left}}' + ''.join(f'{count:{cell}}' for count in row)
            for head, row in zip(heads, confusion)]
    return '\n'.join(['Confusion matrix: labels in rows, predictions in columns.',
                      ' ' * left + ''.join(f'{number:>{cell}}' for number in numbers), *rows])


def summary(confusion, names):
    """Curves `classes/NAME/recall` and `classes/NAME/precision`, and the image `confusion_matrix`.

    Args:
        confusion: a matrix as above.
        names: of the classes.

    Returns:
        A `tf.Summary`; figures that are not defined are left out.
    """
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


def picture(confusion, names):
    """Draws the matrix: the darker a cell, the larger its share of the images of its label.

    Numbers are left out where cells are too small for the largest of them.

    Args:
        confusion: a matrix as above.
        names: of the classes.

    Returns:
        A `PIL.Image.Image`.
    """
    from PIL import Image, ImageDraw, ImageFont  # Takes a while to load.
    cell = max(12, 520 // len(names))
    font = ImageFont.load_default(min(15, cell - 1))
    upright = ImageFont.TransposedFont(font, Image.Transpose.ROTATE_90)
    margin = int(max(map(font.getlength, (*names, 'prediction')))) + 40
    size = margin + cell * len(names) + 20
    image = Image.new('RGB', [size, size], 'white')
    draw = ImageDraw.Draw(image)
    draw.text([margin, 8], 'prediction', 'black', font)
    draw.text([8, margin], 'label', 'black', upright)
    for k, name in enumerate(names):
        middle = margin + (k + 0.5) * cell
        draw.text([margin - 6, middle], name, 'black', font, anchor='rm')
        draw.text([middle - font.size / 2, margin - 6 - font.getlength(name)], name, 'black',
                  upright)
    numbered = font.getlength(str(confusion.max())) < cell - 2
    # The root, so that small shares show.
    darkness = np.sqrt(confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1))
    for row, column in np.ndindex(*confusion.shape):
        corner = margin + column * cell, margin + row * cell
        _draw_cell(draw, corner, cell, darkness[row, column],
                   str(confusion[row, column] or '') if numbered else '', font)
    draw.rectangle([margin, margin, size - 20, size - 20], outline='grey')
    return image


def _draw_cell(draw, corner, cell, darkness, number, font):
    """A cell at its upper left corner; `darkness` is 0 to 1, `number` what to write in it."""
    x, y = corner
    colour = 255 + darkness * (_DARKEST - 255)
    draw.rectangle([x, y, x + cell, y + cell], tuple(colour.astype(int)))
    draw.text([x + cell / 2, y + cell / 2], number, 'white' if darkness > 0.5 else 'black', font,
              anchor='mm')
