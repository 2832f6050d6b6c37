"""A user's own cifar10_input.py below our other files, and edits of ours, have their effect."""
import io
import os
import re

import copies
import numpy as np
import pytest
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from PIL import Image

FLAGS = flags.FLAGS

# As published programs have it: one record at a time, in 16 threads, with functions of tf.image.
# Of our file, it has only the constants and the two functions.
THEIR_INPUT = '''
import os

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

IMAGE_SIZE = 24
NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000


def read_one(paths):
    queue = tf.train.string_input_producer(paths)
    _, record = tf.FixedLengthRecordReader(record_bytes=1 + 32 * 32 * 3).read(queue)
    values = tf.decode_raw(record, tf.uint8)
    label = tf.cast(tf.strided_slice(values, [0], [1]), tf.int32)
    planes = tf.reshape(tf.strided_slice(values, [1], [3073]), [3, 32, 32])
    return tf.cast(tf.transpose(planes, [1, 2, 0]), tf.float32), label


def batches(make, image, label, batch_size, **options):
    image.set_shape([IMAGE_SIZE, IMAGE_SIZE, 3])
    label.set_shape([1])
    images, labels = make([image, label], batch_size=batch_size, num_threads=16,
                          capacity=200 + 3 * batch_size, **options)
    tf.summary.image('images', images)
    return images, tf.reshape(labels, [batch_size])


def distorted_inputs(data_dir, batch_size):
    image, label = read_one([os.path.join(data_dir, f'data_batch_{i}.bin') for i in range(1, 6)])
    image = tf.random_crop(image, [IMAGE_SIZE, IMAGE_SIZE, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    image = tf.image.per_image_standardization(image)
    print('Their images.')
    return batches(tf.train.shuffle_batch, image, label, batch_size, min_after_dequeue=200)


def inputs(eval_data, data_dir, batch_size):
    if eval_data:
        paths = [os.path.join(data_dir, 'test_batch.bin')]
    else:
        paths = [os.path.join(data_dir, f'data_batch_{i}.bin') for i in range(1, 6)]
    image, label = read_one(paths)
    image = tf.image.resize_image_with_crop_or_pad(image, IMAGE_SIZE, IMAGE_SIZE)
    image = tf.image.per_image_standardization(image)
    print('Their images.')
    return batches(tf.train.batch, image, label, batch_size)
'''


def run(path, *arguments):
    """Runs a script on the records of `half_bright` and returns its output."""
    done = spawn.run([path, f'--data_dir={FLAGS.data_dir}', *arguments], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ''
    return done.stdout


@pytest.mark.slow
def test_somebody_elses_input(half_bright, tmp_path):
    """It trains, on one device and in towers, and is evaluated; with more steps, it would learn."""
    copy = copies.copy_with(tmp_path / 'copy', {})
    (copy / 'cifar10_input.py').write_text(THEIR_INPUT)
    train_dir = f'--train_dir={FLAGS.train_dir}'
    for script, steps in (('cifar10_train.py', 2), ('cifar10_multi_gpu_train.py', 3)):
        out = run(copy / script, train_dir, f'--max_steps={steps}')
        assert 'Their images.\n' in out
        assert f'Saved step {steps} in {FLAGS.train_dir}.' in out
    out = run(copy / 'cifar10_eval.py', f'--checkpoint_dir={FLAGS.train_dir}', '--run_once',
              f'--eval_dir={FLAGS.eval_dir}')
    assert 'Their images.\n' in out
    assert ' on 130 images.\n' in out
    assert re.search(r': precision @ 1 = [01]\.\d{3}\n', out)
    done = spawn.run([copy / 'cifar10_train.py', f'--data_dir={FLAGS.data_dir}', '--restart',
                      train_dir, '--validate_on=held_out', '--validate_every=1'],
                     capture_output=True)
    assert (done.returncode, done.stderr) == (
        1, 'cifar10_train.py: distorted_inputs in cifar10_input.py got an unexpected keyword '
        "argument 'source', needed beyond CIFAR-10 and the tutorial's flags: add it\n")
    done = spawn.run([copy / 'cifar10_export.py', f'--checkpoint_dir={FLAGS.train_dir}',
                      f'--export_dir={tmp_path}/model'], capture_output=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert 'cifar10_input.py has no function prepare_images; expected ' in done.stderr


def first_images(folder):
    """The first images that a run shows: uint8 [3, height, width, 3]."""
    path, = (os.path.join(folder, name) for name in os.listdir(folder) if 'tfevents' in name)
    found = [value.image.encoded_image_string for event in tf.train.summary_iterator(path)
             for value in event.summary.value if value.tag.startswith('input/images/image/')]
    return np.stack([np.asarray(Image.open(io.BytesIO(each))) for each in found[:3]])


@pytest.mark.slow
@pytest.mark.parametrize('edit', [
    {'float_image = distort(shuffled_input.uint8image)':
     'float_image = tf.maximum(distort(shuffled_input.uint8image), 0.0)'},
    {'distorted_images = tf.image.random_flip_left_right(distorted_images)':
     'distorted_images = tf.maximum(distorted_images, 200)'}])
def test_an_edit_of_the_input(half_bright, tmp_path, edit):
    """The dark part of an image, which has at least 8 of 24 rows, becomes 0, or 200 before contrast
    and standardisation: one value that many pixels of a channel share."""
    copy = copies.copy_with(tmp_path / 'copy', {'cifar10_input.py': edit})
    run(copy / 'cifar10_train.py', '--batch_size=8', '--max_steps=1',
        f'--train_dir={FLAGS.train_dir}')
    for image in first_images(FLAGS.train_dir):
        for channel in range(3):
            counts = np.bincount(image[..., channel].ravel())
            assert counts.max() >= 0.3 * counts.sum()
