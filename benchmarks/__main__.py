"""Compares this project with the original tutorial, with its floor and with Keras.

    python -m benchmarks --data_dir=/tmp/cifar10_data
    python -m benchmarks --data_dir=/tmp/cifar10_data --only step --net=resnet23 --batch_size=64

Takes about fifteen minutes. All sides run in turn, A B A B, so that drift of the machine affects
each. A figure is the median of n, with the range of the middle half. Run nothing else at the same
time. Rows are printed, and with --json saved, as soon as they are measured.

The tutorial has only one network. With another --net, only the start is measured, and the step next
to the floor of that network's products, which takes about two minutes.
"""
import collections
import functools
import statistics
import subprocess
import sys
import time

from benchmarks import children

Row = collections.namedtuple('Row', 'what unit ours other larger_is_better')

_LINE = '{:52}{:>23}{:>23}{:>7}  {}'


def input_rows(options):
    def measure(side):
        return next(children.results(children.command(
            'benchmarks.measure', options, what='input', side=side, seconds=options.seconds)))

    found = _sides(options, ours=lambda: measure('ours'), tutorial=lambda: measure('tutorial'))
    return [_row('input alone', 'images/s', found, 'rate', True),
            _row('first batch of the input', 's', found, 'first')]


def step_rows(options):
    """The rows of a step, with the floor in the tutorial's column as well."""
    found, = children.results(children.command(
        'benchmarks.measure', options, what='step', rounds=10 * options.turns))
    pairs = [('step on a fixed batch', 'ours', 'tutorial'),
             ('its forward part', 'ours, forward', 'tutorial, forward'),
             ('step in bfloat16, beside float32', 'ours, bfloat16', 'ours'),
             ('step, beside the floor', 'ours', 'floor'),
             ('forward, beside its floor', 'ours, forward', 'floor, forward')]
    return [Row(what, 'ms', *(found[name] for name in names), False)
            for what, *names in pairs if names[1] in found]


def _training(options, name='cifar10_train.py', batches=1, **flags):
    """Trains for --steps: the result of `children.train`."""
    flags = {'max_steps': options.steps, 'log_frequency': 1, **flags}
    words = children.trainer(options, name, **flags) if name.endswith('.py') else [
        '-m', name, *(f'--{key}={value}' for key, value in flags.items()),
        f'--data_dir={options.data_dir}', f'--batch_size={options.batch_size}']
    return children.train(words, batches * flags.get('batch_size', options.batch_size))


def train_rows(options):
    found = _sides(options, ours=lambda: _training(options),
                   tutorial=lambda: _training(options, 'benchmarks.tutorial'))
    return [_row('training, end to end', 'images/s', found, 'rate', True),
            _row('processor time of it, per step', 'ms', found, 'busy'),
            _row('peak memory of it', 'MB', found, 'peak'),
            _row('start to step 0', 's', found, 'start')]


def keras_rows(options):
    """Training end to end, beside `model.fit` of Keras 3, which compiles with XLA by default."""
    names = {'Keras': 'auto', 'Keras without XLA': 'false'}
    found = _sides(options, ours=lambda: _training(options), **{
        name: functools.partial(_training, options, 'benchmarks.keras_fit', jit_compile=value)
        for name, value in names.items()})
    return [_row(f'{what}, beside {name}', unit, {'ours': found['ours'], name: found[name]}, key,
                 key == 'rate')
            for name in names for what, unit, key in (
                ('training', 'images/s', 'rate'), ('processor time per step', 'ms', 'busy'))]


def _import_seconds():
    """Seconds in which a script that ends after its first import, TensorFlow's, starts and ends."""
    start = time.time()
    subprocess.run([sys.executable, '-c', 'from cifar10_lib.program import startup'], check=True,
                   cwd=children.ROOT)
    return time.time() - start


def start_rows(options):
    """Seconds until the line of step 0: one process, beside two workers."""
    train = functools.partial(_training, options, max_steps=1)
    found = _sides(options, imports=_import_seconds, one=train, two=functools.partial(
        train, 'cifar10_distributed_train.py', num_workers=2))
    imports = statistics.median(found.pop('imports'))
    row = _row('start to step 0, beside two workers', 's', found, 'start')
    sides = [[value - imports for value in side] for side in (row.ours, row.other)]
    return [row, Row('the same without importing TensorFlow', 's', *sides, False)]


def tower_rows(options):
    """Two towers, in the first column, beside one of twice the batch."""
    found = _sides(
        options, towers=lambda: _training(options, 'cifar10_multi_gpu_train.py', 2, num_gpus=2),
        one=lambda: _training(options, batch_size=2 * options.batch_size))
    return [_row('two towers, beside one of twice the batch', 'images/s', found, 'rate', True)]


def _sides(options, **runs):
    return children.in_turn(runs, options.turns)


def _row(what, unit, found, key, larger_is_better=False):
    """A row of two sides, from the results of `_sides`."""
    return Row(what, unit, *([run[key] for run in runs] for runs in found.values()),
               larger_is_better)


def _ratio(row):
    """How many times better the first side is."""
    ours, other = statistics.median(row.ours), statistics.median(row.other)
    return ours / other if row.larger_is_better else other / ours


_ROWS = {'input': input_rows, 'step': step_rows, 'train': train_rows, 'keras': keras_rows,
         'start': start_rows, 'towers': tower_rows}
_OF_EVERY_NET = ('step', 'start')


def main():
    parser = children.parser('benchmarks', __doc__)
    parser.add_argument('--turns', type=int, default=3, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a training run')
    parser.add_argument('--seconds', type=float, default=5.0, help='seconds of reading input')
    parser.add_argument('--only', nargs='+', choices=_ROWS, default=list(_ROWS), metavar='ROWS',
                        help=f'only these measurements, of {", ".join(_ROWS)}')
    options = parser.parse_args()
    print(children.heading())
    print(f'{options.net}, batch {options.batch_size}, {options.dataset}; '
          'median (middle half) of n\n')
    print(_LINE.format('', 'this project', 'the other', 'ratio', 'n'), flush=True)
    for name in options.only:
        if options.net == 'tutorial' or name in _OF_EVERY_NET:
            for row in _ROWS[name](options):
                figures = [children.figure(side) for side in (row.ours, row.other)]
                print(_LINE.format(f'{row.what}, {row.unit}', *figures, f'{_ratio(row):.2f}',
                                   len(row.ours)), flush=True)
                children.save(options, **row._asdict())


if __name__ == '__main__':
    try:
        main()
    except children.Failed as failure:
        sys.exit(f'benchmarks: {failure}')
