import os
import struct

import numpy as np
import pictures
import pytest

from datasets import images

NOISE = np.random.RandomState(1).randint(0, 256, [32, 32, 4]).astype(np.uint8)
COLOUR, GREY = NOISE[..., :3], np.repeat(NOISE[..., :1], 3, axis=2)


@pytest.fixture
def read(tmp_path):
    """Writes a file by a function of `pictures` and reads it."""
    with images.Decoder() as decoder:
        def write_and_read(write, *arguments, **options):
            write(tmp_path / 'image', *arguments, **options)
            return decoder.read(tmp_path / 'image')
        yield write_and_read


@pytest.mark.parametrize('write, arguments, wanted', [
    (pictures.png, [COLOUR], COLOUR),
    (pictures.png, [NOISE], COLOUR),  # Transparency is left out.
    (pictures.png, [NOISE[..., :1]], GREY),
    (pictures.png, [NOISE[..., :2]], GREY),
    (pictures.png, [COLOUR * np.uint16(256) + 77], COLOUR),
    (pictures.bmp, [COLOUR], COLOUR),
    (pictures.bmp, [NOISE], COLOUR),
    (pictures.bmp, [COLOUR, True], COLOUR),
    (pictures.gif, [GREY[..., 0]], GREY),
    (pictures.gif, [GREY[..., 0], 255 - GREY[..., 0]], GREY)])  # The first frame.
def test_32_by_32_pixels_stay_as_they_are(read, write, arguments, wanted):
    np.testing.assert_array_equal(read(write, *arguments), wanted)


@pytest.mark.parametrize('options', [{}, {'progressive': True}])
def test_jpeg(read, options):
    """Smooth colours, which the compression keeps."""
    y, x = np.mgrid[:32, :32]
    smooth = np.stack([4 * x, 4 * y, 255 - 4 * x], axis=2).astype(np.uint8)
    assert abs(read(pictures.jpeg, smooth, **options).astype(int) - smooth).max() < 8
    grey = smooth[..., :1]
    assert abs(read(pictures.jpeg, grey, **options).astype(int) - grey).max() < 8


def test_the_short_side_becomes_32_and_the_centre_is_kept(read):
    """96 x 64 at half the size is 48 x 32, of which 8 columns to each side go. Column j of the
    rest lies on column 2 (j + 8) + 1/2 of the image, and a slope stays one: 4 j + 33."""
    slope = np.broadcast_to(2 * np.arange(96, dtype=np.uint8)[:, np.newaxis], [64, 96, 3])
    wanted = np.broadcast_to(4 * np.arange(32)[:, np.newaxis] + 33, [32, 32, 3])
    np.testing.assert_array_equal(read(pictures.png, slope), wanted)
    np.testing.assert_array_equal(
        read(pictures.png, slope.transpose(1, 0, 2)), wanted.transpose(1, 0, 2))


def test_what_is_finer_than_a_pixel_becomes_its_mean(read):
    checks = (np.indices([321, 400]).sum(axis=0) % 2 * 255).astype(np.uint8)
    result = read(pictures.png, np.repeat(checks[..., np.newaxis], 3, axis=2)).astype(int)
    assert abs(result - 127.5).max() < 8


@pytest.mark.parametrize('shape', [(1, 1), (1, 700), (700, 1), (2, 3), (33, 32)])
def test_any_size(read, shape):
    image = np.full([*shape, 3], [10, 20, 30], np.uint8)
    np.testing.assert_array_equal(read(pictures.png, image), np.full([32, 32, 3], [10, 20, 30]))


@pytest.mark.parametrize('data, words', [
    (b'', 'is empty'),
    (b'just text', 'is no JPEG, PNG, GIF or BMP'),
    (b'RIFF....WEBPVP8 ', 'is no JPEG, PNG, GIF or BMP'),
    (b'\xff\xd8\xff', 'is damaged or cut short'),
    (b'\xff\xd8\xff\xe0\0\0', 'is damaged or cut short'),
    (b'\x89PNG\r\n\x1a\n', 'is damaged or cut short'),
    (b'GIF89a', 'is damaged or cut short'),
    (b'BM', 'is damaged or cut short')])
def test_files_that_are_no_images(read, data, words, tmp_path, capfd):
    with pytest.raises(images.ImageError) as error:
        read(lambda path: path.write_bytes(data))
    assert str(error.value) == f'{tmp_path}/image {words}'
    assert capfd.readouterr().err == ''  # Libraries keep quiet, too.


@pytest.mark.parametrize('write', [pictures.png, pictures.jpeg, pictures.bmp, pictures.gif])
@pytest.mark.parametrize('share', [0.1, 0.5, 0.9])
def test_files_cut_short(read, write, share):
    def cut(path):
        write(path, GREY[..., 0] if write is pictures.gif else COLOUR)
        path.write_bytes(path.read_bytes()[:int(share * path.stat().st_size)])
    with pytest.raises(images.ImageError, match='is damaged or cut short'):
        read(cut)


@pytest.mark.parametrize('write, position, side', [
    (pictures.png, 16, b'\0\1\0\0'), (pictures.bmp, 18, b'\0\0\1\0'), (pictures.jpeg, None, None)])
def test_pictures_that_would_take_all_memory_are_not_decoded(read, write, position, side):
    """Their headers tell sides of 65,536 pixels, or 65,535."""
    def bomb(path):
        write(path, COLOUR)
        data = bytearray(path.read_bytes())
        if position is None:
            frame = data.index(b'\xff\xc0')
            data[frame + 5:frame + 9] = b'\xff\xff\xff\xff'
        else:
            data[position:position + 8] = 2 * side
        path.write_bytes(data)
    with pytest.raises(images.ImageError, match='has 6553[56] x 6553[56] pixels; wanted: at most'):
        read(bomb)


@pytest.mark.parametrize('frames, height, told', [
    (1, 65535, '65535 x 65535'),  # One frame, larger than the screen.
    (3000, 32, '65535 x 96000')])  # Many, wide ones: 3,000 times 32 rows.
def test_frames_that_would_take_all_memory_are_not_decoded(read, frames, height, told):
    def bomb(path):
        pictures.gif(path, *frames * [GREY[..., 0]])
        data = path.read_bytes()
        frame = b'\x2c' + struct.pack('<HHHH', 0, 0, 32, 32)
        wide = b'\x2c' + struct.pack('<HHHH', 0, 0, 65535, height)
        assert data.count(frame) >= frames
        path.write_bytes(data.replace(frame, wide))
    with pytest.raises(images.ImageError, match=f'has {told} pixels; wanted: at most'):
        read(bomb)


def test_a_file_too_large_is_not_decoded(read):
    def large(path):
        pictures.png(path, COLOUR)
        os.truncate(path, images.MAX_FILE_BYTES + 1)
    with pytest.raises(images.ImageError, match='has more than 64 MB'):
        read(large)


def test_a_bmp_with_a_palette_is_not_taken_for_grey(read):
    def palette(path):
        pictures.bmp(path, COLOUR)
        data = bytearray(path.read_bytes())
        data[28] = 8
        path.write_bytes(data)
    with pytest.raises(images.ImageError, match='BMP with a palette'):
        read(palette)


def test_files_that_cannot_be_opened(tmp_path):
    with images.Decoder() as decoder:
        with pytest.raises(images.ImageError, match='No such file'):
            decoder.read(tmp_path / 'none.png')
        with pytest.raises(images.ImageError, match='Is a directory'):
            decoder.read(tmp_path)


def test_record():
    """The label, then plane by plane, each row by row."""
    image = np.arange(32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    record = images.record(200, image)
    assert record.dtype == np.uint8 and record.shape == (3073,)
    assert record[0] == 200
    np.testing.assert_array_equal(record[1:].reshape(3, 32, 32)[2, 5], image[5, :, 2])


def test_the_images_in_a_folder(tmp_path):
    for name in ('b.PNG', 'a.jpeg', 'c.gif', '.hidden.png', 'notes.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'folder.png').mkdir()
    assert images.files(tmp_path) == [f'{tmp_path}/{name}' for name in ('a.jpeg', 'b.PNG', 'c.gif')]
