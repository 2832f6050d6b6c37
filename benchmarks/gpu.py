"""Measures what a GPU changes, the most valuable things first.

    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data
    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data --parts machine agreement

Every row is printed, and appended to gpu_report.json, as soon as it is measured. Each part runs in
processes of its own, with a time limit; a part that fails is reported, and the others run. Stops
after `machine` if nvidia-smi sees a GPU and TensorFlow does not, and after `agreement` if the GPU
computes other numbers than the CPU. `nvidia-smi dmon` writes gpu_report.dmon alongside. Without a
GPU, runs what makes sense on a CPU, in a few minutes, and says what it leaves out. Without CIFAR-10
in --data_dir, uses the synthetic data set. Needs no network, and no package but the project's own.
"""
import contextlib
import csv
import os
import re
import subprocess
import sys
import tempfile
import time

from benchmarks import children

_LOGITS, _GRADIENTS = 1e-3, 1e-2  # The largest differences allowed in float32.
_SAME_PRECISION = 0.005  # 50 of 10,000 images: the devices round differently.
_LIMIT = 300  # Seconds for a process.
_GOAL = 0.8  # Precision @ 1.

# Floating-point operations of a training step per image, in millions.
_MFLOP = {'tutorial': 111, 'resnet23': 227}

# Dense TFLOP/s according to NVIDIA's data sheets: float32, TF32, bfloat16 with float32 sums.
_PEAKS = {'H200': (67, 495, 989), 'H100': (67, 495, 989), 'A100': (19.5, 156, 312),
          'L40': (90.5, 90.5, 181), 'L4': (30.3, 60, 121), 'T4': (8.1, 8.1, 8.1)}
_PRECISIONS = {'float32': '--tf32=false', 'TF32': '', 'bfloat16': '--use_bf16'}


class Stop(Exception):
    """A gate that was not passed: the rest would measure nothing of value."""


class Report:
    """What the parts need: the options, the GPUs, and a place for rows."""

    def __init__(self, options):
        self.options = options
        self.gpus = nvidia_smi('name')
        self.failed = []
        self._part = None

    def run(self, parts):
        """Runs functions that yield rows: {name: function of this report}."""
        for name, part in parts.items():
            self._part, start = name, time.monotonic()
            print(f'\n{name}', flush=True)
            try:
                for row in part(self):
                    self.add(row)
            except children.Failed as failure:
                self.fail(str(failure))
            print(f'  ({time.monotonic() - start:.0f} s)', flush=True)

    def add(self, row):
        """Prints and saves a row, a dictionary."""
        print('  ' + '; '.join(f'{name} {value}' if name else str(value)
                               for name, value in row.items()), flush=True)
        children.save(self.options, part=self._part, gpus=self.gpus, row=row)

    def fail(self, reason):
        self.failed.append(self._part)
        self.add({'FAILED': reason})

    def train(self, script='cifar10_train.py', batches=1, folder=None, **flags):
        """Trains for --steps: a row. If that fails, the failure shows the last lines."""
        flags = {'max_steps': self.options.steps, **flags}
        found = children.train(
            children.trainer(self.options, script, **flags),
            batches * flags.get('batch_size', self.options.batch_size), folder, limit=_LIMIT)
        return {**flags, 'seconds to step 0': round(found['start'], 1),
                'images/s': round(found['rate']), 'processor ms per step': round(found['busy'], 2),
                'memory MB': round(found['peak'])}

    def measure(self, what, **flags):
        """Rows of `benchmarks.measure`."""
        # Words of several variants cannot be one flag.
        variants = [f'--variant={each}' for each in flags.pop('variants', ())]
        return children.results([*children.command(
            'benchmarks.measure', self.options, what=what, **flags), *variants], limit=_LIMIT)


def nvidia_smi(field):
    """The answer of `nvidia-smi` to a query, one line per GPU; [] without it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ['nvidia-smi', f'--query-gpu={field}', '--format=csv,noheader'],
            stdout=subprocess.PIPE, text=True, timeout=30, check=True).stdout.splitlines()
    return []


def machine(report):
    """The machine, and whether TensorFlow sees its GPUs."""
    yield {'': children.heading()}
    for line in nvidia_smi('name,driver_version,memory.total,compute_cap,power.limit'):
        yield {'GPU': line}
    if report.gpus and not any('PhysicalDevice(' in line for line, _ in _devices()):
        raise Stop('nvidia-smi sees a GPU, but TensorFlow does not:\n' + '\n'.join(
            line for line, _ in _devices(TF_CPP_MIN_LOG_LEVEL='0')))
    yield from report.measure('machine')


def _devices(**environment):
    """What a plain import of TensorFlow and its list of GPUs print."""
    environment = {'TF_CPP_MIN_LOG_LEVEL': '3', **environment}
    return children.lines(['-c', 'import tensorflow as tf; '
                           'print(*tf.config.list_physical_devices("GPU"))'], **environment)


def agreement(report):
    """Logits and gradients of each network, with the same batch and weights."""
    if not report.gpus:
        yield {'left out': 'the comparison of a GPU with the CPU'}
        return
    for net in ('tutorial', 'resnet23', 'local'):
        row, = report.measure('agreement', net=net, tf32=False)
        yield row
        if not (row['logits'] <= _LOGITS and row['gradients'] <= _GRADIENTS):
            raise Stop(f'{net}: differences above {_LOGITS} (logits) or {_GRADIENTS} (gradients)')


def training(report):
    """A real training, and its evaluation on the GPU and on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        yield report.train(folder=folder)
        found = {}
        for device in ('auto', 'cpu')[:1 + bool(report.gpus)]:
            words = children.command('cifar10_eval.py', report.options, run_once=True,
                                     checkpoint_dir=folder, eval_dir=f'{folder}/{device}',
                                     device=device)
            out = ' '.join(line for line, _ in children.lines(words, limit=_LIMIT))
            found[device] = float(re.search(r'precision @ 1 = ([\d.]+)', out)[1])
            yield {'precision @ 1': found[device], 'with --device': device}
    if max(found.values()) - min(found.values()) > _SAME_PRECISION:
        report.fail('the precision depends on the device')


def variables(report):
    """--variables=cpu and gpu: the step on a fixed batch in GPU memory, then end to end."""
    for net in _MFLOP:
        yield from _variants(report, net, [
            f'--batch_size={batch} --variables={where}' for batch in report.options.batches
            for where in ('cpu', 'gpu')])
    for batch in report.options.batches:
        for where in ('cpu', 'gpu'):
            yield report.train('cifar10_multi_gpu_train.py', batch_size=batch, variables=where)


def precisions(report):
    """float32, TF32 and bfloat16, each in a process of its own."""
    if not report.gpus:
        yield {'left out': 'float32, TF32 and bfloat16 on a GPU'}
        return
    for net in _MFLOP:
        for name in _PRECISIONS:
            yield from _variants(report, net, [
                f'--batch_size={batch} --variables=gpu {_PRECISIONS[name]}'
                for batch in report.options.batches[-1:]], name)


def settings(report):
    """What a GPU must decide, each beside the default."""
    if not report.gpus:
        yield {'left out': 'layout pass, tf.nn.lrn, how often the loss is fetched'}
        return
    for net in _MFLOP:
        for precision in ('TF32', 'bfloat16'):
            yield from _settings(report, net, precision, '', '--layout_pass=false',
                                 '--fetch_loss=1')
    # Last, because an abort of cuDNN ends the part.
    yield from _settings(report, 'tutorial', 'TF32', '--tf_lrn', '--tf_lrn --layout_pass=false')


def _settings(report, net, precision, *switches):
    return _variants(report, net, [
        f'--batch_size={report.options.batches[0]} --variables=gpu '
        f'{_PRECISIONS[precision]} {switch}'.strip() for switch in switches], precision)


def _variants(report, net, variants, precision='TF32'):
    """Rows of steps, with TFLOP/s and their share of the peak."""
    peak = next((peaks for name, peaks in _PEAKS.items()
                 if report.gpus and name in report.gpus[0]), None)
    for row in report.measure('variants', net=net, variants=variants, batch_size=None,
                              timed_steps=report.options.steps):
        flops = row['images/s'] * _MFLOP[net] / 1e6
        row['TFLOP/s'] = round(flops, 2)
        if peak:
            row['% of the peak'] = round(100 * flops / peak[list(_PRECISIONS).index(precision)], 1)
        yield {'precision': precision, **row}


def input_threads(report):
    """Images per second of the input alone, by the number of threads that distort."""
    cores = len(os.sched_getaffinity(0))
    for threads in (1, 2, 4, 8, 16):
        if threads <= max(2, cores):
            row, = report.measure('input', threads=threads, seconds=report.options.seconds)
            yield {'threads': threads, 'images/s': round(row['rate']),
                   'first batch, s': round(row['first'], 2)}


def several(report):
    """Two towers, on two GPUs if possible; two workers, each with a GPU, or on the CPU."""
    device = 'gpu' if len(report.gpus) > 1 else 'cpu'
    if device == 'cpu':
        yield {'left out': 'NCCL, which needs a GPU for each worker'}
    yield report.train('cifar10_multi_gpu_train.py', 2, num_gpus=2)
    yield report.train('cifar10_distributed_train.py', 2, num_workers=2, device=device)


def to_a_precision(report):
    """Precision @ 1 with raw weights every other epoch up to 20,000 steps; seconds to 80 %.

    The seconds are those since the first step, validation included.
    """
    if not report.gpus:
        yield {'left out': '20,000 steps'}
        return
    with tempfile.TemporaryDirectory() as folder:
        first, reached, shown = None, False, 0
        words = children.trainer(report.options, max_steps=20000, validate_every=2,
                                 train_dir=folder)
        for line, process in children.lines(words, limit=2 * _LIMIT):
            mark = children.mark(line, process)
            if not mark:
                continue
            first = first or mark
            for row in _validated(folder, shown):
                shown = int(row['step'])
                found = 1 - float(row['validation_error'])
                if shown >= 10000 or found >= _GOAL:
                    yield {'step': shown, 'precision @ 1': round(found, 3),
                           'seconds': round(float(row['wall_time']) - first.time, 1)}
                reached = reached or found >= _GOAL
            if reached and shown >= 10000:
                return


def _validated(folder, after):
    """Rows of metrics.csv with a validation, of steps after a given one."""
    with contextlib.suppress(FileNotFoundError), open(f'{folder}/metrics.csv') as stream:
        return [row for row in csv.DictReader(stream)
                if row['validation_error'] and int(row['step']) > after]
    return []


_PARTS = {'machine': machine, 'agreement': agreement, 'training': training, 'variables': variables,
          'precisions': precisions, 'settings': settings, 'input': input_threads,
          'several': several, 'to_a_precision': to_a_precision}


@contextlib.contextmanager
def _monitor(path):
    """Runs `nvidia-smi dmon` alongside, once per second."""
    words = ['nvidia-smi', 'dmon', '-s', 'pucm', '-o', 'T', '-f', path]
    program = 'import os, sys; os.execvp(sys.argv[1], sys.argv[1:])'
    with children.started(['-c', program, *words]):
        yield


def _prepare(report):
    """Sizes what was not given, and chooses a data set that is there."""
    options = report.options
    if not report.gpus:
        print('No GPU: everything runs on the CPU.')
    options.batches = options.batches or ([128, 1024, 4096] if report.gpus else [32])
    options.steps = options.steps or (200 if report.gpus else 30)
    folder = os.path.join(options.data_dir, 'cifar-10-batches-bin')
    if options.dataset == 'cifar10' and not os.path.isdir(folder):
        options.dataset = 'synthetic'
        print(f'{folder} does not exist: the data set is the synthetic one.')
    # The driver compiles kernels that the packages lack for its GPU, and caches them on disk.
    os.environ.setdefault('CUDA_CACHE_MAXSIZE', str(4 << 30))


def main():
    parser = children.parser('benchmarks.gpu', __doc__)
    parser.set_defaults(json='gpu_report.json')
    parser.add_argument('--parts', nargs='+', choices=_PARTS, default=list(_PARTS), metavar='PART',
                        help=f'only these, of {", ".join(_PARTS)}')
    parser.add_argument('--batches', type=int, nargs='+', help='batch sizes of the steps')
    parser.add_argument('--steps', type=int, help='steps of each run')
    parser.add_argument('--seconds', type=float, default=2.0, help='seconds of reading input')
    report = Report(parser.parse_args())
    report.options.data_dir = os.path.abspath(report.options.data_dir)
    _prepare(report)
    try:
        with contextlib.ExitStack() as stack:
            if report.gpus:
                stack.enter_context(_monitor(f'{os.path.abspath(report.options.json)}.dmon'))
            report.run({name: _PARTS[name] for name in _PARTS if name in report.options.parts})
    except Stop as stop:
        report.fail(str(stop))
    if report.failed:
        sys.exit(f'benchmarks.gpu: failed: {", ".join(report.failed)}')


if __name__ == '__main__':
    main()
