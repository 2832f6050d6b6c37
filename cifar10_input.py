"""Reads CIFAR records through queues and makes batches of images.

    file names -> FixedLengthRecordReader -> shuffle queue of raw records -> crop, flip, brightness,
    contrast, standardisation of a whole batch -> prefetch queue -> the network

Each operation reads, shuffles or distorts hundreds of records. With one record per operation, as in
the original tutorial, the overhead is several times the actual work.
"""
import collections
import types

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import image_source, table
from cifar10_lib.nets import summaries
from cifar10_lib.program import console, errors

# Images are cropped to this size. Changing it changes the network, which must be trained again.
IMAGE_SIZE = 24

NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000

# The fraction of an epoch in the shuffle queue: large enough to mix well.
MIN_FRACTION_OF_EXAMPLES_IN_QUEUE = 0.4

_RECORDS_PER_READ = 512
_RECORDS_PER_DISTORTION = 512
_PREFETCHED_BATCHES = 4
_DISTORTING_THREADS = 2

# The tutorial's ranges of the distortions.
_MAX_BRIGHTNESS_DELTA = 63.0
_CONTRAST_RANGE = (0.2, 1.8)


def read_cifar10(filename_queue, records=None, data_set=None):
    """Reads records from files of fixed-length records.

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
            record: uint8 [record_bytes], the bytes of `value`
            label: int32 [1], 0 to num_classes - 1
            uint8image: uint8 [height, width, depth]
        A run raises `tf.errors.OutOfRangeError` at the end of the files, and
        `tf.errors.InvalidArgumentError` if a label is not a class. An incomplete record at the
        end of a file is skipped; `DataSet.check` finds it.
    """
    data_set = data_set or table.edited_cifar10(NUM_CLASSES)
    result = types.SimpleNamespace()
    result.height, result.width, result.depth = table.HEIGHT, table.WIDTH, table.DEPTH
    reader = tf.FixedLengthRecordReader(record_bytes=data_set.record_bytes)
    if records is None:
        result.key, value = reader.read(filename_queue)
        leading, axes = [], [1, 2, 0]
    else:
        result.key, value = reader.read_up_to(filename_queue, records)
        leading, axes = [-1], [0, 2, 3, 1]
    # The files may have been replaced since `DataSet.check`.
    label = tf.cast(
        tf.decode_raw(tf.strings.substr(value, data_set.label_index, 1), tf.uint8), tf.int32)
    with tf.control_dependencies([tf.debugging.assert_less(
            label, len(data_set.classes), [result.key, label],
            message='A label is not a class.')]):
        result.value = tf.identity(value)
        result.label = tf.reshape(label, leading + [1])
    result.record = tf.reshape(
        tf.decode_raw(result.value, tf.uint8), leading + [data_set.record_bytes])
    pixels_chw = tf.reshape(result.record[..., -table.IMAGE_BYTES:],
                            leading + [table.DEPTH, table.HEIGHT, table.WIDTH])
    result.uint8image = tf.transpose(pixels_chw, axes)  # [..., height, width, depth]
    return result


def _generate_image_and_label_batch(image, label, min_queue_examples, batch_size, shuffle=True):
    """Makes batches of single images, for input code written against the tutorial.

    Args:
        image: float32 [height, width, 3].
        label: int32 [1].
        min_queue_examples: number of images that always wait in the shuffle queue.
        batch_size: number of images per batch.
        shuffle: whether to mix the images; otherwise they keep their order.

    Returns:
        images: float32 [batch_size, height, width, 3].
        labels: int32 [batch_size].
    """
    capacity = min_queue_examples + 3 * batch_size
    if shuffle:
        images, labels = tf.train.shuffle_batch(
            [image, label], batch_size, capacity, min_queue_examples, num_threads=16)
    else:
        images, labels = tf.train.batch([image, label], batch_size, capacity=capacity)
    summaries.images(images)
    return images, tf.reshape(labels, [batch_size])


# The random numbers for the distortions of a batch:
#   offsets: int32 [batch, 2], row and column of the crop's upper left corner
#   flips: bool [batch], whether to mirror left and right
#   brightness: float32 [batch], added to each pixel (pixels are 0 to 255)
#   contrast: float32 [batch], multiplies each pixel's difference from the mean of its channel
Distortions = collections.namedtuple('Distortions', 'offsets flips brightness contrast')


def draw_distortions(batch_size):
    """Draws the tutorial's `Distortions` for `batch_size` images, uniform in their ranges."""
    num_offsets = table.HEIGHT - IMAGE_SIZE + 1  # Of rows, and of columns: images are square.
    return Distortions(
        offsets=tf.random_uniform([batch_size, 2], maxval=num_offsets, dtype=tf.int32),
        flips=tf.random_uniform([batch_size]) < 0.5,
        brightness=tf.random_uniform([batch_size], -_MAX_BRIGHTNESS_DELTA, _MAX_BRIGHTNESS_DELTA),
        contrast=tf.random_uniform([batch_size], *_CONTRAST_RANGE))


def distort(pixels_chw, distortions=None):
    """Crops, flips, changes brightness and contrast, and standardises a batch of images.

    The original calls `tf.random_crop`, then `random_flip_left_right`, `random_brightness`,
    `random_contrast` and `per_image_standardization` of `tf.image` for each image. For a batch,
    these have a closed form. Let m be the mean of a channel, f the contrast and d
    the brightness. Brightness and contrast turn a pixel x into (x - m) f + m + d. The mean of the
    image becomes M + d, where M is the mean of the three m; its variance becomes f^2 (mean variance
    of the channels) + (variance of the three m). Standardisation subtracts the mean, and with it d,
    and divides by the root of the variance.

    Args:
        pixels_chw: uint8 [batch, 3 * 32 * 32], the pixels of each record.
        distortions: `Distortions` for the batch; by default random ones, new in each run.

    Returns:
        float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3].

    Raises `errors.DataError` if IMAGE_SIZE is not 1 to 32.
    """
    if not 1 <= IMAGE_SIZE <= table.HEIGHT:
        raise errors.DataError(f'IMAGE_SIZE is {IMAGE_SIZE}; expected 1 to {table.HEIGHT}, the '
                               'size of the images in the records')
    if distortions is None:
        distortions = draw_distortions(pixels_chw.shape.as_list()[0])
    pixels = _crop(pixels_chw, distortions.offsets, distortions.flips)  # [batch, 3, pixels]
    means = tf.reduce_mean(pixels, axis=2, keepdims=True)  # [batch, 3, 1]
    pixels -= means
    variances = tf.reduce_mean(tf.square(pixels), axis=2, keepdims=True)  # [batch, 3, 1]
    mean, variance_of_means = tf.nn.moments(means, axes=[1], keep_dims=True)  # [batch, 1, 1]
    contrast = distortions.contrast[:, tf.newaxis, tf.newaxis]
    variance = tf.square(contrast) * tf.reduce_mean(variances, axis=1, keepdims=True)
    # For images of one grey, the same bound as in `tf.image.per_image_standardization`.
    smallest = 1.0 / (IMAGE_SIZE * IMAGE_SIZE * table.DEPTH)
    scale = tf.rsqrt(tf.maximum(variance + variance_of_means, smallest))
    pixels = pixels * (contrast * scale) + (means - mean) * scale
    return tf.reshape(tf.transpose(pixels, [0, 2, 1]), [-1, IMAGE_SIZE, IMAGE_SIZE, table.DEPTH])


def standardise(pixels_chw):
    """Crops the centre of images and standardises it, for evaluation.

    uint8 [batch, 3 * 32 * 32] -> float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3], each image with mean 0
    and standard deviation 1.
    """
    batch, centre = tf.shape(pixels_chw)[0], (table.HEIGHT - IMAGE_SIZE) // 2
    return distort(pixels_chw, Distortions(
        offsets=tf.fill([batch, 2], centre), flips=tf.fill([batch], False),
        brightness=tf.zeros([batch]), contrast=tf.ones([batch])))


def _crop(pixels_chw, offsets, flips):
    """Crops and mirrors pixels, uint8 [batch, 3 * 32 * 32], as in `Distortions`.

    Gathers rows, then picks and mirrors columns by multiplying with a matrix of zeros and ones:
    exact, and twice as fast as gathering pixels.

    Returns float32 [batch, 3, IMAGE_SIZE * IMAGE_SIZE].
    """
    rows_per_image = table.DEPTH * table.HEIGHT
    first_rows = rows_per_image * tf.range(tf.shape(pixels_chw)[0]) + offsets[:, 0]
    crop_rows = np.arange(rows_per_image, dtype=np.int32).reshape(table.DEPTH, -1)[:, :IMAGE_SIZE]
    rows = tf.gather(tf.reshape(pixels_chw, [-1, table.WIDTH]),  # [batch, 3 * IMAGE_SIZE, 32]
                     first_rows[:, tf.newaxis] + crop_rows.reshape(1, -1))
    # The matrices, [flip, offset, 32, IMAGE_SIZE]: element [..., i, j] is 1 if column i of the
    # image is column j of the crop.
    offset, crop_column = np.ogrid[:table.WIDTH - IMAGE_SIZE + 1, :IMAGE_SIZE]
    sources = np.stack([offset + crop_column, offset + IMAGE_SIZE - 1 - crop_column])
    selections = sources[:, :, np.newaxis, :] == np.arange(table.WIDTH)[:, np.newaxis]
    columns = tf.gather(selections.reshape(-1, table.WIDTH, IMAGE_SIZE).astype(np.float32),
                        tf.cast(flips, tf.int32) * selections.shape[1] + offsets[:, 1])
    pixels = tf.matmul(tf.cast(rows, tf.float32), columns)  # [batch, 3 * IMAGE_SIZE, IMAGE_SIZE]
    return tf.reshape(pixels, [-1, table.DEPTH, IMAGE_SIZE * IMAGE_SIZE])


def distorted_inputs(data_dir, batch_size):
    """Endless distorted training images of CIFAR-10 in random order, for code that calls it.

    `cifar10.distorted_inputs` reads any data set, through `distorted_batches`.

    Args:
        data_dir: folder of the record files.
        batch_size: number of images per batch.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3].
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing.
    """
    return dequeue(distorted_batches(_cifar10(False, data_dir, batch_size)))


def inputs(eval_data, data_dir, batch_size):
    """Endless images of CIFAR-10 for evaluation, in order.

    Args, results and errors are those of `distorted_inputs`; `eval_data` is true for the test
    files, false for the training files.
    """
    return batches(_cifar10(eval_data, data_dir, batch_size))


def _cifar10(eval_data, data_dir, batch_size):
    """The `Source` of callers that name only a folder."""
    examples = NUM_EXAMPLES_PER_EPOCH_FOR_EVAL if eval_data else NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN
    return image_source.Source(table.edited_cifar10(NUM_CLASSES), data_dir, batch_size,
                               bool(eval_data), examples_per_epoch=examples)


def distorted_batches(source, augment=distort, capacity=_PREFETCHED_BATCHES,
                      min_fraction=MIN_FRACTION_OF_EXAMPLES_IN_QUEUE):
    """The queue behind `distorted_inputs`, from which each tower can `dequeue` batches of its own.

    Args:
        source: the `Source` of the records.
        augment: function from pixels, uint8 [records, 3 * 32 * 32], to images, float32
            [records, height, width, 3].
        capacity: number of batches to prefetch.
        min_fraction: fraction of the records that wait in the shuffle queue.

    Returns a queue of (images, labels). Raises `errors.MissingFile` if a record file is missing,
    and `errors.DataError` if there are fewer records than shards.
    """
    data_set, batch_size, (_, shards) = source.data_set, source.batch_size, source.shard
    at_once = -(-_RECORDS_PER_DISTORTION // batch_size)  # Several batches if they are small.
    count = at_once * batch_size
    with tf.device('/cpu:0'), tf.name_scope('input'):  # Also for a caller that names no device.
        files = tf.train.string_input_producer(list(source.files()))
        waiting = int(source.num_examples() // shards * min_fraction) or int(min_fraction > 0)
        console.line(
            f'Filling queue with {waiting} {data_set.title} images before starting to train.')
        read = read_cifar10(files, shards * _RECORDS_PER_READ, data_set)
        # This queue holds records as strings. As 20,000 tensors, whose memory is aligned, they
        # would fragment the heap, and the process would grow for hours (docs/reliability.md).
        values = tf.train.shuffle_batch(
            source.selected(read.key, read.value), count, enqueue_many=True,
            min_after_dequeue=waiting, capacity=waiting + 3 * max(count, _RECORDS_PER_READ))
        records = tf.reshape(tf.decode_raw(values, tf.uint8), [count, data_set.record_bytes])
        images = augment(records[:, -table.IMAGE_BYTES:])
        labels = tf.cast(records[:, data_set.label_index], tf.int32)
        batch_shape = [batch_size] + images.shape.as_list()[1:]
        queue = tf.FIFOQueue(capacity, [images.dtype, labels.dtype], [batch_shape, [batch_size]],
                             name='prefetch_queue')
        enqueue = tf.group(*[queue.enqueue(batch) for batch in zip(
            tf.split(images, at_once), tf.split(labels, at_once))])
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, _DISTORTING_THREADS * [enqueue]))
        tf.summary.scalar(f'fraction_of_{capacity}_full',
                          tf.cast(queue.size(), tf.float32) / capacity)
    return queue


def dequeue(queue):
    """Takes a batch, (images, labels), from the queue of `distorted_batches`."""
    images, labels = queue.dequeue()
    summaries.images(images)
    return images, labels


def batches(source, prepare=standardise, num_epochs=None):
    """Images for evaluation, in order; the content of `inputs`.

    Args:
        source: the `Source` of the records, which has one shard.
        prepare: the deterministic counterpart of `augment` in `distorted_batches`.
        num_epochs: how often to read each record; None for endless batches. The epochs are counted
            in a local variable: run `tf.local_variables_initializer()` first. After the last batch,
            which may be smaller, a run raises `tf.errors.OutOfRangeError`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `prepare`'s size; with
            `num_epochs`, the static batch size is unknown.
        labels: int32 [batch_size].

    Raises `errors.MissingFile` if a record file is missing.
    """
    with tf.device('/cpu:0'), tf.name_scope('input'):
        files = tf.train.string_input_producer(list(source.files()), num_epochs, shuffle=False)
        read = read_cifar10(files, _RECORDS_PER_READ, source.data_set)
        records, labels = source.selected(read.key, read.record, read.label[:, 0])
        images = prepare(records[:, -table.IMAGE_BYTES:])
        # Reads end with a file, batches do not; one thread keeps the order.
        images, labels = tf.train.batch(
            [images, labels], source.batch_size, num_threads=1, enqueue_many=True,
            capacity=4 * max(source.batch_size, _RECORDS_PER_READ),
            allow_smaller_final_batch=num_epochs is not None)
    summaries.images(images)
    return images, labels
