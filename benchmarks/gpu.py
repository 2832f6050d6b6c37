"""Measures what a GPU changes, the most valuable things first.

    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data
    python -m benchmarks.gpu --data_dir=/tmp/cifar10_data --parts machine agreement

Every row is printed, and appended to gpu_report.json, as soon as it is measured. Each part runs in
processes of its own, with a time limit; a part that fails is reported, and the others run. Stops
after `machine` if nvidia-smi sees a GPU and TensorFlow does not, and after `agreement` if the GPU
computes other numbers than the CPU. `nvidia-smi dmon` appends to gpu_report.json.dmon alongside.
Without a GPU, runs what makes sense on a CPU, in a few minutes, and says what it leaves out.
Without CIFAR-10 in --data_dir, uses the synthetic data set. Needs no network.
"""
import contextlib
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
_VALIDATION = re.compile(r'validation error = ([\d.]+) \(([\d.]+) averaged\)')

# Floating-point operations of a training step per image, in millions.
_MFLOP = {'tutorial': 111, 'resnet23': 227}

# Dense TFLOP/s in float32, TF32 and bfloat16 (sums in float32), by the name in nvidia-smi:
# multiprocessors x FLOP of each per clock x GHz, from NVIDIA's white papers on Hopper and Ampere,
# and its data sheet of the L4. Other boards, such as the H100 for PCIe, have other numbers.
_PEAKS = {
    # 132 x 256 x 1.98, 132 x 2,048 x 1.83 and 132 x 4,096 x 1.83.
    'NVIDIA (H200|H100 80GB HBM3)': (66.9, 494.7, 989.4),
    # 108 x 128 x 1.41, 108 x 1,024 x 1.41 and 108 x 2,048 x 1.41.
    'NVIDIA A100.*': (19.5, 155.9, 311.9),
    # 58 x 256 x 2.04, 58 x 512 x 2.04 and 58 x 1,024 x 2.04.
    'NVIDIA L4': (30.3, 60.6, 121.2)}
_PRECISIONS = {'float32': '--tf32=false', 'TF32': '', 'bfloat16': '--use_bf16'}
_ON_GPU = '--variables=gpu'
_VARIABLES = ('--variables=cpu', _ON_GPU)


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
            if name in _OF_A_GPU and not self.gpus:
                self.add({'left out': _OF_A_GPU[name]})
                continue
            try:
                for row in part(self):
                    self.add(row)
            except (children.Failed, Exception) as failure:  # The other parts still run.
                self.fail(str(failure))
                if isinstance(failure, Stop):
                    return
            print(f'  ({time.monotonic() - start:.0f} s)', flush=True)

    def add(self, row):
        """Prints and saves a row, a dictionary."""
        print('  ' + '; '.join(f'{name} {value}' if name else str(value)
                               for name, value in row.items()), flush=True)
        children.save(self.options, part=self._part, gpus=self.gpus, row=row)

    def fail(self, reason):
        self.failed.append(self._part)
        self.add({'FAILED': reason})

    def train(self, name='cifar10_train.py', batches=1, train_dir=None, **flags):
        """Trains for --steps: yields a row. If that fails, the rest of the part still runs."""
        flags = {'max_steps': self.options.steps, **flags}
        try:
            found = children.train(self.options, name, batches, train_dir, _LIMIT, **flags)
            yield {**flags, 'seconds to step 0': round(found['start'], 1),
                   'images/s': round(found['rate']), 'memory MB': round(found['peak']),
                   'processor ms per step': round(found['busy'], 2)}
        except children.Failed as failure:
            self.fail(str(failure))

    def measure(self, what, variants=(), **flags):
        """Yields the rows of `benchmarks.measure`. If that fails, the rest still runs."""
        words = children.command('benchmarks.measure', self.options, what=what, **flags)
        try:
            yield from children.results([*words, *(f'--variant={each}' for each in variants)],
                                        limit=_LIMIT)
        except children.Failed as failure:
            self.fail(str(failure))


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
    program = 'import tensorflow as tf; print(*tf.config.list_physical_devices("GPU"))'
    seen = [line for line, _ in children.lines(['-c', program], TF_CPP_MIN_LOG_LEVEL='0')]
    if report.gpus and not any('PhysicalDevice(' in line for line in seen):
        raise Stop('\n'.join(['nvidia-smi sees a GPU, but TensorFlow does not:', *seen]))
    yield from report.measure('machine')


def agreement(report):
    """Logits and gradients of each network, with the same batch and weights."""
    for net in ('tutorial', 'resnet23', 'local'):
        for row in report.measure('agreement', net=net, tf32=False):
            yield row
            if not (row['logits'] <= _LOGITS and row['gradients'] <= _GRADIENTS):
                raise Stop(f'{net}: differences above {_LOGITS} (logits) or {_GRADIENTS} '
                           '(gradients)')


def training(report):
    """A real training, and its evaluation on the GPU and on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        yield from report.train(train_dir=folder)
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
        yield from _variants(report, net, 'TF32', report.options.batches, *_VARIABLES)
    for batch in report.options.batches:
        for where in ('cpu', 'gpu'):
            yield from report.train('cifar10_multi_gpu_train.py', batch_size=batch, variables=where)


def precisions(report):
    """float32, TF32 and bfloat16, each in a process of its own."""
    for net in _MFLOP:
        for precision in _PRECISIONS:
            yield from _variants(report, net, precision, report.options.batches[-1:])


def settings(report):
    """What a GPU must decide, each beside the default."""
    batches = report.options.batches[:1]
    for net in _MFLOP:
        for precision in ('TF32', 'bfloat16'):
            yield from _variants(report, net, precision, batches, _ON_GPU,
                                 f'{_ON_GPU} --layout_pass=false', f'{_ON_GPU} --fetch_loss=1')
    yield from _variants(report, 'tutorial', 'TF32', batches, f'{_ON_GPU} --tf_lrn',
                         f'{_ON_GPU} --tf_lrn --layout_pass=false')


def _variants(report, net, precision, batches, *switches):
    """Rows of steps, with TFLOP/s and their share of the peak."""
    peak = next((peaks for name, peaks in _PEAKS.items()
                 if report.gpus and re.fullmatch(name, report.gpus[0])), None)
    variants = [f'--batch_size={batch} {switch} {_PRECISIONS[precision]}'.strip()
                for batch in batches for switch in switches or [_ON_GPU]]
    for row in report.measure('variants', variants, net=net, batch_size=None,
                              timed_steps=report.options.steps):
        flops = row['images/s'] * _MFLOP[net] / 1e6
        row['TFLOP/s'] = round(flops, 2)
        if peak:
            row['% of the peak'] = round(100 * flops / peak[list(_PRECISIONS).index(precision)], 1)
        yield {'precision': precision if report.gpus else 'float32', **row}


def input_threads(report):
    """Images per second of the input alone, by the number of threads that distort."""
    for threads in (1, 2, 4, 8, 16):
        if threads <= max(2, len(os.sched_getaffinity(0))):
            for row in report.measure('input', threads=threads, seconds=report.options.seconds):
                yield {'threads': threads, 'images/s': round(row['rate']),
                       'first batch, s': round(row['first'], 2)}


def several(report):
    """Two towers, on two GPUs if possible; two workers, each with a GPU, or on the CPU."""
    device = 'gpu' if len(report.gpus) > 1 else 'cpu'
    if device == 'cpu':
        yield {'left out': 'NCCL, which needs a GPU for each worker'}
    yield from report.train('cifar10_multi_gpu_train.py', 2, num_gpus=2)
    yield from report.train('cifar10_distributed_train.py', 2, num_workers=2, device=device)


def to_a_precision(report):
    """Precision @ 1 every other epoch, until --precision with the raw weights, and 10,000 steps.

    The seconds are those since the first step, validations included.
    """
    options, first = report.options, None
    with tempfile.TemporaryDirectory() as folder:
        words = children.trainer(options, max_steps=100 * options.steps, validate_every=2,
                                 log_frequency=100, train_dir=folder)
        for line, process in children.lines(words, limit=2 * _LIMIT):
            mark = children.mark(line, process)
            first = first or mark
            errors = _VALIDATION.search(line)
            if errors:
                raw, averaged = (round(1 - float(error), 4) for error in errors.groups())
                yield {'step': mark.step, 'precision @ 1': raw, 'averaged weights': averaged,
                       'seconds': round(mark.time - first.time, 1)}
                if raw >= options.precision and mark.step >= 50 * options.steps:
                    return


def placement(report):
    """Where the operations of a step run, and how many tensors cross between devices."""
    for net in _MFLOP:
        variants = [f'--batch_size={report.options.batches[0]} {where}' for where in _VARIABLES]
        for row in report.measure('variants', variants, net=net, batch_size=None, timed_steps=1):
            yield {name: row[name]
                   for name in ('net', 'flags', 'operations', 'tensors between devices')}


_PARTS = {'machine': machine, 'agreement': agreement, 'training': training, 'variables': variables,
          'precisions': precisions, 'settings': settings, 'input': input_threads,
          'several': several, 'to_a_precision': to_a_precision, 'placement': placement}
_OF_A_GPU = {'agreement': 'the comparison of a GPU with the CPU',
             'precisions': 'float32, TF32 and bfloat16 on a GPU',
             'settings': 'layout pass, tf.nn.lrn, how often the loss is fetched',
             'to_a_precision': '10,000 steps',
             'placement': 'where the operations of a step run'}


@contextlib.contextmanager
def _monitor(path):
    """Runs `nvidia-smi dmon` alongside, which appends a line per second to a file."""
    program = ('import os, sys; os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | '
               'os.O_WRONLY), 1); os.execvp(sys.argv[2], sys.argv[2:])')
    with children.started(['-c', program, path, 'nvidia-smi', 'dmon', '-s', 'pucm', '-o', 'DT']):
        yield


def _prepare(report):
    """Sizes what was not given, and chooses a data set that is there."""
    options = report.options
    if not report.gpus:
        print('No GPU: everything runs on the CPU.')
    options.batches = options.batches or ([128, 1024, 4096] if report.gpus else [32])
    options.steps = options.steps or (200 if report.gpus else 20)
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
    parser.add_argument('--precision', type=float, default=0.8, help='precision @ 1 to reach')
    report = Report(parser.parse_args())
    report.options.data_dir = os.path.abspath(report.options.data_dir)
    _prepare(report)
    path = f'{os.path.abspath(report.options.json)}.dmon'
    with _monitor(path) if report.gpus else contextlib.nullcontext():
        report.run({name: _PARTS[name] for name in _PARTS if name in report.options.parts})
    if report.failed:
        sys.exit(f'benchmarks.gpu: failed: {", ".join(dict.fromkeys(report.failed))}')


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:  # The rows so far are saved.
        sys.exit(130)
