"""Starts the processes that the benchmarks measure, and reads what they print."""
import collections
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SHOWN_LINES = 12  # Of the output of a process that failed.


def command(name, options, **flags):
    """Words of a script ('NAME.py') or module with the flags that all of them share."""
    words = [name] if name.endswith('.py') else ['-m', name]
    flags = {'data_dir': options.data_dir, 'batch_size': options.batch_size, **flags}
    return [*words, *options.flags, *(f'--{key}={value}' for key, value in flags.items())]


def lines(words, launcher=()):
    """Runs Python under a launcher; yields (line, process) for each line when it is printed.

    Raises `SystemExit`, with the last lines, if the process fails.
    """
    last = collections.deque(maxlen=_SHOWN_LINES)
    # The launcher may be that of the virtual environment.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    with subprocess.Popen([*launcher, sys.executable, '-u', *words], cwd=ROOT, text=True,
                          env={**os.environ, 'PATH': path},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            last.append(line)
            yield line.rstrip('\n'), process
    if process.returncode:
        raise SystemExit(f'{" ".join(words)}: exit code {process.returncode}\n{"".join(last)}')


def measure(options, **flags):
    """The result of `benchmarks.measure`, a dictionary."""
    *_, (last, _) = lines(command('benchmarks.measure', options, net=options.net, **flags))
    return json.loads(last)


def train(options, name=None, workers=1):
    """Trains for --steps in a new folder, with a script or module, by default ours of --net.

    With several `workers`, under mpirun.

    Returns:
        Dictionary: 'start', seconds until the line of the first step; 'peak', memory in MB; and
        after a fifth of the steps has filled queues and memory: 'rate', images per second, and
        'busy', ms of processor time per step.
    """
    flags = {'max_steps': options.steps, 'log_frequency': 1}
    launcher = []
    if workers > 1:
        launcher = ['mpirun', '-n', str(workers), '--oversubscribe', '--allow-run-as-root']
    if workers > 1 or (name is None and options.net != 'tutorial'):
        name = 'classification.py'
        flags = {**flags, 'net': options.net, 'validate_every': 0}
    name = name or 'cifar10_train.py'
    times, used, peak = [time.time()], [0.0], 0
    with tempfile.TemporaryDirectory() as folder:
        words = command(name, options, train_dir=folder, **flags)
        for line, process in lines(words, launcher):
            printed = re.match(r'(\S+ \S+): step \d+\b', line)
            if printed:
                times.append(datetime.datetime.fromisoformat(printed[1]).timestamp())
                used.append(time.clock_gettime(~process.pid << 3 | 2))  # clock_getcpuclockid in C.
                with open(f'/proc/{process.pid}/status') as stream:  # Short if it has ended.
                    found = re.search(r'VmHWM:\s*(\d+) kB', stream.read())
                peak = int(found[1]) / 1024 if found else peak
    first = 1 + len(times) // 5
    steps = len(times) - 1 - first
    return {'start': times[1] - times[0], 'peak': peak,
            'rate': workers * options.batch_size * steps / (times[-1] - times[first]),
            'busy': 1000 * (used[-1] - used[first]) / steps}
