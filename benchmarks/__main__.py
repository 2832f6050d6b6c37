"""Compares this project with the original tutorial, and with the floor.

    python -m benchmarks --data_dir=/tmp/cifar10_data
    python -m benchmarks --data_dir=/tmp/cifar10_data --only step --net=resnet23 --batch_size=64

Takes about ten minutes; run nothing else at the same time. All sides run in turn, so that drift of
the machine affects each. A figure is the median of n, with the range of the middle half. Rows are
printed, and with --json saved, as soon as they are measured. Without instructions for bfloat16, its
row is left out. With another --net, which the tutorial does not have, only the start is measured,
and the step next to the floor of that network's products, in about two minutes.
"""
import collections
import functools
import statistics
import time

from benchmarks import children

Row = collections.namedtuple('Row', 'what unit ours other')

_LINE = '{:52}{:>23}{:>23}{:>7}  {}'
_UNITS = {'rate': 'images/s', 'first': 's', 'busy': 'ms', 'peak': 'MB', 'start': 's'}


def input_rows(options):
    found = children.in_turn(options.turns, **{
        side: functools.partial(_input, options, side) for side in ('ours', 'tutorial')})
    return [_row('input alone', found, 'rate'), _row('first batch of the input', found, 'first')]


def _input(options, side):
    return next(children.results(children.command(
        'benchmarks.measure', options, what='input', side=side, seconds=options.seconds)))


def step_rows(options):
    """The rows of a step, with the floor in the tutorial's column as well."""
    found, = children.results(children.command(
        'benchmarks.measure', options, what='step', timed_steps=50 * options.turns))
    pairs = [('step on a fixed batch', 'ours', 'tutorial'),
             ('its forward part', 'ours, forward', 'tutorial, forward'),
             ('step in bfloat16, beside float32', 'ours, bfloat16', 'ours'),
             ('step, beside the floor', 'ours', 'floor'),
             ('forward, beside its floor', 'ours, forward', 'floor, forward')]
    return [Row(what, 'ms', *(found[name] for name in names))
            for what, *names in pairs if found.keys() >= set(names)]


def train_rows(options):
    found = children.in_turn(options.turns, ours=_training(options),
                             tutorial=_training(options, 'benchmarks.tutorial'))
    return [_row('training, end to end', found, 'rate'),
            _row('processor time of it, per step', found, 'busy'),
            _row('peak memory of it', found, 'peak'), _row('start to step 0', found, 'start')]


def start_rows(options):
    """Seconds until the line of step 0: one process, beside two workers."""
    two = _training(options, 'cifar10_distributed_train.py', max_steps=1, num_workers=2)
    found = children.in_turn(options.turns, imports=_import_seconds,
                             one=_training(options, max_steps=1), two=two)
    imports = statistics.median(found.pop('imports'))
    row = _row('start to step 0, beside two workers', found, 'start')
    sides = [[value - imports for value in side] for side in (row.ours, row.other)]
    return [row, Row('the same without importing TensorFlow', 's', *sides)]


def _import_seconds():
    """Seconds in which a script that ends after its first import, TensorFlow's, starts and ends."""
    start = time.time()
    list(children.lines(['-c', 'from cifar10_lib.program import startup']))
    return time.time() - start


def tower_rows(options):
    """Two towers, in the first column, beside one of twice the batch."""
    towers = _training(options, 'cifar10_multi_gpu_train.py', batches=2, num_gpus=2)
    found = children.in_turn(options.turns, towers=towers,
                             one=_training(options, batch_size=2 * options.batch_size))
    return [_row('two towers, beside one of twice the batch', found, 'rate')]


def _training(options, *arguments, **flags):
    """A function that trains for --steps; its arguments are those of `children.train`."""
    return functools.partial(children.train, options, *arguments,
                             **{'max_steps': options.steps, **flags})


def _row(what, found, key):
    """A row of two sides, {name: list of results with that key}."""
    return Row(what, _UNITS[key], *([run[key] for run in runs] for runs in found.values()))


def _ratio(row):
    """How many times better the first side is."""
    ours, other = statistics.median(row.ours), statistics.median(row.other)
    return ours / other if row.unit == 'images/s' else other / ours


_ROWS = {'input': input_rows, 'step': step_rows, 'train': train_rows, 'start': start_rows,
         'towers': tower_rows}
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
    main()
