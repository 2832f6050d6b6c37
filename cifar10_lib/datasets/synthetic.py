"""Draws the synthetic data set: shapes and textures in random colours, with noise.

Only the form defines the class. Its position, its size and the two colours are random for each
image, so that all classes have the same mean colour. Mirroring, or rotation by a quarter of a
radian, does not make one class look like another.

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


def write(data_set, data_dir):
    """Writes the files of a `table.DataSet` to its folder below `data_dir`, all or nothing."""
    with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial:
        for index, (name, count) in enumerate(data_set.files.items()):
            with open(os.path.join(partial, name), 'wb') as stream:
                stream.write(draw(count, SEED + index))  # `tofile` does not report a full disk.


def draw(count, seed):
    """Draws records of equally frequent classes in random order.

    uint8 [count, 1 + 3 * 32 * 32]: the index of the form, then the red, green and blue planes.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count) % len(FORMS)).astype(np.uint8)
    images = np.empty([count, 3, _SIDE, _SIDE], np.uint8)
    for start in range(0, count, _IMAGES_PER_BLOCK):
        block = slice(start, start + _IMAGES_PER_BLOCK)
        images[block] = _images(random, labels[block])
    return np.concatenate([labels[:, np.newaxis], images.reshape(count, -1)], axis=1)


def _images(random, forms):
    """Draws noisy forms on a background of another colour: uint8 [len(forms), 3, 32, 32].

    One colour, at random, is lighter by at least 64 in every channel. With an independent choice
    for each channel, the 300 steps of README's first example would not be enough.
    """
    count = len(forms)
    masks = np.empty([count, 1, _SIDE, _SIDE], bool)
    for form in np.unique(forms):
        chosen = np.flatnonzero(forms == form)
        masks[chosen, 0] = FORMS[form](_Canvas(random, len(chosen)))
    dark = random.randint(0, 128, size=[count, 3, 1, 1]).astype(np.int16)
    light = dark + random.randint(64, 129, size=[count, 3, 1, 1]).astype(np.int16)
    form_is_light = random.randint(0, 2, size=[count, 1, 1, 1]) == 1
    images = np.where(masks == form_is_light, light, dark)
    noise = random.randint(-24, 25, size=[count, 3, _SIDE, _SIDE]).astype(np.int16)
    return np.clip(images + noise, 0, 255).astype(np.uint8)


class _Canvas:
    """Coordinates relative to a random centre, and a random size, for each of `count` images.

    `x` is float32 [count, 1, 32], `y` [count, 32, 1], `size` [count, 1, 1], 6 to 9: a form stays
    within the central 24 x 24 crop. `phase_x`, `phase_y` and `period` shift and scale the textures,
    in pixels.
    """

    def __init__(self, random, count):
        centre = random.randint(-3, 4, size=[2, count, 1, 1]).astype(np.float32)
        self.x = _AXIS[np.newaxis, np.newaxis, :] - centre[0]
        self.y = _AXIS[np.newaxis, :, np.newaxis] - centre[1]
        self.size = random.randint(6, 10, size=[count, 1, 1]).astype(np.float32)
        shift = random.randint(0, 8, size=[2, count, 1, 1])
        self.period = random.randint(3, 6, size=[count, 1, 1])
        self.phase_x = np.arange(_SIDE)[np.newaxis, np.newaxis, :] + shift[0]
        self.phase_y = np.arange(_SIDE)[np.newaxis, :, np.newaxis] + shift[1]


def _slope(c):
    # Both directions, half of the images each, since mirroring turns one into the other.
    mirrored = np.where(c.size > 7, c.phase_x, _SIDE - c.phase_x)
    return ((mirrored + c.phase_y) // c.period) % 2 == 0


# In the order of the classes; each maps a `_Canvas` to bool [count, 32, 32].
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
