"""Starts the processes that the benchmarks measure, and writes down what they find."""
import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from importlib import metadata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STEP = re.compile(r'(\S+ \S+): step (\d+)\b')
_WARM_UP = 0.2  # Fraction of a run's steps, during which queues fill and memory grows.
_SHOWN_LINES = 12  # Of the output of a process that failed.


class Failed(SystemExit):
    """A process failed, or was ended after its time limit. A benchmark that does not catch this
    ends with exit code 1 and the message."""


class Mark(typing.NamedTuple):
    """State of a process when it printed the line of a step."""

    step: int
    time: float  # As printed.
    used: float  # Processor time so far, in seconds.
    peak: float  # Memory, in MB.


def parser(module, description):
    """An argument parser with the options of all benchmarks."""
    commit = subprocess.run(['git', '-C', ROOT, 'describe', '--always', '--dirty'],
                            capture_output=True, text=True, check=False).stdout.strip()
    result = argparse.ArgumentParser(prog=f'python -m {module}', description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    result.add_argument('--dataset', default='cifar10', help='name of the data set')
    result.add_argument('--batch_size', type=int, default=128, help='images per batch')
    result.add_argument('--net', default='tutorial', help='name of the network')
    result.add_argument('--json', metavar='FILE', help='append each row to a file, as a line of '
                        'JSON; the files of several machines can be joined')
    result.add_argument('--commit', default=commit, help='name of the version, for --json')
    return result


def command(name, options, **flags):
    """Words of a script ('NAME.py') or module with the flags of the data and the network."""
    for each in ('data_dir', 'dataset', 'batch_size', 'net'):
        flags.setdefault(each, getattr(options, each))
    words = [name] if name.endswith('.py') else ['-m', name]
    return words + [f'--{key}={value}' for key, value in flags.items() if value is not None]


def trainer(options, name='cifar10_train.py', **flags):
    """Words of a training script or module that prints every step and does not validate."""
    return command(name, options, **{'validate_every': 0, 'log_frequency': 1, **flags})


@contextlib.contextmanager
def started(words, prefix=(), limit=24 * 3600, **environment):
    """Yields a process of Python, which has ended with its group when the context has.

    It ends, too, after `limit` seconds, and when this process is killed: the guard's `cat` then
    reads the end of its input. `prefix` is the start of a command such as `taskset -c 0 python`.
    """
    with subprocess.Popen(
            [*prefix, sys.executable, '-u', *words], cwd=ROOT, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **environment}) as process, subprocess.Popen(
            ['sh', '-c', f'timeout {limit} cat; kill -s KILL -- -{process.pid}'],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as guard:
        try:
            yield process
        finally:
            guard.communicate()


def lines(words, limit=1200, **environment):
    """Runs Python; yields (line, process) for each line of its output when it comes.

    Raises:
        Failed: see there; the message has the last lines.
    """
    last, deadline = [], time.monotonic() + limit
    with started(words, limit=limit, **environment) as process:
        for line in process.stdout:
            last = [*last, line][-_SHOWN_LINES:]
            yield line.rstrip('\n'), process
        process.wait()
    reason = (f'ended after {limit} seconds' if time.monotonic() > deadline
              else process.returncode and f'exit code {process.returncode}')
    if reason:
        raise Failed(f'{" ".join(words)}: {reason}\n{"".join(last)}'.strip())


def results(words, **options):
    """Runs a module that prints lines of JSON; yields each object when it comes."""
    for line, _ in lines(words, **options):
        if line.startswith('{'):
            yield json.loads(line)


def mark(line, process):
    """The `Mark` of a line; None if it is not that of a step."""
    found = _STEP.match(line)
    if not found:
        return None
    with open(f'/proc/{process.pid}/status') as stream:
        peak = re.findall(r'VmHWM:\s*(\d+) kB', stream.read()) or [0]  # It may have ended.
    printed = datetime.datetime.fromisoformat(found[1]).timestamp()
    used = time.clock_gettime(~process.pid << 3 | 2)  # As clock_getcpuclockid of the C library.
    return Mark(int(found[2]), printed, used, int(peak[0]) / 1024)


def train(options, name='cifar10_train.py', batches=1, train_dir=None, limit=1200, **flags):
    """Trains with a number of batches per step, by default in a new folder.

    Returns:
        Dictionary: 'start', seconds until the line of the first step; 'peak', MB; and after warming
        up what `speed` returns.
    """
    started_at = time.time()
    with tempfile.TemporaryDirectory() as new:
        words = trainer(options, name, train_dir=train_dir or new, **flags)
        marks = [found for line, process in lines(words, limit) if (found := mark(line, process))]
    return {'start': marks[0].time - started_at, 'peak': max(each.peak for each in marks),
            **speed(marks[int(_WARM_UP * len(marks))], marks[-1],
                    batches * flags.get('batch_size', options.batch_size))}


def speed(first, last, images_per_step):
    """'rate', images per second, and 'busy', ms of processor time per step, between two marks."""
    steps = last.step - first.step
    return {} if not steps else {
        'rate': images_per_step * steps / (last.time - first.time),
        'busy': 1000 * (last.used - first.used) / steps}


def in_turn(turns, **runs):
    """Runs each of several functions once per turn, so that drift affects all of them alike.

    Returns {name: list of results, one per turn}.
    """
    found = {name: [] for name in runs}
    for turn in range(turns):
        for name, run in runs.items():
            print(f'\r{f"{turn + 1} of {turns}: {name}":60}', end='', file=sys.stderr)
            found[name].append(run())
    print(f'\r{60 * " "}\r', end='', file=sys.stderr)
    return found


def save(options, **row):
    """Appends a row to the file of --json, with everything that it depends on."""
    if options.json:
        key = {name: getattr(options, name)
               for name in ('batch_size', 'dataset', 'net', 'commit')}
        with open(options.json, 'a') as stream:
            stream.write(json.dumps({**key, 'machine': heading(), **row}) + '\n')


def figure(values):
    """'1234 (1200 to 1260)': the median, and the range of the middle half."""
    low, middle, high = (statistics.quantiles(values, n=4, method='inclusive')
                         if len(values) > 1 else 3 * list(values))
    digits = max(0, 3 - len(str(int(middle))))
    return f'{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})'


def heading():
    """Hardware and versions."""
    with open('/proc/cpuinfo') as stream:
        names = [line.split(': ')[1].strip() for line in stream if line.startswith('model name')]
    return (f'{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores; '
            f'TensorFlow {metadata.version("tensorflow")}, NumPy {metadata.version("numpy")}, '
            f'Python {platform.python_version()}, {platform.system()} {platform.release()}')
