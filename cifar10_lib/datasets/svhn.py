"""Street View House Numbers, http://ufldl.stanford.edu/housenumbers: the cropped digits.

`train_32x32.mat` and `test_32x32.mat` are MATLAB files with `X`, uint8 [32, 32, 3, count], and `y`,
[count, 1], where 10 stands for the digit 0. The format is MATLAB's level 5, usually compressed:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf. SciPy can read it, but some
damaged files crash its C code.
"""
import os
import struct
import zlib

import numpy as np

from cifar10_lib.datasets import custom
from cifar10_lib.program import errors
from cifar10_lib.program import files

TRAIN_FILE, TEST_FILE = 'train_32x32.mat', 'test_32x32.mat'
CLASSES = tuple('0123456789')

_MAX_BYTES = 1 << 28  # Per array; SVHN's largest has 225 million.

# Types of the elements in a MATLAB file, and of the values of arrays.
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: '<i1', 2: '<u1', 3: '<i2', 4: '<u2', 5: '<i4', 6: '<u4', 7: '<f4', 9: '<f8',
          12: '<i8', 13: '<u8'}
_NAMES = (b'X', b'y')
_HEADER = 1 << 10  # The name of an array is within these first bytes.


def found(folder):
    """Whether a folder contains SVHN's files.

    Raises:
        errors.DataError: it contains only one of the two.
    """
    missing = [name for name in (TRAIN_FILE, TEST_FILE)
               if not os.path.exists(os.path.join(folder, name))]
    if len(missing) == 1:
        raise errors.DataError(f'{folder} lacks {missing[0]}; expected both {TRAIN_FILE} and '
                               f'{TEST_FILE}')
    return not missing


def read_folder(folder, _):
    """Returns the classes, and the blocks of training and test records; see `forms.Form`."""
    return CLASSES, *([read(os.path.join(folder, name))] for name in (TRAIN_FILE, TEST_FILE))


def read(path):
    """Reads one of the files.

    Returns:
        Records, uint8 [count, 1 + 3 * 32 * 32]: labels 0 to 9, and the planes of the images.

    Raises:
        errors.DataError: the file is not SVHN's, or is damaged.
        OSError: the file cannot be opened, or is a pipe or a device.
    """
    with files.regular_file(path) as stream:
        try:
            content = _arrays(stream)
            if not np.isin(content['y'], np.arange(1, 11)).all():
                raise ValueError('y has labels other than 1 to 10')
            return custom.records(
                content['X'].transpose(3, 0, 1, 2), content['y'] % 10, len(CLASSES), 'X')
        except (ValueError, KeyError, struct.error, zlib.error, OSError, MemoryError) as error:
            raise errors.DataError(
                f'{path} is not a valid SVHN file ({error!r}): download it again') from error


def _arrays(stream):
    """Returns the arrays `X` and `y` of a MATLAB file, {name: array}; see `read` for errors."""
    if stream.read(128)[124:] != b'\0\1IM':
        raise ValueError('expected a little-endian MATLAB file of level 5')
    found = {}
    while len(found) < 2 and (tag := stream.read(8)):
        kind, size = struct.unpack('<II', tag)
        data = memoryview(stream.read(min(size, 2 * _MAX_BYTES)))
        if kind == _COMPRESSED:
            head = memoryview(zlib.decompressobj().decompress(data, _HEADER))[8:]
            name, _, start = _header(head)
            if name not in _NAMES:
                continue
            _, size = struct.unpack_from('<II', head, start)  # Of the values.
            if size > _MAX_BYTES:
                raise ValueError(f'{name.decode()} has {size} bytes; expected at most {_MAX_BYTES}')
            data = memoryview(zlib.decompressobj().decompress(data, size + _HEADER))
            kind, data = struct.unpack_from('<I', data)[0], data[8:]
        if kind != _MATRIX:
            raise ValueError(f'an element has type {kind}; expected {_MATRIX}, an array')
        name, shape, start = _header(data)
        if name in _NAMES:
            kind, values, _ = _element(data, start)
            if kind not in _TYPES:
                raise ValueError(f'{name.decode()} has values of type {kind}; expected numbers')
            found[name.decode()] = np.frombuffer(values, _TYPES[kind]).reshape(shape, order='F')
    return found


def _header(data):
    """Returns an array's name, shape and the position of its values: bytes, int32 [rank], int."""
    _, _, start = _element(data, 0)  # Flags.
    _, shape, start = _element(data, start)
    _, name, start = _element(data, start)
    return bytes(name), np.frombuffer(shape, '<i4'), start


def _element(data, start):
    """Returns the type and the bytes of the element at `start`, and the position of the next."""
    kind, size = struct.unpack_from('<II', data, start)
    start += 8
    if kind >> 16:  # A small element: 16 bits of size, 16 of type, up to 4 bytes of data.
        kind, size, start = kind & 0xffff, kind >> 16, start - 4
    if start + size > len(data):
        raise ValueError('the file is truncated')
    return kind, data[start:start + size], start + size + -(start + size) % 8
