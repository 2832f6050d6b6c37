"""Runs everything that a GPU changes, and writes a report.

    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data --output=gpu_report

Writes gpu_report.md and gpu_report.json, and rewrites them after each part. Each part runs in
processes of its own, with a time limit: a part that fails is reported, and the others run. Without
a GPU, all parts run on the CPU, and the report says so. Without CIFAR-10 in --data_dir, uses the
synthetic data set. Needs no network. Ends after --minutes; the same command with --keep then runs
the parts that are not done.
"""
import collections
import functools
import json
import os
import sys
import time

from benchmarks import children
from benchmarks.gpu import child
from benchmarks.gpu import report
from benchmarks.gpu import scripts
from cifar10_lib.datasets import table

_ENOUGH = 0.25  # Fraction of its time limit that a part needs to start.

# A part of the report. Attributes: the name for `--parts`; title; time limit in seconds; function
# from a limit in seconds to the result (see `part`).
Part = collections.namedtuple('Part', 'name title limit run')


def parts(options):
    """All parts of the report, the most important first."""
    def part(name, title, limit, **flags):
        words = ['-m', 'benchmarks.gpu.part', f'--part={name}',
                 *(f'--{flag}={value}' for flag, value in {**common, **flags}.items())]
        return Part(name, title, limit, functools.partial(
            _result, words, environment=_exact(flags.get('precision'))))

    def script(function, title, limit):
        return Part(function.__name__, title, limit, functools.partial(function, options))

    def torch(precision):
        words = ['-m', 'benchmarks.gpu.pytorch', f'--batches={options.batches}',
                 f'--precision={precision}', f'--step_seconds={options.step_seconds}']
        return Part('torch', f'PyTorch, {precision}', 180, functools.partial(
            _result, words, environment=_exact(precision)))

    def agreement(precision):
        return part('agreement', f'Agreement with the CPU, {precision}', 120, precision=precision)

    common = {name: getattr(options, name) for name in (
        'data_dir', 'dataset', 'batches', 'step_seconds', 'steps', 'images', 'nets', 'seconds')}
    precisions, nets = options.precisions.split(','), options.nets.split(',')
    found = [
        part('machine', 'Machine', 120),
        part('placement', 'Placement and transfers', 150),
        *map(agreement, precisions[:2]),
        part('input', 'Input alone', 60),
        *(part('speed', f'Speed, {net}, {precision}', 120, net=net, precision=precision)
          for precision in precisions for net in nets if net != 'local'),
        part('variables', 'Variables on the CPU and on the GPU', 120),
        part('towers', 'Towers', 120, precision='float32'),
        script(scripts.train_and_evaluate, 'Training and evaluation', 150),
        script(scripts.predict_and_export, 'Prediction and export', 150),
        script(scripts.precision, 'Precision @ 1', 300),
        script(scripts.workers, 'Two workers', 120),
        *(torch(precision) for precision in precisions if precision in ('float32', 'tf32')),
        *map(agreement, precisions[2:])]
    names = list(dict.fromkeys(each.name for each in found))
    chosen = options.parts.split(',') if options.parts else names
    for name in chosen:
        if name not in names:
            sys.exit(f'benchmarks.gpu: --parts has "{name}"; expected some of {",".join(names)}')
    return [each for each in found if each.name in chosen]


def _exact(precision):
    """The environment in which NVIDIA's libraries compute in plain float32."""
    return {'NVIDIA_TF32_OVERRIDE': '0'} if precision == 'float32' else {}


def _result(words, limit, environment):
    """The result that a process prints in its last line."""
    return json.loads(child.run(words, limit, environment).splitlines()[-1])


def _run(part, limit):
    """Runs a part; returns its result or its `error`, and `seconds`."""
    start = time.monotonic()
    try:
        result = part.run(limit)
    except Exception as error:  # Whatever it is, the other parts run.
        result = {'error': f'{type(error).__name__}: {error}'}
    return {**result, 'seconds': round(time.monotonic() - start, 1)}


def _write(found, options):
    for ending, text in (('json', json.dumps(found, indent=1)), ('md', report.markdown(found))):
        with open(f'{options.output}.{ending}.part', 'w') as stream:
            stream.write(text)
        os.replace(f'{options.output}.{ending}.part', f'{options.output}.{ending}')


def _earlier(options):
    """Results of the parts that an earlier run has finished."""
    if not options.keep or not os.path.exists(f'{options.output}.json'):
        return {}
    with open(f'{options.output}.json') as stream:
        return {title: result for title, result in json.load(stream)['parts'].items()
                if 'rows' in result}


def _parser():
    parser = children.parser('benchmarks.gpu', __doc__)
    parser.add_argument('--output', default='gpu_report', help='path of the report, without ending')
    parser.add_argument('--parts', help='only these, separated by commas: machine, placement, '
                        'agreement, input, speed, variables, towers, train_and_evaluate, '
                        'predict_and_export, precision, workers, torch')
    parser.add_argument('--keep', action='store_true', help='keep the parts that are done')
    parser.add_argument('--minutes', type=float, default=8.0, help='time limit of all parts')
    parser.add_argument('--batches', default='128,512,2048', help='batch sizes')
    parser.add_argument('--nets', default='tutorial,resnet23,local', help='networks')
    parser.add_argument('--precisions', default='float32,tf32,fp16,bf16', help='precisions')
    parser.add_argument('--seconds', type=float, default=3.0, help='seconds of reading input')
    parser.add_argument('--step_seconds', type=float, default=1.5, help='seconds to repeat a step')
    parser.add_argument('--steps', type=int, default=400, help='largest number of steps end to end')
    parser.add_argument('--images', type=int, default=200000, help='largest number of images of it')
    parser.add_argument('--short_steps', type=int, default=200, help='steps of short runs')
    parser.add_argument('--long_steps', type=int, default=10000, help='steps to the precision')
    return parser


def _prepare(options):
    """Chooses a data set that is there; returns notes for the report."""
    notes = []
    if child.nvidia_smi(['name']):
        # The driver compiles kernels that the packages lack for its GPU, and caches them on disk.
        os.environ.setdefault('CUDA_CACHE_MAXSIZE', str(4 << 30))
    else:
        notes.append('**No GPU: everything ran on the CPU.**')
    folder = os.path.join(options.data_dir, table.CIFAR10.folder)
    if options.dataset == 'cifar10' and not os.path.isdir(folder):
        options.dataset = 'synthetic'
        notes.append(f'{folder} does not exist: the data set is the synthetic one.')
    return notes


def main():
    options = _parser().parse_args()
    options.data_dir = os.path.abspath(options.data_dir)
    found = {'heading': children.heading(), 'notes': _prepare(options), 'parts': _earlier(options)}
    end = time.monotonic() + 60 * options.minutes
    for part in parts(options):
        if part.title in found['parts']:
            continue
        left = end - time.monotonic()
        if left < _ENOUGH * part.limit:
            result = {'skipped': f'--minutes={options.minutes:g} were over'}
        else:
            print(f'{part.title} ...', file=sys.stderr)
            result = _run(part, min(part.limit, left))
        found['parts'][part.title] = result
        _write(found, options)
    print(report.markdown(found))
    broken = [title for title, result in found['parts'].items() if 'error' in result or any(
        not check['passed'] for check in result.get('checks', ()))]
    if broken:
        sys.exit(f'benchmarks.gpu: failed: {", ".join(broken)}')


if __name__ == '__main__':
    main()
