"""Measures one thing in a process of its own, and prints the result as a line of JSON.

    python -m benchmarks.measure --what=step --net=resnet23 --batch_size=64

`python -m benchmarks` starts these processes. Each is cold, unaffected by earlier measurements.
"""
import json
import os
import time

from cifar10_lib import console, data_sets, recipes

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_input
from benchmarks import floor, tutorial

flags.DEFINE_enum('what', 'step', ['input', 'step', 'agreement', 'speed'], 'What to measure.')
flags.DEFINE_string('net', 'tutorial', 'Name of the network.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial'], 'Whose input.')
flags.DEFINE_float('seconds', 5.0, 'Seconds of reading input.', lower_bound=0.0)
flags.DEFINE_integer('timed_steps', 200, 'Steps of each side.', lower_bound=1)
flags.DEFINE_boolean('tf32', True, 'Whether a GPU may compute products of float32 in TF32.')

FLAGS = flags.FLAGS

_NUM_CLASSES = 10
_STEPS_PER_TURN = 5
_LOG_FREQUENCY = 10  # Steps from one fetch of the loss to the next, as in training.


def measure_input(recipe):
    """Returns images/s of the input alone, after a quarter of the batches has warmed it up."""
    del recipe
    cifar10.maybe_download_and_extract()
    folder = os.path.join(FLAGS.data_dir, data_sets.CIFAR10.folder)
    read = tutorial.distorted_inputs
    if FLAGS.side == 'ours':
        read = cifar10_input.distorted_inputs
    batch = tf.group(*read(folder, FLAGS.batch_size))
    with tf.train.MonitoredSession() as session:  # It runs the queues.
        times = []
        while len(times) < 4 or times[-1] - times[0] < FLAGS.seconds:
            session.run(batch)
            times.append(time.perf_counter())
    warm = times[len(times) // 4:]
    return {'rate': (len(warm) - 1) * FLAGS.batch_size / (warm[-1] - warm[0])}


def measure_step(recipe):
    """Returns milliseconds of steps on a fixed batch, all sides in turn: {name: list}."""
    def published():
        images, labels = _fixed_batch(recipe)
        return tutorial.train(tutorial.loss(tutorial.inference(images), labels),
                              tf.train.get_or_create_global_step())

    def plain():
        images, _ = _fixed_batch(recipe)
        if recipe.name == 'tutorial':
            # Our own normalisation has matrix products, which the network does not need.
            return tutorial.inference(images)
        return _logits(recipe, images)

    def training_step():
        return _training(recipe)[0]

    sides = {'ours': _session(recipe, training_step),
             'floor': _session(recipe, lambda: floor.operation(plain))}
    if recipe.name == 'tutorial':
        sides['tutorial'] = _session(recipe, published)
    with open('/proc/cpuinfo') as stream:
        words = set(stream.read().split())
    # Others convert to float32, which takes longer.
    multiplies_bfloat16 = not words.isdisjoint({'amx_bf16', 'avx512_bf16', 'bf16'})
    if multiplies_bfloat16 and cifar10.compute_type() == tf.float32:
        with flagsaver.flagsaver(use_bf16=True):
            sides['bfloat16'] = _session(recipe, training_step)
    found = {name: [] for name in sides}
    for _ in range(1 + FLAGS.timed_steps // _STEPS_PER_TURN):
        for name, (session, operation) in sides.items():
            session.run(operation)  # The caches still hold the other side's data.
            for _ in range(_STEPS_PER_TURN):
                begin = time.perf_counter()
                session.run(operation)
                found[name].append(1000 * (time.perf_counter() - begin))
    return {name: times[_STEPS_PER_TURN:] for name, times in found.items()}  # The rest is warm.


def measure_agreement(recipe):
    """Returns the largest differences between GPU and CPU, with one batch and the same weights.

    'logits' is an absolute difference, 'largest_logit' the size of the CPU's; 'gradients' is the
    norm of the difference, relative to the norm of the tensor.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)

    def build():
        images, labels = _fixed_batch(recipe)
        for device in ('cpu', 'gpu'):
            with tf.variable_scope('', reuse=device == 'gpu'), tf.name_scope(device) as scope, \
                    tf.device(f'/{device}:0'):
                logits = _logits(recipe, images)
                recipe.loss(logits, labels)
                loss = tf.add_n(tf.get_collection('losses', scope))  # Without the other device's.
                yield logits, tf.gradients(loss, tf.trainable_variables())

    session, operations = _session(recipe, lambda: list(build()))
    (expected, gradients), (logits, computed) = session.run(operations)
    return {'gpus': [each.name for each in tf.config.get_visible_devices('GPU')],
            'logits': float(np.abs(logits - expected).max()),
            'largest_logit': float(np.abs(expected).max()),
            'gradients': _largest_difference(computed, gradients)}


def measure_speed(recipe):
    """Returns images/s of ten steps at a time. The last fetches the loss, which waits for a GPU."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
    session, (step, loss) = _session(recipe, lambda: _training(recipe))
    images, rates = _LOG_FREQUENCY * FLAGS.batch_size, []
    for _ in range(1 + FLAGS.timed_steps // _LOG_FREQUENCY):
        begin = time.perf_counter()
        for _ in range(_LOG_FREQUENCY - 1):
            session.run(step)
        session.run([step, loss])
        rates.append(images / (time.perf_counter() - begin))
    return {'rates': rates[1:]}  # TensorFlow chooses kernels in the first ten steps.


def _largest_difference(computed, expected):
    """Compares two lists of tensors by norm; NaN if a tensor contains NaN.

    Single values may differ more, in correct results too: where two values of a pooling window
    are equal but for rounding, CPU and GPU may send the gradient to different pixels.
    """
    return float(np.max([np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30)
                         for ours, theirs in zip(computed, expected)]))


def _fixed_batch(recipe):
    """Adds a batch of images of the network's size, and labels, to the graph."""
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, [FLAGS.batch_size, 32, 32, 3]).astype(np.uint8)
    images = tf.Variable(recipe.prepare(tf.constant(pixels)), trainable=False)
    labels = random.randint(0, _NUM_CLASSES, FLAGS.batch_size)
    return images.read_value(), tf.constant(labels, tf.int32)


def _logits(recipe, images):
    return recipe.inference(images, _NUM_CLASSES, True, cifar10.compute_type())


def _training(recipe):
    """Adds a step of training on a fixed batch to the graph: an operation, and the loss."""
    images, labels = _fixed_batch(recipe)
    global_step = tf.train.get_or_create_global_step()
    loss = recipe.loss(_logits(recipe, images), labels)
    if recipe.name == 'tutorial':
        return cifar10.train(loss, global_step), loss
    opt = cifar10.scaled(recipe.optimizer(tf.constant(recipe.learning_rate), 1000))
    grads = opt.compute_gradients(loss, gate_gradients=opt.GATE_NONE)
    return cifar10.update(opt, grads, global_step), loss


def _session(recipe, build):
    """A session with the variables of a new run, and what `build` adds to its graph."""
    sample = np.random.RandomState(1).randint(0, 256, [500, 32, 32, 3]).astype(np.uint8)
    values = recipe.initial_values(sample) if recipe.initial_values else {}
    with tf.Graph().as_default() as graph:
        built = build()
        session = tf.Session(config=tf.ConfigProto(allow_soft_placement=True), graph=graph)
        initial = {variable.initial_value: values[variable.op.name]
                   for variable in tf.global_variables() if variable.op.name in values}
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()], initial)
    return session, built


def main():
    recipe, _ = recipes.named(FLAGS.net)
    measure = {'input': measure_input, 'step': measure_step, 'agreement': measure_agreement,
               'speed': measure_speed}[FLAGS.what]
    print(json.dumps(measure(recipe)))


if __name__ == '__main__':
    console.run(main)
