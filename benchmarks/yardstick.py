"""Measures which parts of the published tutorial make it slower than this project.

    python -m benchmarks.yardstick --data_dir=/tmp/cifar10_data

Trains with the tutorial as published, with one of its parts at a time replaced by this project's,
with all of them replaced, and with this project, in turn. `tutorial.Parts` describes the parts. A
figure is a median, with the range of the middle half. Processor time includes the threads that
read the input.
"""
import functools

from benchmarks import children

PARTS = ('input', 'reader', 'layers', 'references', 'losses_first', 'averages_beside')


def _sides(parts):
    """From the name of a side to the options of `benchmarks.measure`."""
    sides = {'published': {'side': 'tutorial'}}
    sides.update({f'without {part}': {'side': 'tutorial', 'replaced': part} for part in parts})
    if len(parts) > 1:
        sides['without all of these'] = {'side': 'tutorial', 'replaced': ','.join(parts)}
    return {**sides, 'this project': {'side': 'ours'}}


def main():
    parser = children.parser('benchmarks.yardstick', __doc__)
    parser.add_argument('--turns', type=int, default=5, help='runs of each side')
    parser.add_argument('--steps', type=int, default=150, help='steps of a run')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS, metavar='PART',
                        help=f'parts to replace, of {", ".join(PARTS)}')
    options = parser.parse_args()
    runs = children.in_turn(
        {name: functools.partial(children.measure, 'train', options=options, steps=options.steps,
                                 **flags) for name, flags in _sides(options.parts).items()},
        options.turns)
    print(f'{children.heading()}\nbatch {options.batch_size}, {options.dataset}; '
          f'median (middle half) of n = {options.turns}\n')
    print('| | images/s | processor time per step, ms |\n| --- | --- | --- |')
    for name, found in runs.items():
        print(f'| {name} | {children.figure([children.rate(run) for run in found])} | '
              f'{children.figure([children.processor_ms(run) for run in found])} |')


if __name__ == '__main__':
    main()
