"""Reads image files as images of 32 x 32, the size of the data sets."""
import contextlib
import os
import re
import warnings

from cifar10_lib import errors
from classification_lib import data_sets

import numpy as np
from PIL import Image, ImageOps

# For EPS, Pillow starts Ghostscript. Of the others, it reads only the header, or only on Windows.
_UNREADABLE = {'EPS', 'BUFR', 'GRIB', 'HDF5', 'MPEG', 'WMF'}

_HEIC = ('.heic', '.heif')  # Pillow needs a plug-in for them.
_BITS_PER_SAMPLE = 258  # A tag of TIFF.


def paths_in(folder: str) -> list[str]:
    """Returns the sorted paths of the files directly in a folder that are named like images and
    are not hidden.

    HEIC files are among them, unless there is a converted copy: `1.HEIC.png` beside `1.HEIC`.
    """
    endings = tuple(ending for ending, format_ in Image.registered_extensions().items()
                    if format_ in Image.OPEN and format_ not in _UNREADABLE)
    names = {entry.name for entry in os.scandir(folder)
             if os.path.isfile(entry.path) and not entry.name.startswith('.')}
    return sorted(os.path.join(folder, name) for name in names
                  if name.lower().endswith(endings)
                  or (name.lower().endswith(_HEIC) and f'{name}.png' not in names))


def read(path: str) -> np.ndarray:
    """Reads an image file and fits its image to 32 x 32 pixels.

    Scales the short side to 32 and keeps the centre, in one antialiased resampling (bilinear if it
    enlarges); does not change an image of that size. Applies the EXIF orientation. Uses the first
    frame of an animation, and the first of several pages. Lays transparent images on white.

    Returns uint8 [32, 32, 3]. Raises `errors.UserError`, which names the file, if it cannot
    be read, is damaged, has more than 8 bits per channel, or has more pixels than Pillow accepts,
    179 million.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError('not a regular file')  # A pipe might never end.
        Image.init()  # Fills `Image.OPEN`.
        formats = [name for name in Image.OPEN if name not in _UNREADABLE]
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # Pillow's, about damage that it can ignore.
            with Image.open(path, formats=formats) as image:
                size = data_sets.WIDTH, data_sets.HEIGHT
                return np.asarray(ImageOps.fit(_decoded(image), size, Image.Resampling.BILINEAR))
    except Exception as error:  # Pillow raises many types for damaged files.
        reason = getattr(error, 'strerror', None) or errors.one_line(error) or repr(error)
        if isinstance(error, Image.UnidentifiedImageError):
            reason = ('damaged, or in a format that Pillow does not read; for HEIC, the format of '
                      'iPhones, see docs/usage.md')
        raise errors.UserError(f'{path} cannot be read ({reason:.120})') from error


def _has_more_than_8_bits(image):
    """Whether an opened image has channels of more than 8 bits in its file.

    Of colours with 16 bits, Pillow keeps the upper 8: the 12 bits of a camera become almost black.
    """
    if image.mode.startswith(('I', 'F')):
        return True
    if image.format == 'TIFF':
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) > 8
    if image.format == 'PPM':
        return any(isinstance(tile.args, tuple) and tile.args[1] > 255 for tile in image.tile)
    # PNG and SGI name the type of the values in the file, such as 'RGB;16B'.
    return any(re.search(';16[BLN]|SGI16', f'{tile.codec_name} {tile.args}') for tile in image.tile)


def _decoded(image):
    """Decodes an opened image to RGB, upright and on white; raises many types if it is damaged."""
    if _has_more_than_8_bits(image):  # Which values are black and white is not known.
        raise ValueError('more than 8 bits, or fractions: scale them to 0 to 255, as in '
                         'docs/usage.md')
    image.load()
    with contextlib.suppress(Exception):  # Damaged EXIF data raises many types; ignore it.
        ImageOps.exif_transpose(image, in_place=True)
    if not image.has_transparency_data:
        return image.convert('RGB')
    if image.mode == 'La':  # Grey times alpha.
        image = image.convert('LA')
    image = image.convert('RGBA')
    on_white = Image.new('RGB', image.size, 'white')
    on_white.paste(image, mask=image)
    return on_white
