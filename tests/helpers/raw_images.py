"""Image files that Pillow does not write."""
import struct
import zlib


def png(colour_type, values):
    """A PNG file of values of 8 or 16 bits, big-endian: https://www.w3.org/TR/png-3/#11IHDR

    `values` is [height, width, channels]; the colour type 0 is grey, 2 RGB, 4 and 6 with alpha.
    """
    height, width = values.shape[:2]
    header = struct.pack('>IIBBBBB', width, height, 8 * values.itemsize, colour_type, 0, 0, 0)
    rows = b''.join(b'\0' + row.tobytes() for row in values)  # Each row has no filter.
    chunks = [(b'IHDR', header), (b'IDAT', zlib.compress(rows)), (b'IEND', b'')]
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))
        for name, data in chunks)
