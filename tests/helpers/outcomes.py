"""What a run of the tutorial printed, and how good its network is."""
import contextlib
import re

from cifar10_lib import checkpoints

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10

# The tutorial's console line; the groups are the step, the images and the seconds.
LINE = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step (\d+), loss = \d+\.\d\d '
                  r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)')


def precision(folder, use_moving_averages=True):
    """Precision @ 1 of a run's latest checkpoint on the test images of --data_dir."""
    return np.mean(hits(folder, use_moving_averages))


def hits(folder, use_moving_averages=True):
    """Whether the prediction for each test image is right, in the order of the file: bool [images].

    `folder` is that of a run, or a checkpoint.
    """
    with tf.Graph().as_default():
        images, labels = cifar10.inputs(eval_data=True)
        right = tf.equal(tf.argmax(cifar10.inference(images), 1, output_type=tf.int32), labels)
        names = None
        if use_moving_averages:
            names = tf.train.ExponentialMovingAverage(0.0).variables_to_restore()
        saver = tf.train.Saver(names)
        with tf.Session() as session:
            saver.restore(session, checkpoints.newest(folder).path)
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            found = []
            while len(found) < cifar10.num_examples(eval_data=True):
                found.extend(session.run(right))
            coordinator.request_stop()
            coordinator.join(threads)
    return np.array(found[:cifar10.num_examples(eval_data=True)])


def summaries(folder):
    """Values in the event files of a folder: {step: {tag: tf.Summary.Value}}."""
    found = {}
    for path in sorted(tf.io.gfile.glob(f'{folder}/events.out.tfevents.*')):
        with contextlib.suppress(tf.errors.DataLossError):  # The last event is being written.
            for event in tf.train.summary_iterator(path):
                for value in event.summary.value:
                    found.setdefault(event.step, {})[value.tag] = value
    return found
