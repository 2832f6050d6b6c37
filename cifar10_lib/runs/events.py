"""Event files, from which TensorBoard draws curves: written by `Writer`, read by `read_scalars`."""
import glob
import os
import socket
import time

import tensorflow.compat.v1 as tf
from google.protobuf import message

from cifar10_lib.program import console, files
from cifar10_lib.runs import names


class Writer:
    """Writes an event file, like `tf.summary.FileWriter`, but raises an error if that fails.

    `FileWriter` silently drops events if it cannot open its file, and several that do not fit on
    the disk. Also, two that start in the same second write into the same file.

    All methods raise `tf.errors.OpError`: a `NotFoundError` if the folder was removed, a
    `PermissionDeniedError` if it cannot be written, a `ResourceExhaustedError` if the disk is full.
    """

    def __init__(self, folder):
        """Creates the file in a folder."""
        self._folder = folder
        self._open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def _open(self):
        name = f'{names.EVENTS}.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}'
        self._path = os.path.join(self._folder, name)
        self._file = tf.io.TFRecordWriter(self._path)
        self._write(file_version='brain.Event:2')

    def _write(self, step=0, **fields):
        self._file.write(
            tf.Event(wall_time=time.time(), step=step, **fields).SerializeToString())

    def _add(self, step=0, **fields):
        if not os.path.exists(self._path):  # Somebody removed it: the next events get a new file.
            self._open()
        self._write(step, **fields)

    def add_summary(self, summary, step):
        """Adds a `tf.Summary`, which may be serialised."""
        self._add(step, summary=(
            tf.Summary.FromString(summary) if isinstance(summary, bytes) else summary))

    def add_graph(self, graph):
        """Adds a `tf.Graph`."""
        self._add(graph_def=graph.as_graph_def(add_shapes=True).SerializeToString())

    def add_start(self, step):
        """Adds the start of a session, so that TensorBoard drops earlier events of later steps."""
        self._add(step, session_log=tf.SessionLog(status=tf.SessionLog.START))

    def add_run_metadata(self, metadata, tag, step):
        """Adds the `tf.RunMetadata` of a traced step."""
        self._add(step, tagged_run_metadata={
            'tag': tag, 'run_metadata': metadata.SerializeToString()})

    def flush(self):
        """Writes all events to the file, for TensorBoard and in case this process is killed."""
        self._file.flush()


def read_scalars(folder, tag):
    """A curve from the event files in a folder, {step: float}, sorted by step.

    Later files replace values of earlier ones. A damaged file counts up to the damage, which a line
    reports. The last event may be incomplete, while a process writes the file.
    """
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f'{names.EVENTS}.*'))):
        try:
            with files.regular_file(path):  # TensorFlow would wait for the writer of a pipe.
                for event in tf.train.summary_iterator(path):
                    for value in event.summary.value:
                        if value.tag == tag:
                            found[event.step] = value.simple_value
        except (tf.errors.OpError, message.DecodeError) as error:
            if 'truncated record' not in str(error):
                console.line(f'{path} is damaged; using the part before the damage.')
    return dict(sorted(found.items()))
