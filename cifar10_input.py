"""Reads CIFAR records through queues and makes batches of images.

    file names -> FixedLengthRecordReader -> shuffle queue of raw records -> crop, flip, brightness,
    contrast, standardisation of a whole batch -> prefetch queue -> the network

Reading, shuffling and distorting work on hundreds of records at a time. One at a time, as in the
original tutorial, the bookkeeping costs several times what the work does.
"""
import collections
import os

import numpy as np
import tensorflow.compat.v1 as tf

from datasets import table
from program import console
from program import errors

# Images are cropped to this size. Another size makes another network: train it anew.
IMAGE_SIZE = 24

NUM_CLASSES = 10
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = 50000
NUM_EXAMPLES_PER_EPOCH_FOR_EVAL = 10000

# The share of an epoch that waits in the shuffle queue: large enough to mix well.
MIN_FRACTION_OF_EXAMPLES_IN_QUEUE = 0.4

# With `held_out`, every tenth training record is for validation, not for training: 5,000 of
# CIFAR-10's, as many as He et al., "Deep Residual Learning" (2016), section 4.2, hold out.
_HELD_OUT_EVERY = 10

_RECORDS_A_READ = 512
_RECORDS_A_DISTORTION = 512
_PREFETCHED_BATCHES = 4
_DISTORTING_THREADS = 2

# The ranges of the distortions, the tutorial's.
_MAX_BRIGHTNESS_DELTA = 63.0
_CONTRAST_RANGE = (0.2, 1.8)


class CIFAR10Record:
    """What `read_cifar10` returns; its docstring lists the fields."""


def read_cifar10(filename_queue, records=None, data_set=table.CIFAR10):
    """Reads one record, or at most so many, from files of fixed-length records.

    Args:
        filename_queue: queue of strings, the names of the files to read.
        records: None for one record a run, or how many at most; every tensor then has a leading
            dimension, which is shorter where a file ends.
        data_set: row of the data-set table that tells the layout of a record.

    Returns:
        An object with the fields
            height, width, depth: 32, 32 and 3
            key: string [], file name and record number
            value: string [], the record as it is in the file
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
        leading = []
    else:
        result.key, value = reader.read_up_to(filename_queue, records)
        leading = [None]
    result.value = _checked(value, result.key, data_set)
    result.record = _decoded(result.value, data_set)
    result.label = _labels(result.record, data_set)
    planes = tf.reshape(  # [..., depth, height, width]
        result.record[..., data_set.label_bytes:],
        tf.concat([tf.shape(result.record)[:-1], [table.DEPTH, table.HEIGHT, table.WIDTH]], axis=0))
    axes = list(range(len(leading)))
    result.uint8image = tf.transpose(planes, axes + [len(axes) + 1, len(axes) + 2, len(axes)])
    result.uint8image.set_shape(leading + [table.HEIGHT, table.WIDTH, table.DEPTH])
    return result


def _checked(values, keys, data_set):
    """`values`, strings of a record each, or an error where a label among them is no class.

    Files are checked before they are read; this is for those that are replaced afterwards.
    """
    labels = tf.reshape(tf.cast(tf.decode_raw(
        tf.strings.substr(values, data_set.label_index, 1), tf.uint8), tf.int32), [-1])
    worst = tf.argmax(labels)
    key = tf.reshape(keys, [-1])[worst]
    message = tf.strings.join([
        tf.strings.regex_replace(key, ':[0-9]+$', ''), ' has label ', tf.as_string(labels[worst]),
        ' in record ', tf.strings.regex_replace(key, '^.*:', ''),
        f' (counted from 0); wanted: 0 to {data_set.num_classes - 1}'])
    with tf.control_dependencies([tf.debugging.Assert(
            labels[worst] < data_set.num_classes, [message])]):
        return tf.identity(values)


def _decoded(values, data_set):
    """The bytes of records: string [...] -> uint8 [..., record_bytes]."""
    records = tf.decode_raw(values, tf.uint8)
    records.set_shape(values.shape.as_list() + [data_set.record_bytes])
    return records


def _labels(records, data_set):
    """int32 [..., 1]: the label byte of uint8 [..., record_bytes]."""
    return tf.cast(records[..., data_set.label_index:data_set.label_index + 1], tf.int32)


def distort_at_random(planes):
    """`distort` by random numbers drawn anew in each run."""
    return distort(planes, draw_distortions(planes.shape.as_list()[0]))


def distorted_inputs(data_dir, batch_size, data_set=table.CIFAR10,
                     min_fraction_of_examples_in_queue=MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                     augment=distort_at_random, shard=(0, 1), held_out=False):
    """Distorted training images, in random order, without end.

    Args:
        data_dir: folder of the record files.
        batch_size: number of images a batch.
        data_set: row of the data-set table.
        min_fraction_of_examples_in_queue: share of the records that the shuffle queue keeps.
        augment: what makes images of pixels: from uint8 [records, 3 * 32 * 32], planes as they are
            in a record, to float32 [records, height, width, 3].
        shard: (index, count): use every count-th record only, from the one of that index. The
            records of the files in the order of the table are numbered from 0.
        held_out: whether to leave out every tenth record, for validation: see `num_held_out`.

    Returns:
        images: float32 [batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `augment`'s size.
        labels: int32 [batch_size].

    Raises:
        FileNotFoundError: a file of the data set is missing in `data_dir`.
        errors.DataError: there are fewer records than shards.
    """
    return dequeue(distorted_inputs_queue(
        data_dir, batch_size, data_set, min_fraction_of_examples_in_queue, augment, shard=shard,
        held_out=held_out))


def distorted_inputs_queue(data_dir, batch_size, data_set=table.CIFAR10,
                           min_fraction_of_examples_in_queue=MIN_FRACTION_OF_EXAMPLES_IN_QUEUE,
                           augment=distort_at_random, capacity=_PREFETCHED_BATCHES,
                           shard=(0, 1), held_out=False):
    """The queue behind `distorted_inputs`, from which each of several towers can `dequeue`.

    Args:
        capacity: how many batches to prepare ahead. The others are those of `distorted_inputs`.

    Returns:
        A queue of (images, labels) as `distorted_inputs` returns them.
    """
    with tf.name_scope('input'):
        batches = -(-_RECORDS_A_DISTORTION // batch_size)  # Several at once where they are small.
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
        fill = tf.cast(queue.size(), tf.float32) / capacity
    tf.summary.scalar(f'input/fraction_of_{capacity}_full', fill)
    return queue


def dequeue(queue):
    """Takes a batch from the queue of `distorted_inputs_queue`, and shows its first images.

    Returns:
        (images, labels) as `distorted_inputs` returns them.
    """
    images, labels = queue.dequeue()
    _image_summary(images)
    return images, labels


def _image_summary(images):
    """Adds a summary of the first images, under a tag without the name scope of a tower."""
    with tf.name_scope('image_summary'):
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, tf.raw_ops.ImageSummary(
            tag='images', tensor=images, max_images=3))


def num_held_out(records):
    """How many of a number of training records are for validation: those numbered 9, 19, 29 ..."""
    return records // _HELD_OUT_EVERY


def _shuffled_records(data_dir, batch_size, data_set, min_fraction, shard, held_out=False):
    """uint8 [batch_size, record_bytes] of a shard in random order, without end.

    Records wait as strings. As tensors, whose memory is aligned, 20,000 of them that come and go at
    random leave holes in the heap, and the process grows for hours (docs/reliability.md).
    """
    index, shards = shard
    records = data_set.count(data_dir, eval_data=False)
    records -= num_held_out(records) if held_out else 0
    count = len(range(index, records, shards))
    if not count:
        raise errors.DataError(f'{records} records cannot be shared out to {shards} workers')
    waiting = int(count * min_fraction)
    console.line(
        f'Filling queue with {waiting} {data_set.title} images before starting to train.')
    files = tf.train.string_input_producer(data_set.paths(data_dir, eval_data=False))
    read = read_cifar10(files, shards * _RECORDS_A_READ, data_set)
    values = read.value
    if shards > 1 or held_out:
        numbers = _record_numbers(read.key, data_dir, data_set)
        values = tf.boolean_mask(values, _to_train_on(numbers, shard, held_out))
    return _decoded(tf.train.shuffle_batch(
        [values], batch_size, enqueue_many=True, min_after_dequeue=waiting,
        capacity=waiting + 3 * max(batch_size, _RECORDS_A_READ)), data_set)


def _to_train_on(numbers, shard, held_out):
    """Whether records, by their numbers, are in a shard and not held out: bool [records]."""
    index, shards = shard
    if not held_out:
        return tf.equal(numbers % shards, index)
    # The records that are left are numbered anew, so that shards are of equal size.
    in_shard = tf.equal((numbers - numbers // _HELD_OUT_EVERY) % shards, index)
    return in_shard & ~_is_held_out(numbers)


def _is_held_out(numbers):
    return tf.equal(numbers % _HELD_OUT_EVERY, _HELD_OUT_EVERY - 1)


def _record_numbers(keys, data_dir, data_set):
    """Numbers of training records, counted on from file to file: int64 [records].

    Files come in another order on each worker and in each epoch; numbers stay the same.

    Args:
        keys: string [records], 'file:number' from a reader; the same file in all of them.
        data_dir: folder of the record files.
        data_set: row of the data-set table.
    """
    paths = data_set.paths(data_dir, eval_data=False)
    sizes = [os.path.getsize(path) // data_set.record_bytes for path in paths]
    before = np.cumsum([0] + sizes[:-1])
    of_this_file = tf.equal(paths, tf.strings.regex_replace(keys[0], ':[0-9]+$', ''))
    start = tf.reduce_sum(tf.where(of_this_file, tf.constant(before, tf.int64),
                                   tf.zeros([len(paths)], tf.int64)))
    return start + tf.strings.to_number(
        tf.strings.regex_replace(keys, '^.*:', ''), tf.int64)


# The random numbers of a batch's distortions:
#   offsets: int32 [batch, 2], the row and column of the crop's upper left corner
#   flips: bool [batch], whether to mirror left and right
#   brightness: float32 [batch], what to add to every pixel (pixels go from 0 to 255)
#   contrast: float32 [batch], what to multiply each pixel's distance from its channel's mean by
Distortions = collections.namedtuple('Distortions', 'offsets flips brightness contrast')


def draw_distortions(batch_size):
    """Draws the tutorial's `Distortions` for `batch_size` images, each uniform in its range."""
    room = table.HEIGHT - IMAGE_SIZE + 1  # Images are square.
    return Distortions(
        offsets=tf.random_uniform([batch_size, 2], maxval=room, dtype=tf.int32),
        flips=tf.random_uniform([batch_size]) < 0.5,
        brightness=tf.random_uniform([batch_size], -_MAX_BRIGHTNESS_DELTA, _MAX_BRIGHTNESS_DELTA),
        contrast=tf.random_uniform([batch_size], *_CONTRAST_RANGE))


def distort(planes, distortions):
    """Crops, flips, brightens, changes the contrast of, and standardises a batch of images.

    What `tf.image` does step by step has a closed form. With m the mean of a channel, f the
    contrast and d the brightness, brightness and contrast make (x - m) f + m + d of a pixel x. Its
    mean over the image is M + d, M the mean of the three m; its variance is f^2 (mean variance of
    the channels) + (variance of the three m). Standardisation subtracts the one, and with it all
    that the brightness did, and divides by the root of the other.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.
        distortions: `Distortions` for the batch.

    Returns:
        float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3].
    """
    pixels = _crop(planes, distortions.offsets, distortions.flips)  # [batch, 3, pixels of a plane]
    means = tf.reduce_mean(pixels, axis=2, keepdims=True)  # [batch, 3, 1]
    pixels -= means
    variances = tf.reduce_mean(tf.square(pixels), axis=2, keepdims=True)
    mean, variance_of_means = tf.nn.moments(means, axes=[1], keep_dims=True)  # [batch, 1, 1]
    contrast = distortions.contrast[:, tf.newaxis, tf.newaxis]
    variance = tf.square(contrast) * tf.reduce_mean(variances, axis=1, keepdims=True)
    # Bounded, for images of one colour, as `tf.image.per_image_standardization` bounds it.
    smallest = 1.0 / (IMAGE_SIZE * IMAGE_SIZE * table.DEPTH)
    scale = tf.rsqrt(tf.maximum(variance + variance_of_means, smallest))
    pixels = pixels * (contrast * scale) + (means - mean) * scale
    return tf.reshape(tf.transpose(pixels, [0, 2, 1]), [-1, IMAGE_SIZE, IMAGE_SIZE, table.DEPTH])


def standardise(planes):
    """Crops images at the centre and standardises them, as evaluation does.

    Args:
        planes: uint8 [batch, 3 * 32 * 32], the pixels of each record.

    Returns:
        float32 [batch, IMAGE_SIZE, IMAGE_SIZE, 3], each image of mean 0 and standard deviation 1.
    """
    batch = tf.shape(planes)[0]
    centre = [(table.HEIGHT - IMAGE_SIZE) // 2, (table.WIDTH - IMAGE_SIZE) // 2]
    return distort(planes, Distortions(
        offsets=tf.tile([centre], [batch, 1]), flips=tf.fill([batch], False),
        brightness=tf.zeros([batch]), contrast=tf.ones([batch])))


def _crop(planes, offsets, flips):
    """Crops and mirrors a batch: float32 [batch, 3, IMAGE_SIZE * IMAGE_SIZE].

    Rows are gathered whole. Their columns are picked, as they are or mirrored, by a product with a
    matrix of zeros and ones: exact, and twice as fast as to gather pixel by pixel.

    Args:
        planes: uint8 [batch, 3 * 32 * 32].
        offsets: int32 [batch, 2], row and column of the upper left corner.
        flips: bool [batch].
    """
    rows_an_image = table.DEPTH * table.HEIGHT
    first_rows = rows_an_image * tf.range(tf.shape(planes)[0]) + offsets[:, 0]
    crop_rows = np.arange(rows_an_image, dtype=np.int32).reshape(table.DEPTH, -1)[:, :IMAGE_SIZE]
    rows = tf.gather(tf.reshape(planes, [-1, table.WIDTH]),  # [batch, 3 * IMAGE_SIZE, 32]
                     first_rows[:, tf.newaxis] + crop_rows.reshape(1, -1))
    selections = _column_selections()
    columns = tf.gather(tf.reshape(selections, [-1, table.WIDTH, IMAGE_SIZE]),  # [batch, 32, 24]
                        tf.cast(flips, tf.int32) * selections.shape[1] + offsets[:, 1])
    pixels = tf.matmul(tf.cast(rows, tf.float32), columns)  # [batch, 3 * IMAGE_SIZE, IMAGE_SIZE]
    return tf.reshape(pixels, [-1, table.DEPTH, IMAGE_SIZE * IMAGE_SIZE])


def _column_selections():
    """Matrices that pick a crop's columns from a row: float32 [2, offsets, 32, IMAGE_SIZE].

    Element [flip, offset, i, j] is 1 where column i of the image is column j of the crop.
    """
    offset, crop_column = np.ogrid[:table.WIDTH - IMAGE_SIZE + 1, :IMAGE_SIZE]
    columns = np.stack([offset + crop_column, offset + IMAGE_SIZE - 1 - crop_column])
    selected = columns[:, :, np.newaxis, :] == np.arange(table.WIDTH)[:, np.newaxis]
    return selected.astype(np.float32)


def inputs(eval_data, data_dir, batch_size, data_set=table.CIFAR10, prepare=standardise,
           held_out=False):
    """Images for evaluation: every record exactly once, in order; the last batch holds the rest.

    The number of epochs is a local variable, so run `tf.local_variables_initializer()` first. After
    the last batch a run raises `tf.errors.OutOfRangeError`.

    Args:
        eval_data: whether to read the test files, or else the training files.
        data_dir: folder of the record files.
        batch_size: number of images a batch.
        data_set: row of the data-set table.
        prepare: what makes images of pixels, without chance; see `augment` of `distorted_inputs`.
        held_out: with `eval_data` False, whether to read only every tenth record: those that
            `distorted_inputs` leaves out.

    Returns:
        images: float32 [at most batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], or of `prepare`'s size.
        labels: int32 [at most batch_size].
    """
    with tf.name_scope('input'):
        files = tf.train.string_input_producer(
            data_set.paths(data_dir, eval_data), num_epochs=1, shuffle=False)
        read = read_cifar10(files, _RECORDS_A_READ, data_set)
        records, labels = read.record, read.label[:, 0]
        if held_out:
            chosen = _is_held_out(_record_numbers(read.key, data_dir, data_set))
            records, labels = (tf.boolean_mask(each, chosen) for each in (records, labels))
        images = prepare(records[:, data_set.label_bytes:])
        # Reads end with a file, batches must not; one thread keeps the order.
        images, labels = tf.train.batch(
            [images, labels], batch_size, num_threads=1, enqueue_many=True,
            capacity=4 * max(batch_size, _RECORDS_A_READ), allow_smaller_final_batch=True)
    _image_summary(images)
    return images, labels
