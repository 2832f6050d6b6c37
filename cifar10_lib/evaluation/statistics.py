"""Batch-norm statistics of averaged weights.

The moving statistics of batch norms belong to the raw weights of the last steps. Averaged weights
have other ones, which are computed from training images without distortions, as in section 3.2 of
Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (2018). They
are stored under the names that averages of the statistics would have.
"""
import time

import tensorflow.compat.v1 as tf

import cifar10
import cifar10_input
from cifar10_lib import recipes
from cifar10_lib.evaluation import model
from cifar10_lib.nets import variables
from cifar10_lib.program import devices
from cifar10_lib.runs import checkpoints, names

# Of --batch_size. A moving statistic (momentum 0.9) then consists to 88 % of these; the rest is
# from the update before, for similar weights. ResNet-23's precision is the same with twice as many.
_BATCHES = 20
_SECONDS = 20.0  # At most, and one batch more: other workers wait for a step, see --step_timeout.


def add_averages():
    """Adds a variable for each moving statistic of the default graph, initially like it."""
    with tf.device(variables.device()), tf.variable_scope('', reuse=tf.AUTO_REUSE):
        for name, statistic in _moving(tf.global_variables()).items():
            tf.get_variable(name + names.AVERAGE, initializer=statistic.initial_value,
                            trainable=False, use_resource=True)


def _moving(found):
    """The moving statistics in a list of variables: {name: variable}."""
    return {each.op.name: each for each in found if names.is_statistic(each.op.name)}


class Statistics:
    """Keeps the statistics of a training session's averaged weights up to date.

    Does nothing for a network without batch norms, or for one that is not that of `--net`. The
    computation has its own graph and session, so it does not affect training's queues and random
    numbers. Create it before the training graph is finalized.
    """

    def __init__(self, trained):
        """Builds the graph; `trained` is the list of the variables in a checkpoint.

        Raises `errors.MissingFile` if a record file of the training set is missing.
        """
        self._step = None
        self._trained = {each.op.name: each for each in trained}
        self._averages = {}
        if not _moving(trained):
            return
        with tf.Graph().as_default() as self._graph:
            self._source = cifar10.source()
            with tf.device('/cpu:0'):
                images, _ = cifar10_input.batches(self._source, recipes.chosen().prepare)
            recipes.chosen().inference(images, training=True)
            self._update = tf.group(*tf.get_collection(tf.GraphKeys.UPDATE_OPS))
            self._variables = {each.op.name + names.AVERAGE: each for each in tf.global_variables()}
            self._loader = checkpoints.Loader(list(self._variables.values()))
            self._graph.finalize()
            moving = _moving(self._variables.values())
        if self._variables.keys() <= self._trained.keys():
            self._averages = {name + names.AVERAGE: each for name, each in moving.items()}
            self._stored = {name: self._trained[name] for name in self._averages}
            self._store = checkpoints.Loader(list(self._stored.values()))

    def update(self, session, step, caught=()):
        """Computes the statistics anew and stores them in the session, once for each step.

        Stops when a signal is added to the list `caught`.
        """
        if not self._averages or step == self._step or caught:
            return
        self._step, deadline = step, time.monotonic() + _SECONDS
        values = session.run({name: self._trained[name] for name in self._variables})
        with self._source.damage_reported(), \
                tf.Session(graph=self._graph, config=devices.session_config()) as own:
            self._loader.assign(values, self._variables, own)
            with model.threads(own):
                for _ in range(_BATCHES):
                    if caught or time.monotonic() > deadline:
                        break
                    own.run(self._update)
            values = own.run(self._averages)
        self._store.assign(values, self._stored, session)
