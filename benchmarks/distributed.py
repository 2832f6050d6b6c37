"""Compares two workers, on a core each, with one worker on one core; counts the bytes they send.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --link

All trainers are started first and frozen (SIGSTOP); then each case in turn continues for some
steps, so that drift of the machine affects all alike. With --link, as root, each worker has a
network namespace, and the link between them carries 1 Gbit/s, with a delay of 0.5 ms where the
kernel supports it. Bytes are those that leave worker 0's network; on loopback they are half of what
both workers send, other traffic included.
"""
import collections
import contextlib
import datetime
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

_LINE = re.compile(r'(\S+ \S+): step (\d+), loss = ')
_WARM_UP_STEPS = 40
_NEVER = 24 * 3600

# State of a worker when it printed a line: the time and its step; the processor time that it had
# used, in seconds; the bytes that had left its network.
_Mark = collections.namedtuple('_Mark', 'time step used sent')


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--starts', type=int, default=3, help='starts of all cases')
    parser.add_argument('--turns', type=int, default=4, help='turns per start')
    parser.add_argument('--steps', type=int, default=50, help='steps per turn')
    parser.add_argument('--bucket_mb', type=float, nargs='*', default=[],
                        help='also compare these bucket sizes')
    parser.add_argument('--link', action='store_true',
                        help='connect the workers by a link of 1 Gbit/s; requires root')
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends workers, too.
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit('benchmarks.distributed: requires two cores')
    cases = {'1 worker': {}, '2 runs that share nothing': {'runs': 2}, '2 workers': {'size': 2},
             '2 workers, --overlap=false': {'size': 2, 'overlap': False},
             '2 workers, each on both cores': {'size': 2, 'pinned': False},
             **{f'2 workers, --bucket_mb={size:g}': {'size': 2, 'bucket_mb': size}
                for size in options.bucket_mb}}
    print(children.heading())
    found = {name: [] for name in cases}
    with _hosts(options.link) as (wire, hosts):
        print(f'{options.net}, batches of {options.batch_size} per worker, one core per worker, '
              f'{wire}')
        for start in range(options.starts):
            with contextlib.ExitStack() as stack:
                started = {name: _Case(stack, options, hosts, cores, **case)
                           for name, case in cases.items()}
                for turn in range(options.turns):
                    for name, case in started.items():
                        found[name].append(case.turn(options.steps))
                        print(f'start {start + 1} of {options.starts}, turn {turn + 1} of '
                              f'{options.turns}, {name}: {found[name][-1]["rate"]:.0f}',
                              file=sys.stderr)
    _print_table(found)


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


def _print_table(found):
    alone = [run['rate'] for run in found['1 worker']]
    print('| | images/s | of 1 worker in its turn | quartiles | n | '
          'processor time of a worker, ms per step | sent by a worker, MB per step |\n'
          '| --- | --- | --- | --- | --- | --- | --- |')
    for name, runs in found.items():
        rate, used, sent = [statistics.median(run[key] for run in runs)
                            for key in ('rate', 'used', 'sent')]
        times = [run['rate'] / one for run, one in zip(runs, alone)]
        low, middle, high = statistics.quantiles(times, method='inclusive')
        print(f'| {name} | {rate:.0f} | {middle:.2f} | {low:.2f} to {high:.2f} | {len(runs)} | '
              f'{1e3 * used:.1f} | {sent / 1e6:.2f} |')


class _Case:
    """Trainers that are frozen between turns."""

    def __init__(self, stack, options, hosts, cores, size=1, runs=1, pinned=True, **flags):
        """Starts the trainers, and freezes them after their first steps.

        Args:
            stack: an `ExitStack`, which ends them.
            options, hosts: the parsed command line, and the result of `_hosts`.
            cores: the two to use.
            size: number of workers.
            runs: number of runs of one worker each, side by side.
            pinned: whether each worker has one core; otherwise all have both.
            **flags: of the trainer.
        """
        flags.update(max_steps=10**6, save_checkpoint_secs=_NEVER, step_timeout=_NEVER)
        if size > 1:
            flags['worker_hosts'] = ','.join(f'{host}:{_free_port()}' for host, _ in hosts)
        self._processes = []
        for rank in range(max(size, runs)):
            if size > 1:
                flags['task_index'] = rank
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            chosen = cores[rank:rank + 1] if pinned else cores
            command = [*hosts[rank][1], 'taskset', '-c', ','.join(map(str, chosen)),
                       *children.trainer('cifar10_distributed_train.py', options,
                                         train_dir=folder, **flags)]
            self._processes.append(stack.enter_context(subprocess.Popen(
                command, cwd=children.ROOT, text=True, stdout=subprocess.PIPE)))
            stack.callback(self._processes[-1].kill)
        self._leaders = self._processes[:runs]  # Those that print steps.
        self._prefix = hosts[0][1]
        self._images = options.batch_size * size
        self._senders = 1 if options.link else size  # All workers send over the one loopback.
        self.turn(_WARM_UP_STEPS)

    def turn(self, steps):
        """Continues for some steps.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'used', processor time of the first worker in
            seconds per step; 'sent', bytes per step of each worker.
        """
        since = time.time()
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        found = [self._marks(leader, steps, since) for leader in self._leaders]
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        (first, last), *_ = found
        made = last.step - first.step
        return {'rate': sum(self._images * (last.step - first.step) / (last.time - first.time)
                            for first, last in found),
                'used': (last.used - first.used) / made,
                'sent': (last.sent - first.sent) / made / self._senders}

    def _marks(self, leader, steps, since):
        """The `_Mark` of the first line after a time, and of the one some steps later."""
        first = None
        for match in filter(None, map(_LINE.match, leader.stdout)):
            printed, step = datetime.datetime.fromisoformat(match[1]).timestamp(), int(match[2])
            if printed > since and (first is None or step - first.step >= steps):
                mark = _Mark(printed, step, _used(leader.pid), _sent(self._prefix))
                if first:
                    return first, mark
                first = mark
        sys.exit('benchmarks.distributed: a worker failed')


def _used(pid):
    """Processor time of all threads of a process so far, in seconds."""
    with open(f'/proc/{pid}/stat') as stream:
        user, system = stream.read().rpartition(')')[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def _free_port():
    with socket.socket() as free:
        free.bind(('', 0))
        return free.getsockname()[1]


def _sent(prefix):
    """Bytes that have left an interface so far: the link's, or loopback's."""
    table = subprocess.run([*prefix, 'cat', '/proc/net/dev'], stdout=subprocess.PIPE, text=True,
                           check=True).stdout
    name = link.DEVICE if prefix else 'lo'
    row, = [line for line in table.splitlines() if line.strip().startswith(f'{name}:')]
    return int(row.split(':')[1].split()[8])


if __name__ == '__main__':
    main()
