"""Speed and memory by batch size, cores and towers: tables, and a picture.

    python -m benchmarks.growth --data_dir=/tmp/cifar10_data --png=docs/growth.png

Takes about five minutes. The picture requires Matplotlib.
"""
import os
import statistics

from benchmarks import children

_BATCHES = (16, 32, 64, 128, 256, 512, 1024)
_TOWERS = (1, 2, 4)


def _measure(options, side='ours', cores=None, **flags):
    """Medians of `--turns` runs on the first `cores` cores: (images/s, peak MB)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])  # Children inherit it, as with `taskset`.
    try:
        images = flags.get('batch_size', options.batch_size) * flags.get('num_gpus', 1)
        steps = max(20, min(200, 10000 // images))  # For about 10,000 images.
        runs = [children.measure('train', side, options, steps=steps, **flags)
                for _ in range(options.turns)]
    finally:
        os.sched_setaffinity(0, before)
    return (statistics.median(children.rate(run) for run in runs),
            statistics.median(run['peak_megabytes'] for run in runs))


def _plot(path, heading, tables):
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 4, figsize=(14, 3.6), layout='constrained')
    for axis, label, column in zip(axes, [*tables, 'batch'], (0, 0, 0, 1)):
        keys, values = list(tables[label]), [row[column] for row in tables[label].values()]
        axis.plot(keys, values, marker='o')
        axis.set_xscale('log', base=2)
        axis.set_xticks(keys, [str(key) for key in keys])
        axis.set_ylim(0, 1.1 * max(values))
        axis.set_xlabel(label)
        axis.set_ylabel('peak memory, MB' if column else 'images/s')
        axis.grid(alpha=0.3)
    figure.suptitle(heading, fontsize=9)
    figure.savefig(path, dpi=110)


def main():
    parser = children.parser('benchmarks.growth', __doc__)
    parser.add_argument('--turns', type=int, default=1, help='runs per figure')
    parser.add_argument('--png', metavar='FILE', help='also draw the picture')
    options = parser.parse_args()
    heading = children.heading()
    print(heading)
    cores = range(1, len(os.sched_getaffinity(0)) + 1)
    tables = {
        'batch': {size: _measure(options, batch_size=size) for size in _BATCHES},
        'cores': {count: _measure(options, cores=count) for count in cores},
        'towers': {count: _measure(options, 'towers', num_gpus=count) for count in _TOWERS}}
    for title, rows in tables.items():
        print(f'\n| {title} | images/s | peak MB |\n| --- | --- | --- |')
        for key, (rate, megabytes) in rows.items():
            print(f'| {key} | {rate:.0f} | {megabytes:.0f} |')
    if options.png:
        _plot(options.png, heading, tables)


if __name__ == '__main__':
    main()
