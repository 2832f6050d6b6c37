"""Precision @ 1 after N steps, of this project and of the tutorial as written.

    python -m benchmarks.learning_curve --steps=5000 --seeds=2 > curve.csv

Trains both graphs in turn, once per seed, on the same images. Evaluates the weights on the test
images every --every steps and after the last step, with their moving averages and raw. Prints each
result at once, as a line of CSV. Saves no checkpoints, so an interrupted run must start again.
"""
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import contextlib
import sys

import tensorflow.compat.v1 as tf
from absl import flags

from benchmarks import tutorial
import cifar10
from cifar10_lib.evaluation import accuracy
from cifar10_lib.program import devices

flags.DEFINE_integer('steps', 5000, 'Number of steps.', lower_bound=1)
flags.DEFINE_integer('every', 2000, 'Steps between evaluations.', lower_bound=1)
flags.DEFINE_integer('seeds', 2, 'Runs of each program, with seeds 1, 2 etc.', lower_bound=1)

FLAGS = flags.FLAGS


def train(name, seed, evaluation, csv):
    """Trains 'ours' or 'tutorial' for `--steps`; prints what an `Accuracy` finds to `csv`."""
    program = {'ours': cifar10, 'tutorial': tutorial}[name]
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            images, labels = (cifar10.distorted_inputs() if name == 'ours' else
                              tutorial.distorted_inputs(cifar10.source().folder, FLAGS.batch_size))
        loss = program.loss(program.inference(images), labels)
        train_op = program.train(loss, global_step)
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        creator = tf.train.ChiefSessionCreator(config=devices.session_config())
        with tf.train.MonitoredSession(creator) as session:  # It runs the queues.
            for step in range(1, FLAGS.steps + 1):
                session.run(train_op)
                if step % FLAGS.every == 0 or step == FLAGS.steps:
                    values = session.run(variables)
                    averaged, raw = (evaluation.count(values, use_averages).precision
                                     for use_averages in (True, False))
                    print(f'{name},{seed},{step},{averaged:.4f},{raw:.4f}', file=csv, flush=True)


def main():
    FLAGS.net = 'tutorial'  # The network of both.
    csv = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # Messages such as "Filling queue with ...".
        cifar10.maybe_download_and_extract()
        evaluation = accuracy.Accuracy()
        print('program,seed,step,precision_averaged,precision_raw', file=csv, flush=True)
        for seed in range(1, FLAGS.seeds + 1):
            for name in ('ours', 'tutorial'):
                train(name, seed, evaluation, csv)


if __name__ == '__main__':
    startup.run(main, unused=['net'])
