"""The one hook of a training session, which everything after a step goes through."""
import time

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10_lib.runs import checkpoints


class Run(tf.train.SessionRunHook):
    """Counts the steps, runs the actions that are due after each, and stops after the last one.

    Every run of the session is a step. Anything else uses `run_step_fn`, which bypasses hooks.

    All steps without summaries fetch the same: for new fetches, TensorFlow would optimise the whole
    graph again.

    Attributes:
        folder: path of the run's folder.
        pace: the `Pace`.
        variables: list of the variables in a checkpoint.
        team: the `solo.Solo` or `team.Team`.
        fetches: dictionary of the tensors that each step fetches, float []: `training_loss` and, if
            known, `training_error`, the fraction of wrong predictions, and `learning_rate`. Empty,
            like the next two, for a worker that does not lead.
        summary_op: string [], which steps with summaries fetch, too.
        writer: the `events.Writer` of the run's folder.
        actions: list of (function from the number of steps done to whether the action is due,
            `actions.Action`).
        caught: list of the signals that this worker has caught; see `signals.caught`.
        steps_done: number of steps over all starts.
        is_good: whether a validation has reached `--stop_at`.
        is_stopped: whether a worker has caught a signal; all stop after the same step.
        values: the latest step's values of `fetches`, {name: number}.
        summary, metadata: its summaries, bytes or None, and its `tf.RunMetadata`.
        since_row: list of the values of each step since the last row of metrics.
        epoch_errors: list of the training errors since the epoch began, or this start if later.
        start: (number of steps, `time.perf_counter()`) at the start or, once this start's first
            step is done, after it: that step includes the set-up.
    """

    def __init__(self, folder, pace, variables, team):
        self.folder, self.pace, self.variables, self.team = folder, pace, variables, team
        self.fetches, self.summary_op, self.writer = {}, None, None
        self.actions, self.caught, self.since_row, self.epoch_errors = [], [], [], []
        self.values, self.is_good, self.is_stopped = {}, False, False

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.team.start(session)
        self.steps_done = self._first_step = int(session.run(self._global_step))
        self.start = self.steps_done, time.perf_counter()
        for _, action in self.actions:
            action.start(session)
        # Several workers learn of a signal in a step, all in the same one.
        self.is_stopped = self.team.worker.size == 1 and len(self.caught) > 0
        if self._is_over():
            coord.request_stop()

    def before_run(self, run_context):
        for_team, feeds, options = self.team.step(self.caught)
        fetches = {**self.fetches, **for_team}
        if self.summary_op is not None and self.pace.summarises(self.steps_done + 1):
            fetches['summary'] = self.summary_op
        if self.pace.traces(self.steps_done + 1):
            options.trace_level = tf.RunOptions.FULL_TRACE
        return tf.train.SessionRunArgs(fetches, feeds, options)

    def after_run(self, run_context, run_values):
        values = run_values.results
        self.is_stopped = values.pop('stop', len(self.caught)) > 0
        self.summary = values.pop('summary', None)
        self.metadata = run_values.run_metadata
        self._count(values)
        for is_due, action in self.actions:
            if is_due(self.steps_done):
                action.run(run_context.session)
        if self.steps_done == self._first_step + 1:
            self.start = self.steps_done, time.perf_counter()
        if self._is_over():
            run_context.request_stop()

    def _count(self, values):
        if self.pace.ends_epoch(self.steps_done):
            self.epoch_errors = []
        self.steps_done += 1
        self.values = values
        if self.fetches:  # Worker 0 alone writes rows, which empties the list.
            self.since_row.append(values)
        if 'training_error' in values:
            self.epoch_errors.append(values['training_error'])
        loss = values.get('training_loss', 0.0)
        if not np.isfinite(loss):
            raise self.diverged(self.steps_done - 1, f'the loss is {loss}')

    def end(self, session):
        for _, action in self.actions:
            action.end(session)

    def _is_over(self):
        # `tf.train.StopAtStepHook` makes one more step if a run resumes at its last one.
        return self.steps_done >= self.pace.max_steps or self.is_good or self.is_stopped

    def diverged(self, step, reason):
        """The exception for a loss or variable that is not finite."""
        rate = self.values.get('learning_rate', np.nan)
        latest = checkpoints.latest(self.folder, report=False)
        return FloatingPointError(
            f'Training diverged at step {step}: {reason}, at learning rate {rate:g}. '
            + (f'The last good checkpoint is {latest}: ' if latest else 'No checkpoint was saved: ')
            + 'lower --learning_rate, then run the same command again')
