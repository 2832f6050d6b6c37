"""Starts the processes that the benchmarks measure, one at a time."""
import argparse
import contextlib
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_WARM_UP = 0.2  # Fraction of a run's steps, during which queues fill and memory grows.


def parser(module, description):
    """An argument parser with the options of all benchmarks."""
    result = argparse.ArgumentParser(prog=f'python -m {module}', description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    result.add_argument('--dataset', default='cifar10', help='name of the data set')
    result.add_argument('--batch_size', type=int, default=128, help='images per batch')
    result.add_argument('--net', default='tutorial', help='name of the network')
    return result


def _flags(options, **flags):
    for name in ('data_dir', 'dataset', 'batch_size', 'net'):
        flags.setdefault(name, getattr(options, name))
    return [f'--{name}={value}' for name, value in flags.items()]


def trainer(script, options, **flags):
    """Command of a training script that does not validate."""
    return [sys.executable, script, '--validate_every=0', *_flags(options, **flags)]


@contextlib.contextmanager
def on_cores(cores):
    """Processes that start within this context run on these cores, as with `taskset`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(what, side, options, **flags):
    """Runs `benchmarks.measure`: its result, plus `started`, the time when it was started."""
    return _result(['benchmarks.measure', f'--what={what}', f'--side={side}',
                    *_flags(options, **flags)])


def keras_fit(options, **flags):
    """Runs `benchmarks.keras_fit`; its result is like that of `measure` of training."""
    return _result(['benchmarks.keras_fit', *_flags(options, **flags)],
                   env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})


def _result(command, **process):
    """The last line that a module prints, which is JSON, plus `started`."""
    started = time.time()
    done = subprocess.run([sys.executable, '-m', *command], stdout=subprocess.PIPE, text=True,
                          check=False, cwd=ROOT, **process)
    if done.returncode:
        sys.exit(done.returncode)  # It has reported why on standard error.
    return {**json.loads(done.stdout.splitlines()[-1]), 'started': started}


def in_turn(runs, turns):
    """Runs each of several functions once per turn, so that drift affects all of them alike.

    Args:
        runs: {name: function without arguments}; the progress line shows str(name).
        turns: number of calls of each.

    Returns:
        {name: list of results, one per turn}.
    """
    results = {name: [] for name in runs}
    for turn in range(turns):
        for name, run in runs.items():
            print(f'\r{f"{turn + 1} of {turns}: {name}":60}', end='', file=sys.stderr)
            results[name].append(run())
    print(f'\r{60 * " "}\r', end='', file=sys.stderr)
    return results


def both_sides(what, options, **flags):
    """Measures this project and the tutorial in turn: {side: list of results}."""
    return in_turn({side: functools.partial(measure, what, side, options, **flags)
                    for side in ('ours', 'tutorial')}, options.turns)


def seconds_to_step_0(script, options, **flags):
    """Seconds from the start of a training script to its line for step 0, in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        with subprocess.Popen(
                trainer(script, options, max_steps=1, train_dir=os.path.join(folder, 'train'),
                        **flags), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            times = [time.time() for line in process.stdout if ': step 0, ' in line]
    if process.returncode:
        sys.exit(process.returncode)  # It has reported why on standard error.
    return times[0] - started


def rate(run):
    """Images per second of a training run after warming up, hooks included."""
    return run['images_per_step'] / _per_step(run['ended'])


def processor_ms(run):
    """Milliseconds of processor time per step of a training run after warming up, all threads."""
    return 1000 * _per_step(run['processor'])


def _per_step(times):
    times = times[int(_WARM_UP * len(times)):]
    return (times[-1] - times[0]) / (len(times) - 1)


def quartiles(values):
    """Lower quartile, median and upper quartile; of one value, that value three times."""
    return (statistics.quantiles(values, n=4, method='inclusive') if len(values) > 1
            else 3 * list(values))


def figure(values):
    """'1234 (1200-1260)': the median, and the range of the middle half."""
    low, middle, high = quartiles(values)
    digits = max(0, 3 - len(str(int(middle))))
    return f'{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})'


def heading():
    """Hardware and versions."""
    with open('/proc/cpuinfo') as stream:
        names = [line.split(': ')[1].strip() for line in stream if line.startswith('model name')]
    return (f'{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores; '
            f'TensorFlow {metadata.version("tensorflow")}, NumPy {metadata.version("numpy")}, '
            f'Python {platform.python_version()}, {platform.system()} {platform.release()}')
