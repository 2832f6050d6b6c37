"""Measures one thing in a process of its own, and prints the result as a line of JSON.

`python -m benchmarks` starts these processes. Each is cold, unaffected by earlier measurements.
"""
import functools
import json
import os
import pathlib
import re
import time

from cifar10_lib import script
from classification_lib import data_sets, recipes

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
import cifar10_input
from benchmarks import floor, tutorial

flags.DEFINE_string('net', 'tutorial', 'Name of the network.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial'], 'Whose input.')
flags.DEFINE_integer('timed_steps', 200, 'Steps of each side.', lower_bound=1)
flags.DEFINE_boolean('tf32', True, 'Whether a GPU may compute products of float32 in TF32.')

FLAGS = flags.FLAGS

_NUM_CLASSES = 10
_LOG_FREQUENCY = 10  # Steps from one fetch of the loss to the next, as in training.


def measure_input(_):
    """Returns images/s of the input alone, after a quarter as many batches have warmed it up."""
    cifar10.maybe_download_and_extract()
    folder = os.path.join(FLAGS.data_dir, data_sets.CIFAR10.folder)
    module = {'ours': cifar10_input, 'tutorial': tutorial}[FLAGS.side]
    batch = tf.group(*module.distorted_inputs(folder, FLAGS.batch_size))
    with tf.train.MonitoredSession() as session:  # It runs the queues.
        for step in range(-(FLAGS.timed_steps // 4), FLAGS.timed_steps):
            if step == 0:
                begin = time.perf_counter()
            session.run(batch)
        return {'rate': FLAGS.timed_steps * FLAGS.batch_size / (time.perf_counter() - begin)}


def measure_speed(recipe):
    """Returns milliseconds per step on a fixed batch, each a mean of ten steps: {'ours': list}."""
    return _timed({'ours': _training(recipe)})


def measure_step(recipe):
    """The same, in turn with the floor and, where they exist, the tutorial and bfloat16."""
    def published(images, labels):
        loss = tutorial.loss(tutorial.inference(images), labels)
        return tutorial.train(loss, tf.train.get_or_create_global_step()), loss

    def products(images, _):
        # The tutorial's network without our own normalisation, which is made of products, too.
        network = tutorial.inference
        if recipe.name != 'tutorial':
            network = functools.partial(_logits, recipe)
        return 2 * [floor.operation(network, images.shape)]

    sides = {'ours': _training(recipe), 'floor': _session(recipe, products)}
    if recipe.name == 'tutorial':
        sides['tutorial'] = _session(recipe, published)
    # Processors without these instructions convert to float32, which takes longer.
    features = pathlib.Path('/proc/cpuinfo').read_text()
    if re.search(r'amx_bf16|avx512_bf16|\bbf16', features) and cifar10.compute_type() == tf.float32:
        with flagsaver.flagsaver(use_bf16=True):
            sides['bfloat16'] = _training(recipe)
    return _timed(sides)


def _timed(sides):
    """Runs all sides in turn, {name: (session, (operation, a value that waits for a GPU))}."""
    found = {name: [] for name in sides}
    for _ in range(1 + FLAGS.timed_steps // _LOG_FREQUENCY):
        for name, (session, (operation, value)) in sides.items():
            begin = time.perf_counter()
            for _ in range(_LOG_FREQUENCY - 1):
                session.run(operation)
            session.run([operation, value])
            found[name].append(1000 * (time.perf_counter() - begin) / _LOG_FREQUENCY)
    return {name: times[1:] for name, times in found.items()}  # The first ten set everything up.


def measure_agreement(recipe):
    """Returns the largest differences between GPU and CPU, with one batch and the same weights.

    Of gradients, norms relative to that of the tensor: where two values of a pooling window are
    equal but for rounding, CPU and GPU may send the gradient to different pixels.
    """
    def both(images, labels):
        for device in ('cpu', 'gpu'):
            with tf.variable_scope('', reuse=device == 'gpu'), tf.name_scope(device) as scope, \
                    tf.device(f'/{device}:0'):
                logits = _logits(recipe, images)
                recipe.loss(logits, labels)
                loss = tf.add_n(tf.get_collection('losses', scope))  # Without the other device's.
                yield logits, tf.gradients(loss, tf.trainable_variables())

    session, built = _session(recipe, lambda *batch: list(both(*batch)))
    (expected, gradients), (logits, computed) = session.run(built)
    differences = [np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-30)
                   for ours, theirs in zip(computed, gradients)]
    return {'gpus': [each.name for each in tf.config.get_visible_devices('GPU')],
            'logits': float(np.abs(logits - expected).max()),
            'largest_logit': float(np.abs(expected).max()), 'gradients': float(np.max(differences))}


def _logits(recipe, images):
    return recipe.inference(images, _NUM_CLASSES, True, cifar10.compute_type())


def _training(recipe):
    """A session, and a step of training on a fixed batch: the operation, and the loss."""
    def step(images, labels):
        loss = recipe.loss(_logits(recipe, images), labels)
        global_step = tf.train.get_or_create_global_step()
        if recipe.name == 'tutorial':
            return cifar10.train(loss, global_step), loss
        opt = recipe.optimizer(tf.constant(recipe.learning_rate()), 1000)
        grads = cifar10.compute_gradients(opt, loss)
        return cifar10.update(opt, grads, global_step, averages=recipe.averages), loss

    return _session(recipe, step)


def _session(recipe, build):
    """A session with a new run's variables, and what `build` adds for a batch and its labels."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
    random = np.random.RandomState(0)
    pixels = random.randint(0, 256, [max(500, FLAGS.batch_size), 32, 32, 3]).astype(np.uint8)
    labels = random.randint(0, _NUM_CLASSES, FLAGS.batch_size)
    values = recipe.initial_values(pixels) if recipe.initial_values else {}
    with tf.Graph().as_default():
        images = recipe.prepare(tf.constant(pixels[:FLAGS.batch_size]))
        images = tf.Variable(images, trainable=False).read_value()
        built = build(images, tf.constant(labels, tf.int32))
        session = tf.Session(config=tf.ConfigProto(allow_soft_placement=True))
        initial = {variable.initial_value: values[variable.op.name]
                   for variable in tf.global_variables() if variable.op.name in values}
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()], initial)
    return session, built


_MEASURES = {'input': measure_input, 'speed': measure_speed, 'step': measure_step,
             'agreement': measure_agreement}
flags.DEFINE_enum('what', 'step', list(_MEASURES), 'What to measure.')

if __name__ == '__main__':
    script.run(lambda: print(json.dumps(_MEASURES[FLAGS.what](recipes.TABLE[FLAGS.net]))))
