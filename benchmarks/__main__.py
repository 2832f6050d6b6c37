"""Compares this project with the original, with peers and the floor, and a GPU with the CPU.

    python -m benchmarks --data_dir=/tmp/cifar10_data
    python -m benchmarks --data_dir=/tmp/cifar10_data --only step --net=resnet23 --batch_size=64
    python -m benchmarks --data_dir=/tmp/cifar10_data --gpu --output=gpu.txt

Run nothing else at the same time. All sides run in turn, so that drift of the machine affects each.
A figure is the median of n, with the range of the middle half. Each line is printed, and appended
to the file of --output, as soon as it is measured. Flags that are not listed below, such as
--use_bf16, are passed to the trainers.

    input      reading and distorting alone, beside the tutorial as written
    step       a step on a fixed batch, beside the tutorial and the floor (convolutions and products
               alone); where the processor has instructions for bfloat16, also in that type
    train      training end to end, beside the tutorial as written
    peers      training end to end, beside PyTorch, JAX and Keras where they are installed; requires
               a machine without a GPU
    workers    two workers under mpirun, beside two runs that share nothing, on all cores
    agreement  logits and gradients of the GPU, compared with the CPU; ends if they differ
    speed      steps on a fixed batch in GPU memory, by batch size and precision

With --gpu, the last two are the default; without it the first three and "workers", or only "step"
and "workers" for other networks than the tutorial's.
"""
import argparse
import functools
import importlib.util
import itertools
import os
import platform
import statistics
import sys
from concurrent import futures
from importlib import metadata

from benchmarks import processes

PEERS = {'PyTorch': 'torch', 'JAX': 'jax', 'Keras': 'keras'}  # Their packages.
_LINE = '{:58}{:>24}{:>24}{:>7}  {}'
_LOGITS, _GRADIENTS = 1e-3, 5e-2  # The largest differences allowed in float32.
_PRECISIONS = {'float32': {'tf32': False}, 'TF32': {'tf32': True}, 'float16': {'use_fp16': True},
               'bfloat16': {'use_bf16': True}}


def input_rows(options):
    def read(side):
        return processes.measure(options, what='input', side=side, seconds=options.seconds)

    found = in_turn(options.turns, ours=lambda: read('ours'), other=lambda: read('tutorial'))
    yield _compared('input alone', 'images/s', found, 'rate')


def step_rows(options):
    found = processes.measure(options, what='step', timed_steps=50 * options.turns)
    for what, ours, other in (('step on a fixed batch', 'ours', 'tutorial'),
                              ('step, beside the floor', 'ours', 'floor'),
                              ('step in bfloat16, beside float32', 'bfloat16', 'ours')):
        if found.keys() >= {ours, other}:
            yield line(what, 'ms', found[ours], found[other])


def train_rows(options):
    found = in_turn(options.turns, ours=lambda: processes.train(options),
                    other=lambda: processes.train(options, 'benchmarks.tutorial'))
    yield from _training_lines('training, end to end', found)


def peer_rows(options):
    runs = {'ours': lambda: processes.train(options)}
    for name, package in PEERS.items():
        if importlib.util.find_spec(package):
            runs[name] = functools.partial(
                processes.train, options, f'benchmarks.peers.in_{name.lower()}')
        else:
            yield f'{name} is not installed: pip install {package}'
    found = in_turn(options.turns, **runs)
    for name in list(runs)[1:]:
        version = metadata.version(PEERS[name])
        yield from _training_lines(f'training, beside {name} {version}',
                                   {'ours': found['ours'], name: found[name]})


def _training_lines(what, found):
    """The lines of two sides, {name: list of results of `processes.train`}."""
    yield _compared(what, 'images/s', found, 'rate')
    yield _compared('processor time of it, per step', 'ms', found, 'busy')
    yield _compared('peak memory of it', 'MB', found, 'peak')
    yield _compared('start to step 0', 's', found, 'start')


def worker_rows(options):
    def apart():
        with futures.ThreadPoolExecutor() as pool:
            return {'rate': sum(pool.map(lambda _: processes.train(options)['rate'], range(2)))}

    found = in_turn(options.turns, workers=lambda: processes.train(options, workers=2), apart=apart)
    yield _compared('two workers, beside two runs that share nothing', 'images/s', found, 'rate')


def agreement_rows(options):
    found = processes.measure(options, what='agreement')
    yield (f'{found["gpus"]}: compared with the CPU in float32, logits of up to '
           f'{found["largest_logit"]:.1e} differ by at most {found["logits"]:.1e}, gradients by '
           f'{found["gradients"]:.1e} of the norm of a tensor.')
    if not (found['logits'] <= _LOGITS and found['gradients'] <= _GRADIENTS):
        raise SystemExit(f'The differences are above {_LOGITS} (logits) or {_GRADIENTS} '
                         '(gradients): the speed of wrong results means nothing.')


def speed_rows(options):
    for size in options.batches:
        base = None
        for precision, flags in _PRECISIONS.items():
            rates = processes.measure(options, what='speed', batch_size=size,
                                      timed_steps=50 * options.turns,
                                      **{'use_fp16': False, 'use_bf16': False, **flags})['rates']
            base = base or rates
            yield line(f'batch {size} in {precision}, beside float32', 'images/s', rates, base)


_ROWS = {'input': input_rows, 'step': step_rows, 'train': train_rows, 'peers': peer_rows,
         'workers': worker_rows, 'agreement': agreement_rows, 'speed': speed_rows}


def in_turn(turns, **runs):
    """Runs functions alternately, so that drift affects all alike: {name: list of results}."""
    found = {name: [] for name in runs}
    for turn in range(turns):
        for name, run in runs.items():
            print(f'\r{f"{turn + 1} of {turns}: {name}":40}', end='', file=sys.stderr)
            found[name].append(run())
    print(f'\r{40 * " "}\r', end='', file=sys.stderr)
    return found


def _compared(what, unit, found, key):
    """The line of two sides, {name: list of results with that key}."""
    return line(what, unit, *([run[key] for run in runs] for runs in found.values()))


def line(what, unit, ours, other):
    """A line of the table. The ratio shows how many times better our side is."""
    ratio = statistics.median(ours) / statistics.median(other)
    if unit != 'images/s':  # Less is better.
        ratio = 1 / ratio
    return _LINE.format(
        f'{what}, {unit}', figure(ours), figure(other), f'{ratio:.2f}', len(ours))


def figure(values):
    """'1234 (1200 to 1260)': the median, and the range of the middle half."""
    low = middle = high = values[0]
    if len(values) > 1:
        low, middle, high = statistics.quantiles(values, n=4, method='inclusive')
    digits = max(0, 3 - len(str(int(middle))))
    return f'{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})'


def heading(options):
    """Yields lines: hardware and versions, what is measured, and the names of the columns."""
    with open('/proc/cpuinfo') as stream:
        names = [line.split(': ')[1].strip() for line in stream if line.startswith('model name')]
    package, *_ = metadata.packages_distributions()['tensorflow']  # Or tensorflow-cpu.
    yield (f'{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores; '
           f'TensorFlow {metadata.version(package)}, NumPy {metadata.version("numpy")}, '
           f'Python {platform.python_version()}, {platform.system()} {platform.release()}')
    yield ' '.join([f'{options.net}, batch {options.batch_size};', *options.flags,
                    'median (middle half) of n'])
    yield _LINE.format('', 'this project', 'the other', 'ratio', 'n')


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    path = os.path.expanduser
    parser.add_argument('--data_dir', type=path, default='/tmp/cifar10_data', help='data folder')
    parser.add_argument('--batch_size', type=int, default=128, help='images per batch')
    parser.add_argument('--net', default='tutorial', help='name of the network')
    parser.add_argument('--gpu', action='store_true', help='measure a GPU')
    parser.add_argument('--only', nargs='+', choices=_ROWS, metavar='ROWS', help='only these rows')
    parser.add_argument('--turns', type=int, default=3, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--seconds', type=float, default=5.0, help='seconds of reading input')
    parser.add_argument('--batches', type=int, nargs='+', default=[128, 1024, 4096],
                        help='batch sizes of the rows "speed"')
    parser.add_argument('--output', type=path, default=os.devnull, help='append the lines to it')
    options, options.flags = parser.parse_known_args()
    names = ['step', 'workers']
    if options.net == 'tutorial':
        names = ['input', 'step', 'train', 'workers']
    if options.gpu:
        names = ['agreement', 'speed']
    rows = (_ROWS[name](options) for name in options.only or names)
    with open(options.output, 'a', buffering=1) as report:
        for text in itertools.chain(heading(options), *rows):
            print(text, flush=True)
            print(text, file=report)


if __name__ == '__main__':
    main()
