"""Folders of runs of classification.py with random weights."""
import os

from classification_lib import evaluate, recipes, run

import numpy as np
import run_settings
import tensorflow.compat.v1 as tf


def save(folder, net, classes, data_set='cifar10'):
    """Saves a run with a checkpoint of step 7 in a new folder.

    `net` is the name of a recipe; `classes` are names; `data_set` is a name, or the folder of the
    user's own.
    """
    os.makedirs(folder)
    network = evaluate.Classifier(recipes.TABLE[net], len(classes))
    with network.graph.as_default(), tf.Session() as session:
        random, values = np.random.RandomState(1), {}
        for variable in tf.global_variables():  # Variances of batch norms are positive.
            values[variable.initial_value] = random.uniform(0.01, 0.1, variable.shape.as_list())
        step = tf.Variable(7, name='global_step', dtype=tf.int64)
        session.run(tf.global_variables_initializer(), values)
        tf.train.Saver().save(session, os.path.join(folder, 'model.ckpt'), global_step=step)
    # With what a folder `best/` has.
    run.write(folder, run_settings.of(net=net, classes=tuple(classes), dataset=data_set),
              step=7, validation_error=0.5, checkpoint='model.ckpt-7')
