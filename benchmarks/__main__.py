"""Measures this project beside the tutorial as it was, and prints a table.

    python -m benchmarks --data_dir=/tmp/cifar10_data

Takes about ten minutes. The two run in turn, A B A B, so that the machine's drift meets both. A
figure is the median of n, with the range of the middle half. Let nothing else run meanwhile.

Another --net has no counterpart in the tutorial: only its steps are measured, beside the floor of
its own convolutions, and the time that it takes to start. That takes about two minutes.
"""
import collections
import json
import statistics
import subprocess
import sys
import time

from benchmarks import children

Row = collections.namedtuple('Row', 'what unit ours tutorial larger_is_better')

_NETS = ('tutorial', 'resnet23', 'local')  # Those of recipes.py, which needs TensorFlow.

def import_seconds():
    """Seconds that a process takes to import TensorFlow and nothing else."""
    start = time.time()
    subprocess.run([sys.executable, '-c', 'import tensorflow.compat.v1'], check=True,
                   stderr=subprocess.DEVNULL)
    return time.time() - start


def input_rows(options):
    found = children.in_turn('input', options)
    return [
        Row('input alone', 'images/s', *_of(found, lambda run: run['images_per_second']), True),
        Row('first batch of the input', 's', *_of(found, lambda run: run['first_batch_seconds']),
            False)]


def step_rows(options):
    """The rows of a step, with the floor and PyTorch in the tutorial's column as well."""
    found = children.measure('step', 'ours', options, rounds=10 * options.turns)
    pairs = [('step on a fixed batch', 'ours', 'tutorial'),
             ('its forward part', 'ours, forward', 'tutorial, forward'),
             ('step, beside the floor', 'ours', 'floor'),
             ('forward, beside its floor', 'ours, forward', 'floor, forward'),
             ('step, beside PyTorch', 'ours', 'PyTorch'),
             ('step, beside PyTorch compiled', 'ours', 'PyTorch, compiled')]
    return [Row(what, 'ms', *([1000 * each for each in found[name]] for name in names), False)
            for what, *names in pairs if names[1] in found]


def train_rows(options):
    imports = [import_seconds() for _ in range(options.turns)]
    found = children.in_turn('train', options, steps=options.steps)
    start = _of(found, lambda run: run['ended'][0] - run['started'])
    return [
        Row('training, end to end', 'images/s', *_of(found, children.rate), True),
        Row('peak memory of it', 'MB', *_of(found, lambda run: run['peak_megabytes']), False),
        Row('start to the end of step 0', 's', *start, False),
        Row('the same without importing TensorFlow', 's', *(
            [each - statistics.median(imports) for each in side] for side in start), False)]


def start_rows(options):
    """Seconds until the line of step 0: one process, beside two workers."""
    rows = []
    for net in _NETS if options.net == 'tutorial' else [options.net]:
        alone, together = [], []
        for _ in range(options.turns):
            alone.append(children.seconds_to_step_0('cifar10_train.py', options, net=net))
            together.append(children.seconds_to_step_0(
                'cifar10_distributed_train.py', options, net=net, num_workers=2))
        rows.append(Row(f'start to step 0, {net}, beside two workers', 's', alone, together, False))
    return rows


def tower_rows(options):
    """Two towers, in the first column, beside one of twice the batch."""
    towers, single = [], []
    for _ in range(options.turns):
        towers.append(children.rate(children.measure(
            'train', 'towers', options, steps=options.steps // 2, num_gpus=2)))
        single.append(children.rate(children.measure(
            'train', 'ours', options, steps=options.steps // 2,
            batch_size=2 * options.batch_size)))
    return [Row('two towers, beside one of twice the batch', 'images/s', towers, single, True)]


def evaluate_rows(options):
    found = children.in_turn('evaluate', options)
    return [Row('evaluation of the test set', 's', *_of(found, lambda run: run['seconds']), False)]


def _of(found, value):
    return [[value(run) for run in found[side]] for side in ('ours', 'tutorial')]


def _figure(values):
    """'1234 (1200-1260)': the median, and where the middle half lies."""
    low, middle, high = (statistics.quantiles(values, n=4, method='inclusive')
                         if len(values) > 1 else 3 * values)
    digits = max(0, 2 - len(str(int(middle))) + 1) if middle < 100 else 0
    return f'{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})'


def _ratio(row):
    """How many times better this project is."""
    ours, other = statistics.median(row.ours), statistics.median(row.tutorial)
    return ours / other if row.larger_is_better else other / ours


def main():
    parser = children.parser('benchmarks', __doc__)
    parser.add_argument('--turns', type=int, default=3, help='how often each side runs')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--json', metavar='FILE', help='write all figures to a file, too')
    options = parser.parse_args()
    measurements = [input_rows, step_rows, train_rows, start_rows, tower_rows, evaluate_rows]
    if options.net != 'tutorial':
        measurements = [step_rows, start_rows]
    rows = [row for rows in measurements for row in rows(options)]
    print(children.heading())
    print(f'{options.net}, batch {options.batch_size}, {options.dataset}; '
          'median (middle half) of n\n')
    line = '{:52}{:>23}{:>23}{:>7}  {}'
    print(line.format('', 'this project', 'the other', 'ratio', 'n'))
    for row in rows:
        print(line.format(f'{row.what}, {row.unit}', _figure(row.ours), _figure(row.tutorial),
                          f'{_ratio(row):.2f}', len(row.ours)))
    if options.json:
        found = {'heading': children.heading(), 'rows': [row._asdict() for row in rows]}
        with open(options.json, 'w') as stream:
            json.dump(found, stream, indent=1)


if __name__ == '__main__':
    main()
