"""Reads CIFAR records through queues and makes batches of images.

    file names -> FixedLengthRecordReader -> shuffle queue of raw records -> crop, flip, brightness,
    contrast, standardisation of a whole batch -> prefetch queue -> the network

Each operation reads, shuffles or distorts hundreds of records. With one record per operation, as in
the original tutorial, the overhead is several times the actual work.
"""
import collections
import dataclasses
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.datasets import table
from cifar10_lib.program import console
from cifar10_lib.program import errors

# Images are cropped to this size. Changing it changes the network, which must be trained again.
IMAGE_SIZE = 24

NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000

# The fraction of an epoch in the shuffle queue: large enough to mix well.
MIN_FRACTION_OF_EXAMPLES_IN_QUEUE = 0.4

# With `held_out`, every tenth training record is for validation: 5,000 of CIFAR-10's, as in He et
# al., "Deep Residual Learning" (2016), section 4.2.
_HELD_OUT_EVERY = 10


def cifar10_row(num_classes):
    """The row of `--dataset=cifar10` with another number of classes."""
    names = [*table.CIFAR10.classes, *map(str, range(10, num_classes))]
    remedy = None if num_classes >= table.CIFAR10.num_classes else (
        f'NUM_CLASSES is {num_classes}: raise it to 10, or remove the records of other classes '
        'from the files.')
    return dataclasses.replace(
        table.CIFAR10, classes=tuple(names[:num_classes]), label_remedy=remedy)


CIFAR10 = cifar10_row(NUM_CLASSES)

_RECORDS_PER_READ = 512
_RECORDS_PER_DISTORTION = 512
_PREFETCHED_BATCHES = 4
_DISTORTING_THREADS = 2

# The tutorial's ranges of the distortions.
_MAX_BRIGHTNESS_DELTA = 63.0
_CONTRAST_RANGE = (0.2, 1.8)


class CIFAR10Record:
    """The result of `read_cifar10`, which documents the fields."""


def read_cifar10(filename_queue, records=None, data_set=CIFAR10):
    """Reads records from files of fixed-length records.

    Args:
        filename_queue: queue of strings, the names of the files to read.
        records: None for one record per run; or the maximum number per run, which adds a leading
            dimension to every tensor. At the end of a file, it is smaller.
        data_set: row of the data-set table, which defines the layout of a record.

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
    result = CIFAR10Record()
    result.height, result.width, result.depth = table.HEIGHT, table.WIDTH, table.DEPTH
    reader = tf.FixedLengthRecordReader(record_bytes=data_set.record_bytes)
    if records is None:
        result.key, value = reader.read(filename_queue)
        leading, axes = [], [1, 2, 0]
    else:
        result.key, value = reader.read_up_to(filename_queue, records)
        leading, axes = [-1], [0, 2, 3, 1]
    result.value = _checked(value, result.key, data_set)
    result.record = _decoded(result.value, data_set)
    result.label = _labels(result.record, data_set)
    planes = tf.reshape(result.record[..., data_set.label_bytes:],
                        leading + [table.DEPTH, table.HEIGHT, table.WIDTH])
    result.uint8image = tf.transpose(planes, axes)  # [..., height, width, depth]
    return result


def _checked(values, keys, data_set):
    """Returns the raw records `values`; running the result raises if a label is not a class.

    `DataSet.check` has checked the files, but they may have been replaced since.
    """
    labels = tf.reshape(tf.cast(tf.decode_raw(
        tf.strings.substr(values, data_set.label_index, 1), tf.uint8), tf.int32), [-1])
    worst = tf.argmax(labels)
    path, number = _split_keys(tf.reshape(keys, [-1])[worst])
    message = tf.strings.join([
        path, ' has label ', tf.as_string(labels[worst]), ' in record ', number,
        f' (counted from 0); expected 0 to {data_set.num_classes - 1}'])
    with tf.control_dependencies([tf.debugging.Assert(
            labels[worst] < data_set.num_classes, [message])]):
        return tf.identity(values)


def _split_keys(keys):
    """Splits the keys of a reader, 'file:number', into files and numbers; both are strings."""
    return (tf.strings.regex_replace(keys, ':[0-9]+$', ''),
            tf.strings.regex_replace(keys, '^.*:', ''))


def _decoded(values, data_set):
    """Raw records, string [...] -> uint8 [..., record_bytes]."""
    records = tf.decode_raw(values, tf.uint8)
    records.set_shape(values.shape.as_list() + [data_set.record_bytes])
    return records


def _labels(records, data_set):
    """uint8 [..., record_bytes] -> int32 [..., 1], the labels."""
    return tf.cast(records[..., data_set.label_index:data_set.label_index + 1], tf.int32)


# The random numbers for the distortions of a batch:
#   offsets: int32 [batch, 2], row and column of the crop's upper left corner
#   flips: bool [batch], whether to mirror left and right
#   brightness: float32 [batch], added to each pixel (pixels are 0 to 255)
#   contrast: float32 [batch], multiplies each pixel's difference from the mean of its channel
Distortions = collections.namedtuple('Distortions', 'offsets flips brightness contrast')


def draw_distortions(batch_size):
    """Draws the tutorial's `Distortions` for `batch_size` images, uniform in their ranges."""
    num_offsets = _num_offsets()
    return Distortions(
        offsets=tf.random_uniform([batch_size, 2], maxval=num_offsets, dtype=tf.int32),
        flips=tf.random_uniform([batch_size]) < 0.5,
        brightness=tf.random_uniform([batch_size], -_MAX_BRIGHTNESS_DELTA, _MAX_BRIGHTNESS_DELTA),
        contrast=tf.random_uniform([batch_size], *_CONTRAST_RANGE))


def _num_offsets():
    """Number of rows, and of columns, at which a crop can start; images are square."""
    if not 1 <= IMAGE_SIZE <= table.HEIGHT:
        raise errors.DataError(f'IMAGE_SIZE is {IMAGE_SIZE}; expected 1 to {table.HEIGHT}, the '
                               'size of the images in the records')
    return table.HEIGHT - IMAGE_SIZE + 1


def distort(planes, distortions):
    """Crops, flips, changes brightness and contrast, and standardises a batch of images.

    The steps of `tf.image` have a closed form. Let m be the mean of a channel, f the contrast and d
    the brightness. Brightness and contrast turn a pixel x into (x - m) f + m + d. The mean of the
    image becomes M + d, where M is the mean of the three m; its variance becomes f^2 (mean variance
    of the channels) + (variance of the three m). Standardisation subtracts the mean, and with it d,
    and divides by the root of the variance.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.
        distortions: `Distortions` for the batch.

    Returns:
        float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3].
    """
    pixels = _crop(planes, distortions.offsets, distortions.flips)  # [batch, 3, pixels of a plane]
    means = tf.reduce_mean(pixels, axis=2, keepdims=True)  # [batch, 3, 1]
    pixels -= means
    variances = tf.reduce_mean(tf.square(pixels), axis=2, keepdims=True)  # [batch, 3, 1]
    mean, variance_of_means = tf.nn.moments(means, axes=[1], keep_dims=True)  # [batch, 1, 1]
    contrast = distortions.contrast[:, tf.newaxis, tf.newaxis]
    variance = tf.square(contrast) * tf.reduce_mean(variances, axis=1, keepdims=True)
    # For images of one colour, the same bound as in `tf.image.per_image_standardization`.
    smallest = 1.0 / (IMAGE_SIZE * IMAGE_SIZE * table.DEPTH)
    scale = tf.rsqrt(tf.maximum(variance + variance_of_means, smallest))
    pixels = pixels * (contrast * scale) + (means - mean) * scale
    return tf.reshape(tf.transpose(pixels, [0, 2, 1]), [-1, IMAGE_SIZE, IMAGE_SIZE, table.DEPTH])


def distort_at_random(planes):
    """Applies `distort` with new random numbers in each run."""
    return distort(planes, draw_distortions(planes.shape.as_list()[0]))


def standardise(planes):
    """Crops the centre of images and standardises it, for evaluation.

    Planes, uint8 [batch, 3 * 32 * 32] -> images, float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3], each
    with mean 0 and standard deviation 1.
    """
    batch = tf.shape(planes)[0]
    centre = [(table.HEIGHT - IMAGE_SIZE) // 2, (table.WIDTH - IMAGE_SIZE) // 2]
    return distort(planes, Distortions(
        offsets=tf.tile([centre], [batch, 1]), flips=tf.fill([batch], False),
        brightness=tf.zeros([batch]), contrast=tf.ones([batch])))


def _crop(planes, offsets, flips):
    """Crops and mirrors planes, uint8 [batch, 3 * 32 * 32], as in `Distortions`.

    Gathers rows, then picks and mirrors columns by multiplying with a matrix of zeros and ones:
    exact, and twice as fast as gathering pixels.

    Returns:
        float32 [batch, 3, IMAGE_SIZE * IMAGE_SIZE].
    """
    rows_per_image = table.DEPTH * table.HEIGHT
    first_rows = rows_per_image * tf.range(tf.shape(planes)[0]) + offsets[:, 0]
    crop_rows = np.arange(rows_per_image, dtype=np.int32).reshape(table.DEPTH, -1)[:, :IMAGE_SIZE]
    rows = tf.gather(tf.reshape(planes, [-1, table.WIDTH]),  # [batch, 3 * IMAGE_SIZE, 32]
                     first_rows[:, tf.newaxis] + crop_rows.reshape(1, -1))
    selections = _column_selections()
    columns = tf.gather(tf.reshape(selections, [-1, table.WIDTH, IMAGE_SIZE]),  # [batch, 32, 24]
                        tf.cast(flips, tf.int32) * selections.shape[1] + offsets[:, 1])
    pixels = tf.matmul(tf.cast(rows, tf.float32), columns)  # [batch, 3 * IMAGE_SIZE, IMAGE_SIZE]
    return tf.reshape(pixels, [-1, table.DEPTH, IMAGE_SIZE * IMAGE_SIZE])


def _column_selections():
    """Matrices that pick a crop's columns from a row: float32 [2, offsets, 32, IMAGE_SIZE].

    Element [flip, offset, i, j] is 1 if column i of the image is column j of the crop.
    """
    offset, crop_column = np.ogrid[:_num_offsets(), :IMAGE_SIZE]
    columns = np.stack([offset + crop_column, offset + IMAGE_SIZE - 1 - crop_column])
    selected = columns[:, :, np.newaxis, :] == np.arange(table.WIDTH)[:, np.newaxis]
    return selected.astype(np.float32)


def distorted_inputs(data_dir, batch_size, data_set=CIFAR10,
                     min_fraction_of_examples_in_queue=MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                     augment=distort_at_random, shard=(0, 1), held_out=False):
    """Endless distorted training images in random order.

    Args:
        data_dir: folder of the record files.
        batch_size: number of images per batch.
        data_set: row of the data-set table.
        min_fraction_of_examples_in_queue: fraction of the records in the shuffle queue.
        augment: function from pixels, uint8 [records, 3 * 32 * 32], to images, float32
            [records, height, width, 3].
        shard: (index, count) to use only the records `index`, `index` + `count` and so on. Records
            are numbered from 0, over all files in the order of the table.
        held_out: whether to leave out every tenth record, for validation: see `num_held_out`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `augment`'s size.
        labels: int32 [batch_size].

    Raises:
        errors.MissingFile: a file of the data set is missing in `data_dir`.
        errors.DataError: there are fewer records than shards.
    """
    return dequeue(distorted_inputs_queue(
        data_dir, batch_size, data_set, min_fraction_of_examples_in_queue, augment, shard=shard,
        held_out=held_out))


def distorted_inputs_queue(data_dir, batch_size, data_set=CIFAR10,
                           min_fraction_of_examples_in_queue=MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                           augment=distort_at_random, capacity=_PREFETCHED_BATCHES,
                           shard=(0, 1), held_out=False):
    """The prefetch queue of `distorted_inputs`, for several towers that each `dequeue`.

    Args:
        capacity: number of batches to prefetch. The other arguments are as for `distorted_inputs`.

    Returns:
        A queue of (images, labels).
    """
    with tf.device('/cpu:0'), tf.name_scope('input'):  # Also for a caller that names no device.
        batches = -(-_RECORDS_PER_DISTORTION // batch_size)  # Several at once if they are small.
        records = _shuffled_records(
            data_dir, batches * batch_size, data_set, min_fraction_of_examples_in_queue, shard,
            held_out)
        images = augment(records[:, data_set.label_bytes:])
        labels = _labels(records, data_set)[:, 0]
        batch_shape = [batch_size] + images.shape.as_list()[1:]
        queue = tf.FIFOQueue(capacity, [images.dtype, labels.dtype], [batch_shape, [batch_size]],
                             name='prefetch_queue')
        enqueue = tf.group(*[queue.enqueue(batch) for batch in zip(
            tf.split(images, batches), tf.split(labels, batches))])
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, _DISTORTING_THREADS * [enqueue]))
        tf.summary.scalar(f'fraction_of_{capacity}_full',
                          tf.cast(queue.size(), tf.float32) / capacity)
    return queue


def dequeue(queue):
    """Takes a batch, (images, labels), from the queue of `distorted_inputs_queue`.

    Adds a summary of the first images.
    """
    images, labels = queue.dequeue()
    _image_summary(images)
    return images, labels


def _image_summary(images):
    """Adds a summary of the first images, with a tag that omits the tower's name scope.

    The tags of a graph that reads several sets are `images`, `images_1` and so on: two summaries
    with the same tag cannot be merged.
    """
    with tf.name_scope('images') as scope:
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ImageSummary(
            tag=os.path.basename(scope.rstrip('/')), tensor=images, max_images=3))


def _shuffled_records(data_dir, batch_size, data_set, min_fraction, shard, held_out=False):
    """Endless records of a shard in random order, uint8 [batch_size, record_bytes].

    The shuffle queue holds strings. 20,000 tensors, whose memory is aligned, would fragment the
    heap, and the process would grow for hours (docs/reliability.md).
    """
    index, shards = shard
    records = data_set.count(data_dir, eval_data=False)
    examples = edited_examples_per_epoch(
        data_set, False, NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN) or records
    records, examples = (number - (num_held_out(number) if held_out else 0)
                         for number in (records, examples))
    if records < shards:
        raise errors.DataError(f'{records} records are not enough for {shards} workers: start '
                               f'at most {records}')
    waiting = int(len(range(index, examples, shards)) * min_fraction)
    console.line(
        f'Filling queue with {waiting} {data_set.title} images before starting to train.')
    files = tf.train.string_input_producer(data_set.paths(data_dir, eval_data=False))
    read = read_cifar10(files, shards * _RECORDS_PER_READ, data_set)
    values = read.value
    if shards > 1 or held_out:
        numbers = _record_numbers(read.key, data_dir, data_set)
        values = tf.boolean_mask(values, _to_train_on(numbers, shard, held_out))
    return _decoded(tf.train.shuffle_batch(
        [values], batch_size, enqueue_many=True, min_after_dequeue=waiting,
        capacity=waiting + 3 * max(batch_size, _RECORDS_PER_READ)), data_set)


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
    _image_summary(images)
    return images, tf.reshape(labels, [batch_size])


def edited_examples_per_epoch(data_set, eval_data, examples):
    """One of the tutorial's constants if it was edited and CIFAR-10 is the data set, else None.

    Args:
        data_set: row of the data-set table.
        eval_data: whether the constant is that of the test set.
        examples: the value of the constant.

    Raises:
        errors.DataError: the constant is less than 1.
    """
    if examples < 1:
        raise errors.DataError(f'NUM_EXAMPLES_PER_EPOCH_FOR_{"EVAL" if eval_data else "TRAIN"} is '
                               f'{examples}; expected at least 1: edit it')
    published = sum(table.CIFAR10.split(eval_data).values())
    return examples if data_set.name == 'cifar10' and examples != published else None


def num_held_out(records):
    """Returns how many of the training records are held out: those numbered 9, 19, 29 and so on."""
    return records // _HELD_OUT_EVERY


def _is_held_out(numbers):
    return tf.equal(numbers % _HELD_OUT_EVERY, _HELD_OUT_EVERY - 1)


def _to_train_on(numbers, shard, held_out):
    """Whether records, by their numbers, are in a shard and not held out: bool [records]."""
    index, shards = shard
    if not held_out:
        return tf.equal(numbers % shards, index)
    # Renumbers the remaining records, so that shards have the same size.
    in_shard = tf.equal((numbers - numbers // _HELD_OUT_EVERY) % shards, index)
    return in_shard & ~_is_held_out(numbers)


def _record_numbers(keys, data_dir, data_set):
    """Converts the keys of a reader, all of one file, to the numbers of the records in all files.

    Workers read the files in different orders, which change with each epoch; these numbers do not.

    Returns:
        int64 [records].
    """
    paths = data_set.paths(data_dir, eval_data=False)
    sizes = [os.path.getsize(path) // data_set.record_bytes for path in paths]
    before = np.cumsum([0] + sizes[:-1])
    files, numbers = _split_keys(keys)
    start = tf.reduce_sum(tf.where(tf.equal(paths, files[0]), tf.constant(before, tf.int64),
                                   tf.zeros([len(paths)], tf.int64)))
    return start + tf.strings.to_number(numbers, tf.int64)


def inputs(eval_data, data_dir, batch_size, data_set=CIFAR10, prepare=standardise,
           held_out=False, num_epochs=None):
    """Images for evaluation, in order.

    Args:
        eval_data: whether to read the test files instead of the training files.
        data_dir: folder of the record files.
        batch_size: number of images per batch.
        data_set: row of the data-set table.
        prepare: the deterministic counterpart of `augment` in `distorted_inputs`.
        held_out: with `eval_data` False, whether to read only the records that `distorted_inputs`
            holds out.
        num_epochs: how often to read each record; None for endless batches. The epochs are counted
            in a local variable: run `tf.local_variables_initializer()` first. After the last batch,
            which may be smaller, a run raises `tf.errors.OutOfRangeError`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `prepare`'s size; with
            `num_epochs`, the static batch size is unknown.
        labels: int32 [batch_size].

    Raises:
        errors.MissingFile: a file of the set is missing in `data_dir`.
    """
    data_set.count(data_dir, eval_data)
    with tf.device('/cpu:0'), tf.name_scope('input'):
        files = tf.train.string_input_producer(
            data_set.paths(data_dir, eval_data), num_epochs, shuffle=False)
        read = read_cifar10(files, _RECORDS_PER_READ, data_set)
        records, labels = read.record, read.label[:, 0]
        if held_out:
            chosen = _is_held_out(_record_numbers(read.key, data_dir, data_set))
            records, labels = (tf.boolean_mask(each, chosen) for each in (records, labels))
        images = prepare(records[:, data_set.label_bytes:])
        # Reads end with a file, batches do not; one thread keeps the order.
        images, labels = tf.train.batch(
            [images, labels], batch_size, num_threads=1, enqueue_many=True,
            capacity=4 * max(batch_size, _RECORDS_PER_READ),
            allow_smaller_final_batch=num_epochs is not None)
    _image_summary(images)
    return images, labels
