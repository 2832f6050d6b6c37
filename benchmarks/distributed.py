"""Two workers on a core each against one worker on one core, and what goes over the wire.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --link

The real script. All that is compared is started first and frozen (SIGSTOP); then each goes on for
some seconds in turn, so that the machine's ups and downs come to all of them alike. With --link, as
root, each worker has a network of its own, and the link between them carries 1 Gbit/s; a delay of
0.5 ms is added where the kernel can. Bytes are those that leave worker 0's network; on loopback,
half of what both send, and whatever else uses it counts too.
"""
import collections
import contextlib
import dataclasses
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks import children
from benchmarks import link

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LINE = re.compile(r'step (\d+), loss = ')
_WARM_UP_STEPS = 40
_PATIENCE = 600  # Seconds that may go by without a line.
_NEVER = 24 * 3600

# What a worker had done when it wrote a line: the time, the number of its step, the seconds of
# processor time that it had used, and the bytes that had left its network.
_Mark = collections.namedtuple('_Mark', 'time step used sent')


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--starts', type=int, default=3,
                        help='how often all is started: two starts of the same may differ')
    parser.add_argument('--turns', type=int, default=4, help='turns of each start')
    parser.add_argument('--steps', type=int, default=50, help='steps of a turn')
    parser.add_argument('--bucket_mb', type=float, nargs='*', default=[],
                        help='compare these sizes of portions, too')
    parser.add_argument('--link', action='store_true', help='over a link of 1 Gbit/s; needs root')
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends workers, too.
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit('benchmarks.distributed: wants two cores')
    cases = {'1 worker': {}, '2 runs that share nothing': {'runs': 2}, '2 workers': {'size': 2},
             '2 workers, --overlap=false': {'size': 2, 'overlap': False},
             '2 workers, each on both cores': {'size': 2, 'pinned': False},
             **{f'2 workers, --bucket_mb={size:g}': {'size': 2, 'bucket_mb': size}
                for size in options.bucket_mb}}
    print(children.heading())
    found = {name: [] for name in cases}
    with _hosts(options.link) as (wire, hosts):
        print(f'{options.net}, batches of {options.batch_size} a worker, one core a worker, {wire}')
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
    _table(found)


@contextlib.contextmanager
def _hosts(with_link):
    """Yields what joins the workers, and of each its address and what runs a command there."""
    if not with_link:
        yield 'loopback', [('127.0.0.1', [])] * 2
        return
    with link.networks() as (names, addresses):
        wire, _ = [link.shape(name) for name in names]
        yield wire, [(address, ['ip', 'netns', 'exec', name])
                     for name, address in zip(names, addresses)]


def _table(found):
    alone = [run['rate'] for run in found['1 worker']]
    print('| | images/s | of 1 worker in its turn | quartiles | n | '
          'processor time of a worker, ms a step | sent by a worker, MB a step |\n'
          '| --- | --- | --- | --- | --- | --- | --- |')
    for name, runs in found.items():
        rate, used, sent = [statistics.median(run[key] for run in runs)
                            for key in ('rate', 'used', 'sent')]
        times = [run['rate'] / one for run, one in zip(runs, alone)]
        low, middle, high = statistics.quantiles(times, method='inclusive')
        print(f'| {name} | {rate:.0f} | {middle:.2f} | {low:.2f} to {high:.2f} | {len(runs)} | '
              f'{1e3 * used:.1f} | {sent / 1e6:.2f} |')


def _start(stack, options, hosts, cores, size=1, runs=1, pinned=True, **flags):
    """Starts trainers, and freezes them when they have warmed up.

    Args:
        stack: an `ExitStack`, which ends them.
        options: the parsed command line.
        hosts: of each worker its address, and what runs a command there.
        cores: the two to use.
        size: number of workers.
        runs: number of runs of one worker each, side by side.
        pinned: whether each worker has one core, or all have both.
        **flags: of the trainer.

    Returns:
        A `_Case`.
    """
    flags.update({'data_dir': options.data_dir, 'dataset': options.dataset, 'net': options.net,
                  'batch_size': options.batch_size, 'validate_every': 0, 'max_steps': 10**6,
                  'save_checkpoint_secs': _NEVER, 'step_timeout': _NEVER})
    if size > 1:
        flags['worker_hosts'] = ','.join(f'{host}:{_free_port()}' for host, _ in hosts)
    trainers = []
    for rank in range(max(size, runs)):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        its = {**flags, 'train_dir': folder, **({'task_index': rank} if size > 1 else {})}
        trainers.append(stack.enter_context(_Trainer(
            hosts[rank][1], cores[rank:rank + 1] if pinned else cores, its)))
    # All workers send over the one loopback.
    case = _Case(trainers, trainers[:runs], options.batch_size * size,
                 shared=1 if options.link else size)
    case.turn(_WARM_UP_STEPS)
    return case


@dataclasses.dataclass(frozen=True)
class _Case:
    """What has its turns.

    Attributes:
        trainers: list of all `_Trainer`, frozen between turns.
        leaders: list of those that write a line every few steps.
        images: number of images in a step of each leader's run.
        shared: number of workers whose bytes are counted together.
    """
    trainers: list
    leaders: list
    images: int
    shared: int

    def turn(self, steps):
        """Lets it go on for so many steps.

        Returns:
            Dictionary: 'rate', images/s of all runs; 'used', processor time of the first worker in
            seconds a step; 'sent', bytes a step that a worker sent.
        """
        with contextlib.ExitStack() as stack:
            for trainer in self.trainers:
                stack.enter_context(trainer.thawed())
            found = [leader.wait_for(steps) for leader in self.leaders]
        (first, last), *_ = found
        made = last.step - first.step
        return {'rate': sum(self.images * (last.step - first.step) / (last.time - first.time)
                            for first, last in found),
                'used': (last.used - first.used) / made,
                'sent': (last.sent - first.sent) / made / self.shared}


class _Trainer:
    """A process of the trainer, frozen where it is not `thawed`; killed at the context's end."""

    def __init__(self, inside, cores, flags):
        self._inside = inside
        self._process = subprocess.Popen(
            [*inside, 'taskset', '-c', ','.join(map(str, cores)), sys.executable,
             'cifar10_distributed_train.py',
             *[f'--{name}={value}' for name, value in flags.items()]],
            cwd=_ROOT, text=True, stdout=subprocess.PIPE)
        self._marks = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @contextlib.contextmanager
    def thawed(self):
        """Lets it run in the context; it is frozen after it."""
        while not self._marks.empty():  # A line may have been on its way when it was frozen.
            self._marks.get()
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def wait_for(self, steps):
        """Waits until it has made so many steps since its next line: the first and last mark."""
        first = last = self._next()
        while last.step - first.step < steps:
            last = self._next()
        return first, last

    def _next(self):
        try:
            mark = self._marks.get(timeout=_PATIENCE)
        except queue.Empty:
            sys.exit(f'benchmarks.distributed: no line of a worker for {_PATIENCE} seconds')
        if mark is None:
            sys.exit('benchmarks.distributed: a worker failed')
        return mark

    def _read(self):
        """Puts a mark into the queue for each line about a step, and None at the end."""
        try:
            for line in self._process.stdout:
                match = _LINE.search(line)
                if match:
                    self._marks.put(_Mark(time.monotonic(), int(match.group(1)), self._used(),
                                          _sent(self._inside)))
        finally:  # Also where what it counts cannot be read: nobody is to wait for the next mark.
            self._process.stdout.close()
            self._marks.put(None)

    def _used(self):
        """Seconds of processor time of all its threads so far."""
        with open(f'/proc/{self._process.pid}/stat') as stream:
            user, system = stream.read().rpartition(')')[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def _free_port():
    with socket.socket() as free:
        free.bind(('', 0))
        return free.getsockname()[1]


def _sent(inside):
    """Bytes that have left an interface so far: the link's, or loopback's."""
    table = subprocess.run([*inside, 'cat', '/proc/net/dev'], stdout=subprocess.PIPE, text=True,
                           check=True).stdout
    name = link.DEVICE if inside else 'lo'
    row, = [line for line in table.splitlines() if line.strip().startswith(f'{name}:')]
    return int(row.split(':')[1].split()[8])


if __name__ == '__main__':
    main()
