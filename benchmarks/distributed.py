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
import dataclasses
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
                started = {name: _start(stack, options, hosts, cores, **case)
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


def _start(stack, options, hosts, cores, size=1, runs=1, pinned=True, **flags):
    """Starts trainers, and freezes them after their first steps: a `_Case`.

    Args:
        stack: an `ExitStack`, which ends them.
        options: the parsed command line.
        hosts: each worker's address and command prefix.
        cores: the two to use.
        size: number of workers.
        runs: number of runs of one worker each, side by side.
        pinned: whether each worker has one core; otherwise all have both.
        **flags: of the trainer.
    """
    flags.update(max_steps=10**6, save_checkpoint_secs=_NEVER, step_timeout=_NEVER)
    if size > 1:
        flags['worker_hosts'] = ','.join(f'{host}:{_free_port()}' for host, _ in hosts)
    trainers = []
    for rank in range(max(size, runs)):
        prefix = hosts[rank][1]
        command = [*prefix, 'taskset', '-c',
                   ','.join(map(str, cores[rank:rank + 1] if pinned else cores)),
                   *children.trainer('cifar10_distributed_train.py', options, **flags,
                                     train_dir=stack.enter_context(tempfile.TemporaryDirectory()),
                                     **({'task_index': rank} if size > 1 else {}))]
        trainers.append(stack.enter_context(_Trainer(command, prefix)))
    # All workers send over the one loopback.
    case = _Case(trainers, trainers[:runs], options.batch_size * size,
                 shared=1 if options.link else size)
    case.turn(_WARM_UP_STEPS)
    return case


@dataclasses.dataclass(frozen=True)
class _Case:
    """Trainers that are frozen between turns.

    Attributes:
        trainers: list of all `_Trainer`.
        leaders: list of those that print the steps.
        images: images per step of each leader's run.
        shared: number of workers whose bytes are counted together.
    """
    trainers: list
    leaders: list
    images: int
    shared: int

    def turn(self, steps):
        """Continues for some steps.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'used', processor time of the first worker in
            seconds per step; 'sent', bytes per step of each worker.
        """
        since = time.time()
        for trainer in self.trainers:
            trainer.process.send_signal(signal.SIGCONT)
        found = [leader.marks(steps, since) for leader in self.leaders]
        for trainer in self.trainers:
            trainer.process.send_signal(signal.SIGSTOP)
        (first, last), *_ = found
        made = last.step - first.step
        return {'rate': sum(self.images * (last.step - first.step) / (last.time - first.time)
                            for first, last in found),
                'used': (last.used - first.used) / made,
                'sent': (last.sent - first.sent) / made / self.shared}


class _Trainer:
    """A trainer's process; the context kills it."""

    def __init__(self, command, prefix):
        self._prefix = prefix
        self.process = subprocess.Popen(
            command, cwd=children.ROOT, text=True, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def marks(self, steps, since):
        """The `_Mark` of the first line after a time, and of the one some steps later."""
        first = None
        for line in self.process.stdout:
            match = _LINE.match(line)
            if not match:
                continue
            printed, step = datetime.datetime.fromisoformat(match[1]).timestamp(), int(match[2])
            if first is None and printed > since:
                first = _Mark(printed, step, self._used(), _sent(self._prefix))
            elif first is not None and step - first.step >= steps:
                return first, _Mark(printed, step, self._used(), _sent(self._prefix))
        sys.exit('benchmarks.distributed: a worker failed')

    def _used(self):
        """Processor time of all threads so far, in seconds."""
        with open(f'/proc/{self.process.pid}/stat') as stream:
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
