"""Draws the synthetic data sets: shapes and textures in random colours, with noise.

A class is known by its form alone. Where a form lies, how large it is and which two colours it has
are drawn anew for every image, so that no class has a mean colour of its own. None of them changes
when it is mirrored, as training does.

The same seed gives the same bytes everywhere: NumPy keeps the stream of `RandomState` for good
(NEP 19), and only operations that IEEE 754 rounds exactly are used: no sine, no normal numbers.
"""
import os
import shutil

import numpy as np

SEED = 20151111
_SIDE = 32
_IMAGES_A_BLOCK = 1000  # Bounds the memory for the noise to some 25 megabytes.


def write(data_set, data_dir):
    """Writes a data set's files into its folder below `data_dir`, all or nothing.

    Args:
        data_set: a row of the table; its classes are drawn by the functions of `FORMS` in order.
        data_dir: the data folder, made if missing.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = os.path.join(data_dir, data_set.folder)
    partial = folder + '.part'
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    try:
        for index, (name, count) in enumerate(data_set.files.items()):
            draw(count, data_set.num_classes, SEED + index).tofile(os.path.join(partial, name))
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def draw(count, num_classes, seed):
    """Draws records of equally frequent classes in random order.

    Args:
        count: number of records.
        num_classes: classes 0 to `num_classes` - 1, at most as many as there are `FORMS`.
        seed: of the random numbers.

    Returns:
        uint8 [count, 1 + 3 * 32 * 32]: the label, then the red, green and blue planes.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count) % num_classes).astype(np.uint8)
    images = np.empty([count, 3, _SIDE, _SIDE], np.uint8)
    for start in range(0, count, _IMAGES_A_BLOCK):
        block = slice(start, start + _IMAGES_A_BLOCK)
        images[block] = _images(random, labels[block])
    return np.concatenate([labels[:, np.newaxis], images.reshape(count, -1)], axis=1)


def _images(random, labels):
    """uint8 [len(labels), 3, height, width]: forms in one colour on a ground of another, with
    noise."""
    masks = np.empty([len(labels), 1, _SIDE, _SIDE], bool)
    for label in np.unique(labels):
        chosen = np.flatnonzero(labels == label)
        masks[chosen, 0] = FORMS[label](_Canvas(random, len(chosen)))
    ground, colour = _colours(random, len(labels))
    noise = random.randint(-24, 25, size=[len(labels), 3, _SIDE, _SIDE]).astype(np.int16)
    return np.clip(np.where(masks, colour, ground) + noise, 0, 255).astype(np.uint8)


def _colours(random, count):
    """Two colours for each image, int16 [count, 3, 1, 1], some distance apart in every channel."""
    ground = random.randint(0, 256, size=[count, 3, 1, 1])
    distance = random.randint(64, 193, size=[count, 3, 1, 1])  # Modulo 256: at least 64 both ways.
    return ground.astype(np.int16), ((ground + distance) % 256).astype(np.int16)


class _Canvas:
    """Coordinates about a random centre, and a random size, for each of `count` images.

    `x` is float32 [count, 1, 32], `y` [count, 32, 1], `size` (6 to 9 pixels) [count, 1, 1]: forms
    stay within the central 24 x 24 crop. `phase_x`, `phase_y` and `period` shift and scale the
    textures.
    """

    def __init__(self, random, count):
        centre = random.randint(-3, 4, size=[2, count, 1, 1]).astype(np.float32)
        axis = np.arange(_SIDE, dtype=np.float32) - (_SIDE - 1) / 2
        self.x = axis[np.newaxis, np.newaxis, :] - centre[0]
        self.y = axis[np.newaxis, :, np.newaxis] - centre[1]
        self.size = random.randint(6, 10, size=[count, 1, 1]).astype(np.float32)
        pixel = np.arange(_SIDE)
        shift = random.randint(0, 8, size=[2, count, 1, 1])
        self.period = random.randint(3, 6, size=[count, 1, 1])
        self.phase_x = pixel[np.newaxis, np.newaxis, :] + shift[0]
        self.phase_y = pixel[np.newaxis, :, np.newaxis] + shift[1]


def _disc(c):
    return c.x * c.x + c.y * c.y < c.size * c.size


def _square(c):
    return np.maximum(abs(c.x), abs(c.y)) < c.size * np.float32(0.875)


def _triangle(c):
    return (abs(c.y) < c.size) & (2 * abs(c.x) < c.y + c.size)


def _ring(c):
    radius = c.x * c.x + c.y * c.y
    return (radius < c.size * c.size) & (4 * radius > c.size * c.size)


def _cross(c):
    near = np.minimum(abs(c.x), abs(c.y)) < c.size / 4
    return near & (np.maximum(abs(c.x), abs(c.y)) < c.size)


def _bars(c):
    return (c.phase_y // c.period + 0 * c.phase_x) % 2 == 0


def _columns(c):
    return (c.phase_x // c.period + 0 * c.phase_y) % 2 == 0


def _slope(c):
    # Both directions, since mirroring turns one into the other: half of the images each.
    mirrored = np.where(c.size > 7, c.phase_x, _SIDE - c.phase_x)
    return ((mirrored + c.phase_y) // c.period) % 2 == 0


def _checks(c):
    return (c.phase_x // c.period + c.phase_y // c.period) % 2 == 0


def _dots(c):
    return (c.phase_x % (c.period + 2) < 2) & (c.phase_y % (c.period + 2) < 2)


# In the order of the classes: each takes a `_Canvas` and returns bool [count, 32, 32].
FORMS = (_disc, _square, _triangle, _ring, _cross, _bars, _columns, _slope, _checks, _dots)
