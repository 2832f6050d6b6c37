"""Compares this project with the original tutorial, and prints a table.

    python -m benchmarks --data_dir=/tmp/cifar10_data

Takes about fifteen minutes. All sides run in turn, A B A B, so that drift of the machine affects
each. A figure is the median of n, with the range of the middle half. Run nothing else at the same
time.

The tutorial has only one network. With another --net, only the start is measured, and the step next
to the floor of that network's products, which takes about two minutes.
"""
import collections
import functools
import json
import statistics
import subprocess
import sys
import time

from benchmarks import children

Row = collections.namedtuple('Row', 'what unit ours tutorial larger_is_better')

_KERAS = {'Keras': 'auto', 'Keras without XLA': 'false'}  # Its default is XLA.

_NETS = ('tutorial', 'resnet23', 'local')  # Those of recipes.py, which imports TensorFlow.


def input_rows(options):
    found = children.both_sides('input', options, seconds=options.seconds)
    return [Row('input alone', 'images/s', *_values(found, 'images_per_second'), True),
            Row('first batch of the input', 's', *_values(found, 'first_batch_seconds'), False)]


def step_rows(options):
    """The rows of a step, with the floor and PyTorch in the tutorial's column as well."""
    found = children.measure('step', 'ours', options, rounds=10 * options.turns)
    pairs = [('step on a fixed batch', 'ours', 'tutorial'),
             ('its forward part', 'ours, forward', 'tutorial, forward'),
             ('step in bfloat16, beside float32', 'ours, bfloat16', 'ours'),
             ('step, beside the floor', 'ours', 'floor'),
             ('forward, beside its floor', 'ours, forward', 'floor, forward'),
             ('step, beside PyTorch', 'ours', 'PyTorch'),
             ('step, beside PyTorch compiled', 'ours', 'PyTorch, compiled')]
    return [Row(what, 'ms', *([1000 * each for each in found[name]] for name in names), False)
            for what, *names in pairs if names[1] in found]


def train_rows(options):
    imports = [_import_seconds() for _ in range(options.turns)]
    found = children.both_sides('train', options, steps=options.steps)
    rates = [[children.rate(run) for run in runs] for runs in found.values()]
    busy = [[children.processor_ms(run) for run in runs] for runs in found.values()]
    starts = [[run['ended'][0] - run['started'] for run in runs] for runs in found.values()]
    return [Row('training, end to end', 'images/s', *rates, True),
            Row('processor time of it, per step', 'ms', *busy, False),
            Row('peak memory of it', 'MB', *_values(found, 'peak_megabytes'), False),
            *_with_and_without_import('start to the end of step 0', starts, imports)]


def keras_rows(options):
    """Training end to end, beside `model.fit` of Keras 3."""
    runs = {'ours': lambda: children.measure('train', 'ours', options, steps=options.steps)}
    runs.update({name: functools.partial(children.keras_fit, options, steps=options.steps,
                                         jit_compile=value) for name, value in _KERAS.items()})
    found = children.in_turn(runs, options.turns)
    figures = [('training', 'images/s', children.rate, True),
               ('processor time per step', 'ms', children.processor_ms, False)]
    return [Row(f'{what}, beside {name}', unit, *([of(run) for run in found[side]]
                                                  for side in ('ours', name)), larger_is_better)
            for name in _KERAS for what, unit, of, larger_is_better in figures]


def _import_seconds():
    """Seconds in which a script that ends after its first import, TensorFlow's, starts and ends."""
    start = time.time()
    subprocess.run([sys.executable, '-c', 'from cifar10_lib.program import startup'], check=True,
                   cwd=children.ROOT)
    return time.time() - start


def _with_and_without_import(what, sides, imports):
    """Rows of seconds from the start: in total, and without the median of the imports."""
    without = ([each - statistics.median(imports) for each in side] for side in sides)
    return [Row(what, 's', *sides, False),
            Row('the same without importing TensorFlow', 's', *without, False)]


def start_rows(options):
    """Seconds until the line of step 0: one process, beside two workers."""
    rows = []
    for net in _NETS if options.net == 'tutorial' else [options.net]:
        to_step_0 = functools.partial(children.seconds_to_step_0, options=options, net=net)
        imports, *sides = children.in_turn(
            {'import': _import_seconds,
             'one process': functools.partial(to_step_0, 'cifar10_train.py'),
             'two workers': functools.partial(
                 to_step_0, 'cifar10_distributed_train.py', num_workers=2)},
            options.turns).values()
        rows += _with_and_without_import(
            f'start to step 0, {net}, beside two workers', sides, imports)
    return rows


def tower_rows(options):
    """Two towers, in the first column, beside one of twice the batch."""
    train = functools.partial(
        children.measure, 'train', options=options, steps=options.steps // 2)
    found = children.in_turn(
        {'two towers': lambda: train('towers', num_gpus=2),
         'one of twice the batch': lambda: train('ours', batch_size=2 * options.batch_size)},
        options.turns)
    return [Row('two towers, beside one of twice the batch', 'images/s',
                *([children.rate(run) for run in runs] for runs in found.values()), True)]


def evaluate_rows(options):
    found = children.both_sides('evaluate', options)
    return [Row('evaluation of the test set', 's', *_values(found, 'seconds'), False)]


def _values(found, key):
    return [[run[key] for run in runs] for runs in found.values()]


def _ratio(row):
    """How many times better this project is."""
    ours, other = statistics.median(row.ours), statistics.median(row.tutorial)
    return ours / other if row.larger_is_better else other / ours


_ROWS = {'input': input_rows, 'step': step_rows, 'train': train_rows, 'keras': keras_rows,
         'start': start_rows, 'towers': tower_rows, 'evaluate': evaluate_rows}
_OF_EVERY_NET = ('step', 'start')


def main():
    parser = children.parser('benchmarks', __doc__)
    parser.add_argument('--turns', type=int, default=3, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--seconds', type=float, default=5.0, help='seconds of reading input')
    parser.add_argument('--json', metavar='FILE', help='also write all figures to a file')
    parser.add_argument('--only', nargs='+', choices=_ROWS, default=list(_ROWS), metavar='ROWS',
                        help=f'only these measurements, of {", ".join(_ROWS)}')
    options = parser.parse_args()
    rows = [row for name in options.only
            if options.net == 'tutorial' or name in _OF_EVERY_NET for row in _ROWS[name](options)]
    print(children.heading())
    print(f'{options.net}, batch {options.batch_size}, {options.dataset}; '
          'median (middle half) of n\n')
    line = '{:52}{:>23}{:>23}{:>7}  {}'
    print(line.format('', 'this project', 'the other', 'ratio', 'n'))
    for row in rows:
        figures = [children.figure(side) for side in (row.ours, row.tutorial)]
        print(line.format(f'{row.what}, {row.unit}', *figures, f'{_ratio(row):.2f}',
                          len(row.ours)))
    if options.json:
        with open(options.json, 'w') as stream:
            json.dump({'heading': children.heading(), 'rows': [row._asdict() for row in rows]},
                      stream, indent=1)


if __name__ == '__main__':
    main()
