"""Image files of any size become images of 32 x 32, as the data sets hold them."""
import contextlib
import io
import os
import warnings

import numpy as np
from PIL import Image, ImageOps

from datasets import table
from program import errors
from program import files as files_
from program import memory

# Files with these endings are read where a folder is searched.
ENDINGS = ('.jpg', '.jpeg', '.png', '.gif', '.bmp', '.webp', '.tif', '.tiff')

# A small file may hold a picture that takes all memory, so larger ones are refused. Decoded, this
# many pixels take 512 MB, and decoders need up to three times as much for themselves. The limit on
# a side is JPEG's own; Pillow keeps a pointer for each row.
MAX_FILE_BYTES = 1 << 26
MAX_PIXELS = 1 << 27
MAX_SIDE = 65535
_MAX_MEMORY = 1 << 31  # Pillow before 13 limits neither EXIF data nor TIFF's directories.

# Each scan of a progressive JPEG passes over all pixels, at 0.7 ns per pixel, and can be as short
# as 14 bytes. Encoders write about ten scans.
_MAX_SCANNED_PIXELS = 20 * MAX_PIXELS

# Pillow tries no other formats: it would run another program for some, and unpack others unlimited.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF')
_WANTED = 'a JPEG, PNG, GIF, BMP, WebP or TIFF image'


class ImageError(errors.DataError):
    """A file is not an image that can be read; the message names the file."""


def is_image(name):
    """Whether a file of this name is read where a folder is searched for images."""
    return name.lower().endswith(ENDINGS) and not name.startswith('.')


def read(path):
    """Reads a JPEG, PNG, GIF, BMP, WebP or TIFF file and fits its image to 32 x 32.

    The short side becomes 32 and the centre is kept, in one resampling with antialiasing, bilinear
    where it enlarges; an image of 32 x 32 stays as it is. The image is turned and mirrored as its
    EXIF data asks. Of an animation or several pages the first counts, of 16 bits per channel the
    upper eight. Transparency is ignored: a transparent pixel has the colour stored for it.

    Args:
        path: of the file.

    Returns:
        uint8 [32, 32, 3].

    Raises:
        ImageError: the file cannot be read, is of another kind, damaged or too large.
    """
    try:
        with files_.regular_file(path) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ImageError(f'{path} cannot be read ({error.strerror})') from error
    if not data:
        raise ImageError(f'{path} is empty')
    if len(data) > MAX_FILE_BYTES:
        raise ImageError(f'{path} has more than {MAX_FILE_BYTES >> 20} MB')
    try:
        with memory.limit(_MAX_MEMORY), _libraries_silenced():
            return _decode(data)
    except ImageError as error:
        raise ImageError(f'{path} {error}') from error
    except Image.UnidentifiedImageError as error:
        raise ImageError(f'{path} is damaged or cut short, or not {_WANTED}') from error
    except Image.DecompressionBombError as error:
        raise ImageError(f'{path} has more than {MAX_PIXELS} pixels') from error
    except MemoryError as error:
        raise ImageError(f'{path} takes more than {_MAX_MEMORY >> 20} MB of memory') from error
    except Exception as error:  # Pillow raises many kinds where a file is damaged.
        reason = errors.one_line(error) or type(error).__name__
        raise ImageError(f'{path} is damaged or cut short ({reason})') from error


@contextlib.contextmanager
def _libraries_silenced():
    """Drops Pillow's warnings, and what libtiff writes to file descriptor 2 about damage."""
    screen, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(nothing)


def _decode(data):
    """Decodes the bytes of a file; returns what `read` returns.

    Raises:
        ImageError: the image is too large; the message lacks the file's name.
    """
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        if max(image.size) > MAX_SIDE or image.width * image.height > MAX_PIXELS:
            raise ImageError(f'has {image.width} x {image.height} pixels; expected: at most '
                             f'{MAX_PIXELS} in all and {MAX_SIDE} per side')
        scans = data.count(b'\xff\xda') if 'progressive' in image.info else 1
        if scans * image.width * image.height > _MAX_SCANNED_PIXELS:
            raise ImageError(f'has {scans} progressive scans of {image.width} x {image.height} '
                             f'pixels; expected: at most {_MAX_SCANNED_PIXELS} pixels in all scans')
        fitted = _fit(_with_eight_bits(image))
    with contextlib.suppress(Exception):  # Damaged EXIF data, of many kinds: the image stands.
        ImageOps.exif_transpose(fitted, in_place=True)
    return np.asarray(fitted.convert('RGB'))


def _with_eight_bits(image):
    """An image in grey or colour of eight bits per channel.

    Raises:
        ImageError: its values have no fixed range; the message lacks the file's name.
    """
    if image.mode in ('I', 'F'):
        raise ImageError('has channels of 32 bits; expected: 8 or 16')
    if image.mode.startswith('I;16'):
        upper = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        upper.info = image.info  # With the EXIF data.
        return upper
    return image if image.mode in ('L', 'RGB') else image.convert('RGB')


def _fit(image):
    """Scales the square in the centre to 32 x 32."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((table.WIDTH, table.HEIGHT), Image.Resampling.BILINEAR,
                        box=(left, top, left + side, top + side))


def record(label, image):
    """A record of the binary layout.

    Args:
        label: int, 0 to 255.
        image: uint8 [32, 32, 3].

    Returns:
        uint8 [1 + 3 * 32 * 32]: the label, then the red, the green and the blue plane.
    """
    return np.concatenate([[np.uint8(label)], image.transpose(2, 0, 1).ravel()])


def files(path):
    """Sorted paths of the images in a folder, not in folders below it."""
    return sorted(entry.path for entry in os.scandir(path)
                  if is_image(entry.name) and entry.is_file())
