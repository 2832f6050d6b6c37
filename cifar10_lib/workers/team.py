"""Several workers that train together: the same values at the start, and the same last step."""
import contextlib
import signal

import tensorflow.compat.v1 as tf
from absl import flags

from cifar10_lib.program import devices
from cifar10_lib.training import solo
from cifar10_lib.workers import collectives
from cifar10_lib.workers import meeting

FLAGS = flags.FLAGS


@contextlib.contextmanager
def joined(cluster, facts):
    """Yields this worker's team once all workers have met; `solo.ALONE` if it is the only one.

    Args:
        cluster: the `cluster.Cluster`.
        facts: dictionary from name to JSON value, which must be the same for all workers.

    Raises:
        app.UsageError, connection.Lost: workers are missing, or do not agree; see `meeting.join`.
        ConnectionError, TimeoutError: a worker failed; see `collectives.failures_of`.
    """
    if cluster.worker.size == 1:
        yield solo.ALONE
        return
    with meeting.join(cluster, facts) as peers, collectives.failures_of(peers):
        yield Team(cluster.worker, peers)


class Team(solo.Solo):
    """A team of several workers; see `solo.Solo`. Create it before the graph."""

    def __init__(self, worker, peers):
        """`worker` is this `worker.Worker`, `peers` the `watch.Meeting`."""
        super().__init__()
        self.worker = worker
        self.signals = []
        self._peers = peers
        self._gpus = devices.visible_gpus()
        self._layout = []

    def barrier(self, stage, must_match=None, value=None):
        """Waits for all workers at a stage; see `watch.Meeting.barrier`."""
        return self._peers.barrier(stage, must_match, value)

    def mean_losses(self, losses):
        """Also averages the collection `errors`.

        The same reduction informs all workers of a signal that one of them caught.
        """
        errors = tf.get_collection_ref('errors')
        self._ask_stop = tf.placeholder_with_default(0.0, [], name='stop')
        means = collectives.mean_losses(
            {**losses, 'error': errors[0], 'stop': self._ask_stop}, self.worker)
        self._asked_stop, errors[0] = means['stop'], means['error']
        return {name: means[name] for name in losses}

    def mean_gradients(self, gradients):
        self._layout = collectives.layout(gradients)
        return collectives.all_reduce_mean(gradients, self.worker, FLAGS.bucket_mb, FLAGS.overlap,
                                           FLAGS.compress, on_gpu=self._gpus > 0)

    def session(self, scaffold, all_hooks):
        """Starts this worker's server, and returns a session on it.

        Not a `MonitoredTrainingSession`, which would take a lost worker for a preemption and retry
        forever.
        """
        config = devices.session_config(FLAGS.log_device_placement)
        collectives.configure(config, self.worker, self._gpus)
        self._server = collectives.serve(self._peers, config)
        return tf.train.SingularMonitoredSession(
            scaffold=scaffold, hooks=all_hooks, master=self._server.target, config=config)

    def hooks(self, caught):
        return [_TogetherHook(self, self._ask_stop, self._asked_stop, caught)]

    def await_servers(self):
        """Waits until all servers listen, and checks that this worker can reach them."""
        self.barrier('the start', {'gradients': self._layout})
        collectives.reach_all(self._peers)

    def end(self):
        """Waits until worker 0 has saved the last step, and leaves."""
        self.barrier('the end')
        self._peers.leave()


class _TogetherHook(tf.train.SessionRunHook):
    """Gives all workers the values that worker 0 initialised or restored, and stops all workers
    after the same step when one of them caught a signal."""

    def __init__(self, team, ask, asked, caught):
        self._team = team
        self._ask = ask
        self._asked = asked
        self._caught = caught

    def begin(self):
        self._broadcast = collectives.broadcast(tf.global_variables(), self._team.worker)

    def after_create_session(self, session, coord):
        self._team.await_servers()  # Before the first step, which has a time limit.
        session.run(self._broadcast, options=collectives.step_options())

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._asked, {self._ask: float(bool(self._caught))},
                                       options=collectives.step_options())

    def after_run(self, run_context, run_values):
        if run_values.results > 0:
            # Not in `caught`: a signal that this worker itself gets from now on is its first.
            self._team.signals.append(signal.SIGTERM)
            run_context.request_stop()
