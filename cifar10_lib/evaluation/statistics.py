"""Batch-norm statistics of averaged weights.

The moving statistics of batch norms belong to the raw weights of the last steps. Averaged weights
have other ones, which are computed from training images without distortions, as in section 3.2 of
Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (2018). They
are stored under the names that averages of the moving statistics would have.
"""
import math
import time

import numpy as np
import tensorflow.compat.v1 as tf

import cifar10
from cifar10_lib import recipes
from cifar10_lib.datasets import table
from cifar10_lib.program import console, devices, errors
from cifar10_lib.runs import checkpoints, names

# With a momentum of 0.9, 20 batches replace 88 % of a moving statistic. The rest is from the
# computation before, for similar weights.
_BATCH_SIZE, _BATCHES = 64, 20


def add_averages():
    """Adds a variable for each moving statistic of the default graph: {statistic's name: variable}.

    Only if the weights have averages. They start with the statistics' own initial values.
    """
    found = {each.op.name: each for each in tf.global_variables()}
    if not any(each.op.name + names.AVERAGE in found for each in tf.trainable_variables()):
        return {}
    added = {}
    for name, each in found.items():
        if name.endswith(names.STATISTICS) and name + names.AVERAGE not in found:
            with tf.name_scope(None), tf.device(each.device):
                added[name] = tf.Variable(each.initial_value, name=name + names.AVERAGE,
                                          trainable=False, use_resource=True)
    return added


class Statistics(tf.train.CheckpointSaverListener):
    """Computes the statistics of a training session's averaged weights before they are saved.

    The computation has its own graph and session, so it does not affect training's queues and
    random numbers. A network whose moving statistics it cannot compute keeps those of the raw
    weights: one that is not that of `--net`, or that has no updates in `tf.GraphKeys.UPDATE_OPS`.
    """

    def __init__(self, averages, trained, first_step, caught=(), seconds=math.inf):
        """Builds the graph, before the training graph is finalized.

        Args:
            averages: the result of `add_averages`, not empty.
            trained: list of the variables in a checkpoint.
            first_step: number of steps of earlier starts.
            caught: list of caught signals; when one is added, a computation stops.
            seconds: limit on a computation before a checkpoint.
        """
        self._averages, self._caught, self._seconds = averages, caught, seconds
        self._step, self._images = first_step, None  # Of the last computation; 0 for none.
        self._sources = {}  # {name in the graph: variable of the training session}, if they fit.
        self._trained = {each.op.name: each for each in trained}
        self._store = checkpoints.Loader(list(averages.values()))
        recipe = recipes.chosen(training=True)
        with tf.Graph().as_default() as self._graph:
            self._pixels = tf.placeholder(tf.uint8, [_BATCH_SIZE, table.IMAGE_BYTES])
            try:
                with tf.device('/cpu:0'):
                    images = recipe.prepare(self._pixels)
                recipe.inference(images)
            except (TypeError, ValueError):  # It requires another batch size, for one.
                return
            updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
            self._update = tf.group(*updates)
            self._network = {each.op.name: each for each in tf.global_variables()}
            self._loader = checkpoints.Loader(list(self._network.values()))
            self._graph.finalize()
        sources = {name: name + names.AVERAGE * each.trainable
                   for name, each in self._network.items()}
        if updates and averages.keys() <= sources.keys() and (
                set(sources.values()) <= self._trained.keys()):
            self._sources = {name: self._trained[source] for name, source in sources.items()}

    def before_save(self, session, global_step_value):
        self.update(session, global_step_value, self._seconds)

    def update(self, session, step, seconds=math.inf):
        """Brings the statistics up to date, unless that was done at this step before.

        Stops with what it has so far when a signal is caught, or after `seconds`. If it cannot
        start or fails, it keeps them; at first, they become those of the raw weights.
        """
        if step == self._step:
            return
        start = self._averages if self._step and self._sources else self._trained
        values = session.run({**self._sources, **{name: start[name] for name in self._averages}})
        if self._sources and seconds > 0 and not self._caught:
            self._step = step
            deadline = time.monotonic() + seconds
            try:
                if self._images is None:  # Once, because the files may be replaced.
                    self._images = cifar10.source().sample(_BATCHES * _BATCH_SIZE)
                with tf.Session(graph=self._graph, config=devices.session_config()) as own:
                    self._loader.assign(values, self._network, own)
                    for first in range(_BATCHES):
                        if self._caught or time.monotonic() > deadline:
                            break
                        own.run(self._update, {self._pixels: self._images[first::_BATCHES]})
                    found = own.run({name: self._network[name] for name in self._averages})
                if not all(np.isfinite(each).all() for each in found.values()):
                    raise ValueError('they are not finite')
                values = found
            except (OSError, LookupError, ValueError, tf.errors.OpError) as error:  # Other files.
                console.line('The statistics of the averaged weights were not computed: '
                             f'{errors.one_line(error)}.')
        self._store.assign(values, self._averages, session)
