"""Draws the synthetic data set: shapes and textures in random colours, with noise.

Only the form defines the class. Its position, its size and the two colours are random for each
image, so that all classes have the same mean colour. Mirroring, or rotation by a quarter of a
radian, does not make one class look like another.

The same seed gives the same bytes everywhere: NumPy does not change the stream of `RandomState`
(NEP 19), and we use only operations that IEEE 754 rounds exactly (no sine, no normal distribution).
"""
import os

import numpy as np

from cifar10_lib.datasets import table
from cifar10_lib.program import files

SEED = 20151111
_SIDE = 32
_IMAGES_PER_BLOCK = 1000  # Limits the memory for the noise to about 25 MB.


def write(data_set: table.DataSet, data_dir: str) -> None:
    """Writes the files of a data set to its folder below `data_dir`, all or nothing."""
    with files.new_folder(os.path.join(data_dir, data_set.folder), '--data_dir') as partial:
        for index, (name, count) in enumerate(data_set.files.items()):
            with open(os.path.join(partial, name), 'wb') as stream:
                stream.write(draw(count, SEED + index).data)  # `tofile` hides a full disk.


def draw(count: int, seed: int) -> np.ndarray:
    """Draws records of equally frequent classes in random order: forms, a background, and noise.

    One of the two colours, at random, is lighter by at least 64 in every channel. With an
    independent choice for each channel, the 300 steps of README's first example would not be
    enough.

    uint8 [count, 1 + 3 * 32 * 32]: the index of the form, then the red, green and blue planes.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count) % len(FORMS)).astype(np.uint8)
    images = np.empty([count, 3, _SIDE, _SIDE], np.uint8)
    columns = np.arange(_SIDE).reshape(1, 1, _SIDE)
    rows = np.arange(_SIDE).reshape(1, _SIDE, 1)
    for start in range(0, count, _IMAGES_PER_BLOCK):
        forms = labels[start:start + _IMAGES_PER_BLOCK]
        masks = np.empty([len(forms), 1, _SIDE, _SIDE], bool)
        for form in np.unique(forms):
            chosen = np.flatnonzero(forms == form)
            # Each shape has a centre and a radius, and stays within the central 24 x 24 crop.
            centre = (_SIDE - 1) / 2 + random.randint(-3, 4, size=[2, len(chosen), 1, 1])
            radius = random.randint(6, 10, size=[len(chosen), 1, 1])
            # Each texture has a shift and a period, in pixels.
            shift = random.randint(0, 8, size=[2, len(chosen), 1, 1])
            period = random.randint(3, 6, size=[len(chosen), 1, 1])
            masks[chosen, 0] = FORMS[form](columns - centre[0], rows - centre[1], radius,
                                           columns + shift[0], rows + shift[1], period)
        dark = random.randint(0, 128, size=[len(forms), 3, 1, 1]).astype(np.int16)
        light = dark + random.randint(64, 129, size=dark.shape).astype(np.int16)
        form_is_light = random.randint(0, 2, size=[len(forms), 1, 1, 1]) == 1
        noise = random.randint(-24, 25, size=[len(forms), 3, _SIDE, _SIDE]).astype(np.int16)
        images[start:start + len(forms)] = np.clip(
            np.where(masks == form_is_light, light, dark) + noise, 0, 255)
    return np.concatenate([labels[:, np.newaxis], images.reshape(count, -1)], axis=1)


# In the order of the classes. Each returns masks that broadcast to bool [count, 32, 32], for
#   x, y: coordinates relative to the centre of a shape, float64 [count, 1, 32] and [count, 32, 1]
#   r: its radius, int [count, 1, 1]
#   u, v: shifted coordinates of a texture, int [count, 1, 32] and [count, 32, 1]
#   p: its period, int [count, 1, 1]
FORMS = (
    lambda x, y, r, u, v, p: x * x + y * y < r * r,  # Disc.
    lambda x, y, r, u, v, p: np.maximum(abs(x), abs(y)) < 0.875 * r,  # Square.
    lambda x, y, r, u, v, p: (abs(y) < r) & (2 * abs(x) < y + r),  # Triangle.
    lambda x, y, r, u, v, p: (x * x + y * y < r * r) & (4 * (x * x + y * y) > r * r),  # Ring.
    lambda x, y, r, u, v, p: ((np.minimum(abs(x), abs(y)) < r / 4)
                              & (np.maximum(abs(x), abs(y)) < r)),  # Cross.
    lambda x, y, r, u, v, p: v // p % 2 == 0,  # Bars.
    lambda x, y, r, u, v, p: u // p % 2 == 0,  # Columns.
    # Slope: half of the images in each direction, since mirroring turns one into the other.
    lambda x, y, r, u, v, p: (np.where(r > 7, u, _SIDE - u) + v) // p % 2 == 0,
    lambda x, y, r, u, v, p: (u // p + v // p) % 2 == 0,  # Checks.
    lambda x, y, r, u, v, p: (u % (p + 2) < 2) & (v % (p + 2) < 2))  # Dots.
