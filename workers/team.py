"""A training session of several workers: the same values at the start, and the same last step."""
import signal

import tensorflow.compat.v1 as tf

from training import hooks
from workers import collectives


class Team:
    """What `training.session` needs to know of the other workers.

    Make it while the graph is built: reductions are among its operations.

        team = Team(group, peers)
        losses = team.mean_losses(losses)
        team.serve(config, local_rank, gpus)
        with training.session(losses['total_loss'], examples_per_step, team=team) as session:

    Attributes:
        leads: whether this is worker 0, which alone prints and writes.
        master: target for sessions, after `serve`.
        config: settings of the session, after `serve`.
        signals: list of the signal that stops all of them, for those that got none themselves.
    """

    def __init__(self, group, peers):
        """Makes the team.

        Args:
            group: a `collectives.Group` of several workers.
            peers: the `watch.Meeting`.
        """
        self.leads = group.rank == 0
        self.signals = []
        self._group = group
        self._peers = peers

    def mean_losses(self, losses):
        """Means over all workers; with them goes word of a signal that one of them got.

        Args:
            losses: dictionary from name to number [].

        Returns:
            Dictionary from name to float32 [].
        """
        self._ask = tf.placeholder_with_default(0.0, [], name='stop')
        means = collectives.mean_losses({**losses, 'stop': self._ask}, self._group)
        self._asked = means.pop('stop')
        return {name: means[name] for name in losses}

    def serve(self, config, local_rank=0, gpus=0):
        """Starts this worker's server; see `collectives.configure` and `collectives.serve`."""
        collectives.configure(config, self._group, local_rank, gpus)
        self.config = config
        self.master = collectives.serve(self._peers, config).target

    def hooks(self, caught):
        """Hooks that go before all others.

        Args:
            caught: list, to which the first signal that this worker gets is appended.
        """
        return [_BroadcastHook(self._group, self._peers),
                _StopTogetherHook(self._ask, self._asked, caught, self.signals)]

    def hooks_after(self, examples_per_step, examples_per_epoch, validate_every):
        """Hooks that go after all others.

        Args:
            examples_per_step: number of images that a step takes, over all workers.
            examples_per_epoch: number of training images.
            validate_every: worker 0 validates every so many epochs; 0 is never.
        """
        if not validate_every:
            return []
        return [_AwaitValidationHook(
            self._peers, examples_per_step, validate_every * examples_per_epoch)]

    def end(self):
        """Waits until worker 0 has saved the last step, and parts."""
        self._peers.agree('the end')
        self._peers.leave()


class _BroadcastHook(tf.train.SessionRunHook):
    """Gives all workers the values that worker 0 has made or restored."""

    def __init__(self, group, peers):
        self._group = group
        self._peers = peers

    def begin(self):
        self._broadcast = collectives.broadcast(tf.global_variables(), self._group)

    def after_create_session(self, session, coord):
        self._peers.agree('the start')  # Which may take longer than a step.
        session.run(self._broadcast, options=collectives.step_options())


class _StopTogetherHook(tf.train.SessionRunHook):
    """Stops all workers after the same step when one of them got a signal."""

    def __init__(self, ask, asked, caught, signals):
        self._ask = ask
        self._asked = asked
        self._caught = caught
        self._signals = signals

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._asked, {self._ask: float(bool(self._caught))},
                                       options=collectives.step_options())

    def after_run(self, run_context, run_values):
        if run_values.results > 0:
            # Not in `caught`: a signal that this worker gets by itself now is its first.
            self._signals.append(signal.SIGTERM)
            run_context.request_stop()


class _AwaitValidationHook(hooks.StepHook):
    """Waits, as long as it takes, where worker 0 validates: a step has a time limit."""

    def __init__(self, peers, examples_per_step, every):
        self._peers = peers
        self._examples_per_step = examples_per_step
        self._every = every

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if hooks.completes(self.step, self._examples_per_step, self._every):
            self._peers.agree('validated')
