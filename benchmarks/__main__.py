"""Measures this project beside the tutorial as it was, and prints a table.

    python -m benchmarks --data_dir=/tmp/cifar10_data

Takes about five minutes. The two run in turn, A B A B, so that the machine's drift meets both. A
figure is the median of n, with the range of the middle half. Let nothing else run meanwhile.
"""
import argparse
import collections
import json
import os
import platform
import statistics
import subprocess
import sys
import time

Row = collections.namedtuple('Row', 'what unit ours tutorial larger_is_better')

_WARM_UP_STEPS = 30


def measure(what, side, options, **flags):
    """What one process of `benchmarks.measure` found, and the time when it was started."""
    started = time.time()
    command = [sys.executable, '-m', 'benchmarks.measure', f'--what={what}', f'--side={side}',
               f'--data_dir={options.data_dir}', f'--dataset={options.dataset}']
    command += [f'--{name}={value}' for name, value in flags.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # It has said why on standard error.
    return {**json.loads(done.stdout.splitlines()[-1]), 'started': started}


def in_turn(what, options, sides=('ours', 'tutorial'), **flags):
    """Measures the sides in turn: dictionary from side to the list of what was found."""
    found = {side: [] for side in sides}
    for turn in range(options.turns):
        for side in sides:
            print(f'\r{what}: {turn + 1} of {options.turns}, {side} ', end='', file=sys.stderr)
            found[side].append(measure(what, side, options, **flags))
    print('\r' + 40 * ' ' + '\r', end='', file=sys.stderr)
    return found


def import_seconds():
    """Seconds that a process takes to import TensorFlow and nothing else."""
    start = time.time()
    subprocess.run([sys.executable, '-c', 'import tensorflow.compat.v1'], check=True,
                   stderr=subprocess.DEVNULL)
    return time.time() - start


def input_rows(options):
    found = in_turn('input', options)
    return [
        Row('input alone', 'images/s', *_of(found, lambda run: run['images_per_second']), True),
        Row('first batch of the input', 's', *_of(found, lambda run: run['first_batch_seconds']),
            False)]


def step_rows(options):
    """The rows of a step, with the floor and PyTorch in the tutorial's column as well."""
    found = measure('step', 'ours', options, rounds=10 * options.turns)
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
    found = in_turn('train', options, steps=options.steps)

    def rate(run):
        seconds = run['ended'][-1] - run['ended'][_WARM_UP_STEPS]
        return options.batch_size * (len(run['ended']) - 1 - _WARM_UP_STEPS) / seconds

    start = _of(found, lambda run: run['ended'][0] - run['started'])
    return [
        Row('training, end to end', 'images/s', *_of(found, rate), True),
        Row('peak memory of it', 'MB', *_of(found, lambda run: run['peak_megabytes']), False),
        Row('start to the end of step 0', 's', *start, False),
        Row('the same without importing TensorFlow', 's', *(
            [each - statistics.median(imports) for each in side] for side in start), False)]


def evaluate_rows(options):
    found = in_turn('evaluate', options)
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


def heading():
    """Hardware and versions."""
    import numpy
    from importlib import metadata
    with open('/proc/cpuinfo') as stream:
        names = [line.split(': ')[1].strip() for line in stream if line.startswith('model name')]
    return (f'{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores; '
            f'TensorFlow {metadata.version("tensorflow")}, NumPy {numpy.__version__}, '
            f'Python {platform.python_version()}, {platform.system()} {platform.release()}')


def main():
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    parser.add_argument('--dataset', default='cifar10', help='which of them')
    parser.add_argument('--batch_size', type=int, default=128, help='images in a batch')
    parser.add_argument('--turns', type=int, default=3, help='how often each side runs')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--json', metavar='FILE', help='write all figures to a file, too')
    options = parser.parse_args()
    rows = [row for rows in (input_rows, step_rows, train_rows, evaluate_rows)
            for row in rows(options)]
    print(heading())
    print(f'batch {options.batch_size}, {options.dataset}; median (middle half) of n\n')
    line = '{:38}{:>20}{:>22}{:>7}  {}'
    print(line.format('', 'this project', 'the other', 'ratio', 'n'))
    for row in rows:
        print(line.format(f'{row.what}, {row.unit}', _figure(row.ours), _figure(row.tutorial),
                          f'{_ratio(row):.2f}', len(row.ours)))
    if options.json:
        with open(options.json, 'w') as stream:
            json.dump({'heading': heading(), 'rows': [row._asdict() for row in rows]}, stream,
                      indent=1)


if __name__ == '__main__':
    main()
