"""Writes image files for the tests."""
import struct

import numpy as np
import tensorflow.compat.v1 as tf


def png(path, image):
    """A PNG of uint8 or uint16 [height, width, 1 to 4 channels]."""
    _encode(path, tf.io.encode_png, image)


def jpeg(path, image, **options):
    """A JPEG of uint8 [height, width, 1 or 3 channels]."""
    _encode(path, tf.io.encode_jpeg, image, quality=100, chroma_downsampling=False, **options)


def _encode(path, encode, image, **options):
    with tf.Graph().as_default(), tf.Session() as session:
        path.write_bytes(session.run(encode(tf.constant(image), **options)))


def bmp(path, image, top_down=False):
    """A BMP of 24 or 32 bits per pixel of uint8 [height, width, 3 or 4 channels]."""
    height, width, channels = image.shape
    rows = image[:, :, [2, 1, 0, 3][:channels]][slice(None) if top_down else slice(None, None, -1)]
    rows = np.pad(rows.reshape(height, -1), [(0, 0), (0, -width * channels % 4)]).tobytes()
    path.write_bytes(b'BM' + struct.pack('<IIIIiiHHIIiiII', 54 + len(rows), 0, 54, 40, width,
                                         -height if top_down else height, 1, 8 * channels, 0,
                                         len(rows), 0, 0, 0, 0) + rows)


def write_sorted(folder):
    """Two classes of six BMPs each, in a folder per class."""
    image = np.arange(32 * 32 * 3).astype(np.uint8).reshape(32, 32, 3)
    for label in 'ab':
        (folder / label).mkdir(parents=True)
        for number in range(6):
            bmp(folder / label / f'{number}.bmp', image)


def gif(path, *frames):
    """A GIF of uint8 [height, width] frames of 256 greys, uncompressed."""
    height, width = frames[0].shape
    palette = np.repeat(np.arange(256, dtype=np.uint8), 3).tobytes()
    data = b'GIF89a' + struct.pack('<HHBBB', width, height, 0xf7, 0, 0) + palette
    for frame in frames:
        data += b'\x2c' + struct.pack('<HHHHB', 0, 0, width, height, 0) + b'\x08'
        codes = []
        for start in range(0, frame.size, 250):  # A clear code keeps all codes at nine bits.
            codes += [256, *frame.ravel()[start:start + 250].tolist()]
        bits = sum(code << (9 * index) for index, code in enumerate([*codes, 257]))
        packed = bits.to_bytes(-(-9 * (len(codes) + 1) // 8), 'little')
        for start in range(0, len(packed), 255):
            block = packed[start:start + 255]
            data += bytes([len(block)]) + block
        data += b'\0'
    path.write_bytes(data + b'\x3b')
