"""Reads image files as images of 32 x 32, the size of the data sets."""
import contextlib
import os
import warnings

import numpy as np
from PIL import ExifTags, Image, ImageOps

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files

# Endings of the files that a search in a folder finds.
ENDINGS = ('.jpg', '.jpeg', '.jpe', '.jif', '.jfif', '.png', '.gif', '.bmp', '.webp', '.tif',
           '.tiff', '.avif')

# For other formats, Pillow may start another program, or unpack data without a limit.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF', 'AVIF')


def read(path: str, size: tuple[int, int] = (table.WIDTH, table.HEIGHT)) -> np.ndarray:
    """Reads an image file and fits its image to a size, (width, height), by default 32 x 32.

    Scales the short side to it and keeps the centre, in one antialiased resampling (bilinear if it
    enlarges); does not change an image of that size. Applies the EXIF orientation. Uses the first
    frame of an animation, and the first of several pages. Lays transparent images on white.

    Returns uint8 [height, width, 3]. Raises `errors.DataError`, which names the file, if it cannot
    be read, has another format or more than 8 bits per channel, is damaged, or has more pixels than
    Pillow accepts, 179 million.
    """
    try:
        with files.regular_file(path) as stream, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # Pillow's, about damage that it can ignore.
            with Image.open(stream, formats=_FORMATS) as image:
                return np.asarray(ImageOps.fit(_decoded(image), size, Image.Resampling.BILINEAR))
    except Exception as error:  # Pillow raises many types for damaged files.
        reason = getattr(error, 'strerror', None) or errors.one_line(error) or repr(error)
        if isinstance(error, Image.UnidentifiedImageError):
            reason = f'damaged, or not {", ".join(_FORMATS)} of 8 bits per channel'
        raise errors.DataError(f'{path} cannot be read ({reason:.120})') from error


def _decoded(image):
    """Decodes an opened image to RGB, upright and on white; raises many types if it is damaged."""
    if _is_deep(image):
        raise ValueError('more than 8 bits per channel, or signed values: scale them to 0 to 255, '
                         'as in docs/usage.md')
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


def _is_deep(image):
    """Whether an opened PNG or TIFF stores other values than 0 to 255.

    Pillow opens some of these as 8 bits: it keeps the upper half of 16 bits, and the bits of a
    negative number. It does not open other formats of more bits, except AVIF, where 10 and 12 bits
    always span the whole range and are scaled by the decoder.
    """
    if image.format == 'PNG':
        return '16' in image.png.im_rawmode  # Such as "RGB;16B".
    if image.format == 'TIFF':
        bits = image.tag_v2.get(ExifTags.Base.BitsPerSample, (1,))
        formats = image.tag_v2.get(ExifTags.Base.SampleFormat, (1,))  # 1: unsigned.
        return max(bits) > 8 or max(formats) > 1
    return False


def find(folder: str) -> list[str]:
    """Returns the sorted paths of the images directly in a folder, except hidden ones."""
    return sorted(entry.path for entry in os.scandir(folder) if os.path.isfile(entry)
                  and entry.name.lower().endswith(ENDINGS) and not entry.name.startswith('.'))
