"""Workers that TF_CONFIG names meet at a queue of worker 0, as in TensorFlow 1."""
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from cifar10_lib import errors, quiet  # noqa: F401, it imports TensorFlow quietly.

import tensorflow.compat.v1 as tf

_LOOK_MILLISECONDS = 1000  # How often worker 0 looks whether the others can still be reached.


class Meeting:
    """See `workers.Meeting`. The chief or master, if any, is worker 0."""

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
        config = tf.ConfigProto(device_filters=[
            '/job:worker/task:0', f'/job:worker/task:{self.rank}'])
        with tf.Graph().as_default() as graph, tf.device('/job:worker/task:0/cpu:0'):
            # Each worker puts its value into one queue; worker 0 puts the list of all into the
            # other one, once for each worker. That one holds one list: when worker 0 has put its
            # own, the last one, all others have theirs, and worker 0 may end.
            values = tf.FIFOQueue(self.size, tf.string, [[]], shared_name=f'values {number}')
            lists = tf.FIFOQueue(1, tf.string, [[]], shared_name=f'lists {number}')
            text = tf.placeholder(tf.string, [])
            put_value, take_value = values.enqueue(text), values.dequeue()
            put_list, take_list = lists.enqueue(text), lists.dequeue()
            with tf.Session(self._server.target, graph, config) as session:
                session.run(put_value, {text: json.dumps([self.rank, value])})
                if self.rank > 0:
                    return json.loads(session.run(take_list))
                found = dict(json.loads(self._run(session, take_value)) for _ in range(self.size))
                ordered = [found[rank] for rank in range(self.size)]
                for _ in range(self.size):
                    self._run(session, put_list, {text: json.dumps(ordered)})
                return ordered

    def _run(self, session, operation, feeds=None):
        """Waits for others. A queue does not notice that a worker for which it waits is lost."""
        while True:
            try:
                return session.run(
                    operation, feeds, tf.RunOptions(timeout_in_ms=_LOOK_MILLISECONDS))
            except tf.errors.DeadlineExceededError:
                for name, address in zip(self.names, self._addresses):
                    host, _, port = address.rpartition(':')
                    try:
                        socket.create_connection((host, int(port)), 5.0).close()
                    except OSError as error:
                        raise tf.errors.UnavailableError(
                            None, None, f'{name}: {error.strerror or error}') from error

    def abort(self, error: BaseException) -> None:
        """The end of this process is enough: its server ends with it, which the others notice."""
