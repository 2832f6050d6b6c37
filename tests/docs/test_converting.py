"""Runs the programs in docs/usage.md that prepare the user's own data, on small files."""
import re
import subprocess
import sys

from classification_lib import data_sets, images

import numpy as np
import pytest
import raw_images
import record_files
import spawn
from PIL import Image

import cifar10_convert

# Images of noise with all labels in turn, in the order of the labels.
LABELS = np.arange(24) % 10
IMAGES = np.stack([image for _, image in record_files.noise(24, seed=5)])
TRAIN, TEST = slice(4, 24), slice(0, 4)


PAGE = (spawn.ROOT / 'docs' / 'usage.md').read_text()


def program_below(heading):
    """The first program below a heading of the page."""
    return re.search(r'```python\n(.*?)```', PAGE[PAGE.index(heading):], re.DOTALL)[1]


def run(folder, program):
    """Runs a program in a folder; returns what it prints."""
    done = subprocess.run([sys.executable, '-c', program], cwd=folder, capture_output=True,
                          text=True, timeout=spawn.PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cats(tmp_path):
    """The folder of a class."""
    folder = tmp_path / 'my_images' / 'cat'
    folder.mkdir(parents=True)
    return folder


@pytest.mark.slow
def test_the_program_that_converts_svhn(tmp_path):
    """Where label 10 is the digit 0."""
    io = pytest.importorskip('scipy.io')
    for name, split in (('train', TRAIN), ('test', TEST)):
        labels = LABELS[split, np.newaxis]
        io.savemat(tmp_path / f'{name}_32x32.mat', {
            'X': IMAGES[split].transpose(1, 2, 3, 0),
            'y': np.where(labels == 0, 10, labels).astype(np.uint8)})
    run(tmp_path, program_below('### Data that you already have'))
    path, = tmp_path.glob('*.npz')
    cifar10_convert.convert(str(path), str(tmp_path / 'made'))
    assert data_sets.find(str(tmp_path / 'made')).classes == tuple('0123456789')
    for name, split in (('train', TRAIN), ('test', TEST)):
        pixels, labels = record_files.unpacked(
            np.fromfile(tmp_path / 'made' / f'{name}.bin', np.uint8).reshape(-1, 3073))
        found = {image.tobytes(): label for image, label in zip(pixels, labels)}
        assert found == {image.tobytes(): label
                         for image, label in zip(IMAGES[split], LABELS[split])}


def test_the_program_that_scales_images_to_eight_bits(tmp_path, cats):
    """0 becomes 0, 4,095 becomes 255, and a fifth of that 51; what is outside is clipped."""
    for kind, values in ((np.uint16, [0, 819, 4095, 65535]), (np.int32, [-900, 819, 4095, 10**6]),
                         (np.float32, [-0.5, 819.0, 4095.0, 1e9])):
        deep = np.repeat(np.array(values, kind), 8)[np.newaxis].repeat(32, axis=0)
        Image.fromarray(deep).save(cats / f'{kind.__name__}.tif')
    run(tmp_path, program_below('### Images with more than 8 bits'))
    made = list(cats.glob('*.tif.png'))
    assert len(made) == 3
    for path in made:
        assert images.read(path)[0, ::8, 0].tolist() == [0, 51, 255, 255]


def test_the_program_that_scales_colours_to_eight_bits(tmp_path, cats):
    deep = np.tile(np.repeat(np.array([0, 819, 4095, 65535], '>u2'), 8)[:, np.newaxis], [32, 1, 3])
    deep[..., 1] //= 5
    (cats / '1.png').write_bytes(raw_images.png(2, deep))
    colours, = re.findall(r'take `(tf\.io\.decode_png[^`]*)`', PAGE)
    program = program_below('### Images with more than 8 bits')
    run(tmp_path, 'import tensorflow as tf\n' + program.replace(
        'Image.open(path)', colours).replace('.tif', '.png'))
    found = images.read(cats / '1.png.png')
    assert found[0, ::8, 0].tolist() == found[9, ::8, 2].tolist() == [0, 51, 255, 255]
    assert found[0, ::8, 1].tolist() == [0, 10, 51, 255]


def test_the_program_that_reads_heic(tmp_path, cats):
    """Only the HEIC files get a PNG beside them, upright. A damaged one is skipped."""
    heif = pytest.importorskip('pillow_heif')
    heif.register_heif_opener()
    half = np.zeros([64, 32, 3], np.uint8)
    half[:32] = 255
    Image.fromarray(half).save(cats / '1.HEIC', format='HEIF')
    Image.fromarray(half).save(cats / '2.png')
    whole = (cats / '1.HEIC').read_bytes()
    (cats / '0.heic').write_bytes(whole[:len(whole) // 2])
    printed = run(tmp_path, program_below('### HEIC, the format of iPhones'))
    assert printed.startswith('Skipped my_images/cat/0.heic: ')
    made = sorted(path.name for path in cats.iterdir())
    assert made == ['0.heic', '1.HEIC', '1.HEIC.png', '2.png']
    with Image.open(cats / '1.HEIC.png') as image:
        assert image.size == (32, 64)
        assert np.asarray(image)[[8, 56], 16, 0] == pytest.approx([255, 0], abs=8)
