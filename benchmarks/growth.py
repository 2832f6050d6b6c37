"""Speed and memory by batch size, cores and towers: tables, and a picture.

    python -m benchmarks.growth --data_dir=/tmp/cifar10_data --png=docs/growth.png

Takes about twenty minutes. All points run in turn, one run of each per turn, so that drift of the
machine affects all of them. A figure is a median, with the range of the middle half. The picture
requires Matplotlib.
"""
import functools
import os
import typing

from benchmarks import children


class Point(typing.NamedTuple):
    """A configuration; `towers` is None for cifar10_train.py, which has no towers."""

    batch: int
    cores: int
    towers: int | None

    def __str__(self):  # For the progress line.
        towers = '' if self.towers is None else f', towers: {self.towers}'
        return f'batch size {self.batch}, cores: {self.cores}{towers}'


def points_of(options, cores):
    """The points of each table: {title: {key: `Point`}}; tables share equal points.

    Args:
        options: `batches` and `towers`, lists of int, and `batch_size`.
        cores: number of cores of this machine.
    """
    size = options.batch_size
    return {'batch': {batch: Point(batch, cores, None) for batch in options.batches},
            'cores': {count: Point(size, count, None) for count in range(1, cores + 1)},
            'towers': {count: Point(size, cores, count) for count in options.towers}}


def _run(point, options):
    """One training run on the first cores: (images/s, peak MB)."""
    images = point.batch * (point.towers or 1)
    side, flags = ('towers', {'num_gpus': point.towers}) if point.towers else ('ours', {})
    with children.on_cores(sorted(os.sched_getaffinity(0))[:point.cores]):
        run = children.measure('train', side, options, batch_size=point.batch,
                               steps=max(20, min(200, options.images // images)), **flags)
    return children.rate(run), run['peak_megabytes']


def _draw(axis, label, rows, unit):
    """Medians of each row, with the range of the middle half.

    Args:
        axis: Matplotlib axes.
        label: what the keys of `rows` are.
        rows: {key: list of values}.
        unit: what the values are.
    """
    low, middle, high = zip(*map(children.quartiles, rows.values()))
    errors = [[b - a for a, b in zip(low, middle)], [b - a for a, b in zip(middle, high)]]
    axis.errorbar(list(rows), middle, errors, marker='o', capsize=4)
    axis.set_xscale('log', base=2)
    axis.set_xticks(list(rows), [str(key) for key in rows])
    axis.set_ylim(0, 1.1 * max(high))
    axis.set_xlabel(label)
    axis.set_ylabel(unit)
    axis.grid(alpha=0.3)


def _plot(path, heading, tables):
    """Draws four curves, 800 pixels wide: the width of a page."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(2, 2, figsize=(8, 6), layout='constrained')
    panels = [('batch', 'images/s', 0), ('batch', 'peak memory, MB', 1),
              ('cores', 'images/s', 0), ('towers', 'images/s', 0)]
    for axis, (title, unit, column) in zip(axes.flat, panels):
        rows = {key: [run[column] for run in runs] for key, runs in tables[title].items()}
        _draw(axis, title, rows, unit)
    figure.suptitle(heading.replace('; ', '\n', 1), fontsize=10)
    figure.savefig(path, dpi=100)


def main():
    parser = children.parser('benchmarks.growth', __doc__)
    parser.add_argument('--turns', type=int, default=5, help='runs of each point')
    parser.add_argument('--images', type=int, default=10000,
                        help='images per run, in 20 to 200 steps')
    parser.add_argument('--batches', type=int, nargs='+', help='batch sizes',
                        default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument('--towers', type=int, nargs='+', default=[1, 2, 4],
                        help='numbers of towers')
    parser.add_argument('--png', metavar='FILE', help='also draw the picture')
    options = parser.parse_args()
    points = points_of(options, len(os.sched_getaffinity(0)))
    runs = children.in_turn(
        {point: functools.partial(_run, point, options)
         for rows in points.values() for point in rows.values()}, options.turns)
    tables = {title: {key: runs[point] for key, point in rows.items()}
              for title, rows in points.items()}
    print(f'{children.heading()}\n{options.net}, {options.dataset}; median (middle half) of '
          f'n = {options.turns}')
    for title, rows in tables.items():
        print(f'\n| {title} | images/s | peak MB |\n| --- | --- | --- |')
        for key, found in rows.items():
            print(f'| {key} | {" | ".join(map(children.figure, zip(*found)))} |')
    if options.png:
        _plot(options.png, children.heading(), tables)


if __name__ == '__main__':
    main()
