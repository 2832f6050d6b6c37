"""Workers that TF_CONFIG names meet at a queue of worker 0, as in TensorFlow 1."""
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from cifar10_lib import errors
from classification_lib import interfaces

import tensorflow.compat.v1 as tf

_LOOK_SECONDS = 1.0  # How often worker 0 looks whether the others can still be reached.
_POLL_SECONDS = 0.01


class Meeting:
    """How workers meet: see `mpi.Meeting`. The chief or master, if any, is worker 0."""

    share_a_console = False
    patience = float('inf')  # They may be started by hand, one after another.

    def __init__(self) -> None:
        """Raises `errors.UserError` if TF_CONFIG is not valid."""
        self.rank, self.size = 0, 1
        self._gathered = itertools.count()
        try:
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            cluster = resolver.cluster_spec().as_dict()
            tasks = {(job, index): address for job in ('chief', 'master', 'worker')
                     for index, address in enumerate(cluster.get(job, []))}
            self._addresses = list(tasks.values())
            if len(tasks) > 1:  # Some platforms set it for a single one.
                self.size = len(tasks)
                self.rank = list(tasks).index((resolver.task_type, resolver.task_id))
        except (AttributeError, TypeError, ValueError) as error:
            raise errors.UserError(
                f'TF_CONFIG is {os.environ["TF_CONFIG"]}; expected {{"cluster": {{"worker": '
                '["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, with one of the '
                'workers as the task') from error
        self.names = [f'worker {rank} ({each})' for rank, each in enumerate(self._addresses)]

    @contextlib.contextmanager
    def addresses(self) -> Iterator[list[str]]:
        yield self._addresses

    def use(self, server: tf.train.Server) -> None:
        self._server = server

    def gather(self, value: Any) -> list[Any]:
        number = next(self._gathered)
        # A session with a lost worker would wait for half a minute.
        interfaces.connect(self.names, self._addresses)
        config = tf.ConfigProto(device_filters=[
            '/job:worker/task:0', f'/job:worker/task:{self.rank}'])
        with tf.Graph().as_default() as graph, tf.device('/job:worker/task:0/cpu:0'):
            # Each worker puts its value into one queue. Worker 0 puts the list of all into the
            # other one, once for each of the others, and waits until all have taken it: then it may
            # end. The session is that of a worker's own server, which notices the loss of worker 0;
            # one of worker 0's server would wait for it forever.
            values = tf.FIFOQueue(self.size, tf.string, [[]], shared_name=f'values {number}')
            lists = tf.FIFOQueue(self.size, tf.string, [[]], shared_name=f'lists {number}')
            texts = tf.placeholder(tf.string, [None])
            put_values, take_values = values.enqueue_many(texts), values.dequeue_many(self.size)
            put_lists, take_list = lists.enqueue_many(texts), lists.dequeue()
            counts = values.size(), lists.size()
            # Not closed after an error: with a lost worker, that may wait forever.
            self._session = tf.Session(self._server.target, graph, config)
            self._session.run(put_values, {texts: [json.dumps([self.rank, value])]})
            if self.rank == 0:
                self._wait(counts[0], self.size)
                found = dict(json.loads(text) for text in self._session.run(take_values))
                result = [found[rank] for rank in range(self.size)]
                self._session.run(put_lists, {texts: [json.dumps(result)] * (self.size - 1)})
                self._wait(counts[1], 0)
            else:
                result = json.loads(self._session.run(take_list))
            self._session.close()
            return result

    def _wait(self, count, expected):
        """Waits until a queue holds as many values as expected. A queue does not notice that a
        worker is lost."""
        last_look = time.monotonic()
        while self._session.run(count) != expected:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() > last_look + _LOOK_SECONDS:
                interfaces.connect(self.names, self._addresses)
                last_look = time.monotonic()

    def abort(self, error: BaseException) -> None:
        """Ends this process, which the others notice as its server ends with it.

        If another one is lost, at once: TensorFlow may wait forever for it to close a session.
        """
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # Closed streams.
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(error.code)
