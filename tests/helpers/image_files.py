"""Writes image files for the tests."""
import numpy as np
from PIL import Image


def png(path, image):
    """A PNG of uint8 [height, width, 3] or [height, width]."""
    Image.fromarray(image).save(path, format='PNG')


def write_sorted(folder):
    """Two classes of six images each, in a folder per class."""
    image = np.arange(32 * 32 * 3).astype(np.uint8).reshape(32, 32, 3)
    for label in 'ab':
        (folder / label).mkdir(parents=True)
        for number in range(6):
            png(folder / label / f'{number}.png', image)
