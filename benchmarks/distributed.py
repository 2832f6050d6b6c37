"""Two workers on a core each against one worker on one core, and what goes over the wire.

    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data
    python -m benchmarks.distributed --data_dir=/tmp/cifar10_data --link

The real script, in turn. With --link, as root, each worker has a network of its own, and the link
between them carries 1 Gbit/s; a delay of 0.5 ms is added where the kernel can. Bytes are those that
leave worker 0's network from one line of the console to another; on loopback, half of what both
send, and whatever else uses it counts too.
"""
import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile

from benchmarks import children
from benchmarks import link

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LINE = re.compile(r'step (\d+), loss = .* \((\d+\.\d) examples/sec')
_WARM_UP_STEPS = 40


def main():
    parser = children.parser('benchmarks.distributed', __doc__)
    parser.add_argument('--turns', type=int, default=3, help='runs for each figure')
    parser.add_argument('--steps', type=int, default=200, help='steps of a run')
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
    with _hosts(options.link) as (wire, hosts):
        print(f'{options.net}, batches of {options.batch_size} a worker, one core a worker, {wire}')
        found = {name: [] for name in cases}
        for turn in range(options.turns):
            for name, case in cases.items():
                found[name].append(_run(options, hosts, cores, **case))
                print(f'{turn + 1} of {options.turns}, {name}: {found[name][-1][0]:.0f}',
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
    alone = statistics.median(rate for rate, _ in found['1 worker'])
    print('| | images/s | of 1 worker | spread | n | sent by a worker, MB a step |\n'
          '| --- | --- | --- | --- | --- | --- |')
    for name, runs in found.items():
        rates = [rate for rate, _ in runs]
        print(f'| {name} | {statistics.median(rates):.0f} | '
              f'{statistics.median(rates) / alone:.2f} | {min(rates):.0f} to {max(rates):.0f} | '
              f'{len(rates)} | {statistics.median(sent for _, sent in runs) / 1e6:.2f} |')


def _run(options, hosts, cores, size=1, runs=1, pinned=True, **flags):
    """(median images/s of all workers, bytes that a worker sends a step).

    Args:
        options: the parsed command line.
        hosts: of each worker its address, and what runs a command there.
        cores: the two to use.
        size: number of workers.
        runs: number of runs of one worker each, side by side; images/s are then those of all.
        pinned: whether each worker has one core, or all have both.
        **flags: of the trainer.
    """
    flags.update({'data_dir': options.data_dir, 'dataset': options.dataset, 'net': options.net,
                  'batch_size': options.batch_size, 'max_steps': options.steps,
                  'validate_every': 0})
    if size > 1:
        flags['worker_hosts'] = ','.join(f'{host}:{_free_port()}' for host, _ in hosts)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(max(size, runs)):
            its = {**flags, 'train_dir': os.path.join(folder, str(rank if runs > 1 else 0)),
                   **({'task_index': rank} if size > 1 else {})}
            processes.append(stack.enter_context(_worker(
                hosts[rank][1], cores[rank:rank + 1] if pinned else cores, its)))
        marks = []
        rates = [_rate(processes[0].stdout,
                       lambda step: marks.append((step, _sent(hosts[0][1]))))]
        rates += [_rate(process.stdout) for process in processes[1:runs]]
        if any(process.wait() for process in processes):
            sys.exit('benchmarks.distributed: a worker failed')
    (first, before), (last, after) = marks[0], marks[-1]
    shared = 1 if options.link else size  # All workers send over the one loopback.
    return sum(rates), (after - before) / (last - first) / shared


def _rate(lines, at_step=lambda step: None):
    """Median images/s by a trainer's lines; calls `at_step` with the number of each step shown."""
    rates = []
    for line in lines:
        match = _LINE.search(line)
        if match and int(match.group(1)) >= _WARM_UP_STEPS:
            rates.append(float(match.group(2)))
            at_step(int(match.group(1)))
    return statistics.median(rates)


@contextlib.contextmanager
def _worker(inside, cores, flags):
    """A worker on some cores; killed if it has not ended by itself."""
    process = subprocess.Popen(
        [*inside, 'taskset', '-c', ','.join(map(str, cores)), sys.executable,
         'cifar10_distributed_train.py', *[f'--{name}={value}' for name, value in flags.items()]],
        cwd=_ROOT, text=True, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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
