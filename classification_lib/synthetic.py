"""Draws the images of the demo: shapes and textures in front of a background, with noise.

A class is a form, with a colour of its own and one for its background. Position and size vary, and
the colours by little: with a jitter of 40, 1 of 27 trainings at the tutorial's rate diverged.

The same seed gives the same bytes everywhere: NumPy does not change the stream of `RandomState`
(NEP 19), and we use only operations that IEEE 754 rounds exactly (no sine, no normal distribution).
"""
import glob
import os

from cifar10_lib import errors, files
from classification_lib import data_sets

import numpy as np

SEED = 20151111
RECORDS_PER_FILE = 2000
_SIDE = 32
_NOISE = 16  # The largest change of a value by noise,
_JITTER = 5  # and of the colours of an image.

# Each returns the pixels of a form, a mask that broadcasts to bool [count, 32, 32], for
#   x, y: coordinates relative to the centre of a shape, float64 [count, 1, 32] and [count, 32, 1]
#   r: its radius, int [count, 1, 1]
#   u, v: shifted coordinates of a texture, int [count, 1, 32] and [count, 32, 1]
#   p: its period, int [count, 1, 1]
FORMS = {
    'disc': lambda x, y, r, u, v, p: x * x + y * y < r * r,
    'square': lambda x, y, r, u, v, p: np.maximum(abs(x), abs(y)) < 0.875 * r,
    'triangle': lambda x, y, r, u, v, p: (abs(y) < r) & (2 * abs(x) < y + r),
    'ring': lambda x, y, r, u, v, p: (x * x + y * y < r * r) & (4 * (x * x + y * y) > r * r),
    'cross': lambda x, y, r, u, v, p: ((np.minimum(abs(x), abs(y)) < r / 4)
                                       & (np.maximum(abs(x), abs(y)) < r)),
    'bars': lambda x, y, r, u, v, p: v // p % 2 == 0,
    'columns': lambda x, y, r, u, v, p: u // p % 2 == 0,
    # Half of the images in each direction, since mirroring turns one into the other.
    'slope': lambda x, y, r, u, v, p: (np.where(r > 7, u, _SIDE - u) + v) // p % 2 == 0,
    'checks': lambda x, y, r, u, v, p: (u // p + v // p) % 2 == 0,
    'dots': lambda x, y, r, u, v, p: (u % (p + 2) < 2) & (v % (p + 2) < 2)}

# The mean colours of each form and of its background, red, green and blue.
_COLORS = np.array([
    [[220, 200, 60], [60, 110, 190]],
    [[190, 60, 50], [130, 130, 130]],
    [[60, 140, 70], [200, 190, 160]],
    [[210, 210, 220], [110, 60, 120]],
    [[220, 220, 210], [170, 50, 50]],
    [[60, 70, 160], [190, 180, 190]],
    [[200, 130, 60], [60, 60, 70]],
    [[90, 170, 180], [80, 70, 50]],
    [[40, 40, 40], [200, 200, 200]],
    [[200, 100, 150], [70, 120, 80]]])


def write(data_dir: str) -> str:
    """Writes generated images in CIFAR-10's layout below a folder, unless they are there.

    Returns the folder of the files. Raises `errors.UserError` if other record files are there.
    """
    folder = os.path.join(data_dir, data_sets.CIFAR10.folder)
    if data_sets.class_names(folder) == tuple(FORMS):
        return folder
    if glob.glob('*.bin', root_dir=data_dir):
        raise errors.UserError(f'{data_dir} holds other record files: choose another DATA_DIR')
    with files.new_folder(folder, 'DATA_DIR') as partial:
        for index, name in enumerate(data_sets.CIFAR10.files):
            with open(os.path.join(partial, name), 'wb') as stream:
                stream.write(draw(RECORDS_PER_FILE, SEED + index).data)
        with open(os.path.join(partial, 'batches.meta.txt'), 'w') as stream:
            stream.write(''.join(f'{name}\n' for name in FORMS))
    return folder


def draw(count: int, seed: int) -> np.ndarray:
    """Draws records of equally frequent classes in random order, uint8 [count, 1 + 3 * 32 * 32]."""
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(count) % len(FORMS)).astype(np.uint8)
    masks = np.empty([count, 1, _SIDE, _SIDE], bool)
    columns = np.arange(_SIDE).reshape(1, 1, _SIDE)
    rows = np.arange(_SIDE).reshape(1, _SIDE, 1)
    for label, form in enumerate(FORMS.values()):
        chosen = np.flatnonzero(labels == label)
        # Each shape has a centre and a radius, and stays within the central 24 x 24 crop.
        centre = (_SIDE - 1) / 2 + random.randint(-3, 4, size=[2, len(chosen), 1, 1])
        radius = random.randint(6, 10, size=[len(chosen), 1, 1])
        # Each texture has a shift and a period, in pixels.
        shift = random.randint(0, 8, size=[2, len(chosen), 1, 1])
        period = random.randint(3, 6, size=[len(chosen), 1, 1])
        masks[chosen, 0] = form(columns - centre[0], rows - centre[1], radius,
                                columns + shift[0], rows + shift[1], period)
    colors = _COLORS[labels] + random.randint(-_JITTER, _JITTER + 1, size=[count, 2, 3])
    colors = colors[..., np.newaxis, np.newaxis]  # [count, 2, 3, 1, 1]
    noise = random.randint(-_NOISE, _NOISE + 1, size=[count, 3, _SIDE, _SIDE])
    images = np.clip(np.where(masks, colors[:, 0], colors[:, 1]) + noise, 0, 255)
    return np.concatenate([labels[:, np.newaxis], images.reshape(count, -1).astype(np.uint8)],
                          axis=1)
