"""The error of a run of ResNet-23 with batch-norm statistics that are computed anew.

    PYTHONPATH=. python docs/runs/statistics.py DATA_DIR CHECKPOINT

Prints the error on CIFAR-10's test images of the raw weights, and of the averaged weights: with the
averages of the moving statistics, as classification.py evaluates it, and with the statistics of
25,000 training images, as they are and distorted as in training.
"""
import sys

from cifar10_lib import checkpoints
from classification_lib import data_sets, recipes, records, resnet23

import numpy as np
import tensorflow.compat.v1 as tf

BATCH, BATCHES = 250, 100
RECIPE = recipes.TABLE['resnet23']


def error(values, labels, pixels):
    """The error with these values of the variables, by name."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.placeholder(tf.uint8, [BATCH, 32, 32, 3])
        logits = RECIPE.inference(RECIPE.prepare(batch), 10, training=False)
        session.run(tf.global_variables_initializer(), {
            each.initial_value: values[each.op.name] for each in tf.global_variables()})
        found = [session.run(logits, {batch: pixels[first:first + BATCH]}).argmax(axis=1)
                 for first in range(0, len(pixels), BATCH)]
    return np.mean(np.concatenate(found) != labels)


def computed_anew(values, pixels, preprocess):
    """The values, with statistics that are means over batches of preprocessed images."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        batch = tf.placeholder(tf.uint8, [BATCH, 32, 32, 3])
        # The momentum k / (k + 1) in step k makes them the mean over all batches so far.
        resnet23._MOMENTUM = tf.placeholder(tf.float32, [])
        RECIPE.inference(preprocess(batch), 10, training=True)
        update = tf.group(*tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        variables = {each.op.name: each for each in tf.global_variables()}
        session.run(tf.global_variables_initializer(), {
            each.initial_value: values[name] for name, each in variables.items()})
        for k in range(BATCHES):
            session.run(update, {batch: pixels[k * BATCH:(k + 1) * BATCH],
                                 resnet23._MOMENTUM: k / (k + 1)})
        return session.run(variables)


def main(data_dir, checkpoint):
    data_set, folder = records.fetch(data_sets.TABLE['cifar10'], data_dir)
    test = records.Images(data_set, folder, 'test').read()
    pixels = records.Images(data_set, folder, 'all').read()[1]
    pixels = np.random.RandomState(0).permutation(pixels)
    stored = checkpoints.read(checkpoint)
    raw = {name: value for name, value in stored.items() if not name.endswith(checkpoints.AVERAGE)}
    averages = {name: stored.get(name + checkpoints.AVERAGE, value) for name, value in raw.items()}
    anew = computed_anew(averages, pixels, RECIPE.prepare)
    distorted = computed_anew(averages, pixels, RECIPE.distort)
    for name, values in (('raw weights', raw), ('averages', averages),
                         ('computed anew', anew), ('computed anew, distorted', distorted)):
        print(f'{name}: {error(values, *test):.4f}')


if __name__ == '__main__':
    main(*sys.argv[1:])
