"""Compares two workers, one core each, with two independent runs, and with PyTorch.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --cases default late --link

All trainers are started first and frozen (SIGSTOP); then each in turn continues for some seconds,
so that drift of the machine affects all alike. Ratios and added processor time compare runs of the
same turn; a figure is the median, with the range of the middle half. Steps with summaries are left
out. PyTorch trains on a batch of noise and so reads no input. With --link, as root, each worker has
a network namespace, and the link between them carries 1 Gbit/s, with a delay of 0.5 ms where the
kernel supports it. Bytes are those that leave worker 0's network; on loopback they are half of what
both workers send, other traffic included. The default takes about eight minutes.
"""
import collections
import contextlib
import datetime
import importlib.util
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import children
from benchmarks import link

_LINE = re.compile(r'(\S+ \S+): step (\d+)\b')
_SUMMARY_STEPS = 100
_SHOWN_MS = 0.1
_NEVER = 24 * 3600

# State of a worker when it printed a line: the time and its step; the processor time that it had
# used, in seconds, and that of its threads by name; the bytes that had left its network.
_Mark = collections.namedtuple('_Mark', 'time step used threads sent')

# From a name in --cases to a row and the options of `_Trainers` for two workers.
_CASES = {'default': ('2 workers', {}),
          'bf16': ('2 workers, --compress=bf16', {'compress': 'bf16'}),
          'late': ('2 workers, --overlap=false', {'overlap': False}),
          'unpinned': ('2 workers, each on both cores', {'pinned': False}),
          'ddp': ('PyTorch, 2 processes with DistributedDataParallel', {'pytorch': True})}


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--cases', nargs='*', choices=_CASES, default=['default', 'bf16', 'ddp'],
                        help=f'kinds of two workers, of {", ".join(_CASES)}', metavar='CASE')
    parser.add_argument('--bucket_mb', type=float, nargs='*', default=[],
                        help='also compare these bucket sizes')
    parser.add_argument('--starts', type=int, default=3, help='starts of all trainers')
    parser.add_argument('--turns', type=int, default=3, help='turns per start')
    parser.add_argument('--seconds', type=float, default=3.0, help='seconds per turn')
    parser.add_argument('--link', action='store_true',
                        help='connect the workers by a link of 1 Gbit/s; requires root')
    parser.add_argument('--threads', action='store_true',
                        help='also print the processor time of threads by their name')
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends workers, too.
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit('benchmarks.distributed: requires two cores')
    print(children.heading())
    groups = _groups(options)
    with _hosts(options.link) as (wire, hosts):
        print(f'{options.net}, batches of {options.batch_size} per worker, one core per worker, '
              f'{wire}')
        starts = [_measure(groups, options, hosts, cores) for _ in range(options.starts)]
    found = {row: [run for start in starts for run in start[row]] for row in starts[0]}
    _print_table(groups, found)
    if options.threads:
        _print_threads(found)


def _groups(options):
    """The rows to compare with each other: {row: options of `_Trainers`} for each group.

    The first row of a group is one worker, the second two runs that share nothing.
    """
    chosen = [_CASES[name] for name in options.cases]
    ours = {row: {'size': 2, **case} for row, case in chosen if 'pytorch' not in case}
    ours.update({f'2 workers, --bucket_mb={size:g}': {'size': 2, 'bucket_mb': size}
                 for size in options.bucket_mb})
    groups = []
    if ours:
        groups.append({'1 worker': {}, '2 runs that share nothing': {'runs': 2}, **ours})
    if 'ddp' not in options.cases or options.net != 'tutorial':  # The only one in PyTorch.
        return groups
    if importlib.util.find_spec('torch') is None:
        print('PyTorch is not installed; its rows are left out')
        return groups
    row, case = _CASES['ddp']
    return [*groups, {'PyTorch, 1 process': case,
                      'PyTorch, 2 processes that share nothing': {'runs': 2, **case},
                      row: {'size': 2, **case}}]


@contextlib.contextmanager
def _hosts(with_link):
    """Yields a description of the connection, and each worker's address and command prefix."""
    if not with_link:
        yield 'loopback', [('127.0.0.1', [])] * 2
        return
    with link.networks() as (names, addresses):
        wire, _ = [link.shape(name) for name in names]
        yield wire, [(address, ['ip', 'netns', 'exec', name])
                     for name, address in zip(names, addresses)]


def _measure(groups, options, hosts, cores):
    """Starts all trainers once, and runs them in turn: {row: list of results of `turn`}."""
    with contextlib.ExitStack() as stack:
        trainers = {row: _Trainers(stack, options, hosts, cores, **case)
                    for group in groups for row, case in group.items()}
        return children.in_turn({row: each.turn for row, each in trainers.items()}, options.turns)


def _print_table(groups, found):
    print('\n| | images/s | relative to 1 | relative to 2 that share nothing | n | '
          'CPU time per worker and step, ms | of it added, ms | '
          'sent per worker and step, MB |\n' + 8 * '| --- ' + '|')
    for group in groups:
        one, apart, *_ = [found[row] for row in group]
        for row in group:
            runs = found[row]
            rate, used, sent = [statistics.median(run[key] for run in runs)
                                for key in ('rate', 'used', 'sent')]
            more = [1e3 * (run['used'] - other['used']) for run, other in zip(runs, apart)]
            print(f'| {row} | {rate:.0f} | {_spread(_ratios(runs, one))} | '
                  f'{_spread(_ratios(runs, apart))} | {len(runs)} | {1e3 * used:.1f} | '
                  f'{_spread(more, digits=1)} | {sent / 1e6:.2f} |')


def _print_threads(found):
    print('\nProcessor time by name of thread, ms per step of the first worker, median:\n')
    for row, runs in found.items():
        names = sorted({name for run in runs for name in run['threads']})
        medians = {name: 1e3 * statistics.median(run['threads'][name] for run in runs)
                   for name in names}
        print(f'- {row}: ' + ', '.join(
            f'{name} {ms:.1f}' for name, ms in medians.items() if ms >= _SHOWN_MS))


def _ratios(runs, others):
    return [run['rate'] / other['rate'] for run, other in zip(runs, others)]


def _spread(values, digits=2):
    low, middle, high = (f'{value:.{digits}f}' for value in children.quartiles(values))
    return f'{middle} ({low} to {high})'


class _Trainers:
    """Processes that train, frozen between turns."""

    def __init__(self, stack, options, hosts, cores, size=1, runs=1, pinned=True, **case):
        """Starts the processes, and freezes them after their first steps.

        Args:
            stack: an `ExitStack`, which ends them.
            options, hosts: the parsed command line, and the result of `_hosts`.
            cores: the two to use.
            size: number of workers.
            runs: number of runs of one worker each, side by side.
            pinned: whether each worker has one core; otherwise all have both.
            **case: `pytorch=True` for PyTorch, or flags of the trainer.
        """
        command = _pytorch if case.pop('pytorch', False) else _trainer
        addresses = [f'{host}:{_free_port()}' for host, _ in hosts][:size]
        self._processes = []
        for rank in range(max(size, runs)):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            words = command(options, addresses, rank if size > 1 else 0, train_dir=folder, **case)
            with children.on_cores(cores[rank:rank + 1] if pinned else cores):
                self._processes.append(stack.enter_context(subprocess.Popen(
                    [*hosts[rank][1], *words], cwd=children.ROOT, text=True,
                    stdout=subprocess.PIPE)))
            stack.callback(self._processes[-1].kill)
        self._leaders = self._processes[:runs]  # Those that print steps.
        self._seconds = options.seconds
        self._images = options.batch_size * size
        self._device = link.DEVICE if options.link else 'lo'
        self._senders = 1 if options.link else size  # All workers send over the one loopback.
        self.turn()

    def turn(self):
        """Continues for --seconds.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'used', processor time of the first worker in
            seconds per step; 'threads', the same by name; 'sent', bytes per step of each worker.
        """
        since = time.time()
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        marks = [self._marks(leader, since) for leader in self._leaders]
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        first, last = marks[0]
        made = last.step - first.step
        return {'rate': sum(self._images * (last.step - first.step) / (last.time - first.time)
                            for first, last in marks),
                'used': (last.used - first.used) / made,
                'threads': collections.Counter({
                    name: (used - first.threads[name]) / made
                    for name, used in last.threads.items()}),
                'sent': (last.sent - first.sent) / made / self._senders}

    def _marks(self, leader, since):
        """The `_Mark` of a line after a time, and of one --seconds later.

        No step in between computes or writes summaries, as every hundredth does.
        """
        first = None
        for match in filter(None, map(_LINE.match, leader.stdout)):
            printed, step = datetime.datetime.fromisoformat(match[1]).timestamp(), int(match[2])
            if printed <= since:
                continue
            starts = first is None or step % _SUMMARY_STEPS < 2  # Written after the step's line.
            if starts or printed - first.time >= self._seconds:
                mark = _Mark(printed, step, _used(leader.pid), _threads(leader.pid),
                             _sent(leader.pid, self._device))
                if not starts:
                    return first, mark
                first = mark
        sys.exit('benchmarks.distributed: a worker failed')


def _trainer(options, addresses, rank, **flags):
    """Command of our trainer."""
    if len(addresses) > 1:
        flags.update(worker_hosts=','.join(addresses), task_index=rank)
    return children.trainer('cifar10_distributed_train.py', options, max_steps=10**6,
                            save_checkpoint_secs=_NEVER, step_timeout=_NEVER, log_frequency=1,
                            **flags)


def _pytorch(options, addresses, rank, train_dir):
    """Command of `benchmarks.torch_worker`."""
    del train_dir  # It writes nothing.
    return [sys.executable, '-m', 'benchmarks.torch_worker', f'--batch_size={options.batch_size}',
            f'--size={len(addresses)}', f'--rank={rank}', f'--address={addresses[0]}',
            f'--interface={link.DEVICE if options.link else "lo"}']


def _used(pid):
    """Processor time of all threads of a process so far, in seconds."""
    return time.clock_gettime(~pid << 3 | 2)  # As clock_getcpuclockid of the C library.


def _threads(pid):
    """The same by name of thread, a Counter; unnamed threads have the name of the program."""
    found = collections.Counter()
    for task in os.listdir(f'/proc/{pid}/task'):
        path = f'/proc/{pid}/task/{task}/'
        with contextlib.suppress(OSError), open(path + 'comm') as name, (
                open(path + 'schedstat')) as state:  # It may have ended.
            found['main' if int(task) == pid else name.read().strip()] += (
                int(state.read().split()[0]) / 1e9)
    return found


def _sent(pid, device):
    """Bytes that have left a network interface of a process's namespace so far."""
    with open(f'/proc/{pid}/net/dev') as stream:
        row, = [line for line in stream if line.strip().startswith(f'{device}:')]
    return int(row.split(':')[1].split()[8])


def _free_port():
    with socket.socket() as free:
        free.bind(('', 0))
        return free.getsockname()[1]


if __name__ == '__main__':
    main()
