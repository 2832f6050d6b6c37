"""How fast steps are, and what makes them so: transfers, the input, where the variables are."""

import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from benchmarks import children
from benchmarks import measure
from benchmarks import timing
from benchmarks.gpu import placement as placement_
from cifar10_lib.program import devices
from cifar10_lib.program import errors

flags.DEFINE_list('batches', ['128', '512', '2048'], 'Batch sizes to time.')
flags.DEFINE_integer('images', 200000, 'Images of a training run; --steps limits it, too.',
                     lower_bound=1)
flags.DEFINE_float('step_seconds', 1.5, 'Seconds to repeat a step.', lower_bound=0.0)
flags.DEFINE_list('nets', ['tutorial', 'resnet23', 'local'], 'Networks to place.')

FLAGS = flags.FLAGS

_PRECISIONS = {'float32': {}, 'fp16': {'use_fp16': True}, 'bf16': {'use_bf16': True}}


def placement():
    """Where each operation of a tower runs, and what crosses, for each network and precision."""
    rows, checks, notes = [], [], []
    stand_ins = not devices.visible_gpus()
    if stand_ins:
        notes.append('A second logical CPU stands in for the GPU, so that transfers can be '
                     'counted. It has kernels that a GPU lacks; tests/test_gpu_kernels.py asks '
                     'for those.')
    for net in FLAGS.nets:
        for precision, flags_ in _PRECISIONS.items():
            with flagsaver.flagsaver(net=net, num_gpus=1, **flags_):
                row, unexpected, moved = _placed(stand_ins)
            rows.append({'net': net, 'precision': precision, **row})
            checks.append({'what': f'{net}, {precision}: operations that did not run where they '
                           'ask to, apart from those of summaries', 'value': unexpected,
                           'limit': 0, 'passed': unexpected == 0})
            notes += [f'{net}, {precision}: {count} x {what}' for what, count in moved.items()]
    return {'rows': rows, 'checks': checks, 'notes': notes}


def _placed(stand_ins):
    """A row of `placement`, the number of operations moved for no known reason, and all moved."""
    with tf.Graph().as_default() as graph:
        with tf.device(placement_.gpus_as_cpus if stand_ins else None):
            step = placement_.step_of_towers()
            summary = tf.summary.merge_all()
        creator = tf.train.ChiefSessionCreator(config=placement_.config(1, stand_ins))
        with tf.train.MonitoredSession(creator) as session:
            parts = placement_.parts(session, step)
            moved = placement_.moved(graph, placement_.parts(session, [step, summary]))
    row = {f'operations on {device}': count
           for device, count in sorted(placement_.counts(parts).items())}
    for path in placement_.crossings(graph, parts):
        row[f'{path["path"]}: tensors'] = path['tensors']
        row[f'{path["path"]}: MB'] = round(path['bytes'] / 1e6, 2)
    unexpected = sum(count for what, count in moved.items()
                     if what.partition(':')[0] not in placement_.ON_THE_HOST)
    return row, unexpected, moved


def input_alone():
    """Images per second of the input pipeline, without a network."""
    found = measure.measure_input('ours')
    return {'rows': [{'images/s': round(found['images_per_second']),
                      'first batch, s': round(found['first_batch_seconds'], 2)}],
            'checks': [], 'notes': []}


def steps():
    """A step on a fixed batch in the GPU's memory, and training end to end, for each batch size.

    The difference of the two is the time to wait for a batch and to copy it, besides what the
    session's hooks take.
    """
    rows, notes = [], []
    for batch in map(int, FLAGS.batches):
        count = max(10, min(FLAGS.steps, FLAGS.images // batch))
        row = {'net': FLAGS.net, 'precision': FLAGS.precision, 'batch': batch}
        try:
            with flagsaver.flagsaver(batch_size=batch, steps=count):
                row.update(_speeds(batch))
        except tf.errors.ResourceExhaustedError as error:
            notes.append(f'Batch {batch}: {errors.one_line(error)}')
        rows.append(row)
    return {'rows': rows, 'checks': [], 'notes': notes}


def _speeds(batch):
    fixed = timing.median_seconds(_on_fixed_batch(), FLAGS.step_seconds)
    end_to_end = batch / children.rate(measure.measure_train('ours'))
    return {'fixed batch, ms': round(1000 * fixed, 3),
            'fixed batch, images/s': round(batch / fixed),
            'end to end, ms': round(1000 * end_to_end, 3),
            'end to end, images/s': round(batch / end_to_end),
            'of it beyond the fixed batch, %': round(100 * max(0, 1 - fixed / end_to_end))}


def _on_fixed_batch():
    batch, _ = measure.fixed_batch()
    return measure.stepper(lambda: measure.train_op(*batch()))


def variables():
    """Training end to end with the variables on the CPU and on the GPU: the faster of two runs."""
    rows = []
    for net in FLAGS.nets:
        if net not in ('tutorial', 'resnet23'):
            continue
        runs = {'cpu': [], 'gpu': []}
        for where in ('cpu', 'gpu', 'gpu', 'cpu'):  # So that drift affects both.
            with flagsaver.flagsaver(net=net, variables=where, num_gpus=1,
                                     batch_size=int(FLAGS.batches[0])):
                runs[where].append(timed_towers(devices.session_config()))
        found = {where: min(seconds) for where, seconds in runs.items()}
        rows.append({'net': net, 'batch': int(FLAGS.batches[0]), **{
            f'variables on the {where.upper()}, ms': round(1000 * seconds, 3)
            for where, seconds in found.items()}, 'ratio': round(found['cpu'] / found['gpu'], 2)})
    return {'rows': rows, 'checks': [], 'notes': []}


def timed_towers(config):
    """Median seconds of a step of `--num_gpus` towers, with the input of training."""
    with tf.Graph().as_default():
        step = placement_.step_of_towers()
        creator = tf.train.ChiefSessionCreator(config=config)
        with tf.train.MonitoredSession(creator) as session:
            return timing.median_seconds(lambda: session.run(step), FLAGS.step_seconds)
