"""Measures one thing in its own process, and prints the result as a line of JSON.

    python -m benchmarks.measure --what=train --side=ours --steps=200

The other benchmarks start these processes in turn. Each starts cold, unaffected by what another
measurement left in memory or in TensorFlow's threads.
"""
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import contextlib
import importlib.util
import io
import json
import tempfile
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import floor
from benchmarks import timing
from benchmarks import tutorial
import cifar10
import cifar10_multi_gpu_train
import cifar10_train
from cifar10_lib.datasets import table
from cifar10_lib.evaluation import accuracy
from cifar10_lib.program import devices
from cifar10_lib import recipes

flags.DEFINE_enum('what', 'train', ['input', 'step', 'train', 'evaluate'], 'What to measure.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial', 'towers'],
                  'This project, the original tutorial, or this project with --num_gpus towers.')
flags.DEFINE_integer('steps', 200, 'Number of steps to train.', lower_bound=1)
flags.DEFINE_float('seconds', 5.0, 'Seconds of reading input.', lower_bound=0.1)
flags.DEFINE_list('replaced', [], "Fields of `tutorial.Parts` to replace by this project's when "
                  'training with --side=tutorial.')
flags.DEFINE_integer('rounds', 10, 'Turns of each side when measuring steps.', lower_bound=1)

FLAGS = flags.FLAGS

_STEPS_PER_TURN = 5


def measure_input(side):
    """Images per second of the input alone, after warming up, and seconds to the first batch."""
    batch = tf.group(*(cifar10.distorted_inputs() if side == 'ours' else
                       tutorial.distorted_inputs(cifar10.source().folder, FLAGS.batch_size)))
    creator = tf.train.ChiefSessionCreator(config=devices.session_config())
    with tf.train.MonitoredSession(creator) as session:  # It runs the queues.
        start = time.perf_counter()
        session.run(batch)
        first = time.perf_counter() - start
        _run_for(session, batch, FLAGS.seconds / 5)
        count, seconds = _run_for(session, batch, FLAGS.seconds)
    return {'images_per_second': count * FLAGS.batch_size / seconds, 'first_batch_seconds': first}


def _run_for(session, operation, seconds):
    """Runs an operation repeatedly: the number of runs, and the seconds that they took."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        session.run(operation)
        count += 1
    return count, time.perf_counter() - start


def train_op(images, labels):
    recipe = recipes.chosen()
    loss = cifar10.loss(recipe.inference(images, training=True), labels)
    return cifar10.train(loss, tf.train.get_or_create_global_step(), recipe)


def stepper(build):
    """A function that runs what `build` returns, in its own session, and returns the seconds."""
    graph = tf.Graph()
    with graph.as_default():
        operation = build()
        session = tf.Session(config=devices.session_config())
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

    def step():
        start = time.perf_counter()
        session.run(operation)
        return time.perf_counter() - start
    return step


def fixed_batch():
    """A function that adds a batch of images and labels to the current graph, and its shape."""
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, [FLAGS.batch_size, 3 * 32 * 32]).astype(np.uint8)
    labels = random.randint(0, 10, FLAGS.batch_size)
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        images = session.run(recipes.chosen().prepare(tf.constant(pixels)))
    return lambda: (tf.Variable(images, trainable=False, use_resource=True).read_value(),
                    tf.constant(labels, tf.int32)), images.shape


def measure_step(_):
    """Seconds of a step on a fixed batch, all sides in turn: dictionary from name to list."""
    batch, shape = fixed_batch()
    inference = recipes.chosen().inference
    is_tutorial = FLAGS.net == 'tutorial'

    def plain(images, training=True):  # Without the matrix products of our LRN.
        return tutorial.inference(images) if is_tutorial else inference(images, training)

    builds = {
        'ours': lambda: train_op(*batch()),
        'floor': lambda: floor.operation(plain, shape),
        'ours, forward': lambda: inference(batch()[0], training=False),
        'floor, forward': lambda: floor.operation(
            lambda images: plain(images, training=False), shape, backward=False)}
    if is_tutorial:
        builds['tutorial'] = lambda: tutorial.training(*batch())[0]
        builds['tutorial, forward'] = lambda: tutorial.inference(batch()[0])
    steppers = {name: stepper(build) for name, build in builds.items()}
    with flagsaver.flagsaver(use_bf16=True):
        steppers['ours, bfloat16'] = stepper(builds['ours'])
    if is_tutorial and importlib.util.find_spec('torch'):
        from benchmarks import torch_net
        steppers['PyTorch'], steppers['PyTorch, compiled'] = (
            torch_net.Trainer(FLAGS.batch_size, compiled).step for compiled in (False, True))
    for step in steppers.values():
        for _ in range(_STEPS_PER_TURN):
            step()
    seconds = {name: [] for name in steppers}
    for _ in range(FLAGS.rounds):
        for name, step in steppers.items():
            step()  # The caches still hold the other side's data.
            seconds[name] += [step() for _ in range(_STEPS_PER_TURN)]
    return seconds


def measure_train(side):
    """Training by the script itself: its `_Lines`, and peak memory."""
    cifar10.maybe_download_and_extract()
    train = {'ours': cifar10_train.train, 'towers': cifar10_multi_gpu_train.train,
             'tutorial': lambda: tutorial.run(
                 cifar10.source().folder, FLAGS.train_dir, FLAGS.steps, FLAGS.batch_size,
                 FLAGS.log_frequency, tutorial.Parts(**dict.fromkeys(FLAGS.replaced, False)))}
    with tempfile.TemporaryDirectory() as folder:
        lines = _train(train[side], FLAGS.steps, folder)
    towers = FLAGS.num_gpus if side == 'towers' else 1
    return {**lines.clock.result(FLAGS.batch_size * towers), 'finished': time.time()}


class _Lines(io.StringIO):
    """A console whose `timing.Clock` notes when each step's line is printed."""

    def __init__(self):
        super().__init__()
        self.clock = timing.Clock()

    def write(self, text):
        if ': step ' in text:
            self.clock.step_ended()
        return super().write(text)


def _train(train, steps, folder):
    """Trains in a folder; returns the `_Lines` printed."""
    with contextlib.redirect_stdout(_Lines()) as lines, \
            flagsaver.flagsaver(train_dir=folder, max_steps=steps, log_frequency=1):
        train()
    return lines


def measure_evaluate(side):
    """Seconds to evaluate the test set with a checkpoint, building the graph included."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        _train(cifar10_train.train, 1, folder)
        checkpoint = tf.train.latest_checkpoint(folder)
        start = time.perf_counter()
        if side == 'ours':
            precision = accuracy.Evaluation().run(checkpoint).precision
        else:
            data_dir = cifar10.source().folder
            precision = tutorial.evaluate(data_dir, checkpoint, FLAGS.batch_size,
                                          table.CIFAR10.count(data_dir, eval_data=True))
        seconds = time.perf_counter() - start
    return {'seconds': seconds, 'precision': precision}


_MEASUREMENTS = {'input': measure_input, 'step': measure_step, 'train': measure_train,
                 'evaluate': measure_evaluate}


def main():
    print(json.dumps(_MEASUREMENTS[FLAGS.what](FLAGS.side)))


if __name__ == '__main__':
    startup.run(main, [devices, cifar10, recipes, cifar10_multi_gpu_train])
