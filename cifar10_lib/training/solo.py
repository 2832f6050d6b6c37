"""A worker that trains alone: a team of one."""
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.program import devices

FLAGS = flags.FLAGS


class Solo:
    """What a training session calls on its team; `workers.team.Team` is a team of several workers.

    Args:
        cpus: number of CPU devices of its session, which share the cores.

    Attributes:
        rank: number of this worker.
        size: number of workers.
        leads: whether this is worker 0, which alone prints, validates and saves.
        signals: list of signals that stop the team.
    """

    rank, size, leads, signals = 0, 1, True, ()

    def __init__(self, cpus=1):
        self._cpus = cpus

    def agree(self, stage, facts=None, value=None):
        """Waits for all workers at a stage, and compares facts; returns worker 0's `value`."""
        del stage, facts
        return value

    def mean_losses(self, losses):
        """Means of losses over all workers: dictionary from name to float32 []."""
        return losses

    def mean_gradients(self, gradients):
        """Means of gradients over all workers: list of (gradient, variable)."""
        return gradients

    def session(self, scaffold, all_hooks):
        """The `MonitoredSession` that trains; call it when the graph is built.

        After an error of a thread that reads records, this one still saves the last step.
        """
        config = devices.session_config(FLAGS.log_device_placement)
        config.device_count['CPU'] = self._cpus
        return tf.train.MonitoredTrainingSession(
            scaffold=scaffold, hooks=all_hooks, config=config)

    def hooks(self, caught):
        """Hooks before all others; `caught` is the list of signals that this worker catches."""
        self.signals = caught
        return []

    def end(self):
        """Waits until worker 0 has saved the last step."""


ALONE = Solo()
