"""Reads CIFAR-10's binary records and makes batches of images; in training:

    file names -> FixedLengthRecordReader -> crop, flip, brightness, contrast, standardisation
    -> shuffle queue of images -> batches

Each operation reads or distorts up to 512 records. With one record per operation, as in the
original tutorial, the overhead is several times the actual work.
"""
import os
import types

import tensorflow.compat.v1 as tf
from six.moves import xrange

if tf.executing_eagerly():  # Not twice: a program may have switched something on again.
    tf.disable_v2_behavior()

# Images are cropped to this size. Changing it changes the network, which must be trained again.
IMAGE_SIZE = 24

# The size of CIFAR-10.
NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000

# A record is a label and the red, green and blue planes of an image of 32 x 32:
# https://www.cs.toronto.edu/~kriz/cifar.html. CIFAR-100 has two bytes of labels, the second of
# which is the class.
_LABEL_BYTES = 1
_RECORD_BYTES = _LABEL_BYTES + 32 * 32 * 3

_RECORDS_PER_READ = 512


def read_cifar10(filename_queue, records=None):
    """Reads records from files of CIFAR-10's format.

    For N-way parallel reading, call this function N times: each call has a reader of its own.

    Args:
        filename_queue: queue of strings, the names of the files to read.
        records: None for one record per run; or the maximum number per run, which adds a leading
            dimension to label and image. At the end of a file, there are fewer.

    Returns:
        An object with the fields
            height, width, depth: 32, 32 and 3
            key: string [], 'file:record number'
            label: int32 [1], 0 to 9
            uint8image: uint8 [height, width, depth]
        A run raises `tf.errors.OutOfRangeError` at the end of the files.
    """
    result = types.SimpleNamespace()
    result.height = 32
    result.width = 32
    result.depth = 3

    reader = tf.FixedLengthRecordReader(record_bytes=_RECORD_BYTES)
    result.key, value = reader.read_up_to(filename_queue, records or 1)
    record_bytes = tf.reshape(tf.decode_raw(value, tf.uint8), [-1, _RECORD_BYTES])

    # The last of the first bytes is the label.
    result.label = tf.cast(record_bytes[:, _LABEL_BYTES - 1:_LABEL_BYTES], tf.int32)
    # The other bytes are the image, from [depth, height, width] to [height, width, depth].
    depth_major = tf.reshape(record_bytes[:, _LABEL_BYTES:],
                             [-1, result.depth, result.height, result.width])
    result.uint8image = tf.transpose(depth_major, [0, 2, 3, 1])

    if records is None:
        result.key = result.key[0]
        result.label = result.label[0]
        result.uint8image = result.uint8image[0]
    return result


def _generate_image_and_label_batch(image, label, min_queue_examples, batch_size, shuffle,
                                    num_preprocess_threads=16):
    """Makes batches of images and labels.

    Args:
        image: float32 [height, width, 3], or several images, [count, height, width, 3].
        label: int32 [1], or [count, 1].
        min_queue_examples: minimum number of images left in a queue that shuffles after a batch was
            taken. Its capacity is this and three batches.
        batch_size: number of images per batch.
        shuffle: whether to mix the images. Otherwise they keep their order, if one thread fills the
            queue.
        num_preprocess_threads: number of threads that fill the queue.

    Returns:
        images: float32 [batch_size, height, width, 3].
        labels: int32 [batch_size].
    """
    several = image.shape.rank == 4
    if shuffle:
        images, label_batch = tf.train.shuffle_batch(
            [image, label],
            batch_size=batch_size,
            num_threads=num_preprocess_threads,
            capacity=min_queue_examples + 3 * batch_size,
            min_after_dequeue=min_queue_examples,
            enqueue_many=several)
    else:
        images, label_batch = tf.train.batch(
            [image, label],
            batch_size=batch_size,
            num_threads=num_preprocess_threads,
            capacity=min_queue_examples + 3 * batch_size,
            enqueue_many=several)

    # TensorBoard shows the first three under Images.
    tf.summary.image('images', images)
    return images, tf.reshape(label_batch, [batch_size])


def random_crop(images, size):
    """Crops each image at a place of its own; `tf.random_crop` would crop all at one place.

    [batch, height, width, 3] of any type -> [batch, size, size, 3].
    """
    batch = tf.shape(images)[0]
    height, width = images.shape.as_list()[1:3]
    top = tf.random_uniform([batch, 1], 0, height - size + 1, tf.int32)
    left = tf.random_uniform([batch, 1], 0, width - size + 1, tf.int32)
    rows = tf.gather(images, top + tf.range(size), batch_dims=1)  # [batch, size, width, 3]
    return tf.gather(rows, left + tf.range(size), axis=2, batch_dims=1)


def random_contrast(images, lower, upper):
    """Scales each image around the means of its channels: `tf.image.random_contrast`.

    float32 [batch, height, width, 3] -> the same. The factors are from `lower` to `upper`.
    """
    factor = tf.random_uniform([tf.shape(images)[0], 1, 1, 1], lower, upper)
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)  # [batch, 1, 1, 3]
    return (images - mean) * factor + mean


def distort(images):
    """Distorts images at random, each in its own way, for training.

    To preprocess training images in another way, edit this function: classification.py calls it
    for --net=tutorial, and cifar10_plot.py draws its images.

    uint8 [batch, 32, 32, 3] -> float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3].
    """
    distorted_images = random_crop(images, IMAGE_SIZE)
    distorted_images = tf.image.random_flip_left_right(distorted_images)
    distorted_images = tf.cast(distorted_images, tf.float32)

    # The standardisation undoes the change of brightness, so one change for all images is enough.
    # The change of contrast remains, because it scales each channel around its own mean, not all
    # around the mean of the image.
    distorted_images = tf.image.random_brightness(distorted_images, max_delta=63)
    distorted_images = random_contrast(distorted_images, lower=0.2, upper=1.8)

    # Mean 0 and standard deviation 1 for each image.
    return tf.image.per_image_standardization(distorted_images)


def crop_and_standardize(images):
    """Crops the centre of images and standardises them, for evaluation and prediction.

    To preprocess images in another way, edit this function, not `inputs`: prediction, export and
    classification.py call it, too.

    uint8 [batch, 32, 32, 3] -> float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3].
    """
    images = tf.cast(images, tf.float32)
    resized_images = tf.image.resize_image_with_crop_or_pad(images, IMAGE_SIZE, IMAGE_SIZE)

    # Mean 0 and standard deviation 1 for each image.
    return tf.image.per_image_standardization(resized_images)


def record_files(eval_data, data_dir):
    """Names of the record files: those of the test set if `eval_data`, else the training files.

    Raises `FileNotFoundError` if one is missing in `data_dir`.
    """
    if eval_data:
        filenames = [os.path.join(data_dir, 'test_batch.bin')]
    else:
        filenames = [os.path.join(data_dir, 'data_batch_%d.bin' % i) for i in xrange(1, 6)]
    for f in filenames:
        if not os.path.exists(f):
            raise FileNotFoundError(f'Failed to find file: {f}')
    return filenames


def num_records(eval_data, data_dir):
    """Number of records in the files of `record_files`."""
    return sum(os.path.getsize(f) for f in record_files(eval_data, data_dir)) // _RECORD_BYTES


def distorted_inputs(data_dir, batch_size):
    """Endless distorted training images in random order, from the record files in `data_dir`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3].
        labels: int32 [batch_size].

    Raises `FileNotFoundError` if a record file is missing.
    """
    # On the CPU, also if a tower on a GPU calls this: queues and readers have no GPU kernel.
    with tf.device('/cpu:0'), tf.name_scope('input'):
        # The names of the record files, endlessly, in random order.
        filenames = record_files(False, data_dir)
        filename_queue = tf.train.string_input_producer(filenames)

        # Up to this many records per run.
        read_input = read_cifar10(filename_queue, _RECORDS_PER_READ)
        float_image = distort(read_input.uint8image)  # Edit the preprocessing there.

        # A long queue mixes well, and delays the first step.
        min_fraction_of_examples_in_queue = 0.4
        min_queue_examples = int(NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN *
                                 min_fraction_of_examples_in_queue)
        print('Filling queue with %d CIFAR images before starting to train.' % min_queue_examples,
              flush=True)

        return _generate_image_and_label_batch(float_image, read_input.label,
                                               min_queue_examples, batch_size, shuffle=True)


def inputs(eval_data, data_dir, batch_size):
    """Endless images for evaluation, each epoch in the order of the files.

    Args:
        eval_data: bool, whether to read the test set instead of the training set; or 'test', or
            'train_eval' for the training set.
        data_dir: folder of the record files.
        batch_size: number of images per batch.

    Returns images and labels, as `distorted_inputs` does.

    Raises `FileNotFoundError` if a record file is missing, and `TypeError` if `eval_data` is
    another text, which would count as true.
    """
    if isinstance(eval_data, str):
        if eval_data not in ('test', 'train_eval'):
            raise TypeError(f"eval_data is {eval_data!r}; expected a bool, 'test' or 'train_eval'")
        eval_data = eval_data == 'test'
    with tf.device('/cpu:0'), tf.name_scope('input'):
        # The names of the record files, endlessly.
        filenames = record_files(eval_data, data_dir)
        filename_queue = tf.train.string_input_producer(filenames, shuffle=False)

        # Up to this many records per run.
        read_input = read_cifar10(filename_queue, _RECORDS_PER_READ)
        # Edit the preprocessing there, so that prediction follows.
        float_image = crop_and_standardize(read_input.uint8image)

        # One thread keeps the order: the first N images are the N images of the set.
        return _generate_image_and_label_batch(float_image, read_input.label,
                                               _RECORDS_PER_READ, batch_size, shuffle=False,
                                               num_preprocess_threads=1)
