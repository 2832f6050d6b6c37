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
    for each in ('data_dir', 'dataset', 'batch_size', 'net', 'device'):
        flags.setdefault(each, getattr(options, each))
    words = [name] if name.endswith('.py') else ['-m', name]
    return [*words, *options.flags, *(f'--{key}={value}' for key, value in flags.items())]


def lines(words):
    """Runs Python; yields (line, process) for each line of its output when it is printed.

    Raises `SystemExit`, with the last lines, if the process fails.
    """
    last = collections.deque(maxlen=_SHOWN_LINES)
    with subprocess.Popen([sys.executable, '-u', *words], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            last.append(line)
            yield line.rstrip('\n'), process
    if process.returncode:
        raise SystemExit(f'{" ".join(words)}: exit code {process.returncode}\n{"".join(last)}')


def measure(options, **flags):
    """The result of `benchmarks.measure`, a dictionary."""
    *_, (last, _) = lines(command('benchmarks.measure', options, **flags))
    return json.loads(last)


def train(options, name='cifar10_train.py', batches=1, **flags):
    """Trains for --steps in a new folder, with a script or module and a number of batches per step.

    Returns:
        Dictionary: 'start', seconds until the line of the first step; 'peak', memory in MB; and
        after a fifth of the steps has filled queues and memory: 'rate', images per second, and
        'busy', ms of processor time per step.
    """
    flags = {'max_steps': options.steps, 'validate_every': 0, 'log_frequency': 1, **flags}
    times, used, peak = [time.time()], [0.0], 0
    with tempfile.TemporaryDirectory() as folder:
        for line, process in lines(command(name, options, train_dir=folder, **flags)):
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
            'rate': batches * options.batch_size * steps / (times[-1] - times[first]),
            'busy': 1000 * (used[-1] - used[first]) / steps}
