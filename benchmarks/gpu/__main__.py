"""Runs everything that a GPU changes, and writes a report.

    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data --output=gpu_report

Writes gpu_report.md and gpu_report.json, and rewrites them after each part. Each part runs in
processes of its own, with a time limit: a part that fails is reported, and the others run. Without
a GPU, all parts run on the CPU, and the report says so. Without CIFAR-10 in --data_dir, uses the
synthetic data set. Needs no network. Ends after --minutes; the same command with --keep then runs
the parts that are not done.
"""
import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from benchmarks import children
from benchmarks.gpu import report

_NETS = ('tutorial', 'resnet23')
_PRECISIONS = ('tf32', 'float32', 'fp16', 'bf16')
_CIFAR10 = 'cifar-10-batches-bin'  # `datasets.table` has it, but imports TensorFlow.

_SHORTEST = 10  # Seconds that a part needs at least.

# A process of the report. Attributes: the part that `--parts` names; title; words of the command
# after `python -m`; time limit in seconds; variables to add to the environment.
Process = collections.namedtuple('Process', 'part title words limit environment')


def processes(options):
    """All processes of the report, the most important first."""
    def run(part, title, limit, **flags):
        words = ['benchmarks.gpu.part', f'--part={part}',
                 *(f'--{name}={value}' for name, value in {**common, **flags}.items())]
        return Process(part, title, words, limit, _exact(flags.get('precision')))

    common = {name: getattr(options, name) for name in (
        'data_dir', 'dataset', 'batches', 'step_seconds', 'steps', 'images', 'nets', 'short_steps',
        'long_steps', 'seconds')}
    found = [run('machine', 'Machine', 90),
             run('placement', 'Placement and transfers', 150),
             *(run('agreement', f'Agreement with the CPU, {precision}', 120, precision=precision)
               for precision in ('float32', 'tf32')),
             run('input', 'Input alone', 60)]
    found += [run('speed', f'Speed, {net}, {precision}', 120, net=net, precision=precision)
              for precision in _PRECISIONS for net in _NETS]
    found += [run('variables', 'Variables on the CPU and on the GPU', 120),
              run('towers', 'Towers', 120, precision='float32'),
              run('scripts', 'Training, evaluation, prediction, export', 180),
              run('precision', 'Precision @ 1', 300),
              run('workers', 'Two workers', 120),
              *(Process('torch', f'PyTorch, {precision}', [
                  'benchmarks.gpu.pytorch', f'--precision={precision}',
                  f'--batches={options.batches}', f'--step_seconds={options.step_seconds}'],
                  180, _exact(precision)) for precision in ('tf32', 'float32')),
              *(run('agreement', f'Agreement with the CPU, {precision}', 120, precision=precision)
                for precision in ('fp16', 'bf16'))]
    return [each for each in found if not options.parts or each.part in options.parts.split(',')]


def _exact(precision):
    """The environment in which NVIDIA's libraries compute in plain float32."""
    return {'NVIDIA_TF32_OVERRIDE': '0'} if precision == 'float32' else {}


def run(process, limit):
    """Runs a process of the report.

    Args:
        process: a `Process`.
        limit: seconds after which it is ended with all of its children.

    Returns:
        Its result, or a dictionary with the `error`; both with `seconds`.
    """
    start = time.monotonic()
    # Kernels that the driver compiles are cached on disk; they need more than the default.
    environment = {'CUDA_CACHE_MAXSIZE': str(4 << 30), **os.environ, **process.environment}
    with subprocess.Popen([sys.executable, '-m', *process.words], cwd=children.ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                          start_new_session=True) as child:
        try:
            out, error = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            out, error = '', f'ended after its limit of {limit:.0f} seconds'
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    try:
        result = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        result = {'error': f'exit code {child.returncode}: {(error or out).strip()[-3000:]}'}
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
                        'agreement, input, speed, variables, towers, scripts, precision, workers, '
                        'torch')
    parser.add_argument('--keep', action='store_true', help='keep the parts that are done')
    parser.add_argument('--minutes', type=float, default=8.0, help='time limit of all parts')
    parser.add_argument('--batches', default='128,512,2048', help='batch sizes')
    parser.add_argument('--nets', default='tutorial,resnet23,local', help='networks to place')
    parser.add_argument('--seconds', type=float, default=3.0, help='seconds of reading input')
    parser.add_argument('--step_seconds', type=float, default=1.5, help='seconds to repeat a step')
    parser.add_argument('--steps', type=int, default=400, help='largest number of steps end to end')
    parser.add_argument('--images', type=int, default=200000, help='largest number of images of it')
    parser.add_argument('--short_steps', type=int, default=200, help='steps of short runs')
    parser.add_argument('--long_steps', type=int, default=10000, help='steps to the precision')
    return parser


def main():
    options = _parser().parse_args()
    options.data_dir = os.path.abspath(options.data_dir)
    start, notes = time.monotonic(), []
    if not os.path.exists('/dev/nvidia0') and not shutil.which('nvidia-smi'):
        notes.append('**No GPU: everything ran on the CPU.**')
    if options.dataset == 'cifar10' and not os.path.isdir(os.path.join(options.data_dir, _CIFAR10)):
        options.dataset = 'synthetic'
        notes.append(f'No CIFAR-10 in {options.data_dir}: the data set is the synthetic one.')
    found = {'heading': children.heading(), 'notes': notes, 'parts': _earlier(options)}
    for process in processes(options):
        left = 60 * options.minutes - (time.monotonic() - start)
        if process.title in found['parts']:
            continue
        if left < _SHORTEST:
            result = {'skipped': f'--minutes={options.minutes:g} were over'}
        else:
            print(f'{process.title} ...', file=sys.stderr)
            result = run(process, min(process.limit, left))
        found['parts'][process.title] = result
        _write(found, options)
    print(report.markdown(found))
    broken = [title for title, result in found['parts'].items() if 'error' in result or any(
        not check['passed'] for check in result.get('checks', ()))]
    if broken:
        sys.exit(f'benchmarks.gpu: failed: {", ".join(broken)}')


if __name__ == '__main__':
    main()
