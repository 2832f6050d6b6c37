"""Reads CIFAR-10's binary records through queues and makes batches of images.

    file names -> FixedLengthRecordReader -> shuffle queue of records -> crop, flip, brightness,
    contrast, standardisation -> queue of images -> batches

Each operation reads, shuffles or distorts hundreds of records. With one record per operation, as in
the original tutorial, the overhead is several times the actual work.
"""
import types

import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import image_source, table
from cifar10_lib.program import console, errors

tf.disable_v2_behavior()

# Images are cropped to this size. Changing it changes the network, which must be trained again.
IMAGE_SIZE = 24

# The size of CIFAR-10.
NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000

_RECORDS_PER_READ = 512
_RECORDS_PER_DISTORTION = 512


def read_cifar10(filename_queue, records=None, data_set=None):
    """Reads records from files of fixed-length records.

    Each call has a reader of its own, so several calls read in parallel.

    Args:
        filename_queue: queue of strings, the names of the files to read.
        records: None for one record per run; or the maximum number per run, which adds a leading
            dimension to every tensor. At the end of a file, it is smaller.
        data_set: the `table.DataSet` that defines the layout of a record; by default CIFAR-10.

    Returns:
        An object with the fields
            height, width, depth: 32, 32 and 3
            key: string [], 'file:record number'
            value: string [], the raw record
            label: int32 [1], 0 to num_classes - 1
            uint8image: uint8 [height, width, depth]
        A run raises `tf.errors.OutOfRangeError` at the end of the files, and
        `tf.errors.InvalidArgumentError` if a label is not a class. An incomplete record at the
        end of a file is skipped; `DataSet.check` finds it.
    """
    if data_set is None:
        data_set = table.edited_cifar10(NUM_CLASSES)
    reader = tf.FixedLengthRecordReader(record_bytes=data_set.record_bytes)
    if records is None:
        key, value = reader.read(filename_queue)
    else:
        key, value = reader.read_up_to(filename_queue, records)

    # The files may have been replaced since `DataSet.check`.
    label_byte = tf.decode_raw(tf.strings.substr(value, data_set.label_index, 1), tf.uint8)
    label = tf.cast(label_byte, tf.int32)
    valid = tf.debugging.assert_less(label, len(data_set.classes), [key, label],
                                     message='A label is not a class.')
    with tf.control_dependencies([valid]):
        value = tf.identity(value)
    result = decode_records(value, data_set)
    result.key = key
    return result


def decode_records(value, data_set):
    """Takes records apart.

    Args:
        value: string [] or [records], raw records.
        data_set: the `table.DataSet` that defines their layout.

    Returns:
        An object with the fields of `read_cifar10` but `key`.
    """
    result = types.SimpleNamespace(value=value)
    result.height = table.HEIGHT
    result.width = table.WIDTH
    result.depth = table.DEPTH
    if value.shape.rank == 0:
        leading, height_width_depth = [], [1, 2, 0]
    else:
        leading, height_width_depth = [-1], [0, 2, 3, 1]

    record_bytes = tf.reshape(tf.decode_raw(value, tf.uint8), leading + [data_set.record_bytes])
    # The first bytes are labels, one of which counts.
    label = record_bytes[..., data_set.label_index:data_set.label_index + 1]
    result.label = tf.cast(label, tf.int32)  # [..., 1]
    # The remaining bytes are the pixels, [depth, height, width].
    depth_major = tf.reshape(record_bytes[..., -table.IMAGE_BYTES:],
                             leading + [result.depth, result.height, result.width])
    result.uint8image = tf.transpose(depth_major, height_width_depth)  # [..., 32, 32, 3]
    return result


def _generate_image_and_label_batch(image, label, min_queue_examples, batch_size, shuffle,
                                    num_preprocess_threads=16):
    """Makes batches of images and labels.

    Args:
        image: float32 [height, width, 3], or of several images [count, height, width, 3].
        label: int32 [1], or [count, 1].
        min_queue_examples: number of images that always wait in the queue if it shuffles, and that
            fit into it besides three batches.
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


def random_crop(images, size, margin=0):
    """Crops each image at a place of its own; `tf.random_crop` crops a batch at one place.

    uint8 [batch, height, width, 3] -> uint8 [batch, size, size, 3]. The crop leaves at least
    `margin` pixels on each side.
    """
    batch = tf.shape(images)[0]
    height, width = images.shape.as_list()[1:3]
    top = tf.random_uniform([batch, 1], margin, height - size - margin + 1, tf.int32)
    left = tf.random_uniform([batch, 1], margin, width - size - margin + 1, tf.int32)
    rows = tf.gather(images, top + tf.range(size), batch_dims=1)  # [batch, size, width, 3]
    return tf.gather(rows, left + tf.range(size), axis=2, batch_dims=1)


def random_brightness(images, max_delta):
    """Adds a number from -max_delta to max_delta to each image: `tf.image.random_brightness`.

    float32 [batch, height, width, 3] -> the same.
    """
    delta = tf.random_uniform([tf.shape(images)[0], 1, 1, 1], -max_delta, max_delta)
    return images + delta


def random_contrast(images, lower, upper):
    """Scales each image around the means of its channels: `tf.image.random_contrast`.

    float32 [batch, height, width, 3] -> the same. The factors are from `lower` to `upper`.
    """
    factor = tf.random_uniform([tf.shape(images)[0], 1, 1, 1], lower, upper)
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)  # [batch, 1, 1, 3]
    # (images - mean) * factor + mean. Adding three numbers to each row of pixels takes less time
    # than adding them to each pixel.
    width = images.shape.as_list()[2]
    return images * factor + tf.tile(mean * (1.0 - factor), [1, 1, width, 1])


def distort_images(images):
    """Distorts images at random, each in its own way, for training.

    uint8 [batch, 32, 32, 3] -> float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3], each image with mean 0
    and standard deviation 1. Raises `errors.DataError` if IMAGE_SIZE is not 1 to 32.
    """
    _check_image_size()
    distorted_images = random_crop(images, IMAGE_SIZE)
    distorted_images = tf.image.random_flip_left_right(distorted_images)
    distorted_images = tf.cast(distorted_images, tf.float32)
    # Standardisation undoes the change of brightness. The change of contrast remains, because it
    # scales each channel around its own mean, not all around the mean of the image.
    distorted_images = random_brightness(distorted_images, max_delta=63)
    distorted_images = random_contrast(distorted_images, lower=0.2, upper=1.8)
    # Mean 0 and standard deviation 1 for each image.
    return tf.image.per_image_standardization(distorted_images)


def prepare_images(images):
    """Crops the centre of images and standardises them, for evaluation.

    uint8 [batch, 32, 32, 3] -> float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3], each image with mean 0
    and standard deviation 1. Raises `errors.DataError` if IMAGE_SIZE is not 1 to 32.
    """
    _check_image_size()
    reshaped_images = tf.cast(images, tf.float32)
    resized_images = tf.image.resize_image_with_crop_or_pad(reshaped_images, IMAGE_SIZE, IMAGE_SIZE)
    return tf.image.per_image_standardization(resized_images)


def _check_image_size():
    if not 1 <= IMAGE_SIZE <= table.HEIGHT:
        raise errors.DataError(f'IMAGE_SIZE is {IMAGE_SIZE}; expected 1 to {table.HEIGHT}, the '
                               'size of the images in the records')


def distorted_inputs(data_dir, batch_size, source=None, distort=distort_images,
                     min_fraction_of_examples_in_queue=0.4):
    """Endless distorted training images in random order.

    Args:
        data_dir: folder of the record files; without effect if `source` is given.
        batch_size: number of images per batch.
        source: an `image_source.Source`, the images to read; by default all of CIFAR-10's.
        distort: function from images, uint8 [batch, 32, 32, 3], to float32 images.
        min_fraction_of_examples_in_queue: fraction of an epoch that waits in the shuffle queue:
            large enough to mix well. Filling it delays the first step.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of the size of `distort`.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing, and `errors.DataError` if there are
    fewer records than shards.
    """
    if source is None:
        source = _cifar10(False, data_dir, batch_size)
    _, num_shards = source.shard
    with tf.device('/cpu:0'), tf.name_scope('input'):
        # The names of the record files, endlessly.
        filename_queue = tf.train.string_input_producer(list(source.files()))

        # Up to this many records per run.
        read_input = read_cifar10(filename_queue, num_shards * _RECORDS_PER_READ, source.data_set)
        values, = source.selected(read_input.key, read_input.value)

        # A long queue mixes well. Records wait in it as strings: 20,000 images, whose memory is
        # aligned, would fragment the heap, and the process would grow for hours.
        num_examples_per_epoch = source.num_examples() // num_shards
        min_queue_examples = int(num_examples_per_epoch * min_fraction_of_examples_in_queue)
        console.line(f'Filling queue with {min_queue_examples} {source.data_set.title} images '
                     'before starting to train.')
        shuffled_values = tf.train.shuffle_batch(
            [values],
            batch_size=_RECORDS_PER_DISTORTION,
            capacity=min_queue_examples + 3 * _RECORDS_PER_DISTORTION,
            min_after_dequeue=min_queue_examples,
            enqueue_many=True)

        shuffled_input = decode_records(shuffled_values, source.data_set)
        float_image = distort(shuffled_input.uint8image)

        # The records are in random order already.
        return _generate_image_and_label_batch(
            float_image, shuffled_input.label, _RECORDS_PER_DISTORTION, batch_size, shuffle=False,
            num_preprocess_threads=2)


def inputs(eval_data, data_dir, batch_size, source=None, prepare=prepare_images):
    """Endless images for evaluation, each epoch in the order of the files.

    Args:
        eval_data: true for the test files, false for the training files; like `data_dir`, without
            effect if `source` is given.
        data_dir: folder of the record files.
        batch_size: number of images per batch.
        source: an `image_source.Source`, the images to read; by default all of CIFAR-10's.
        prepare: function from images, uint8 [batch, 32, 32, 3], to float32 images.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of the size of `prepare`.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing.
    """
    if source is None:
        source = _cifar10(eval_data, data_dir, batch_size)
    with tf.device('/cpu:0'), tf.name_scope('input'):
        # The names of the record files, endlessly.
        filename_queue = tf.train.string_input_producer(list(source.files()), shuffle=False)

        # Up to this many records per run.
        read_input = read_cifar10(filename_queue, _RECORDS_PER_READ, source.data_set)
        uint8image, label = source.selected(
            read_input.key, read_input.uint8image, read_input.label)
        float_image = prepare(uint8image)

        # One thread keeps the order: the first N images are the N images of the set.
        return _generate_image_and_label_batch(
            float_image, label, _RECORDS_PER_READ, batch_size, shuffle=False,
            num_preprocess_threads=1)


def _cifar10(eval_data, data_dir, batch_size):
    """The `Source` of callers that name only a folder."""
    num_examples_per_epoch = NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    if eval_data:
        num_examples_per_epoch = NUM_EXAMPLES_PER_EPOCH_FOR_EVAL
    return image_source.Source(
        table.edited_cifar10(NUM_CLASSES), data_dir, batch_size, bool(eval_data),
        examples_per_epoch=num_examples_per_epoch)
