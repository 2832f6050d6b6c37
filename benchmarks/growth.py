"""How speed and memory grow with the batch, the cores and the towers: a table and a picture.

    python -m benchmarks.growth --data_dir=/tmp/cifar10_data --png=docs/growth.png

Takes about five minutes, and Matplotlib for the picture.
"""
import os
import statistics

from benchmarks import children

_BATCHES = (16, 32, 64, 128, 256, 512, 1024)
_TOWERS = (1, 2, 4)


def _steps(images_per_step):
    """Enough steps for some 10,000 images."""
    return max(20, min(200, 10000 // images_per_step))


def _measure(options, side='ours', cores=None, **flags):
    """(images/s, peak MB), medians of `--turns` runs, on so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])  # Children inherit it, as with `taskset`.
    try:
        images = flags['batch_size'] * flags.get('num_gpus', 1)
        runs = [children.measure('train', side, options, steps=_steps(images), **flags)
                for _ in range(options.turns)]
    finally:
        os.sched_setaffinity(0, before)
    return (statistics.median(children.rate(run) for run in runs),
            statistics.median(run['peak_megabytes'] for run in runs))


def _table(title, rows):
    print(f'\n| {title} | images/s | peak MB |\n| --- | --- | --- |')
    for key, (rate, megabytes) in rows.items():
        print(f'| {key} | {rate:.0f} | {megabytes:.0f} |', flush=True)


def _plot(path, heading, batches, cores, towers):
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, 4, figsize=(14, 3.6), layout='constrained')
    for axis, rows, label, column in (
            (axes[0], batches, 'batch size', 0), (axes[1], cores, 'cores', 0),
            (axes[2], towers, 'towers on the CPU', 0), (axes[3], batches, 'batch size', 1)):
        keys = list(rows)
        axis.plot(keys, [rows[key][column] for key in keys], marker='o')
        axis.set_xscale('log', base=2)
        axis.set_xticks(keys, [str(key) for key in keys])
        axis.set_ylim(0, 1.1 * max(row[column] for row in rows.values()))
        axis.set_xlabel(label)
        axis.set_ylabel('peak memory, MB' if column else 'images/s')
        axis.grid(alpha=0.3)
    figure.suptitle(heading, fontsize=9)
    figure.savefig(path, dpi=110)


def main():
    parser = children.parser('benchmarks.growth', __doc__)
    parser.add_argument('--turns', type=int, default=1, help='runs for each figure')
    parser.add_argument('--png', metavar='FILE', help='draw the picture, too')
    options = parser.parse_args()
    heading = children.heading()
    print(heading)
    batches = {size: _measure(options, batch_size=size) for size in _BATCHES}
    _table('batch', batches)
    cores = {count: _measure(options, cores=count, batch_size=options.batch_size)
             for count in range(1, len(os.sched_getaffinity(0)) + 1)}
    _table('cores', cores)
    towers = {count: _measure(options, 'towers', batch_size=options.batch_size, num_gpus=count)
              for count in _TOWERS}
    _table('towers', towers)
    if options.png:
        _plot(options.png, heading, batches, cores, towers)


if __name__ == '__main__':
    main()
