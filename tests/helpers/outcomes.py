"""What a run of the tutorial printed, and how good its network is."""
import contextlib
import os
import re

from cifar10_lib import checkpoints

import numpy as np
import plain
import tensorflow.compat.v1 as tf
from absl import flags

FLAGS = flags.FLAGS

# The tutorial's console line; the groups are the step, the images and the seconds.
LINE = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step (\d+), loss = \d+\.\d\d '
                  r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)')


def precision(folder, use_moving_averages=True):
    """Precision @ 1 of a run's latest checkpoint on the test images of --data_dir."""
    return np.mean(hits(folder, use_moving_averages))


def hits(folder, use_moving_averages=True):
    """Whether the plain network predicts each test image, in the order of the file: bool [images].

    `folder` is that of a run, or a checkpoint.
    """
    path = os.path.join(FLAGS.data_dir, 'cifar-10-batches-bin', 'test_batch.bin')
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)
    suffix = plain.AVERAGE if use_moving_averages else ''
    values = plain.read(checkpoints.newest(folder).path, suffix)
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.placeholder(tf.float32, [None, 24, 24, 3])
        logits = plain.logits(images, values)
        found = [session.run(logits, {images: plain.centres(part)}).argmax(axis=1)
                 for part in np.array_split(records, 10)]
    return np.concatenate(found) == records[:, 0]


def summaries(folder):
    """Values in the event files of a folder: {step: {tag: tf.Summary.Value}}."""
    found = {}
    for path in sorted(tf.io.gfile.glob(f'{folder}/events.out.tfevents.*')):
        with contextlib.suppress(tf.errors.DataLossError):  # The last event is being written.
            for event in tf.train.summary_iterator(path):
                for value in event.summary.value:
                    found.setdefault(event.step, {})[value.tag] = value
    return found
