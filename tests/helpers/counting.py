"""A trainer that only counts: every number of the variable `w` is the number of steps.

So the values in a checkpoint show whether it is whole. As a script, python counting.py FOLDER
OPTIONS, where OPTIONS is a JSON object with options of `train`.
"""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from cifar10_lib import checkpoints, script, session

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402


def step_op(size=3):
    """Builds the graph; returns the operation of a step. `w` has `size` numbers."""
    step = tf.train.get_or_create_global_step()
    w = tf.get_variable('w', [size], initializer=tf.zeros_initializer(), use_resource=True)
    return tf.group(w.assign_add(tf.ones([size])), step.assign_add(1))


def train(folder, last_step, hooks=(), size=3, pause=None, restart=False, **options):
    """Trains in a new graph, perhaps anew; prints each step and waits if `pause` is given.

    `options` are those of `session.training_session`.
    """
    with tf.Graph().as_default():
        op = step_op(size)
        if restart:
            session.remove_run(folder)
        with session.training_session(
                checkpoint_dir=folder, **options,
                hooks=[tf.train.StopAtStepHook(last_step=last_step), *hooks]) as sess:
            while not sess.should_stop():
                sess.run(op)
                if pause is not None:
                    made = sess.raw_session().run(tf.train.get_global_step())
                    print(f': step {made - 1}, loss', flush=True)
                    time.sleep(pause)


def steps(folder):
    """The steps of the checkpoints in a folder, the newest first."""
    return [int(path.rsplit('-')[-1]) for path in checkpoints.candidates(str(folder))]


def latest(folder):
    """The step of the newest intact checkpoint of this trainer, 0 if there isn't one."""
    found = checkpoints.newest(str(folder))
    if found is None:
        return 0
    step = checkpoints.step(found)
    assert found.path.endswith(f'-{step}')
    np.testing.assert_array_equal(found.values['w'], np.full_like(found.values['w'], step))
    return step


def main(words):
    train(words[0], **{'last_step': 10 ** 9, 'pause': 0.0, 'save_checkpoint_steps': 20,
                       **json.loads(words[1])})


if __name__ == '__main__':
    script.run(main, 'FOLDER OPTIONS')
