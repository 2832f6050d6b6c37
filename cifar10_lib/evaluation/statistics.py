"""Batch-norm statistics of averaged weights.

The moving statistics of batch norms belong to the raw weights of the last steps. Averaged weights
have other ones, which are computed from training images without distortions, as in section 3.2 of
Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization" (2018). They
replace the averages of the moving statistics, which score less: docs/results.md has the figures.
"""
import dataclasses
import math
import time
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib import recipes
from cifar10_lib.datasets import table
from cifar10_lib.datasets.image_source import Source
from cifar10_lib.program import console, devices, errors
from cifar10_lib.runs import checkpoints, names

# With a momentum of 0.9, 20 batches replace 88 % of a moving statistic. The rest is from the
# computation before, for similar weights.
_MIN_BATCHES, _MIN_IMAGES = 20, 1280


class Statistics:
    """Computes the statistics of a training session's averaged weights.

    The computation has its own graph and session, so it does not affect training's queues and
    random numbers. Create it before the training graph is finalized.
    """

    def __init__(self, source: Source, recipe: recipes.Recipe, variables: Sequence[tf.Variable],
                 first_step: int, caught: Collection[int] = (), seconds: float = math.inf) -> None:
        """Reads the images, and builds the graph.

        Args:
            source: the training images.
            recipe: its network has batch norm.
            variables: those of the training session.
            first_step: number of steps of earlier starts.
            caught: the caught signals; when one is added, a computation stops.
            seconds: the limit on a computation.

        Raises `errors.MissingFile` if a record file is missing.
        """
        self._caught, self._seconds = caught, seconds
        self._last_step = first_step  # The step of the last computation.
        self._batches = max(_MIN_BATCHES, _MIN_IMAGES // source.batch_size)
        # Read now, because the files may be removed or replaced later.
        self._images = dataclasses.replace(source, shard=(0, 1)).sample(
            self._batches * source.batch_size)
        with tf.Graph().as_default() as self._graph:
            self._pixels = tf.placeholder(
                tf.uint8, [source.batch_size, table.HEIGHT, table.WIDTH, table.DEPTH])
            with tf.device('/cpu:0'):
                images = recipe.prepared(self._pixels)
            recipe.logits(images, source.num_classes, training=True)
            self._update = tf.group(*tf.get_collection(tf.GraphKeys.UPDATE_OPS))
            self._network = {each.op.name: each for each in tf.global_variables()}
            self._loader = checkpoints.Loader(list(self._network.values()))
        trained = {each.op.name: each for each in variables}
        # The variables of the training session, by the names that they have in this graph.
        self._averages = {name: trained[name + names.AVERAGE] for name in self._network
                          if name + names.AVERAGE in trained}
        self._sources = {name: self._averages.get(name, trained[name]) for name in self._network}
        self._computed = {name: each for name, each in self._averages.items()
                          if name.endswith(names.STATISTICS)}
        self._store = checkpoints.Loader(list(self._computed.values()))

    def update(self, session: tf.Session, step: int) -> None:
        """Brings the statistics up to date, unless that was done at this step before.

        Stops with what it has so far when a signal is caught, or when time is up. If it fails, the
        averages of the moving statistics remain, and a line says so.
        """
        if step == self._last_step or self._caught:
            return
        self._last_step = step
        values = session.run(self._sources)
        try:
            found = self._compute(values)
        except tf.errors.OpError as error:  # The memory of a GPU may be too small for both graphs.
            console.line('The statistics of the averaged weights were not computed: '
                         f'{errors.one_line(error)}.')
            return
        if all(np.isfinite(each).all() for each in found.values()):
            self._store.assign(found, self._computed, session)

    def _compute(self, values):
        """The statistics for these values of the network, {name: array}."""
        deadline = time.monotonic() + self._seconds
        with tf.Session(graph=self._graph, config=devices.session_config()) as session:
            self._loader.assign(values, self._network, session)
            for first in range(self._batches):
                if self._caught or time.monotonic() > deadline:
                    break
                session.run(self._update, {self._pixels: self._images[first::self._batches]})
            return session.run({name: self._network[name] for name in self._computed})
