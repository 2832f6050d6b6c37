"""Draws the synthetic data sets: shapes and textures in random colours, with noise.

Only the form defines the class. Its position, its size and the two colours are random for each
image, so that all classes have the same mean colour. Mirroring, or rotation by a quarter of a
radian, does not make one class look like another.

With two label bytes, an image shows two forms, one above the other, each in its own colours. These
ten times ten classes can be learned from few images each, because they share their forms.

The same seed gives the same bytes everywhere: NumPy does not change the stream of `RandomState`
(NEP 19), and we use only operations that IEEE 754 rounds exactly (no sine, no normal distribution).
"""
import os

import numpy as np

from cifar10_lib.program import files

SEED = 20151111
_SIDE = 32
_IMAGES_PER_BLOCK = 1000  # Limits the memory for the noise to about 25 MB.
_AXIS = np.arange(_SIDE, dtype=np.float32) - (_SIDE - 1) / 2  # Coordinates of rows and columns.

# Two forms in one image are each two thirds as large. Each is a pixel closer to the other one than
# the centre of its half, so that the crop cuts off less of it.
_SMALL = np.float32(1.5)
_UPPER_ROWS = _SMALL * (_AXIS[:_SIDE // 2] + 7)
_LOWER_ROWS = _SMALL * (_AXIS[_SIDE // 2:] - 7)


def write(data_set, data_dir):
    """Writes the files of a row of the data-set table to its folder below `data_dir`, all or
    nothing."""
    with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial:
        for index, (name, count) in enumerate(data_set.files.items()):
            records = draw(count, data_set.num_classes, SEED + index, data_set.label_bytes)
            with open(os.path.join(partial, name), 'wb') as stream:
                stream.write(records)  # `tofile` does not report a full disk.


def draw(count, num_classes, seed, label_bytes=1):
    """Draws records of equally frequent classes in random order.

    uint8 [count, label_bytes + 3 * 32 * 32]: labels, then the red, green and blue planes. With one
    label byte, the label is the index of the form. With two, the first is the upper form; the
    second, the label, is ten times the upper form plus the lower form.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count) % num_classes).astype(np.uint8)
    paint, header = _images, [labels]
    if label_bytes == 2:
        paint, header = _pairs, [labels // len(FORMS), labels]
    images = np.empty([count, 3, _SIDE, _SIDE], np.uint8)
    for start in range(0, count, _IMAGES_PER_BLOCK):
        block = slice(start, start + _IMAGES_PER_BLOCK)
        images[block] = paint(random, labels[block])
    return np.concatenate([np.stack(header, axis=1), images.reshape(count, -1)], axis=1)


def _pairs(random, labels):
    """Draws two forms per image, one above the other: uint8 [len(labels), 3, 32, 32]."""
    return np.concatenate([
        _images(random, labels // len(FORMS), _UPPER_ROWS, _SMALL * _AXIS),
        _images(random, labels % len(FORMS), _LOWER_ROWS, _SMALL * _AXIS)], axis=2)


def _images(random, forms, rows=_AXIS, columns=_AXIS):
    """Draws noisy forms on a background of another colour: uint8 [len(forms), 3, len(rows), 32]."""
    masks = np.empty([len(forms), 1, len(rows), _SIDE], bool)
    for form in np.unique(forms):
        chosen = np.flatnonzero(forms == form)
        masks[chosen, 0] = FORMS[form](_Canvas(random, len(chosen), rows, columns))
    background, colour = _colours(random, len(forms))
    noise = random.randint(-24, 25, size=[len(forms), 3, len(rows), _SIDE]).astype(np.int16)
    return np.clip(np.where(masks, colour, background) + noise, 0, 255).astype(np.uint8)


def _colours(random, count):
    """Draws the colours of background and form for each image, both int16 [count, 3, 1, 1].

    One of them, at random, is lighter by at least 64 in every channel. With an independent choice
    for each channel, the 300 steps of README's first example would not be enough.
    """
    dark = random.randint(0, 128, size=[count, 3, 1, 1]).astype(np.int16)
    light = dark + random.randint(64, 129, size=[count, 3, 1, 1]).astype(np.int16)
    form_is_light = random.randint(0, 2, size=[count, 1, 1, 1]) == 1
    return np.where(form_is_light, dark, light), np.where(form_is_light, light, dark)


class _Canvas:
    """Coordinates relative to a random centre, and a random size, for each of `count` images.

    `x` is float32 [count, 1, columns], `y` [count, rows, 1], `size` [count, 1, 1], 6 to 9: a
    single form stays within the central 24 x 24 crop. `phase_x`, `phase_y` and `period` shift and
    scale the textures, in pixels.
    """

    def __init__(self, random, count, rows, columns):
        centre = random.randint(-3, 4, size=[2, count, 1, 1]).astype(np.float32)
        self.x = columns[np.newaxis, np.newaxis, :] - centre[0]
        self.y = rows[np.newaxis, :, np.newaxis] - centre[1]
        self.size = random.randint(6, 10, size=[count, 1, 1]).astype(np.float32)
        shift = random.randint(0, 8, size=[2, count, 1, 1])
        self.period = random.randint(3, 6, size=[count, 1, 1])
        self.phase_x = np.arange(len(columns))[np.newaxis, np.newaxis, :] + shift[0]
        self.phase_y = np.arange(len(rows))[np.newaxis, :, np.newaxis] + shift[1]


def _slope(c):
    # Both directions, half of the images each, since mirroring turns one into the other.
    mirrored = np.where(c.size > 7, c.phase_x, _SIDE - c.phase_x)
    return ((mirrored + c.phase_y) // c.period) % 2 == 0


# In the order of the classes; each maps a `_Canvas` to bool [count, rows, columns].
FORMS = (
    lambda c: c.x * c.x + c.y * c.y < c.size * c.size,  # Disc.
    lambda c: np.maximum(abs(c.x), abs(c.y)) < c.size * np.float32(0.875),  # Square.
    lambda c: (abs(c.y) < c.size) & (2 * abs(c.x) < c.y + c.size),  # Triangle.
    lambda c: ((c.x * c.x + c.y * c.y < c.size * c.size)
               & (4 * (c.x * c.x + c.y * c.y) > c.size * c.size)),  # Ring.
    lambda c: ((np.minimum(abs(c.x), abs(c.y)) < c.size / 4)
               & (np.maximum(abs(c.x), abs(c.y)) < c.size)),  # Cross.
    lambda c: (c.phase_y // c.period + 0 * c.phase_x) % 2 == 0,  # Bars.
    lambda c: (c.phase_x // c.period + 0 * c.phase_y) % 2 == 0,  # Columns.
    _slope,
    lambda c: (c.phase_x // c.period + c.phase_y // c.period) % 2 == 0,  # Checks.
    lambda c: (c.phase_x % (c.period + 2) < 2) & (c.phase_y % (c.period + 2) < 2))  # Dots.
