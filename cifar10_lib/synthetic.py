"""Draws the images of the demo: shapes and textures in random colours, with noise.

Only the form defines the class. Its position, its size and the two colours are random for each
image, so that all classes have the same mean colour. Mirroring, or rotation by a quarter of a
radian, does not make one class look like another.

The same seed gives the same bytes everywhere: NumPy does not change the stream of `RandomState`
(NEP 19), and we use only operations that IEEE 754 rounds exactly (no sine, no normal distribution).
"""
import glob
import os

from cifar10_lib import console, data_sets, files

import numpy as np

SEED = 20151111
RECORDS_PER_FILE = 2000
_SIDE = 32
_NOISE = int(os.environ.get('NOISE', 24))
_CONTRAST = int(os.environ.get('CONTRAST', 64)), int(os.environ.get('CONTRAST2', 129))

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


def write(data_dir: str) -> str:
    """Writes generated images in CIFAR-10's layout below a folder; returns the folder of the files.

    Does nothing if they are there. Raises `console.UserError` if other record files are, and
    `OSError`.
    """
    folder = os.path.join(data_dir, data_sets.CIFAR10.folder)
    if data_sets.class_names(folder) == tuple(FORMS):
        return folder
    if glob.glob('*.bin', root_dir=data_dir):
        raise console.UserError(f'{data_dir} holds other record files: choose another DATA_DIR')
    with files.new_folder(folder, 'DATA_DIR') as partial:
        for index, name in enumerate(data_sets.CIFAR10.files):
            with open(os.path.join(partial, name), 'wb') as stream:
                stream.write(draw(RECORDS_PER_FILE, SEED + index).data)
        with open(os.path.join(partial, 'batches.meta.txt'), 'w') as stream:
            stream.write(''.join(f'{name}\n' for name in FORMS))
    return folder


def draw(count: int, seed: int) -> np.ndarray:
    """Draws records of equally frequent classes in random order: forms, a background, and noise.

    One of the two colours, at random, is lighter by at least 64 in every channel. With an
    independent choice for each channel, the 300 steps of README's first example would not be
    enough.

    Returns uint8 [count, 1 + 3 * 32 * 32]: the index of the form, then the red, green and blue
    planes.
    """
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
    dark = random.randint(0, 128, size=[count, 3, 1, 1]).astype(np.int16)
    light = dark + random.randint(_CONTRAST[0], _CONTRAST[1], size=dark.shape).astype(np.int16)
    form_is_light = random.randint(0, 2, size=[count, 1, 1, 1]) == 1
    noise = random.randint(-_NOISE, _NOISE + 1, size=[count, 3, _SIDE, _SIDE]).astype(np.int16)
    images = np.clip(np.where(masks == form_is_light, light, dark) + noise, 0, 255)
    return np.concatenate([labels[:, np.newaxis], images.reshape(count, -1).astype(np.uint8)],
                          axis=1)
