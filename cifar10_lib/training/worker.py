"""A process that trains: which of several it is, its session, and the signals that stop it."""
import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10_lib.program import console, devices

# Open MPI and Slurm pass SIGUSR1 on, and let the processes live. Windows has the first two, and
# sends SIGBREAK if the console closes.
SIGNALS = tuple(getattr(signal, name) for name in (
    'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGBREAK') if hasattr(signal, name))
_TOGETHER = 0.25  # Seconds within which signals count as one: `timeout`, for one, sends two.

Gradient = tuple[tf.Tensor | None, tf.Variable]  # `compute_gradients` returns such pairs.


class Session(tf.train.SingularMonitoredSession):
    """Ends after an error of a thread, saves the last step, and raises the error when it closes.

    `MonitoredTrainingSession` would take the error of a lost network share or worker for a
    preemption, start again from the latest checkpoint, and lose the steps since.
    """

    def run(self, *args, **options):
        try:
            return super().run(*args, **options)
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as error:
            if self.should_stop():  # A thread has failed while the step waited for it.
                raise tf.errors.OutOfRangeError(None, None, 'The input ended') from error
            raise

    def should_stop(self):
        try:
            return super().should_stop()
        except Exception:  # `close` raises it again.
            return True


@dataclasses.dataclass
class Worker:
    """A process that trains alone; `workers.connected.ConnectedWorker` is one of several."""

    rank: int = 0  # Index of this worker. Worker 0 alone prints, validates and saves.
    size: int = 1  # Number of workers.
    local_rank: int = 0  # Index of this worker among those on its machine.
    step_seconds: float = math.inf  # Seconds that a step may take.
    caught: list[int] = dataclasses.field(default_factory=list)  # The signals that it has caught.

    def barrier(self, stage: str, must_match: Mapping[str, Any] | None = None,
                value: Any = None) -> Any:
        """Waits for all workers at a stage, and compares facts; returns worker 0's `value`."""
        del stage, must_match
        return value

    def mean_losses(self, losses: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Means of losses over all workers, float32 []."""
        return losses

    def mean_gradients(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Means of gradients over all workers."""
        return gradients

    def session(self, scaffold: tf.train.Scaffold, hooks: Sequence[tf.train.SessionRunHook],
                log_device_placement: bool = False) -> Session:
        """The session that trains; call it when the graph is built."""
        return Session(scaffold=scaffold, hooks=hooks,
                       config=devices.session_config(log_device_placement))

    def start(self, session: tf.Session) -> None:
        """Gives all workers the values that worker 0 initialised or restored."""

    def step(self) -> tf.train.SessionRunArgs | None:
        """What each step of several workers also runs.

        The fetch `stop` is above 0 if any worker has caught a signal.
        """

    def end(self) -> None:
        """Waits until worker 0 has saved the last step."""


@contextlib.contextmanager
def signals_handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handles `SIGNALS` by a function (number, frame) in this context, in the main thread.

    A signal that the process ignores from its start, as with `nohup` or in the background of a
    script, stays ignored.
    """
    earlier = {number: signal.signal(number, handler) for number in SIGNALS
               if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler_ in earlier.items():
            signal.signal(number, handler_)


_interrupts: list[int] = []  # What `_defer` has caught.


def _defer(number, frame):
    _interrupts.append(number)
    if len(_interrupts) > 1:
        signal.default_int_handler(number, frame)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """In this context, Ctrl-C waits for `raise_interrupt`; a second one does not.

    TensorFlow swallows a KeyboardInterrupt in some parts of building a graph: the run would
    continue.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _interrupts.clear()
    signal.signal(signal.SIGINT, _defer)
    try:
        yield
        raise_interrupt()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_interrupt() -> None:
    """Ends the waiting of `interrupts_deferred`: raises KeyboardInterrupt if it has caught one."""
    if signal.getsignal(signal.SIGINT) is _defer:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if _interrupts:
            raise KeyboardInterrupt


@contextlib.contextmanager
def signals_caught(found: list[int]) -> Iterator[None]:
    """Adds the number of the first signal to the list `found`; a second one ends the process.

    A second SIGHUP does not: the system, the shell and `console` all send it. Python allows
    handlers only in the main thread; elsewhere, nothing is caught. It runs them after a step, not
    during one.
    """
    first_time = 0.0

    def catch(number, _):
        nonlocal first_time
        if not found:
            found.append(number)
            first_time = time.monotonic()
            console.note('')
            console.note('Stopping after this step; interrupt again to stop without saving.')
        elif number != console.HANGUP and time.monotonic() - first_time > _TOGETHER:
            os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with signals_handled(catch):
        yield
