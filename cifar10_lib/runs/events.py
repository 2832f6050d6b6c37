"""Event files: writes them for an evaluation, and reads curves from them."""
import collections
import glob
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from google.protobuf import message

from cifar10_lib.program import console, files


def writer(folder: str, graph: tf.Graph, run: Mapping[str, Any],
           is_first: bool) -> tf.summary.FileWriter:
    """The event file of an evaluation, in a folder that is created if necessary.

    Args:
        folder: path of the folder.
        graph: the graph to write.
        run: content of the `run.json` of the run that is evaluated.
        is_first: whether this process has written no figures yet. If it has, a trainer has started
            again: TensorBoard drops the earlier figures after the step from which it resumed, or
            all with --restart.

    Raises `OSError` if the folder cannot be written.
    """
    with files.explain_full_disk(folder):  # `FileWriter` reports no errors.
        files.own_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 20))  # The graph and the summaries take less.
            probe.flush()
    made = tf.summary.FileWriter(folder, graph, filename_suffix=f'.{os.getpid()}')
    if not is_first:
        first_step = run.get('settings', {}).get('first_step', 0)
        if first_step:
            first_step += 1
        made.add_session_log(tf.SessionLog(status=tf.SessionLog.START), first_step)
    return made


def read_curves(folder: str) -> dict[str, dict[int, float]]:
    """All curves in the event files of a folder: {tag: {step: figure}}, sorted by step.

    Later files replace values of earlier ones; `SessionLog.START` removes them from its step on, as
    in TensorBoard. A damaged file counts up to the damage, which a line reports. The last event may
    be incomplete, while a process writes the file.
    """
    curves: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), 'events.out.tfevents.*'))):
        try:
            for event in tf.train.summary_iterator(path):
                if event.session_log.status == tf.SessionLog.START:
                    for tag, curve in curves.items():
                        curves[tag] = {step: curve[step] for step in curve if step < event.step}
                for value in event.summary.value:
                    if value.HasField('simple_value'):
                        curves[value.tag][event.step] = value.simple_value
        except (tf.errors.OpError, message.DecodeError) as error:
            if 'truncated record' not in str(error):
                console.line(f'{path} is damaged; using the part before the damage.')
    return {tag: dict(sorted(curve.items())) for tag, curve in curves.items() if curve}
