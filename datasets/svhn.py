"""Street View House Numbers, http://ufldl.stanford.edu/housenumbers: the cropped digits.

`train_32x32.mat` and `test_32x32.mat` are MATLAB files with `X`, uint8 [32, 32, 3, count], and `y`,
[count, 1], where 10 stands for the digit 0. They are of MATLAB's level 5, most likely compressed:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf. SciPy could read them, but a
damaged one crashes the process in its C code.
"""
import os
import struct
import zlib

import numpy as np

from datasets import table
from program import errors
from program import files

TRAIN_FILE, TEST_FILE = 'train_32x32.mat', 'test_32x32.mat'
CLASSES = tuple('0123456789')

_MAX_BYTES = 1 << 28  # Of an array; SVHN's largest has 225 million.

# The types of elements in a MATLAB file, and of the values of arrays.
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: '<i1', 2: '<u1', 3: '<i2', 4: '<u2', 5: '<i4', 6: '<u4', 7: '<f4', 9: '<f8',
          12: '<i8', 13: '<u8'}
_NAMES = (b'X', b'y')
_HEADER = 1 << 10  # Bytes in which the name of an array lies.


def found(folder):
    """Whether a folder holds SVHN's files.

    Raises:
        errors.DataError: it holds one of the two.
    """
    missing = [name for name in (TRAIN_FILE, TEST_FILE)
               if not os.path.exists(os.path.join(folder, name))]
    if len(missing) == 1:
        raise errors.DataError(f'{folder} lacks {missing[0]}: SVHN is two files, '
                              f'{TRAIN_FILE} and {TEST_FILE}')
    return not missing


def read(path):
    """Reads one of the files.

    Args:
        path: of the file.

    Returns:
        Records, uint8 [count, 1 + 3 * 32 * 32]: labels 0 to 9, and the planes of the images.

    Raises:
        errors.DataError: the file is another, or damaged.
        OSError: it cannot be opened, or is a pipe or a device.
    """
    with files.regular_file(path) as stream:
        try:
            content = _arrays(stream)
            pixels, labels = content['X'], content['y'].ravel()
            _check(pixels, labels)
        except (ValueError, KeyError, struct.error, zlib.error, OSError, MemoryError) as error:
            raise errors.DataError(f'{path} is not as SVHN\'s are ({error!r})') from error
    planes = pixels.transpose(3, 2, 0, 1).reshape(len(labels), -1)
    return np.concatenate([(labels % 10).astype(np.uint8)[:, np.newaxis], planes], axis=1)


def _arrays(stream):
    """The arrays `X` and `y` of a MATLAB file: dictionary from name to array.

    Raises:
        ValueError, KeyError, struct.error, zlib.error: it is another file, or damaged.
    """
    if stream.read(128)[124:] != b'\0\1IM':
        raise ValueError('it is not a MATLAB file of level 5, little-endian')
    found = {}
    while len(found) < 2 and (tag := stream.read(8)):
        kind, size = struct.unpack('<II', tag)
        data = memoryview(stream.read(min(size, 2 * _MAX_BYTES)))
        if kind == _COMPRESSED:
            head = memoryview(zlib.decompressobj().decompress(data, _HEADER))[8:]
            name, _, start = _header(head)
            if name not in _NAMES:
                continue
            _, size = struct.unpack_from('<II', head, start)  # Of the values, or a few if small.
            if size > _MAX_BYTES:
                raise ValueError(f'{name.decode()} has {size} bytes, expected at most {_MAX_BYTES}')
            data = memoryview(zlib.decompressobj().decompress(data, size + _HEADER))
            kind, data = struct.unpack_from('<I', data)[0], data[8:]
        if kind != _MATRIX:
            raise ValueError(f'it holds an element of type {kind}, expected arrays')
        name, shape, start = _header(data)
        if name in _NAMES:
            kind, values, _ = _element(data, start)
            if kind not in _TYPES:
                raise ValueError(f'{name.decode()} has values of type {kind}, expected numbers')
            found[name.decode()] = np.frombuffer(values, _TYPES[kind]).reshape(shape, order='F')
    return found


def _header(data):
    """Name and shape of an array, and where its values start: bytes, int32 [rank], int."""
    _, _, start = _element(data, 0)  # Flags.
    _, shape, start = _element(data, start)
    _, name, start = _element(data, start)
    return bytes(name), np.frombuffer(shape, '<i4'), start


def _element(data, start):
    """Type and bytes of the element at a position, and where the next one starts."""
    kind, size = struct.unpack_from('<II', data, start)
    start += 8
    if kind >> 16:  # A small one has its size beside the type, and up to four bytes behind them.
        kind, size, start = kind & 0xffff, kind >> 16, start - 4
    if start + size > len(data):
        raise ValueError('it is cut short')
    return kind, data[start:start + size], start + size + -(start + size) % 8


def _check(pixels, labels):
    """Raises `ValueError` where the arrays are not as SVHN's are."""
    wanted = (table.HEIGHT, table.WIDTH, table.DEPTH, len(labels))
    if pixels.dtype != np.uint8 or pixels.shape != wanted or len(labels) == 0:
        raise ValueError(f'X is {pixels.dtype} {pixels.shape}, wanted: uint8 {wanted}')
    if not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError('y holds other labels than 1 to 10')
