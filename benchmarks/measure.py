"""Measures one thing in a process of its own, and prints the result as a line of JSON.

    python -m benchmarks.measure --what=step --net=resnet23 --batch_size=64

`python -m benchmarks` starts these processes. Each is cold, unaffected by earlier measurements.
"""
from cifar10_lib.program import startup  # First: it imports TensorFlow quietly.

import json
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import floor, tutorial
import cifar10
from cifar10_lib import recipes
from cifar10_lib.nets import variables
from cifar10_lib.program import devices
import cifar10_lib.training.session  # noqa: F401, for --max_steps.

flags.DEFINE_enum('what', 'step', ['input', 'step', 'agreement', 'speed'], 'What to measure.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial'], 'Whose input.')
flags.DEFINE_float('seconds', 5.0, 'Seconds of reading input.', lower_bound=0.0)
flags.DEFINE_integer('timed_steps', 200, 'Steps of each side.', lower_bound=1)
flags.DEFINE_boolean('tf32', True, 'Whether a GPU may compute products of float32 in TF32.')

FLAGS = flags.FLAGS

_STEPS_PER_TURN = 5
_LOG_FREQUENCY = 10  # Steps from one fetch of the loss to the next, as in training.


def measure_input():
    """Returns images/s of the input alone, after a quarter of the batches has warmed it up."""
    batch = tf.group(*(cifar10.distorted_inputs(recipes.chosen()) if FLAGS.side == 'ours' else
                       tutorial.distorted_inputs(cifar10.source().folder, FLAGS.batch_size)))
    creator = tf.train.ChiefSessionCreator(config=devices.session_config())
    with tf.train.MonitoredSession(creator) as session:  # It runs the queues.
        times = []
        while len(times) < 4 or times[-1] - times[0] < FLAGS.seconds:
            session.run(batch)
            times.append(time.perf_counter())
    warm = times[len(times) // 4:]
    return {'rate': (len(warm) - 1) * FLAGS.batch_size / (warm[-1] - warm[0])}


def measure_step():
    """Returns milliseconds of steps on a fixed batch, all sides in turn: {name: list}."""
    def published():
        images, labels = _fixed_batch()
        return tutorial.train(tutorial.loss(tutorial.inference(images), labels),
                              tf.train.get_or_create_global_step())

    # Our own normalisation has matrix products, which the tutorial's network does not need.
    plain = tutorial.inference if FLAGS.net != 'resnet23' else _inference
    sides = {'ours': _session(lambda: _training()[0]),
             'floor': _session(lambda: floor.operation(lambda: plain(_fixed_batch()[0])))}
    if FLAGS.net == 'tutorial':
        sides['tutorial'] = _session(published)
    if devices.multiplies_bfloat16() and variables.compute_type() == tf.float32:  # Or ours has it.
        with flagsaver.flagsaver(use_bf16=True):
            sides['bfloat16'] = _session(lambda: _training()[0])
    found = {name: [] for name in sides}
    for _ in range(1 + FLAGS.timed_steps // _STEPS_PER_TURN):
        for name, (session, operation) in sides.items():
            session.run(operation)  # The caches still hold the other side's data.
            for _ in range(_STEPS_PER_TURN):
                start = time.perf_counter()
                session.run(operation)
                found[name].append(1000 * (time.perf_counter() - start))
    return {name: times[_STEPS_PER_TURN:] for name, times in found.items()}  # The rest is warm.


def measure_agreement():
    """Returns the largest differences between GPU and CPU, with one batch and the same weights.

    'logits' is an absolute difference; 'gradients' is relative to the largest value of a tensor.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)

    def build():
        images, labels = _fixed_batch()
        for device in ('cpu', 'gpu'):
            with tf.variable_scope('', reuse=device == 'gpu'), tf.name_scope(device) as scope, \
                    tf.device(f'/{device}:0'):
                logits = _inference(images)
                loss = cifar10.loss(logits, labels, scope=scope)
                yield logits, tf.gradients(loss, tf.trainable_variables())

    session, operations = _session(lambda: list(build()))
    (expected, gradients), (logits, computed) = session.run(operations)
    return {'devices': devices.line(), 'logits': float(np.abs(logits - expected).max()),
            'gradients': float(max(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
                                   for ours, theirs in zip(computed, gradients)))}


def measure_speed():
    """Returns images/s of ten steps at a time. The last fetches the loss, which waits for a GPU."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
    session, (step, loss) = _session(_training)
    rates = []
    for _ in range(1 + FLAGS.timed_steps // _LOG_FREQUENCY):
        start = time.perf_counter()
        for _ in range(_LOG_FREQUENCY - 1):
            session.run(step)
        session.run([step, loss])
        rates.append(_LOG_FREQUENCY * FLAGS.batch_size / (time.perf_counter() - start))
    return {'rates': rates[1:]}  # TensorFlow chooses kernels in the first ten steps.


def _fixed_batch():
    """Adds a batch of images of the network's size, and labels, to the graph."""
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, [FLAGS.batch_size, 3 * 32 * 32]).astype(np.uint8)
    images = tf.Variable(recipes.chosen().prepare(tf.constant(pixels)), trainable=False)
    classes = min(10, len(cifar10.source().data_set.classes))  # The published network has ten.
    return images.read_value(), tf.constant(random.randint(0, classes, FLAGS.batch_size), tf.int32)


def _inference(images):
    return recipes.chosen(training=True).inference(images)


def _training():
    """Adds a step of training to the graph: (an operation that runs it, the loss)."""
    images, labels = _fixed_batch()
    loss = cifar10.loss(_inference(images), labels, recipes.chosen().label_smoothing)
    with tf.device('/cpu:0'):  # Not around `train`: a GPU computes the gradients.
        global_step = tf.train.get_or_create_global_step()
    return cifar10.train(loss, global_step, recipes.chosen()), loss


def _session(build):
    """A session with initialised variables, and what `build` adds to its graph."""
    with tf.Graph().as_default() as graph:
        built = build()
        session = tf.Session(config=devices.session_config(), graph=graph)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return session, built


def main():
    cifar10.maybe_download_and_extract()
    print(json.dumps(globals()[f'measure_{FLAGS.what}']()))


if __name__ == '__main__':
    startup.run(main)
