"""Precision @ 1 after N steps, of this project and of the tutorial as written.

    python -m benchmarks.learning_curve --steps=5000 --seeds=2 > curve.csv

Trains both graphs in turn, once per seed, on the same images. Evaluates the weights on the test
images every --every steps and after the last step, with their moving averages and raw. Prints each
result at once, as a line of CSV. Saves no checkpoints, so an interrupted run must start again.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import contextlib
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

import cifar10
from benchmarks import tutorial
from cifar10_lib import recipes
from cifar10_lib.evaluation import model
from cifar10_lib.program import devices, startup

flags.DEFINE_integer('steps', 5000, 'Number of steps.', lower_bound=1)
flags.DEFINE_integer('every', 2000, 'Steps between evaluations.', lower_bound=1)
flags.DEFINE_integer('seeds', 2, 'Runs of each program, with seeds 1, 2 etc.', lower_bound=1)

FLAGS = flags.FLAGS


def train(name, seed, source, precision, csv):
    """Trains 'ours' or 'tutorial' for `--steps`; prints the results to `csv`.

    Args:
        name, seed: the program, and the seed of its graph.
        source: the `Source` of the training images.
        precision: function from a session with trained variables, and their `tf.train.Saver`, to
            precisions with averaged and raw weights.
        csv: stream.
    """
    program = {'ours': cifar10, 'tutorial': tutorial}[name]
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            if name == 'ours':
                images, labels = cifar10.distorted_inputs(source)
            else:
                images, labels = tutorial.distorted_inputs(source.folder, source.batch_size)
        loss = program.loss(program.inference(images), labels)
        train_op = program.train(loss, global_step)
        saver = tf.train.Saver()
        config = devices.session_config()
        with tf.train.SingularMonitoredSession(config=config) as session:  # It runs the queues.
            for step in range(1, FLAGS.steps + 1):
                session.run(train_op)
                if step % FLAGS.every == 0 or step == FLAGS.steps:
                    averaged, raw = precision(session.raw_session(), saver)
                    print(f'{name},{seed},{step},{averaged:.4f},{raw:.4f}', file=csv, flush=True)


def test_set():
    """Labels, uint8 [count], and images, uint8 [count, 32, 32, 3], of CIFAR-10's test set."""
    path, = cifar10.default_source(eval_data=True).files()
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)
    return records[:, 0], records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def main():
    devices.choose(FLAGS.device)
    source, recipe = cifar10.default_source(), recipes.chosen('tutorial')  # The network of both.
    csv = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        # Redirected: messages such as "Filling queue with ...".
        cifar10.maybe_download_and_extract(source)
        labels, images = test_set()
        network = model.Model(recipe, source.num_classes, source.batch_size)

        def precision(session, saver):
            path = saver.save(session, os.path.join(folder, 'model.ckpt'), write_meta_graph=False)
            found = []
            for use_moving_averages in (True, False):
                with network.session(path, use_moving_averages) as evaluating:
                    predictions = network.probabilities(evaluating, images).argmax(axis=1)
                found.append((predictions == labels).mean())
            return found

        print('program,seed,step,precision_averaged,precision_raw', file=csv, flush=True)
        for seed in range(1, FLAGS.seeds + 1):
            for name in ('ours', 'tutorial'):
                train(name, seed, source, precision, csv)


if __name__ == '__main__':
    startup.run(main, unused=['net'])
