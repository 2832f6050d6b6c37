"""Which of several processes this is; by default, the only one."""
import math

import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.program import devices

FLAGS = flags.FLAGS


class Session(tf.train.SingularMonitoredSession):
    """Ends after an error of a thread, saves the last step, and raises the error when it closes.

    Not a `MonitoredTrainingSession`: that takes the error of a lost network share or worker for a
    preemption, and starts again from the latest checkpoint, without the steps since.
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


class Worker:
    """A process that trains, alone or as one of several; this class trains alone.

    `workers.connected.ConnectedWorker` is one of several.

    Attributes:
        rank: int, the index of this worker, from 0.
        size: int, the number of workers.
        local_rank: int, the index of this worker among those on its machine, from 0.
        step_seconds: float, the seconds that a step may take.
    """

    step_seconds = math.inf

    def __init__(self, rank=0, size=1, local_rank=0):
        self.rank, self.size, self.local_rank = rank, size, local_rank

    @property
    def leads(self):
        """Whether this is worker 0, which alone prints, validates and saves."""
        return self.rank == 0

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

    def session(self, scaffold, hooks):
        """The `Session` that trains; call it when the graph is built."""
        return Session(scaffold=scaffold, hooks=hooks,
                       config=devices.session_config(FLAGS.log_device_placement))

    def start(self, session):
        """Gives all workers the values that worker 0 initialised or restored."""

    def step(self, caught):
        """What each step fetches and feeds for the workers, and its options: `SessionRunArgs`.

        `caught` is the list of signals that this worker has caught. The fetch `stop`, if there is
        one, is above 0 if any worker has caught one.
        """
        del caught
        return tf.train.SessionRunArgs({}, {}, tf.RunOptions())

    def end(self):
        """Waits until worker 0 has saved the last step."""
