"""Random weights of the plain network, and checkpoints of them as TF1 code wrote them."""
import os

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.plain_net import SHAPES, logits, loss  # noqa: F401, for the tests.


def weights(seed, scale=1.0):
    """Random values of all variables: dictionary from name to float32 array."""
    random = np.random.RandomState(seed)
    return {name: (scale * random.normal(0, 1 / np.sqrt(np.prod(shape[:-1])), shape)).astype(
        np.float32) for name, shape in SHAPES.items()}


def save_checkpoint(folder):
    """Saves variables, averages with other values, and the other variables that TF1 code saved.

    Returns:
        (raw, averaged): dictionaries from the names of the variables to their values.
    """
    raw, averaged = weights(seed=1, scale=2.0), weights(seed=2, scale=2.0)
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in raw.items():
            tf.Variable(value, name=name, use_resource=False)
            tf.Variable(averaged[name], name=name + '/ExponentialMovingAverage', use_resource=False)
        tf.Variable(123.0, name='global_step', use_resource=False)
        tf.Variable(0.5, name='local3/weight_loss/avg', use_resource=False)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(folder, 'model.ckpt'), global_step=123)
    return raw, averaged
