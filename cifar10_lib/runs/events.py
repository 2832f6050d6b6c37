"""Reads curves from event files, which `tf.summary.FileWriter` writes."""
import glob
import os

import tensorflow.compat.v1 as tf
from google.protobuf import message

from cifar10_lib.program import console


def read_scalars(folder, tag):
    """A curve from the event files in a folder, {step: float}, sorted by step.

    Later files replace values of earlier ones; `SessionLog.START` removes them from its step on, as
    in TensorBoard. A damaged file counts up to the damage, which a line reports. The last event may
    be incomplete, while a process writes the file.
    """
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), 'events.out.tfevents.*'))):
        try:
            for event in tf.train.summary_iterator(path):
                if event.session_log.status == tf.SessionLog.START:
                    found = {step: value for step, value in found.items() if step < event.step}
                for value in event.summary.value:
                    if value.tag == tag:
                        found[event.step] = value.simple_value
        except (tf.errors.OpError, message.DecodeError) as error:
            if 'truncated record' not in str(error):
                console.line(f'{path} is damaged; using the part before the damage.')
    return dict(sorted(found.items()))
