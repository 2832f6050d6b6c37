"""Measures which parts of the published tutorial make it slower than this project.

    python -m benchmarks.yardstick --data_dir=/tmp/cifar10_data

Trains with the tutorial as published, with one of its parts at a time replaced by this project's,
with all of them replaced, and with this project, in turn. A figure is a median, with the range of
the middle half. Processor time includes the threads that read the input.
"""
import sys

from benchmarks import children

PARTS = ('input', 'reader', 'layers', 'references', 'losses_first', 'averages_beside')


def _sides():
    """From the name of a side to the options of `benchmarks.measure`."""
    sides = {'published': {'side': 'tutorial'}}
    sides.update({f'without {part}': {'side': 'tutorial', 'replaced': part} for part in PARTS})
    sides['without all of these'] = {'side': 'tutorial', 'replaced': ','.join(PARTS)}
    return {**sides, 'this project': {'side': 'ours'}}


def main():
    parser = children.parser('benchmarks.yardstick', __doc__)
    parser.add_argument('--turns', type=int, default=5, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a run')
    options = parser.parse_args()
    runs = {name: [] for name in _sides()}
    for turn in range(options.turns):
        for name, flags in _sides().items():
            print(f'\r{turn + 1} of {options.turns}, {name} ', end='', file=sys.stderr)
            runs[name].append(children.measure('train', options=options, steps=options.steps,
                                               **flags))
    print(f'\r{40 * " "}\r', end='', file=sys.stderr)
    print(f'{children.heading()}\nbatch {options.batch_size}, {options.dataset}; '
          f'median (middle half) of n = {options.turns}\n')
    print('| | images/s | processor time per step, ms |\n| --- | --- | --- |')
    for name, found in runs.items():
        print(f'| {name} | {children.figure([children.rate(run) for run in found])} | '
              f'{children.figure([children.processor_ms(run) for run in found])} |')


if __name__ == '__main__':
    main()
