"""A worker that trains alone: a team of one."""
import math

import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.program import devices
from cifar10_lib.training import worker as worker_

FLAGS = flags.FLAGS


class Session(tf.train.SingularMonitoredSession):
    """Ends after an error of a thread, saves the last step, and raises the error when it closes.

    A `MonitoredTrainingSession` takes the error of a lost network share or worker for a preemption,
    and starts again from the latest checkpoint, without the steps since.
    """

    def run(self, *args, **options):
        try:
            return super().run(*args, **options)
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            if self.should_stop():  # A thread's, while the step waited for it.
                raise tf.errors.OutOfRangeError(None, None, 'The input ended') from error
            raise

    def should_stop(self):
        try:
            return super().should_stop()
        except Exception:  # `close` raises it again.
            return True


class Solo:
    """What a training session calls on its team; `workers.team.Team` is a team of several workers.

    Args:
        cpus: number of CPU devices of its session, which share the cores.

    Attributes:
        worker: which `worker.Worker` this is.
        step_seconds: float, the seconds that a step may take.
    """

    worker = worker_.Worker()
    step_seconds = math.inf

    def __init__(self, cpus=1):
        self._cpus = cpus

    def barrier(self, stage, must_match=None, value=None):
        """Waits for all workers at a stage, and compares facts; returns worker 0's `value`."""
        del stage, must_match
        return value

    def mean_losses(self, losses):
        """Means of losses over all workers: dictionary from name to float32 []."""
        return losses

    def mean_gradients(self, gradients):
        """Means of gradients over all workers: list of (gradient, variable)."""
        return gradients

    def session(self, scaffold, all_hooks):
        """The `SingularMonitoredSession` that trains; call it when the graph is built."""
        config = devices.session_config(FLAGS.log_device_placement)
        config.device_count['CPU'] = self._cpus
        return Session(scaffold=scaffold, hooks=all_hooks, config=config)

    def start(self, session):
        """Gives all workers the values that worker 0 initialised or restored."""

    def step(self, caught):
        """What each step fetches and feeds for the team, and its options: `SessionRunArgs`.

        `caught` is the list of signals that this worker has caught. The fetch `stop`, if there is
        one, is above 0 if any worker has caught one.
        """
        del caught
        return tf.train.SessionRunArgs({}, {}, tf.RunOptions())

    def end(self):
        """Waits until worker 0 has saved the last step."""


ALONE = Solo()
