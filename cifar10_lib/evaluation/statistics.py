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
    with tf.name_scope(None):
        return {name: _like(each, name + names.AVERAGE) for name, each in found.items()
                if names.is_statistic(name) and name + names.AVERAGE not in found}


def _like(variable, name):
    """A new variable with the same initial value, on the same device."""
    with tf.device(variable.device):
        return tf.Variable(variable.initial_value, name=name, trainable=False, use_resource=True)


class Statistics:
    """Keeps the statistics of a training session's averaged weights up to date.

    The computation has its own graph and session, so it does not affect training's queues and
    random numbers. A network whose moving statistics it cannot compute keeps those of the raw
    weights: one that is not that of `--net`, or that has no updates in `tf.GraphKeys.UPDATE_OPS`.
    Create it before the training graph is finalized.
    """

    def __init__(self, averages, trained, first_step):
        """Builds the graph.

        Args:
            averages: the result of `add_averages`.
            trained: list of the variables in a checkpoint.
            first_step: number of steps of earlier starts.
        """
        self._averages = averages
        self._step, self._is_set = first_step, first_step > 0
        self._images = None
        if averages:
            self._trained = {each.op.name: each for each in trained}
            self._store = checkpoints.Loader(list(averages.values()))
            self._build()

    def _build(self):
        """Builds the network of `--net`; `_sources` is empty if it is not the one that trains."""
        recipe, self._sources = recipes.chosen(training=True), {}
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
        if updates and self._averages.keys() <= sources.keys() and (
                set(sources.values()) <= self._trained.keys()):
            self._sources = {name: self._trained[source] for name, source in sources.items()}

    def update(self, session, step, caught=(), seconds=math.inf):
        """Brings the statistics up to date, unless that was done at this step before.

        Stops with what it has so far when a signal is in the list `caught`, or after `seconds`. If
        it cannot start or fails, it keeps them; at first, they become those of the raw weights.
        """
        if not self._averages or step == self._step:
            return
        start = self._averages if self._is_set and self._sources else self._trained
        values = session.run({**self._sources, **{name: start[name] for name in self._averages}})
        if self._sources and seconds > 0 and not caught:
            self._step, self._is_set = step, True
            values = self._computed(values, caught, time.monotonic() + seconds)
        self._store.assign(values, self._averages, session)

    def _computed(self, values, caught, deadline):
        """The statistics that fit the weights; both are in `values`, {name: array}."""
        try:
            if self._images is None:
                self._images = cifar10.source().sample(_BATCHES * _BATCH_SIZE)
            with tf.Session(graph=self._graph, config=devices.session_config()) as session:
                self._loader.assign(values, self._network, session)
                for first in range(_BATCHES):
                    if caught or time.monotonic() > deadline:
                        break
                    session.run(self._update, {self._pixels: self._images[first::_BATCHES]})
                found = session.run({name: self._network[name] for name in self._averages})
            if all(np.isfinite(each).all() for each in found.values()):
                return found
            reason = 'they are not finite'
        except (OSError, ValueError, tf.errors.OpError) as error:  # Files that were removed.
            reason = errors.one_line(error)
        console.line(f'The statistics of the averaged weights were not computed: {reason}.')
        return values
