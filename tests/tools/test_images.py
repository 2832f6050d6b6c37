import os
import struct
import zlib

from cifar10_lib import errors
from classification_lib import images

import numpy as np
import pytest
import raw_images
from PIL import Image

BOMB = r'cannot be read \(Image size \(\d+ pixels\) exceeds limit of 178956970'
NOISE = np.random.RandomState(1).randint(0, 256, [32, 32, 4]).astype(np.uint8)
COLOUR, GREY = NOISE[..., :3], np.repeat(NOISE[..., :1], 3, axis=2)


@pytest.fixture
def read(tmp_path):
    """Writes a `PIL.Image.Image` or an array with Pillow's options, and reads the file `image`."""
    def write_and_read(image, **options):
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        image.save(tmp_path / 'image', **options)
        return images.read(tmp_path / 'image')
    return write_and_read


PALETTE = Image.fromarray(NOISE[..., 0]).convert('P')  # Index k has colour k of:
PALETTE.putpalette([value for k in range(256) for value in (k, 255 - k, 7)])
OF_PALETTE = np.stack([NOISE[..., 0], 255 - NOISE[..., 0], np.full([32, 32], 7)], axis=2)


@pytest.mark.parametrize('image, options, expected', [
    (COLOUR, {'format': 'PNG'}, COLOUR),
    (GREY[..., 0], {'format': 'PNG'}, GREY),
    (COLOUR, {'format': 'WEBP', 'lossless': True}, COLOUR),
    (COLOUR, {'format': 'TIFF', 'compression': 'tiff_lzw'}, COLOUR),
    (PALETTE, {'format': 'PNG'}, OF_PALETTE),
    (Image.fromarray(GREY[..., 0] > 127), {'format': 'TIFF'}, 255 * (GREY > 127)),
    (GREY[..., 0], {'format': 'TIFF', 'tiffinfo': {262: 0}}, GREY),  # 0 is white.
    (COLOUR, {'format': 'PPM'}, COLOUR)])
def test_images_of_32_by_32_pixels_are_not_changed(read, image, options, expected):
    np.testing.assert_array_equal(read(image, **options), expected)


# Four columns: one opaque, one with a fifth of it over white, two transparent with other colours.
CLEAR = np.repeat(np.array([[[200, 100, 0, 255], [200, 100, 0, 51], [0, 0, 0, 0], [9, 99, 0, 0]]],
                           np.uint8), 8, axis=1).repeat(32, axis=0)  # [32, 32, 4]
ON_WHITE = np.repeat([[200, 100, 0], [244, 224, 204], [255, 255, 255], [255, 255, 255]], 8, axis=0)
ONE_OF_PALETTE = np.where(NOISE[..., :1] == 77, 255, OF_PALETTE)


@pytest.mark.parametrize('image, options, expected, difference', [
    (CLEAR, {'format': 'PNG'}, ON_WHITE, 0),
    (CLEAR[..., [0, 3]], {'format': 'PNG'}, ON_WHITE[:, [0, 0, 0]], 0),
    (CLEAR, {'format': 'WEBP', 'lossless': True, 'exact': True}, ON_WHITE, 0),
    (CLEAR, {'format': 'AVIF', 'quality': 100, 'subsampling': '4:4:4'}, ON_WHITE, 2),
    (PALETTE, {'format': 'PNG', 'transparency': 77}, ONE_OF_PALETTE, 0),
    (PALETTE, {'format': 'GIF', 'transparency': 77}, ONE_OF_PALETTE, 0),
    (COLOUR, {'format': 'PNG', 'transparency': tuple(COLOUR[0, 0].tolist())},
     np.where((COLOUR[0, 0] == COLOUR).all(axis=2, keepdims=True), 255, COLOUR), 0)])
def test_transparent_images_are_laid_on_white(read, image, options, expected, difference):
    expected = np.broadcast_to(expected, [32, 32, 3])
    np.testing.assert_allclose(read(image, **options), expected, rtol=0, atol=difference)
    assert (expected == 255).all(axis=2).any()


@pytest.mark.parametrize('format_', ['GIF', 'TIFF'])
def test_the_first_of_several_frames_is_used(read, format_):
    frames = [Image.new('RGB', [32, 32], colour) for colour in ('red', 'lime', 'blue')]
    found = read(frames[0], format=format_, save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(found, np.full([32, 32, 3], [255, 0, 0]))


@pytest.mark.parametrize('size', [(40, 64), (64, 40)])
def test_a_phones_photograph_is_turned(read, size):
    """The right side of its sensor is at the bottom."""
    exif = Image.Exif()
    exif[274] = 6  # The orientation, https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, 4.6.4.
    lit = Image.new('L', size)
    lit.paste(255, (0, 0, size[0], size[1] // 2))  # Above, so after a turn to the right: right.
    for options in {'format': 'JPEG', 'quality': 100}, {'format': 'PNG'}:
        found = read(lit, exif=exif, **options)
        assert found[:, :14].max() < 20 and found[:, 18:].min() > 235


def test_the_short_side_becomes_32_and_the_centre_is_kept(read):
    """96 x 64 at half the size is 48 x 32, of which 8 columns on each side are cut off. Column j of
    the rest is column 2 (j + 8) + 1/2 of the image; a slope stays a slope: 4 j + 33."""
    slope = np.broadcast_to(2 * np.arange(96, dtype=np.uint8)[:, np.newaxis], [64, 96, 3])
    expected = np.broadcast_to(4 * np.arange(32)[:, np.newaxis] + 33, [32, 32, 3])
    np.testing.assert_array_equal(read(slope, format='PNG'), expected)
    np.testing.assert_array_equal(
        read(slope.transpose(1, 0, 2), format='PNG'), expected.transpose(1, 0, 2))


@pytest.mark.parametrize('data, words', [
    (b'', 'damaged, or in a format that Pillow does not read'),
    (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n', 'damaged, or in a format'),
    (b'\0\0\0\x18ftypheic\0\0\0\0mif1heic', 'for HEIC, the format of iPhones, see docs/'),
    (b'\xff\xd8\xff', ''), (b'II*\0\x08\0\0\0', '')])
def test_files_that_are_not_images(tmp_path, data, words, capfd):
    (tmp_path / 'image').write_bytes(data)
    with pytest.raises(errors.UserError) as error:
        images.read(tmp_path / 'image')
    assert str(error.value).startswith(f'{tmp_path}/image cannot be read (')
    assert words in str(error.value) and '\n' not in str(error.value)
    assert capfd.readouterr().err == ''  # The libraries print nothing either.


def test_more_than_8_bits_or_fractions_are_refused(tmp_path):
    """Their range is not known. Pillow would keep the upper 8 of a colour's 16 bits, so that the 12
    bits of a camera are almost black."""
    values = np.random.RandomState(2).randint(0, 4096, [32, 32, 4]).astype('>u2')
    for colour_type, channels in ((0, 1), (2, 3), (4, 2), (6, 4)):
        (tmp_path / f'{colour_type}.png').write_bytes(
            raw_images.png(colour_type, values[..., :channels]))
    for kind in (np.uint16, np.int32, np.float32):
        Image.fromarray(values[..., 0].astype(kind)).save(tmp_path / f'{kind.__name__}.tif')
    for path in tmp_path.iterdir():
        with pytest.raises(errors.UserError, match=r'\(more than 8 bits, or fractions: scale them'):
            images.read(path)


@pytest.mark.parametrize('options', [
    {'format': 'PNG'}, {'format': 'JPEG'}, {'format': 'GIF'}, {'format': 'WEBP', 'lossless': True},
    {'format': 'TIFF', 'compression': 'tiff_lzw'}])
def test_truncated_files(tmp_path, read, options):
    read(COLOUR, **options)
    whole = (tmp_path / 'image').read_bytes()
    (tmp_path / 'image').write_bytes(whole[:len(whole) // 2])
    with pytest.raises(errors.UserError, match='cannot be read'):
        images.read(tmp_path / 'image')


@pytest.mark.parametrize('side, words', [(10000, 'truncated'), (65536, BOMB)])
def test_pictures_of_more_than_179_million_pixels_are_not_decoded(
        tmp_path, read, side, words, recwarn):
    """Only their headers claim such sizes. 100 million, as of a telephone, are decoded."""
    read(COLOUR, format='PNG')
    data = bytearray((tmp_path / 'image').read_bytes())
    data[16:24] = struct.pack('>II', side, side)
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    (tmp_path / 'image').write_bytes(data)
    with pytest.raises(errors.UserError, match=words):
        images.read(tmp_path / 'image')
    assert not recwarn.list


def test_the_images_in_a_folder(tmp_path):
    """EPS would start Ghostscript. Pillow reads only the headers of HDF5 and MPEG. HEIC files are
    found unless they have been converted."""
    found = ['1.HEIC', '2.heic.png', 'a.jpeg', 'b.PNG', 'c.gif', 'd.webp', 'e.tif', 'f.TIFF',
             'g.avif', 'h.jfif', 'i.jpe', 'j.ppm', 'k.PGM', 'l.tga']
    for name in (*found, '2.heic', '.hidden.png', 'm.eps', 'n.ps', 'o.h5', 'p.mpg', 'q.pdf',
                 'notes.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'folder.png').mkdir()
    os.mkfifo(tmp_path / 'pipe.png')
    (tmp_path / 'loop.png').symlink_to('loop.png')
    assert images.paths_in(tmp_path) == [f'{tmp_path}/{name}' for name in found]
