import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cifar10_lib.datasets import folders, images
from cifar10_lib.program import errors

BOMB = r'cannot be read \(Image size \(\d+ pixels\) exceeds limit of (89478485|178956970)'
NOISE = np.random.RandomState(1).randint(0, 256, [32, 32, 4]).astype(np.uint8)
COLOUR, GREY = NOISE[..., :3], np.repeat(NOISE[..., :1], 3, axis=2)


@pytest.fixture
def read(tmp_path):
    """Writes a `PIL.Image.Image` or an array with Pillow's options, and reads the file."""
    def write_and_read(image, **options):
        save(tmp_path / 'image', image, **options)
        return images.read(tmp_path / 'image')
    return write_and_read


def save(path, image, **options):
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(path, **options)


PALETTE = Image.fromarray(NOISE[..., 0]).convert('P')  # Index k has colour k of:
PALETTE.putpalette([value for k in range(256) for value in (k, 255 - k, 7)])
OF_PALETTE = np.stack([NOISE[..., 0], 255 - NOISE[..., 0], np.full([32, 32], 7)], axis=2)
GREY_16 = GREY[..., 0] * np.uint16(257)


@pytest.mark.parametrize('image, options, expected', [
    (COLOUR, {'format': 'PNG'}, COLOUR),
    (NOISE, {'format': 'PNG'}, COLOUR),  # Transparency is ignored.
    (GREY[..., 0], {'format': 'PNG'}, GREY),
    (COLOUR, {'format': 'BMP'}, COLOUR),
    (COLOUR, {'format': 'WEBP', 'lossless': True}, COLOUR),
    (COLOUR, {'format': 'TIFF', 'compression': 'tiff_lzw'}, COLOUR),
    (PALETTE, {'format': 'PNG', 'transparency': bytes(range(256))}, OF_PALETTE),
    (GREY_16, {'format': 'PNG'}, GREY),
    (GREY_16.astype('>u2'), {'format': 'TIFF'}, GREY)])
def test_images_of_32_by_32_pixels_are_not_changed(read, image, options, expected):
    np.testing.assert_array_equal(read(image, **options), expected)


@pytest.mark.parametrize('format_', ['GIF', 'TIFF'])
def test_the_first_of_several_frames_is_used(read, format_):
    frames = [Image.new('RGB', [32, 32], colour) for colour in ('red', 'lime', 'blue')]
    found = read(frames[0], format=format_, save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(found, np.full([32, 32, 3], [255, 0, 0]))


@pytest.mark.parametrize('size', [(40, 64), (64, 40)])
def test_a_phones_photograph_is_turned(tmp_path, read, size):
    """The right side of its sensor is at the bottom; 16-bit grey is turned, too."""
    exif = Image.Exif()
    exif[274] = 6  # The orientation, https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, 4.6.4.
    lit = Image.new('L', size)
    lit.paste(255, (0, 0, size[0], size[1] // 2))  # Above, so after a turn to the right: right.
    deep = np.asarray(lit) * np.uint16(257)
    for image, options in ((lit, {'format': 'JPEG', 'quality': 100}), (deep, {'format': 'PNG'})):
        found = read(image, exif=exif, **options)
        assert found[:, :14].max() < 20 and found[:, 18:].min() > 235
    assert images.read(tmp_path / 'image', size=(48, 16)).shape == (16, 48, 3)


def test_the_short_side_becomes_32_and_the_centre_is_kept(read):
    """96 x 64 at half the size is 48 x 32, of which 8 columns on each side are cut off. Column j of
    the rest is column 2 (j + 8) + 1/2 of the image; a slope stays a slope: 4 j + 33."""
    slope = np.broadcast_to(2 * np.arange(96, dtype=np.uint8)[:, np.newaxis], [64, 96, 3])
    expected = np.broadcast_to(4 * np.arange(32)[:, np.newaxis] + 33, [32, 32, 3])
    np.testing.assert_array_equal(read(slope, format='PNG'), expected)
    np.testing.assert_array_equal(
        read(slope.transpose(1, 0, 2), format='PNG'), expected.transpose(1, 0, 2))


@pytest.mark.parametrize('shape', [(1, 1), (33, 32), (1, 200000), (200000, 1)])
def test_any_size(read, shape):
    image = np.full([*shape, 3], [10, 20, 30], np.uint8)
    np.testing.assert_array_equal(read(image, format='PNG'), np.full([32, 32, 3], [10, 20, 30]))


@pytest.mark.parametrize('data, words', [
    (b'', 'damaged, or not JPEG, PNG, GIF, BMP, WEBP, TIFF, AVIF)'),
    (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n', 'damaged, or not JPEG'),
    (b'\xff\xd8\xff', ''), (b'II*\0\x08\0\0\0', '')])
def test_files_that_are_not_images(tmp_path, data, words, capfd):
    (tmp_path / 'image').write_bytes(data)
    with pytest.raises(errors.DataError) as error:
        images.read(tmp_path / 'image')
    assert str(error.value).startswith(f'{tmp_path}/image cannot be read (')
    assert words in str(error.value) and '\n' not in str(error.value)
    assert capfd.readouterr().err == ''  # The libraries print nothing either.


@pytest.mark.parametrize('highest', [200, 4095, 65535])
@pytest.mark.parametrize('kind, form', [
    (np.uint16, 'PNG'), (np.uint16, 'TIFF'), (np.int32, 'TIFF'), (np.float32, 'TIFF')])
def test_more_than_eight_bits_are_scaled(read, highest, kind, form):
    """By the highest value: cameras of 12 bits, files of 16 bits with 200 greys; NaN is black."""
    ramp = np.round(np.linspace(0, highest, 1024)).reshape(32, 32)
    stored = np.where(ramp > 0, ramp, np.nan if kind == np.float32 else 0).astype(kind)
    found = read(stored, format=form)
    np.testing.assert_array_equal(found[..., 0], np.round(ramp * 255 / highest))


def test_one_scale_for_a_whole_set(tmp_path, capsys):
    """The images of one class are half as bright as those of the other."""
    for label, value in (('dark', 1000), ('bright', 2000)):
        (tmp_path / 'images' / label).mkdir(parents=True)
        for index in range(2):
            save(tmp_path / 'images' / label / f'{index}.png',
                 np.full([32, 32], value, np.uint16), format='PNG')
    classes, (pixels, labels), _ = folders.read(str(tmp_path / 'images'), [])
    assert [(classes[label], pixel.max()) for label, pixel in zip(labels, pixels)] == [
        ('bright', 255), ('dark', 128)]
    out = capsys.readouterr().out
    assert 'Images with more than 8 bits per channel: 2000 becomes white.' in out


@pytest.mark.parametrize('tags, expected', [({281: 4000}, 64), ({262: 0}, 0)])
def test_what_a_tiff_declares(read, tags, expected):
    """The highest value, 4,000; or that 0 is white."""
    image = np.full([32, 32], 1000, np.uint16)
    assert read(image, format='TIFF', tiffinfo=tags).max() == expected


@pytest.mark.parametrize('options', [
    {'format': 'PNG'}, {'format': 'JPEG'}, {'format': 'GIF'}, {'format': 'WEBP', 'lossless': True},
    {'format': 'TIFF', 'compression': 'tiff_lzw'}])
def test_truncated_and_overwritten_files(tmp_path, options):
    save(tmp_path / 'image', COLOUR, **options)
    whole = (tmp_path / 'image').read_bytes()
    overwritten = bytes(200) + whole[len(whole) // 2 + 200:]
    for rest in (b'', overwritten) if options['format'] in ('PNG', 'GIF', 'TIFF') else (b'',):
        (tmp_path / 'image').write_bytes(whole[:len(whole) // 2] + rest)
        with pytest.raises(errors.DataError, match='cannot be read'):
            images.read(tmp_path / 'image')


@pytest.mark.parametrize('side', [10000, 65536])
def test_pictures_that_would_exhaust_memory_are_not_decoded(tmp_path, side, recwarn):
    """Only their headers claim such sizes; Pillow itself only warns of 10,000 pixels per side."""
    save(tmp_path / 'image', COLOUR, format='PNG')
    data = bytearray((tmp_path / 'image').read_bytes())
    data[16:24] = struct.pack('>II', side, side)
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    (tmp_path / 'image').write_bytes(data)
    with pytest.raises(errors.DataError, match=BOMB):
        images.read(tmp_path / 'image')
    assert images.highest_value(tmp_path / 'image') == 0 and not recwarn.list


def test_files_that_cannot_be_read(tmp_path):
    """The pipe has no writer, and /dev/zero is endless."""
    os.mkfifo(tmp_path / 'pipe.png')
    for path, why in ((tmp_path / 'none.png', 'No such file'), (tmp_path, 'not a regular file'),
                      (tmp_path / 'pipe.png', 'not a regular file'),
                      ('/dev/zero', 'not a regular file')):
        with pytest.raises(errors.DataError, match=f'cannot be read .{why}'):
            images.read(path)


def test_the_images_in_a_folder(tmp_path):
    for name in ('b.PNG', 'a.jpeg', 'c.gif', 'd.webp', 'e.tif', 'f.TIFF', '.hidden.png',
                 'g.avif', 'notes.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'folder.png').mkdir()
    os.mkfifo(tmp_path / 'pipe.png')
    (tmp_path / 'loop.png').symlink_to('loop.png')
    assert images.find(tmp_path) == [f'{tmp_path}/{name}' for name in (
        'a.jpeg', 'b.PNG', 'c.gif', 'd.webp', 'e.tif', 'f.TIFF', 'g.avif')]
