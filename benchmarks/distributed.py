"""Compares two workers, one core each, with two independent runs.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --cases default late

All trainers are started first and frozen (SIGSTOP); then each in turn continues for some seconds,
so that drift of the machine affects all alike. Ratios and added processor time compare runs of the
same turn; a figure is the median, with the range of the middle half. Steps with summaries are left
out. With --namespaces, as root, each worker runs in one of two linked network namespaces. Bytes are
those that leave worker 0's network; on loopback they are half of what both workers send, other
traffic included. The default takes about five minutes.
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

# From a name in --cases to a row and the options of `_Trainers` for two workers.
_CASES = {'default': ('2 workers', {}),
          'bf16': ('2 workers, --compress=bf16', {'compress': 'bf16'}),
          'late': ('2 workers, --overlap=false', {'overlap': False}),
          'unpinned': ('2 workers, each on both cores', {'pinned': False})}


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--cases', nargs='*', choices=_CASES, default=['default', 'bf16'],
                        help=f'kinds of two workers, of {", ".join(_CASES)}', metavar='CASE')
    parser.add_argument('--starts', type=int, default=3, help='starts of all trainers')
    parser.add_argument('--turns', type=int, default=3, help='turns per start')
    parser.add_argument('--seconds', type=float, default=3.0, help='seconds per turn')
    parser.add_argument('--namespaces', nargs=2, metavar='NAME=ADDRESS', default=[],
                        help='network namespaces of the workers, and their addresses')
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit('benchmarks.distributed: requires two cores')
    rows = {'1 worker': {}, '2 runs that share nothing': {'runs': 2}}
    rows.update({row: {'size': 2, **case} for row, case in map(_CASES.get, options.cases)})
    print(children.heading())
    print(f'{options.net}, batches of {options.batch_size} per worker, one core per worker, '
          f'{"network namespaces" if options.namespaces else "loopback"}')
    found = {row: [] for row in rows}
    for _ in range(options.starts):
        for row, runs in _measure(rows, options, cores).items():
            found[row] += runs
            children.save(options, what=row, seconds=options.seconds, runs=runs)
    _print_table(found)


def _measure(rows, options, cores):
    """Starts all trainers once, and runs them in turn: {row: list of results of `turn`}."""
    with contextlib.ExitStack() as stack:
        trainers = {row: _Trainers(stack, options, cores, **case) for row, case in rows.items()}
        return children.in_turn({row: each.turn for row, each in trainers.items()}, options.turns)


def _print_table(found):
    print('\n| | images/s | relative to 1 | relative to 2 that share nothing | n | '
          'CPU time per worker and step, ms | of it added, ms | '
          'sent per worker and step, MB |\n' + 8 * '| --- ' + '|')
    one, apart, *_ = found.values()
    for row, runs in found.items():
        rate, used, sent = [statistics.median(run[key] for run in runs)
                            for key in ('rate', 'used', 'sent')]
        more = [1e3 * (run['used'] - other['used']) for run, other in zip(runs, apart)]
        print(f'| {row} | {rate:.0f} | {_spread(_ratios(runs, one))} | '
              f'{_spread(_ratios(runs, apart))} | {len(runs)} | {1e3 * used:.1f} | '
              f'{_spread(more, digits=1)} | {sent / 1e6:.2f} |')


def _ratios(runs, others):
    return [run['rate'] / other['rate'] for run, other in zip(runs, others)]


def _spread(values, digits=2):
    low, middle, high = (f'{value:.{digits}f}' for value in children.quartiles(values))
    return f'{middle} ({low} to {high})'


class _Trainers:
    """Processes that train, frozen between turns."""

    def __init__(self, stack, options, cores, size=1, runs=1, pinned=True, **flags):
        """Starts the processes, and freezes them after their first steps.

        Args:
            stack: an `ExitStack`, which ends them.
            options: the parsed command line.
            cores: the two to use.
            size: number of workers.
            runs: number of runs of one worker each, side by side.
            pinned: whether each worker has one core; otherwise all have both.
            **flags: flags of the trainer.
        """
        places = [each.split('=') for each in options.namespaces] or 2 * [('', '127.0.0.1')]
        hosts = ','.join(f'{address}:{_free_port()}' for _, address in places)
        self._processes = []
        for rank, (name, _) in zip(range(max(size, runs)), places):
            own = {'worker_hosts': hosts, 'task_index': rank} if size > 1 else {}
            words = children.trainer(
                options, 'cifar10_distributed_train.py', max_steps=10**6, step_timeout=_NEVER,
                save_checkpoint_secs=_NEVER, **flags, **own,
                train_dir=stack.enter_context(tempfile.TemporaryDirectory()))
            prefix = ['ip', 'netns', 'exec', name] if name else []
            with _on_cores(cores[rank:rank + 1] if pinned else cores):
                self._processes.append(
                    stack.enter_context(children.started(words, prefix)))
        self._leaders = self._processes[:runs]  # Those that print steps.
        self._seconds = options.seconds
        self._images = options.batch_size * size
        self._senders = 1 if options.namespaces else size  # All send over the one loopback.
        self.turn()

    def turn(self):
        """Continues for --seconds.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'used', processor time of the first worker in
            seconds per step; 'sent', bytes per step of each worker.
        """
        since = time.time()
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        spans = [self._span(leader, since) for leader in self._leaders]
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        (first, sent), (last, sent_later) = spans[0]
        made = last.step - first.step
        return {'rate': sum(self._images * (end.step - begin.step) / (end.time - begin.time)
                            for (begin, _), (end, _) in spans),
                'used': (last.used - first.used) / made,
                'sent': (sent_later - sent) / made / self._senders}

    def _span(self, leader, since):
        """(`children.Mark`, bytes sent so far) of a line after a time, and of one --seconds later.

        No step in between computes or writes summaries, as every hundredth does.
        """
        first = None
        for line in leader.stdout:
            mark = children.mark(line, leader)
            if not mark or mark.time <= since:
                continue
            starts = first is None or mark.step % _SUMMARY_STEPS < 2  # Written after the line.
            if starts or mark.time - first[0].time >= self._seconds:
                state = mark, _sent(leader.pid)
                if not starts:
                    return first, state
                first = state
        raise children.Failed('a worker ended')


@contextlib.contextmanager
def _on_cores(cores):
    """Processes that start within this context run on these cores, as with `taskset`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _sent(pid):
    """Bytes that have left the network interfaces of a process's namespace so far."""
    with open(f'/proc/{pid}/net/dev') as stream:
        return sum(int(line.split(':')[1].split()[8]) for line in stream if ':' in line)


def _free_port():
    with socket.socket() as free:
        free.bind(('', 0))
        return free.getsockname()[1]


if __name__ == '__main__':
    try:
        main()
    except children.Failed as failure:
        sys.exit(f'benchmarks.distributed: {failure}')
