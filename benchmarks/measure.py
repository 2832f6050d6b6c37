"""Measures one thing in a process of its own, and prints the result as a line of JSON.

    python -m benchmarks.measure --what=step --net=resnet23 --batch_size=64

`python -m benchmarks` starts these processes. Each is cold, unaffected by earlier measurements.
"""
from cifar10_lib.program import quiet

quiet.import_tensorflow()

import dataclasses
import json
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10
from benchmarks import floor, tutorial
from cifar10_lib import recipes, settings
from cifar10_lib.program import devices, startup
from cifar10_lib.runs import starting

settings.define_training_flags()  # For --max_steps and --variables.
flags.DEFINE_enum('what', 'step', ['input', 'step', 'agreement', 'speed'], 'What to measure.')
flags.DEFINE_enum('side', 'ours', ['ours', 'tutorial'], 'Whose input.')
flags.DEFINE_float('seconds', 5.0, 'Seconds of reading input.', lower_bound=0.0)
flags.DEFINE_integer('timed_steps', 200, 'Steps of each side.', lower_bound=1)
flags.DEFINE_boolean('tf32', True, 'Whether a GPU may compute products of float32 in TF32.')

FLAGS = flags.FLAGS

_STEPS_PER_TURN = 5
_LOG_FREQUENCY = 10  # Steps from one fetch of the loss to the next, as in training.


def measure_input(start):
    """Returns images/s of the input alone, after a quarter of the batches has warmed it up."""
    source = start.source
    if FLAGS.side == 'ours':
        batch = tf.group(*cifar10.distorted_inputs(source, start.recipe.distort))
    else:
        batch = tf.group(*tutorial.distorted_inputs(source.folder, source.batch_size))
    creator = tf.train.ChiefSessionCreator(config=devices.session_config())
    with tf.train.MonitoredSession(creator) as session:  # It runs the queues.
        times = []
        while len(times) < 4 or times[-1] - times[0] < FLAGS.seconds:
            session.run(batch)
            times.append(time.perf_counter())
    warm = times[len(times) // 4:]
    return {'rate': (len(warm) - 1) * source.batch_size / (warm[-1] - warm[0])}


def measure_step(start):
    """Returns milliseconds of steps on a fixed batch, all sides in turn: {name: list}."""
    def published():
        images, labels = _fixed_batch(start)
        return tutorial.train(tutorial.loss(tutorial.inference(images), labels),
                              tf.train.get_or_create_global_step())

    def plain():
        images, _ = _fixed_batch(start)
        if start.recipe.name in ('tutorial', 'tutorial_fast'):
            # Our own normalisation has matrix products, which their network does not need.
            return tutorial.inference(images)
        return _logits(start, images)

    sides = {'ours': _session(start, lambda: training(start)[0]),
             'floor': _session(start, lambda: floor.operation(plain))}
    if start.recipe.name == 'tutorial':
        sides['tutorial'] = _session(start, published)
    if devices.multiplies_bfloat16() and start.recipe.dtype == tf.float32:  # Or ours has it.
        with flagsaver.flagsaver(use_bf16=True):  # `cifar10.inference` reads the flag.
            half = dataclasses.replace(start, recipe=recipes.chosen())
            sides['bfloat16'] = _session(half, lambda: training(half)[0])
    found = {name: [] for name in sides}
    for _ in range(1 + FLAGS.timed_steps // _STEPS_PER_TURN):
        for name, (session, operation) in sides.items():
            session.run(operation)  # The caches still hold the other side's data.
            for _ in range(_STEPS_PER_TURN):
                begin = time.perf_counter()
                session.run(operation)
                found[name].append(1000 * (time.perf_counter() - begin))
    return {name: times[_STEPS_PER_TURN:] for name, times in found.items()}  # The rest is warm.


def measure_agreement(start):
    """Returns the largest differences between GPU and CPU, with one batch and the same weights.

    'logits' is an absolute difference, 'largest_logit' the size of the CPU's; 'gradients' is the
    norm of the difference, relative to the norm of the tensor.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)

    def build():
        images, labels = _fixed_batch(start)
        for device in ('cpu', 'gpu'):
            with tf.variable_scope('', reuse=device == 'gpu'), tf.name_scope(device) as scope, \
                    tf.device(f'/{device}:0'):
                logits = _logits(start, images)
                start.recipe.loss(logits, labels)
                loss = tf.add_n(tf.get_collection('losses', scope))  # Without the other device's.
                yield logits, tf.gradients(loss, tf.trainable_variables())

    session, operations = _session(start, lambda: list(build()))
    (expected, gradients), (logits, computed) = session.run(operations)
    return {'devices': devices.line(device=FLAGS.device),
            'logits': float(np.abs(logits - expected).max()),
            'largest_logit': float(np.abs(expected).max()),
            'gradients': _largest_difference(computed, gradients)}


def measure_speed(start):
    """Returns images/s of ten steps at a time. The last fetches the loss, which waits for a GPU."""
    tf.config.experimental.enable_tensor_float_32_execution(FLAGS.tf32)
    session, (step, loss) = _session(start, lambda: training(start))
    images, rates = _LOG_FREQUENCY * start.source.batch_size, []
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


def _fixed_batch(start):
    """Adds a batch of images of the network's size, and labels, to the graph."""
    random = np.random.RandomState(0)
    batch_size = start.source.batch_size
    pixels = random.randint(0, 256, [batch_size, 32, 32, 3]).astype(np.uint8)
    images = tf.Variable(start.recipe.prepared(tf.constant(pixels)), trainable=False)
    classes = min(10, start.source.num_classes)  # The published network has ten.
    return images.read_value(), tf.constant(random.randint(0, classes, batch_size), tf.int32)


def _logits(start, images):
    return start.recipe.logits(images, start.source.num_classes, training=True)


def training(start):
    """Adds a step of training on a fixed batch to the graph: an operation, and the loss."""
    recipe = start.recipe
    images, labels = _fixed_batch(start)
    with tf.device(devices.variables_on(start.run.variables)):
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            lr = recipe.learning_rate(global_step, start.source, start.epochs)
        loss = recipe.loss(_logits(start, images), labels)
        opt = recipe.own_optimizer(lr, start.max_steps)
        return cifar10.train(loss, global_step, lr, opt), loss


def _session(start, build):
    """A session with the variables of a new run, and what `build` adds to its graph."""
    with tf.Graph().as_default() as graph:
        built = build()
        session = tf.Session(config=devices.session_config(), graph=graph)
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        variables = tf.global_variables()
        values = start.values_for(variables)
        for variable in variables:
            if variable.op.name in values:
                variable.load(values[variable.op.name], session)
    return session, built


def new_run():
    """The `starting.Start` of a new run with the flags; --train_dir is not read."""
    recipe = recipes.chosen()
    source = cifar10.default_source(batch_size=settings.batch_size(recipe))
    run = dataclasses.replace(settings.run(recipe), restart=True)
    return starting.read(run, source, recipe)


def main():
    devices.choose(FLAGS.device)
    start = new_run()
    cifar10.maybe_download_and_extract(start.source)
    measure = {'input': measure_input, 'step': measure_step, 'agreement': measure_agreement,
               'speed': measure_speed}[FLAGS.what]
    print(json.dumps(measure(start)))


if __name__ == '__main__':
    startup.run(main)
