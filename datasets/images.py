"""Image files of any size become images of 32 x 32, as the data sets hold them."""
import contextlib
import os
import struct

import numpy as np
import tensorflow.compat.v1 as tf

from datasets import table
from program import errors

ENDINGS = ('.jpg', '.jpeg', '.png', '.gif', '.bmp')  # Of the files that a folder is searched for.

# What is larger is refused before it is decoded: a small file may hold a picture that takes all
# memory. Decoded, so many pixels take 400 megabytes; all frames of an animation count.
MAX_FILE_BYTES = 1 << 26
MAX_PIXELS = 1 << 27


class ImageError(errors.DataError):
    """A file is no image that can be read; the message names the file."""


def is_image(name):
    """Whether a file of this name is looked at where a folder is searched for images."""
    return name.lower().endswith(ENDINGS) and not name.startswith('.')


class Decoder:
    """Decodes JPEG, PNG, GIF and BMP files and fits them to 32 x 32, one at a time.

    The short side becomes 32 and the centre is kept, in one resampling with antialiasing, bilinear
    where it enlarges; an image of 32 x 32 stays as it is. Of an animation the first frame counts,
    of 16 bits a channel the upper eight; transparency and the turn that EXIF asks for are ignored.

    A context manager, which holds a session of its own on the CPU.
    """

    def __init__(self):
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._data = tf.placeholder(tf.string, [])
            # The decoder of BMP wants the number of channels that the file has.
            self._fitted = {channels: _fit(tf.io.decode_image(
                self._data, channels=channels, expand_animations=False)) for channels in (0, 3)}
        self._session = tf.Session(
            graph=self._graph, config=tf.ConfigProto(device_count={'GPU': 0}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session.close()

    def read(self, path):
        """Reads one file.

        Args:
            path: of the file.

        Returns:
            uint8 [32, 32, 3].

        Raises:
            ImageError: it cannot be read, is of another kind, damaged or too large.
        """
        try:
            with open(path, 'rb') as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ImageError(f'{path} cannot be read ({error.strerror})') from error
        fault = _fault(data)
        if fault:
            raise ImageError(f'{path} {fault}')
        try:
            with _libjpeg_silenced():
                return self._session.run(
                    self._fitted[0 if data.startswith(b'BM') else 3], {self._data: data})
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError,
                tf.errors.ResourceExhaustedError) as error:
            raise ImageError(f'{path} {_DAMAGED}') from error


@contextlib.contextmanager
def _libjpeg_silenced():
    """Drops what libjpeg writes to file descriptor 2 about a damaged file: one line tells of it."""
    screen, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(nothing)


def _fault(data):
    """Why not to decode a file, in words, or None."""
    if len(data) > MAX_FILE_BYTES:
        return f'has more than {MAX_FILE_BYTES >> 20} MB'
    if not data:
        return 'is empty'
    size_of = next((size for beginning, size in _KINDS.items() if data.startswith(beginning)), None)
    if size_of is None:
        return 'is no JPEG, PNG, GIF or BMP'
    width, height = size_of(data)
    if width * height == 0:
        return _DAMAGED
    if width * height > MAX_PIXELS:
        return f'has {width} x {height} pixels; wanted: at most {MAX_PIXELS} in all'
    return _bmp_fault(data) if data.startswith(b'BM') else None


def _jpeg_size(data):
    """(width, height) in the frame header, https://www.w3.org/Graphics/JPEG/itu-t81.pdf, annex B;
    (0, 0) where there is none."""
    position = 2
    while 0 <= position < len(data) - 9:
        marker = data[position + 1]
        if 0xc0 <= marker <= 0xcf and marker not in (0xc4, 0xc8, 0xcc):
            height, width = struct.unpack('>HH', data[position + 5:position + 9])
            return width, height
        length = 0 if marker == 0xff else 1 + int.from_bytes(
            data[position + 2:position + 4], 'big')
        position = data.find(b'\xff', position + 1 + length)  # Markers may be padded.
    return 0, 0


def _size_at(position, layout):
    """A function from a file's bytes to the numbers that lie there; zeros where it ends."""
    def size(data):
        part = data[position:position + struct.calcsize(layout)]
        return struct.unpack(layout, part.ljust(struct.calcsize(layout), b'\0'))
    return size


def _bmp_size(data):
    width, height = _size_at(18, '<ii')(data)
    return width, abs(height)  # Negative where the rows go downwards.


def _gif_size(data):
    """(width of the widest frame, all heights together): every frame is decoded, and none need keep
    to the screen of the header. https://www.w3.org/Graphics/GIF/spec-gif89a.txt"""
    width, height = _size_at(6, '<HH')(data)
    flags = data[10:11] or b'\0'
    position, heights = 13 + _gif_palette(flags[0]), 0
    while data[position:position + 1] in (b',', b'!'):
        if data[position] == ord(','):
            wide, high, flags = _size_at(position + 5, '<HHB')(data)
            width, heights = max(width, wide), heights + high
            position += 10 + _gif_palette(flags) + 1
        else:
            position += 2
        while position < len(data) and data[position]:
            position += 1 + data[position]
        position += 1
    return width, max(height, heights)


def _gif_palette(flags):
    """Bytes of the palette that follows, by the flags before it."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


_DAMAGED = 'is damaged or cut short'

# How a file of each kind begins, and what tells (width, height) by its header.
_KINDS = {b'\xff\xd8\xff': _jpeg_size, b'\x89PNG\r\n\x1a\n': _size_at(16, '>II'),
          b'GIF87a': _gif_size, b'GIF89a': _gif_size, b'BM': _bmp_size}


def _bmp_fault(data):
    """What the decoder of BMP would misread: it takes indices into a palette for grey."""
    bits, compression = data[28:29], data[30:34]
    if bits in (b'\x18', b'\x20') and compression in (b'\0\0\0\0', b'\3\0\0\0'):
        return None
    return 'is a BMP with a palette or compressed; wanted: 24 or 32 bits a pixel'


def _fit(image):
    """Scales the short side to 32 and cuts out the centre.

    Args:
        image: uint8 [height, width, channels], with 1, 3 or 4 channels; a fourth is left out.

    Returns:
        uint8 [32, 32, 3].
    """
    height_and_width = tf.cast(tf.shape(image)[:2], tf.float32)
    wanted = np.float32([table.HEIGHT, table.WIDTH])
    scale = tf.reduce_max(wanted / height_and_width)
    scaled = tf.raw_ops.ScaleAndTranslate(
        images=image[tf.newaxis, :, :, :3], size=[table.HEIGHT, table.WIDTH],
        scale=tf.stack([scale, scale]), translation=(wanted - scale * height_and_width) / 2,
        kernel_type='triangle', antialias=True)[0]
    pixels = tf.saturate_cast(tf.round(scaled), tf.uint8)
    return tf.broadcast_to(pixels, [table.HEIGHT, table.WIDTH, table.DEPTH])  # Grey in all three.


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
