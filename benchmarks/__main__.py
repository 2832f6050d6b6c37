"""Compares this project with the original, with peers and the floor, and a GPU with the CPU.

    python -m benchmarks --data_dir=/tmp/cifar10_data --only step --net=resnet23 --batch_size=64

Run nothing else at the same time. All sides run in turn, so that drift of the machine affects each.
A figure is the median of n, with the range of the middle half. Flags that are not listed below,
such as --use_bf16, are passed to the trainers.

    input      reading and distorting alone, beside the tutorial as written
    step       a step on a fixed batch, beside the tutorial and the floor (convolutions and products
               alone); where the processor has instructions for bfloat16, also in that type
    train      training end to end, beside the tutorial as written
    peers      the same, beside PyTorch and Keras; requires a machine without a GPU
    workers    two workers under mpirun, beside two runs that share nothing, on all cores
    agreement  logits and gradients of a GPU, compared with the CPU; ends if they differ
    speed      steps on a fixed batch, by batch size and precision

The first three and "workers" are the default; of other networks, "step" and "workers".
"""
import argparse
import importlib.util
import os
import pathlib
import re
from concurrent import futures
from importlib import metadata

import numpy as np
import tqdm

from benchmarks import processes

PEERS = {'PyTorch': 'torch', 'Keras': 'keras'}  # Their packages.
_LINE = '{:58}{:>24}{:>24}{:>7}  {}'
_PRECISIONS = {'float32': ['--notf32'], 'TF32': [], 'float16': ['--use_fp16'],
               'bfloat16': ['--use_bf16']}


def input_rows(options):
    def read(side):
        return processes.measure(options, what='input', side=side, timed_steps=options.steps)

    return _compared(options, {'rate': ('input alone', 'images/s')},
                     lambda: read('ours'), lambda: read('tutorial'))


def step_rows(options):
    found = processes.measure(options, what='step', timed_steps=50 * options.turns)
    for what, ours, other in (('step on a fixed batch', 'ours', 'tutorial'),
                              ('step, beside the floor', 'ours', 'floor'),
                              ('step in bfloat16, beside float32', 'bfloat16', 'ours')):
        if found.keys() >= {ours, other}:
            yield line(what, 'ms', found[ours], found[other])


def train_rows(options):
    return _training_lines(options, 'training, end to end', 'benchmarks.tutorial')


def peer_rows(options):
    for name, package in PEERS.items():
        if importlib.util.find_spec(package):
            yield from _training_lines(
                options, f'training, beside {name} {metadata.version(package)}',
                f'benchmarks.peers.in_{name.lower()}')
        else:
            yield f'{name} is not installed: pip install {package}'


def _training_lines(options, what, module):
    """The lines of a trainer of ours and that of a module."""
    return _compared(options, {'rate': (what, 'images/s'), 'peak': ('peak memory of it', 'MB'),
                               'start': ('start to step 0', 's')},
                     lambda: processes.train(options), lambda: processes.train(options, module))


def worker_rows(options):
    def apart():
        with futures.ThreadPoolExecutor() as pool:
            return {'rate': sum(pool.map(lambda _: processes.train(options)['rate'], range(2)))}

    what = 'two workers, beside two runs that share nothing'
    return _compared(options, {'rate': (what, 'images/s')},
                     lambda: processes.train(options, workers=2), apart)


def agreement_rows(options):
    found = processes.measure(options, '--notf32', what='agreement')
    yield (f'{found["gpus"]}: compared with the CPU in float32, logits of up to '
           f'{found["largest_logit"]:.1e} differ by at most {found["logits"]:.1e}, gradients by '
           f'{found["gradients"]:.1e} of the norm of a tensor.')
    if not (found['logits'] <= 1e-3 and found['gradients'] <= 5e-2):
        raise SystemExit('The largest differences allowed are 1e-3 and 5e-2.')


def speed_rows(options):
    for size in options.batches:
        rates = {}
        for name, words in _PRECISIONS.items():
            found = processes.measure(options, '--nouse_fp16', '--nouse_bf16', *words, what='speed',
                                      batch_size=size, timed_steps=50 * options.turns)['ours']
            rates[name] = [1000 * size / milliseconds for milliseconds in found]
            yield line(f'batch {size} in {name}, beside float32', 'images/s', rates[name],
                       rates['float32'])


_ROWS = {'input': input_rows, 'step': step_rows, 'train': train_rows, 'peers': peer_rows,
         'workers': worker_rows, 'agreement': agreement_rows, 'speed': speed_rows}


def _compared(options, figures, ours, other):
    """The lines of figures, {key: (what, unit)}, of two functions, which run alternately."""
    found = [(ours(), other()) for _ in tqdm.trange(options.turns, leave=False)]
    for key, (what, unit) in figures.items():
        yield line(what, unit, [run[key] for run, _ in found], [run[key] for _, run in found])


def line(what, unit, ours, other):
    """A line of the table. The ratio shows how many times better our side is."""
    ratio = np.median(ours) / np.median(other)
    if unit != 'images/s':  # Less is better.
        ratio = 1 / ratio
    return _LINE.format(
        f'{what}, {unit}', _figure(ours), _figure(other), f'{ratio:.2f}', len(ours))


def _figure(values):
    """'1234 (1200 to 1260)': the median, and the range of the middle half."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    digits = max(0, 3 - len(str(int(middle))))
    return f'{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})'


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='data folder')
    parser.add_argument('--batch_size', type=int, default=128, help='images per batch')
    parser.add_argument('--net', default='tutorial', help='name of the network')
    parser.add_argument('--only', nargs='+', choices=_ROWS, metavar='ROWS', help='these rows')
    parser.add_argument('--turns', type=int, default=3, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--batches', type=int, nargs='+', default=[128, 1024, 4096],
                        help='batch sizes of the rows "speed"')
    options, options.flags = parser.parse_known_args()
    rows = ['step', 'workers']
    if options.net == 'tutorial':
        rows = ['input', 'step', 'train', 'workers']
    model = re.search('model name.*: (.*)', pathlib.Path('/proc/cpuinfo').read_text())
    package, *_ = metadata.packages_distributions()['tensorflow']  # Or tensorflow-cpu.
    print(f'{model and model[1]}, {len(os.sched_getaffinity(0))} cores; TensorFlow '
          f'{metadata.version(package)}; {options.net}, batch {options.batch_size};',
          *options.flags, 'median (middle half) of n')
    print(_LINE.format('', 'this project', 'the other', 'ratio', 'n'), flush=True)
    for name in options.only or rows:
        for text in _ROWS[name](options):
            print(text, flush=True)


if __name__ == '__main__':
    main()
