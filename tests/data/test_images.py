import os
import struct
import zlib

import image_files
import numpy as np
import pytest
from PIL import Image

from cifar10_lib.datasets import folders, images

BOMB = r'cannot be read \(Image size \(\d+ pixels\) exceeds limit of (89478485|178956970)'
NOISE = np.random.RandomState(1).randint(0, 256, [32, 32, 4]).astype(np.uint8)
COLOUR, GREY = NOISE[..., :3], np.repeat(NOISE[..., :1], 3, axis=2)


@pytest.fixture
def read(tmp_path):
    """Writes a file with a function of `image_files` or of this module, and reads it."""
    def write_and_read(write, *arguments, **options):
        write(tmp_path / 'image', *arguments, **options)
        return images.read(tmp_path / 'image')
    return write_and_read


def save(path, image, **options):
    """Writes a `PIL.Image.Image`, or an array, with Pillow."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(path, **options)


@pytest.mark.parametrize('write, arguments, expected', [
    (image_files.png, [COLOUR], COLOUR),
    (image_files.png, [NOISE], COLOUR),  # Transparency is ignored.
    (image_files.png, [NOISE[..., :1]], GREY),
    (image_files.png, [NOISE[..., :2]], GREY),
    (image_files.png, [COLOUR * np.uint16(256) + 77], COLOUR),
    (image_files.bmp, [COLOUR], COLOUR),
    (image_files.bmp, [NOISE], COLOUR),
    (image_files.bmp, [COLOUR, True], COLOUR),
    (image_files.gif, [GREY[..., 0]], GREY),
    (image_files.gif, [GREY[..., 0], 255 - GREY[..., 0]], GREY)])  # The first frame.
def test_images_of_32_by_32_pixels_are_not_changed(read, write, arguments, expected):
    np.testing.assert_array_equal(read(write, *arguments), expected)


PALETTE = Image.fromarray(NOISE[..., 0]).convert('P')  # Index k has colour k of:
PALETTE.putpalette([value for k in range(256) for value in (k, 255 - k, 7)])
OF_PALETTE = np.stack([NOISE[..., 0], 255 - NOISE[..., 0], np.full([32, 32], 7)], axis=2)
BITS = Image.fromarray(NOISE[..., 0]).point(lambda value: 255 * (value > 99)).convert('1')
OF_BITS = np.repeat(255 * (NOISE[..., :1] > 99), 3, axis=2)
GREY_16 = GREY[..., 0] * np.uint16(257)


@pytest.mark.parametrize('image, options, expected', [
    (COLOUR, {'format': 'WEBP', 'lossless': True}, COLOUR),
    (NOISE, {'format': 'WEBP', 'lossless': True, 'exact': True}, COLOUR),
    (COLOUR, {'format': 'TIFF'}, COLOUR),
    (COLOUR, {'format': 'TIFF', 'compression': 'tiff_lzw'}, COLOUR),
    (NOISE, {'format': 'TIFF', 'compression': 'tiff_deflate'}, COLOUR),
    (PALETTE, {'format': 'PNG'}, OF_PALETTE), (PALETTE, {'format': 'BMP'}, OF_PALETTE),
    (PALETTE, {'format': 'GIF', 'transparency': 5}, OF_PALETTE),
    (PALETTE, {'format': 'PNG', 'transparency': bytes(range(256))}, OF_PALETTE),
    (BITS, {'format': 'PNG'}, OF_BITS), (BITS, {'format': 'TIFF'}, OF_BITS),
    (GREY_16, {'format': 'PNG'}, GREY), (GREY_16, {'format': 'TIFF'}, GREY),
    (GREY_16.astype('>u2'), {'format': 'TIFF'}, GREY)])
def test_other_formats_and_modes(read, image, options, expected):
    np.testing.assert_array_equal(read(save, image, **options), expected)


@pytest.mark.parametrize('options', [
    {'format': 'TIFF'}, {'format': 'JPEG', 'quality': 100, 'subsampling': 0}])
def test_inks_are_subtracted_from_white(read, options):
    """Fractions c of cyan and k of black leave (1 - c) (1 - k) of red, and so on."""
    inks = Image.new('CMYK', [32, 32], (51, 102, 0, 51))  # 0.2, 0.4, 0, 0.2 of 255.
    found = read(save, inks, **options).astype(int)
    assert abs(found - [163, 122, 204]).max() <= 2


def test_avif(read):
    """Smooth grey; also named as in a folder of images."""
    y, x = np.mgrid[:32, :32]
    smooth = np.repeat((2 * (x + y))[..., np.newaxis].astype(np.uint8), 3, axis=2)
    assert abs(read(save, smooth, format='AVIF', quality=100).astype(int) - smooth).max() < 8
    with pytest.raises(images.ImageError, match='cannot be read'):
        read(lambda path: path.write_bytes(path.read_bytes()[:-200]))


@pytest.mark.parametrize('format_', ['GIF', 'PNG', 'WEBP', 'TIFF'])
def test_the_first_of_several_frames_is_used(read, format_):
    frames = [Image.new('RGB', [32, 32], colour) for colour in ('red', 'lime', 'blue')]
    options = {'lossless': True} if format_ == 'WEBP' else {}
    found = read(save, frames[0], format=format_, save_all=True, append_images=frames[1:],
                 **options)
    np.testing.assert_array_equal(found, np.full([32, 32, 3], [255, 0, 0]))


ORIENTATION = 274  # The EXIF tag.
TURNED = {  # As a viewer shows it, https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, 4.6.4.
    1: COLOUR, 2: COLOUR[:, ::-1], 3: COLOUR[::-1, ::-1], 4: COLOUR[::-1],
    5: COLOUR.transpose(1, 0, 2), 6: np.rot90(COLOUR, -1),
    7: np.rot90(COLOUR, 2).transpose(1, 0, 2), 8: np.rot90(COLOUR)}


@pytest.mark.parametrize('options', [
    {'format': 'PNG'}, {'format': 'WEBP', 'lossless': True}, {'format': 'TIFF'},
    {'format': 'TIFF', 'compression': 'tiff_lzw'}])
def test_the_exif_orientation_is_applied(read, options):
    for orientation, expected in TURNED.items():
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        np.testing.assert_array_equal(read(save, COLOUR, exif=exif, **options), expected)


@pytest.mark.parametrize('size', [(40, 64), (64, 40)])
def test_a_phones_photograph_is_turned(read, size):
    """The right side of its sensor is at the bottom; 16-bit grey is turned, too."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    lit = Image.new('L', size)
    lit.paste(255, (0, 0, size[0], size[1] // 2))  # Above, so after a turn to the right: right.
    deep = np.asarray(lit) * np.uint16(257)
    for image, options in ((lit, {'format': 'JPEG', 'quality': 100}), (deep, {'format': 'PNG'})):
        found = read(save, image, exif=exif, **options)
        assert found[:, :14].max() < 20 and found[:, 18:].min() > 235


@pytest.mark.parametrize('exif', [
    b'Exif\0\0', b'Exif\0\0II*\0', b'Exif\0\0any text that is long enough to be something',
    b'Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12'])
@pytest.mark.parametrize('format_', ['PNG', 'WEBP'])
def test_damaged_exif_data_is_ignored(read, exif, format_):
    options = {'lossless': True} if format_ == 'WEBP' else {}
    np.testing.assert_array_equal(
        read(save, COLOUR, format=format_, exif=exif, **options), COLOUR)


@pytest.mark.parametrize('options', [{}, {'progressive': True}])
def test_jpeg(read, options):
    """Smooth colours, which JPEG compression preserves."""
    y, x = np.mgrid[:32, :32]
    smooth = np.stack([4 * x, 4 * y, 255 - 4 * x], axis=2).astype(np.uint8)
    assert abs(read(image_files.jpeg, smooth, **options).astype(int) - smooth).max() < 8
    grey = smooth[..., :1]
    assert abs(read(image_files.jpeg, grey, **options).astype(int) - grey).max() < 8


def test_the_short_side_becomes_32_and_the_centre_is_kept(read):
    """96 x 64 at half the size is 48 x 32, of which 8 columns on each side are cut off. Column j of
    the rest is column 2 (j + 8) + 1/2 of the image; a slope stays a slope: 4 j + 33."""
    slope = np.broadcast_to(2 * np.arange(96, dtype=np.uint8)[:, np.newaxis], [64, 96, 3])
    expected = np.broadcast_to(4 * np.arange(32)[:, np.newaxis] + 33, [32, 32, 3])
    np.testing.assert_array_equal(read(image_files.png, slope), expected)
    np.testing.assert_array_equal(
        read(image_files.png, slope.transpose(1, 0, 2)), expected.transpose(1, 0, 2))


def test_details_finer_than_a_pixel_are_averaged(read):
    checks = (np.indices([321, 400]).sum(axis=0) % 2 * 255).astype(np.uint8)
    result = read(image_files.png, np.repeat(checks[..., np.newaxis], 3, axis=2)).astype(int)
    assert abs(result - 127.5).max() < 8


@pytest.mark.parametrize('shape', [
    (1, 1), (1, 700), (700, 1), (2, 3), (33, 32), (1, 200000), (200000, 1)])
def test_any_size(read, shape):
    image = np.full([*shape, 3], [10, 20, 30], np.uint8)
    np.testing.assert_array_equal(read(image_files.png, image), np.full([32, 32, 3], [10, 20, 30]))


@pytest.mark.parametrize('data, words', [
    *((data, 'damaged, or not JPEG, PNG, GIF, BMP, WEBP, TIFF, AVIF)') for data in (
        b'', b'just text', b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n')),
    *((data, '') for data in (b'RIFF....WEBPVP8 ', b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n',
                              b'GIF89a', b'BM', b'II*\0\x08\0\0\0'))])
def test_files_that_are_not_images(read, data, words, tmp_path, capfd):
    with pytest.raises(images.ImageError) as error:
        read(lambda path: path.write_bytes(data))
    assert str(error.value).startswith(f'{tmp_path}/image cannot be read (')
    assert words in str(error.value) and '\n' not in str(error.value)
    assert capfd.readouterr().err == ''  # The libraries print nothing either.


@pytest.mark.parametrize('highest', [200, 4095, 65535])
@pytest.mark.parametrize('kind, form', [
    (np.uint16, 'PNG'), (np.uint16, 'TIFF'), (np.int32, 'TIFF'), (np.float32, 'TIFF')])
def test_more_than_eight_bits_are_scaled(read, highest, kind, form):
    """By the highest value: cameras of 12 bits, and files of 16 bits with 200 greys."""
    ramp = np.round(np.linspace(0, highest, 1024)).reshape(32, 32).astype(kind)
    found = read(save, ramp, format=form)
    np.testing.assert_array_equal(found[..., 0], np.round(ramp.astype(float) * 255 / highest))


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
    assert 'In images of more than 8 bits per channel, 2000 is white.' in capsys.readouterr().out


@pytest.mark.parametrize('tags, expected', [
    ({281: 4000}, 64), ({262: 0}, 255 - 255)])
def test_what_a_tiff_declares(read, tags, expected):
    """The highest value, 4,000; or that 0 is white."""
    image = np.full([32, 32], 1000, np.uint16)
    assert read(save, image, format='TIFF', tiffinfo=tags).max() == expected


def _webp(path, image):
    save(path, image, format='WEBP', lossless=True)


def _tiff(path, image):
    save(path, image, format='TIFF')


@pytest.mark.parametrize(
    'write', [image_files.png, image_files.jpeg, image_files.bmp, image_files.gif, _webp, _tiff])
@pytest.mark.parametrize('share', [0.1, 0.5, 0.9])
def test_truncated_files(read, write, share):
    def cut(path):
        write(path, GREY[..., 0] if write is image_files.gif else COLOUR)
        path.write_bytes(path.read_bytes()[:int(share * path.stat().st_size)])
    with pytest.raises(images.ImageError, match='cannot be read'):
        read(cut)


@pytest.mark.parametrize('write, position, sides', [
    (image_files.png, 16, b'\0\1\0\0\0\1\0\0'),
    (image_files.png, 16, b'\0\0\x27\x10\0\0\x27\x10'),
    (image_files.bmp, 18, b'\0\0\1\0\0\0\1\0'),
    (image_files.jpeg, None, b'\xff\xff\xff\xff')])
def test_pictures_that_would_exhaust_memory_are_not_decoded(read, write, position, sides):
    """Only their headers claim such sizes; Pillow itself only warns of 10,000 pixels per side."""
    def bomb(path):
        write(path, COLOUR)
        data = bytearray(path.read_bytes())
        start = data.index(b'\xff\xc0') + 5 if position is None else position
        data[start:start + len(sides)] = sides
        path.write_bytes(with_new_checksum(data) if write is image_files.png else data)
    with pytest.raises(images.ImageError, match=BOMB):
        read(bomb)


def with_new_checksum(png):
    """The bytes of a PNG file whose header was changed."""
    png[29:33] = struct.pack('>I', zlib.crc32(png[12:29]))
    return png


def test_a_frame_that_would_exhaust_memory_is_not_decoded(read):
    """It is larger than the screen in the file's header."""
    with pytest.raises(images.ImageError, match=BOMB):
        read(wide_frames, first=0)


def test_frames_after_the_first_are_not_decoded(read):
    np.testing.assert_array_equal(read(wide_frames, first=1), GREY)


def wide_frames(path, first):
    """A GIF of 30 frames; those from `first` on have sides of 65,535 pixels."""
    image_files.gif(path, *30 * [GREY[..., 0]])
    frame = b'\x2c' + struct.pack('<HHHH', 0, 0, 32, 32)
    wide = b'\x2c' + struct.pack('<HHHH', 0, 0, 65535, 65535)
    begin, *others = path.read_bytes().split(frame)
    assert len(others) == 30
    path.write_bytes(begin + b''.join((frame if k < first else wide) + other
                                      for k, other in enumerate(others)))


def test_files_that_cannot_be_read(tmp_path):
    """The pipe has no writer, and /dev/zero is endless."""
    os.mkfifo(tmp_path / 'pipe.png')
    for path, why in ((tmp_path / 'none.png', 'No such file'), (tmp_path, 'Is a directory'),
                      (tmp_path / 'pipe.png', 'not a regular file'),
                      ('/dev/zero', 'not a regular file')):
        with pytest.raises(images.ImageError, match=f'cannot be read .{why}'):
            images.read(path)


def test_the_images_in_a_folder(tmp_path):
    for name in ('b.PNG', 'a.jpeg', 'c.gif', 'd.webp', 'e.tif', 'f.TIFF', '.hidden.png',
                 'g.avif', 'notes.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'folder.png').mkdir()
    os.mkfifo(tmp_path / 'pipe.png')
    assert images.find(tmp_path) == [f'{tmp_path}/{name}' for name in (
        'a.jpeg', 'b.PNG', 'c.gif', 'd.webp', 'e.tif', 'f.TIFF', 'g.avif')]
