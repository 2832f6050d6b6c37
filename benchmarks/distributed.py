"""Compares two workers, one core each, with two independent runs.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --cases default late

All trainers are started first and frozen (SIGSTOP); then each in turn continues for some seconds,
so that drift of the machine affects all alike. Ratios and added processor time compare runs of the
same turn; a figure is the median, with the range of the middle half. Steps with summaries are left
out. The default takes about five minutes.
"""
import contextlib
import os
import signal
import socket
import statistics
import sys
import tempfile
import time

from benchmarks import children

_SUMMARY_STEPS = 100
_NEVER = 24 * 3600

# From a name in --cases to a row and the flags of the two workers.
_CASES = {'default': ('2 workers', {}),
          'late': ('2 workers, --overlap=false', {'overlap': False})}


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--cases', nargs='*', choices=_CASES, default=['default'],
                        help=f'kinds of two workers, of {", ".join(_CASES)}', metavar='CASE')
    parser.add_argument('--starts', type=int, default=3, help='starts of all trainers')
    parser.add_argument('--turns', type=int, default=3, help='turns per start')
    parser.add_argument('--seconds', type=float, default=3.0, help='seconds per turn')
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit('benchmarks.distributed: requires two cores')
    rows = {'1 worker': {}, '2 runs that share nothing': {'runs': 2},
            **{row: {'size': 2, **flags} for row, flags in map(_CASES.get, options.cases)}}
    print(children.heading())
    print(f'{options.net}, batches of {options.batch_size} per worker, one core per worker')
    found = {row: [] for row in rows}
    for _ in range(options.starts):
        with contextlib.ExitStack() as stack:
            trainers = {row: _Trainers(stack, options, **case) for row, case in rows.items()}
            turns = children.in_turn(
                options.turns, **{row: each.turn for row, each in trainers.items()})
        for row, runs in turns.items():
            found[row] += runs
            children.save(options, what=row, seconds=options.seconds, runs=runs)
    _print_table(found)


def _print_table(found):
    print('\n| | images/s | relative to 1 | relative to 2 that share nothing | n | '
          'CPU time per worker and step, ms | of it added, ms |\n' + 7 * '| --- ' + '|')
    one, apart, *_ = found.values()
    for row, runs in found.items():
        rate, busy = [statistics.median(run[key] for run in runs) for key in ('rate', 'busy')]
        more = [run['busy'] - other['busy'] for run, other in zip(runs, apart)]
        print(f'| {row} | {rate:.0f} | {_ratios(runs, one)} | {_ratios(runs, apart)} | '
              f'{len(runs)} | {busy:.1f} | {children.figure(more)} |')


def _ratios(runs, others):
    return children.figure([run['rate'] / other['rate'] for run, other in zip(runs, others)])


class _Trainers:
    """Processes that train, frozen between turns."""

    def __init__(self, stack, options, size=1, runs=1, **flags):
        """Starts `size` workers, or `runs` runs of one worker, each process on a core of its own.

        They are frozen after their first steps, and end with `stack`, an `ExitStack`.
        """
        hosts = ','.join(f'127.0.0.1:{_free_port()}' for _ in range(size))
        self._processes = []
        for rank, core in zip(range(max(size, runs)), sorted(os.sched_getaffinity(0))):
            own = {'worker_hosts': hosts, 'task_index': rank} if size > 1 else {}
            words = children.trainer(
                options, 'cifar10_distributed_train.py', max_steps=10**6, step_timeout=_NEVER,
                save_checkpoint_secs=_NEVER, **flags, **own,
                train_dir=stack.enter_context(tempfile.TemporaryDirectory()))
            self._processes.append(stack.enter_context(
                children.started(words, ['taskset', '-c', str(core)])))
        self._leaders = self._processes[:runs]  # Those that print steps.
        self._seconds = options.seconds
        self._images = options.batch_size * size
        self.turn()

    def turn(self):
        """Continues for --seconds.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'busy', ms of processor time of the first
            worker per step.
        """
        since = time.time()
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        speeds = [children.speed(*self._span(leader, since), self._images)
                  for leader in self._leaders]
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        return {'rate': sum(each['rate'] for each in speeds), 'busy': speeds[0]['busy']}

    def _span(self, leader, since):
        """The `children.Mark` of a line after a time, and that of one --seconds later.

        No step in between computes or writes summaries, as every hundredth does.
        """
        first = None
        for line in leader.stdout:
            mark = children.mark(line, leader)
            if mark and mark.time > since:
                # Summaries are written after the line.
                if first is None or mark.step % _SUMMARY_STEPS < 2:
                    first = mark
                elif mark.time - first.time >= self._seconds:
                    return first, mark
        raise children.Failed('a worker ended')


def _free_port():
    with socket.create_server(('127.0.0.1', 0)) as free:
        return free.getsockname()[1]


if __name__ == '__main__':
    main()
