"""Writes image files for the tests."""
from PIL import Image


def png(path, image):
    """A PNG of uint8 [height, width, 3] or [height, width]."""
    Image.fromarray(image).save(path, format='PNG')
