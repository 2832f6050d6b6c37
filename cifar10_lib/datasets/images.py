"""Reads image files of any size as images of 32 x 32, the size of the data sets."""
import contextlib
import os
import warnings

import numpy as np
from PIL import Image, ImageOps

from cifar10_lib.datasets import table
from cifar10_lib.program import errors, files

# Endings of the files that a search in a folder finds.
ENDINGS = ('.jpg', '.jpeg', '.png', '.gif', '.bmp', '.webp', '.tif', '.tiff', '.avif')

# For other formats, Pillow may start another program, or unpack data without a limit.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF', 'AVIF')

# TIFF's tags: the highest value that the file declares, and whether 0 is black or white.
_BITS_PER_SAMPLE, _MAX_SAMPLE_VALUE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 281, 262, 0


def highest_value(path):
    """The value that is white in an image of more than eight bits per channel, a float.

    That is the highest value that the file declares (TIFF's MaxSampleValue, or 9 to 15 bits) or,
    since files of 16 bits often hold less, the highest one that it contains. 0 for eight bits, and
    for a file that cannot be read, which `read` reports.
    """
    with contextlib.suppress(Exception), _opened(path) as image:
        return _highest(image) if image.mode.startswith(('I', 'F')) else 0.0
    return 0.0


@contextlib.contextmanager
def _opened(path):
    with files.regular_file(path) as stream, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow's, about damage that it can ignore.
        warnings.simplefilter('error', Image.DecompressionBombWarning)
        with Image.open(stream, formats=_FORMATS) as image:
            yield image


def _highest(image):
    tags = getattr(image, 'tag_v2', {})
    bits = max(tags.get(_BITS_PER_SAMPLE, (16,)))
    declared = tags.get(_MAX_SAMPLE_VALUE, [2 ** bits - 1 if bits < 16 else 0])
    return float(max(np.ravel(declared)) or np.max(image, where=np.isfinite(image), initial=0))


def read(path, highest=None, size=(table.WIDTH, table.HEIGHT)):
    """Reads an image file and fits its image to a size, (width, height), by default 32 x 32.

    Scales the short side to it and keeps the centre, in one antialiased resampling (bilinear if it
    enlarges); does not change an image of that size. Applies the EXIF orientation. Uses the first
    frame of an animation, and the first of several pages. Ignores transparency: a transparent pixel
    has its stored colour. Of images with more than eight bits per channel, the value `highest`
    becomes 255; by default, their own `highest_value`.

    Returns uint8 [height, width, 3]. Raises `errors.DataError`, which names the file, if it cannot
    be read, has another format, is damaged, or has more pixels than Pillow considers safe.
    """
    try:
        with _opened(path) as image:
            image.load()  # First: once it has failed, Pillow's next `load` returns the part it has.
            with contextlib.suppress(Exception):  # Damaged EXIF data raises many types; ignore it.
                ImageOps.exif_transpose(image, in_place=True)
            image = _with_eight_bits(image, highest)
            return np.asarray(ImageOps.fit(image, size, Image.Resampling.BILINEAR).convert('RGB'))
    except Exception as error:  # Pillow raises many types for damaged files.
        reason = getattr(error, 'strerror', None) or errors.one_line(error) or repr(error)
        if isinstance(error, Image.UnidentifiedImageError):
            reason = f'damaged, or not {", ".join(_FORMATS)}'
        raise errors.DataError(f'{path} cannot be read ({reason:.120})') from error


def _with_eight_bits(image, highest):
    """Converts an image to grey or RGB of eight bits per channel."""
    if image.mode.startswith(('I', 'F')):
        values = np.asarray(image, np.float64) * 255 / (highest or _highest(image) or 1)
        if getattr(image, 'tag_v2', {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            values = 255 - values
        return Image.fromarray(np.clip(np.nan_to_num(values), 0, 255).round().astype(np.uint8))
    return image if image.mode in ('L', 'RGB') else image.convert('RGB')


def find(folder):
    """Returns the sorted paths of the images directly in a folder, except hidden ones."""
    return sorted(entry.path for entry in os.scandir(folder) if os.path.isfile(entry)
                  and entry.name.lower().endswith(ENDINGS) and not entry.name.startswith('.'))
