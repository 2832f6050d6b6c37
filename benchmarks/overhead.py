"""Measures what summaries, console lines and checkpoints cost in a training run.

    python -m benchmarks.overhead --data_dir=/tmp/cifar10_data

The cost is the time beyond the median step, summed over the steps that write summaries, plus the
time after the last step (its checkpoint), as a fraction of the whole run. A line is printed at
every step, ten times as often as by default.
"""
import statistics

from benchmarks import children


def main():
    parser = children.parser('benchmarks.overhead', __doc__)
    parser.add_argument('--steps', type=int, default=1000, help='steps of a run')
    options = parser.parse_args()
    print(children.heading())
    for side in ('ours', 'tutorial'):
        run = children.measure('train', side, options, steps=options.steps)
        steps = [end - start for start, end in zip(run['ended'], run['ended'][1:])]
        median = statistics.median(steps)
        summaries = sum(steps[index - 1] - median for index in range(100, len(steps) + 1, 100))
        last = run['finished'] - run['ended'][-1]
        whole = run['finished'] - run['ended'][0]
        print(f'{side}: median step {1000 * median:.1f} ms; summaries {summaries:.2f} s, after the '
              f'last step {last:.2f} s, of {whole:.1f} s: {100 * (summaries + last) / whole:.1f} %')


if __name__ == '__main__':
    main()
