"""Reads image files of any size as images of 32 x 32, the size of the data sets."""
import contextlib
import io
import os
import warnings

import numpy as np
from PIL import Image, ImageOps

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files

# Endings of the files that a search in a folder finds.
ENDINGS = ('.jpg', '.jpeg', '.png', '.gif', '.bmp', '.webp', '.tif', '.tiff', '.avif')

_MAX_FILE_BYTES = 1 << 26

# For other formats, Pillow may start another program, or unpack data without a limit.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF', 'AVIF')


class ImageError(errors.DataError):
    """A file is not a readable image; the message names the file."""


def read(path):
    """Reads an image file and fits its image to 32 x 32, see `decode`; messages name the file."""
    try:
        with files.regular_file(path) as stream:
            return decode(stream.read(_MAX_FILE_BYTES + 1))
    except ImageError as error:
        raise ImageError(f'{path} {error}') from error
    except OSError as error:
        raise ImageError(f'{path} cannot be read ({error.strerror})') from error


def decode(data):
    """Decodes the bytes of an image file and fits the image to 32 x 32.

    Scales the short side to 32 and keeps the centre, in one antialiased resampling (bilinear if it
    enlarges); does not change an image of 32 x 32. Applies the EXIF orientation. Uses the first
    frame of an animation, the first of several pages, and the upper eight of 16 bits. Ignores
    transparency: a transparent pixel has its stored colour.

    Returns:
        uint8 [32, 32, 3].

    Raises:
        ImageError: the image has another format, is damaged or is too large.
    """
    if not data:
        raise ImageError('is empty')
    if len(data) > _MAX_FILE_BYTES:
        raise ImageError(f'is larger than {_MAX_FILE_BYTES >> 20} MB')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # Pillow's, about damage that it can ignore.
            return _decode(data)
    except ImageError:
        raise
    except Image.UnidentifiedImageError as error:
        raise ImageError(
            f'is damaged or truncated, or not an image ({", ".join(_FORMATS)})') from error
    except Image.DecompressionBombError as error:
        raise ImageError(f'has more than {2 * Image.MAX_IMAGE_PIXELS} pixels') from error
    except Exception as error:  # Pillow raises many types for damaged files.
        raise ImageError(f'is damaged or truncated ({error!r:.100})') from error


def _decode(data):
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        fitted = ImageOps.fit(
            _with_eight_bits(image), (table.WIDTH, table.HEIGHT), Image.Resampling.BILINEAR)
    with contextlib.suppress(Exception):  # Damaged EXIF data raises many types; ignore it.
        ImageOps.exif_transpose(fitted, in_place=True)
    return np.asarray(fitted.convert('RGB'))


def _with_eight_bits(image):
    """Converts an image to grey or RGB of eight bits per channel."""
    if image.mode in ('I', 'F'):  # Their values may have any range.
        raise ImageError('has channels of 32 bits; expected 8 or 16')
    if image.mode.startswith('I;16'):
        upper = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        upper.info = image.info  # Includes the EXIF data.
        return upper
    return image if image.mode in ('L', 'RGB') else image.convert('RGB')


def find(folder):
    """Returns the sorted paths of the images directly in a folder, except hidden ones."""
    return sorted(entry.path for entry in os.scandir(folder) if entry.is_file()
                  and entry.name.lower().endswith(ENDINGS) and not entry.name.startswith('.'))
