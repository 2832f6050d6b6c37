"""Measures one thing in its own process, and prints the result as lines of JSON.

    python -m benchmarks.measure --what=step --net=resnet23 --batch_size=64
    python -m benchmarks.measure --what=variants --variant='--batch_size=1024 --variables=gpu'

The other benchmarks start these processes. Each starts cold, unaffected by what another measurement
left in memory or in TensorFlow's threads. The functions of the project that are called directly
are here, and nowhere else in the benchmarks.
"""
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import json
import os
import re
import shlex
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import floor, trace, tutorial
import cifar10
import cifar10_input
from cifar10_lib import recipes
from cifar10_lib.nets import variables
from cifar10_lib.program import cores, devices

flags.DEFINE_enum('what', 'step', ['input', 'step', 'variants', 'agreement', 'machine'],
                  'What to measure.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial'], 'Whose input.')
flags.DEFINE_float('seconds', 5.0, 'Seconds of reading input.', lower_bound=0.0)
flags.DEFINE_multi_string('variant', [''], 'Flags of a step to time; one row each.')
flags.DEFINE_integer('timed_steps', 200, 'Steps of each variant, or side.', lower_bound=1)

# The settings that a GPU must decide, besides the flags of the trainers.
flags.DEFINE_boolean('layout_pass', True, "TensorFlow's pass that turns NHWC into NCHW.")
flags.DEFINE_boolean('tf_lrn', False, "The tutorial's layers with `tf.nn.lrn`, not ours.")
flags.DEFINE_integer('fetch_loss', 10, 'Steps from one fetch of the loss to the next.')
flags.DEFINE_integer('threads', 0, 'Threads that distort images; 0 for the number in training.')
flags.DEFINE_boolean('tf32', True, 'Whether products of float32 may be computed in TF32.')

FLAGS = flags.FLAGS

_STEPS_PER_TURN = 5


def measure_input():
    """Yields images/s of the input alone after warming up, and seconds to the first batch."""
    if FLAGS.side == 'ours':
        cifar10.maybe_download_and_extract()
        cifar10_input._DISTORTING_THREADS = FLAGS.threads or cifar10_input._DISTORTING_THREADS
        batch = tf.group(*cifar10.distorted_inputs())
    else:
        batch = tf.group(*tutorial.distorted_inputs(cifar10.source().folder, FLAGS.batch_size))
    creator = tf.train.ChiefSessionCreator(config=devices.session_config())
    with tf.train.MonitoredSession(creator) as session:  # It runs the queues.
        times = [time.perf_counter()]
        while len(times) < 4 or times[-1] - times[1] < FLAGS.seconds:
            session.run(batch)
            times.append(time.perf_counter())
    warm = times[len(times) // 4:]
    yield {'rate': (len(warm) - 1) * FLAGS.batch_size / (warm[-1] - warm[0]),
           'first': times[1] - times[0]}


def _inference(images):
    return (tutorial.inference(images, cifar10._variable_on_cpu) if FLAGS.tf_lrn
            else recipes.chosen(training=True).inference(images))


def _training(images, labels):
    """Adds a step of training to the graph: (an operation that runs it, the loss)."""
    loss = cifar10.loss(_inference(images), labels)
    with tf.device(variables.device()):
        return cifar10.train(
            loss, tf.train.get_or_create_global_step(), recipes.chosen()), loss


def _session(build):
    """A session with initialised variables, and what `build` adds to its graph."""
    with tf.Graph().as_default() as graph:
        built = build()
        config = devices.session_config()
        rewrites = config.graph_options.rewrite_options
        rewrites.layout_optimizer = rewrites.DEFAULT if FLAGS.layout_pass else rewrites.OFF
        session = tf.Session(config=config, graph=graph)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return session, built


def _fixed_batch():
    """A function that adds a batch of images and labels to the current graph, and its shape."""
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, [FLAGS.batch_size, 3 * 32 * 32]).astype(np.uint8)
    labels = random.randint(0, 10, FLAGS.batch_size)
    with tf.Graph().as_default(), tf.Session(config=devices.session_config()) as session:
        images = session.run(recipes.chosen().prepare(tf.constant(pixels)))
    return lambda: (tf.Variable(images, trainable=False, use_resource=True).read_value(),
                    tf.constant(labels, tf.int32)), images.shape


def measure_step():
    """Yields milliseconds of steps on a fixed batch, all sides in turn: {name: list}."""
    batch, shape = _fixed_batch()

    def published():
        images, labels = batch()
        return tutorial.train(tutorial.loss(tutorial.inference(images), labels),
                              tf.train.get_or_create_global_step())

    builds = {'ours': lambda: _training(*batch())[0],
              'ours, forward': lambda: _inference(batch()[0])}
    plain = _inference
    if FLAGS.net == 'tutorial':
        plain = tutorial.inference  # Our LRN has matrix products.
        builds.update({'tutorial': published, 'tutorial, forward': lambda: plain(batch()[0])})
    builds.update({'floor': lambda: floor.operation(plain, shape),
                   'floor, forward': lambda: floor.operation(plain, shape, backward=False)})
    sides = {name: _session(build) for name, build in builds.items()}
    if cores.multiply_bfloat16() or devices.visible_gpus():  # Otherwise, a step takes seconds.
        with flagsaver.flagsaver(use_bf16=True):
            sides['ours, bfloat16'] = _session(builds['ours'])
    found = {name: [] for name in sides}
    for turn in range(1 + FLAGS.timed_steps // _STEPS_PER_TURN):  # The first warms up.
        for name, (session, operation) in sides.items():
            session.run(operation)  # The caches still hold the other side's data.
            for _ in range(_STEPS_PER_TURN):
                start = time.perf_counter()
                session.run(operation)
                found[name] += [1000 * (time.perf_counter() - start)] * (turn > 0)
    yield found


def measure_variants():
    """Yields for each --variant: the first step, the rate, and what a traced step consists of."""
    for text in FLAGS.variant:
        with flagsaver.flagsaver():
            FLAGS([FLAGS.what, *shlex.split(text)])
            tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
            batch, _ = _fixed_batch()
            with tf.device('/gpu:0'):  # Elsewhere if there isn't one.
                session, (step, loss) = _session(lambda batch=batch: _training(*batch()))
            with session:
                yield {'net': FLAGS.net, 'batch': FLAGS.batch_size, 'flags': text,
                       **_timed(session, step, loss), **trace.of_a_step(session, step)}


def _timed(session, step, loss):
    start = time.perf_counter()
    session.run([step, loss])
    first = time.perf_counter() - start
    for _ in range(5):  # Warms up.
        session.run([step, loss])
        session.run(step)
    start = time.perf_counter()
    for number in range(1, 1 + FLAGS.timed_steps):
        # The last fetch waits for the GPU, too.
        ends = number % FLAGS.fetch_loss == 0 or number == FLAGS.timed_steps
        session.run([step, loss] if ends else step)
    seconds = (time.perf_counter() - start) / FLAGS.timed_steps
    return {'first step, s': round(first, 2), 'ms': round(1000 * seconds, 3),
            'images/s': round(FLAGS.batch_size / seconds)}


def measure_agreement():
    """Yields largest differences between GPU and CPU, with one batch and the same weights."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
    batch, _ = _fixed_batch()

    def build():
        images, labels = batch()
        for device in ('cpu', 'gpu'):
            with tf.variable_scope('', reuse=device == 'gpu'), tf.device(f'/{device}:0'):
                logits = _inference(images)
                yield logits, tf.gradients(cifar10.loss(logits, labels), tf.trainable_variables())

    session, operations = _session(lambda: list(build()))
    expected, got = session.run(operations)
    yield {'net': FLAGS.net, 'logits': float(np.abs(got[0] - expected[0]).max()),
           'gradients': float(max(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
                                  for ours, theirs in zip(got[1], expected[1])))}


def measure_machine():
    """Yields the devices, and the files of the CUDA libraries after their first use."""
    yield {'devices': devices.line(), 'GPUs': len(devices.gpu_names())}
    FLAGS.batch_size = 2
    session, step = _session(lambda: _training(*_fixed_batch()[0]())[0])
    session.run(step)  # TensorFlow opens cuDNN and cuBLAS when they are first used.
    with open('/proc/self/maps') as stream:
        paths = {os.path.realpath(line.split()[-1]) for line in stream if '.so' in line}
    yield {'libraries': sorted(path for path in paths if re.search(
        r'/lib(cuda|cudart|cublas|cudnn|cupti|nccl)\.so', path))}


def main():
    for row in globals()[f'measure_{FLAGS.what}']():
        print(json.dumps(row))


if __name__ == '__main__':
    startup.run(main, [devices, cifar10, recipes, variables])
