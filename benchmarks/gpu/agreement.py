"""Whether GPUs compute what the CPU computes, and two towers what one computes."""
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import measure
from benchmarks.gpu import child
from benchmarks.gpu import placement
from benchmarks.gpu import speed
import cifar10
from cifar10_lib.program import devices
from cifar10_lib import recipes

FLAGS = flags.FLAGS

_LOGITS, _GRADIENTS, _TOWERS = 1e-3, 1e-2, 1e-3  # The largest differences allowed.


def compare():
    """Logits, gradients and moving statistics of the GPU in `--precision`, and of the CPU in
    float32, with the same batch and weights."""
    rows, checks = [], []
    for net in FLAGS.nets:
        with flagsaver.flagsaver(net=net, batch_size=int(FLAGS.batches[0])):
            row = {'net': net, 'precision': FLAGS.precision, **_differences()}
        rows.append(row)
        if FLAGS.precision == 'float32':
            for what, limit in (('logits', _LOGITS), ('gradients', _GRADIENTS)):
                checks.append({'what': f'{net}: {what}, CPU against GPU', 'value': row[what],
                               'limit': limit, 'passed': row[what] <= limit})
    return {'rows': rows, 'checks': checks, 'notes': [
        'Differences: of logits absolute, else relative to the largest value of each tensor.']}


def _differences():
    """Largest differences between CPU and GPU."""
    batch, _ = measure.fixed_batch()
    on_cpu = {name: False for name in ('use_fp16', 'use_bf16') if name in FLAGS}
    with tf.Graph().as_default():
        images, labels = batch()
        with flagsaver.flagsaver(**on_cpu):
            expected = _tower('/cpu:0', images, labels)
        got = _tower('/gpu:0', images, labels, reuse=True)
        with tf.Session(config=devices.session_config()) as session:
            session.run(tf.global_variables_initializer())
            expected, got = session.run([expected, got])
    return {'logits': _rounded(np.abs(got['logits'] - expected['logits']).max()),
            'gradients': _largest(got['gradients'], expected['gradients']),
            'moving statistics': _largest(got['updates'], expected['updates'])}


def _tower(device, images, labels, reuse=False):
    """Logits, gradients and the new moving statistics of a network on a device."""
    updates = tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS)
    del updates[:]
    with tf.variable_scope(tf.get_variable_scope(), reuse=reuse), tf.device(device), \
            tf.name_scope(f'on_{device[1:4]}'):
        logits = recipes.chosen().inference(images, training=True)
        gradients = cifar10.compute_gradients(cifar10.loss(logits, labels))
    return {'logits': logits, 'gradients': [gradient for gradient, _ in gradients],
            'updates': [update.inputs[1] for update in updates]}


def _largest(got, expected):
    """Largest difference of arrays, relative to the largest value of each; None without arrays."""
    differences = [np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
                   for ours, theirs in zip(got, expected)]
    return _rounded(max(differences)) if differences else None


def _rounded(value):
    return float(f'{value:.2g}')


def towers():
    """Two towers on two logical devices of one GPU, and on all GPUs, against one tower."""
    gpus, batch = devices.visible_gpus(), int(FLAGS.batches[0])
    places = {'two logical devices of GPU 0' if gpus else 'the CPU': (2, _divided(gpus))}
    notes = []
    if gpus > 1:
        notes.append('Logical devices are not tried: the process uses all GPUs.')
        places = {f'{gpus} GPUs': (gpus, devices.session_config())}
    rows, checks = [], []
    for name, (count, config) in places.items():
        one, several = (_after_a_step(number, batch, config, count) for number in (1, count))
        difference = _largest(several, one)
        checks.append({'what': f'a step of {count} towers on {name}, against one with all images',
                       'value': difference, 'limit': _TOWERS, 'passed': difference <= _TOWERS})
        for number, size in ((1, count * batch), (count, batch)):
            with flagsaver.flagsaver(num_gpus=number, batch_size=size):
                seconds = speed.timed_towers(config)
            rows.append({'on': name, 'towers': number, 'images per tower': size,
                         'ms per step': round(1000 * seconds, 3),
                         'images/s': round(count * batch / seconds)})
    return {'rows': rows, 'checks': checks, 'notes': notes}


def _divided(gpus):
    """A session configuration that divides GPU 0 into two logical devices."""
    config = devices.session_config()
    if gpus:
        memory = [int(line.split()[0]) for line in child.nvidia_smi(['memory.total'])]
        each = 0.4 * (memory[0] if memory else 8000)  # MB; the rest is for the CUDA context.
        config.gpu_options.visible_device_list = '0'
        config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[each, each])
    return config


def _after_a_step(number, batch, config, count):
    """Values of all trained variables after a step of `number` towers on `count * batch` images."""
    random = np.random.RandomState(0)
    size = count * batch // number
    images = random.normal(size=[number, size, 24, 24, 3]).astype(np.float32)
    labels = random.randint(0, 10, [number, size]).astype(np.int32)
    with tf.Graph().as_default(), flagsaver.flagsaver(
            net='tutorial', num_gpus=number, batch_size=size):
        with tf.device('/cpu:0'):
            queue = tf.FIFOQueue(number, [tf.float32, tf.int32], [images.shape[1:], [size]])
            fill = queue.enqueue_many([images, labels])
        step = placement.step_of_towers(queue)
        trained = tf.trainable_variables()
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            for variable in trained:
                variable.load(random.normal(scale=0.05, size=variable.shape), session)
            session.run(fill)
            session.run(step)
            return session.run([variable.read_value() for variable in trained])
