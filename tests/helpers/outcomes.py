"""What a run printed, and how good its model is."""
import os
import re

import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib.evaluation import accuracy, model, trained
from cifar10_lib.program import devices
from cifar10_lib.runs import checkpoints

# The tutorial's console line; the groups are the images and the seconds.
LINE = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step \d+, loss = \d+\.\d\d '
                  r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)')


def precision(train_dir, use_moving_averages=True):
    """Precision @ 1 of a run's latest checkpoint on the test images."""
    found = counts(checkpoints.latest(train_dir), use_moving_averages)
    return found.correct / found.total


def counts(checkpoint, use_moving_averages=True):
    """The `accuracy.Counts` of a checkpoint on the test images, with the network and the data set
    of its run."""
    network = trained.read(os.path.dirname(checkpoint))
    source = network.source()
    num_examples, _ = accuracy.images_to_count(source)
    found = accuracy.Counts(source.num_classes)
    with tf.Graph().as_default():
        images, labels = cifar10.inputs(source.eval_data, source, network.recipe.prepare)
        logits = network.recipe.logits(images, source.num_classes)
        top_k_op = [labels, accuracy.predictions(logits)]
        saver = tf.train.Saver(model.variables_to_restore(use_moving_averages))
        with tf.Session(config=devices.session_config()) as session:
            saver.restore(session, checkpoint)
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            for batch in accuracy.each_image_once(session, top_k_op, num_examples):
                found.add(*batch)
            coordinator.request_stop()
            coordinator.join(threads)
    return found
