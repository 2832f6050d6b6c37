"""Starts processes of `benchmarks.measure`, one at a time, and reads what they found."""
import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_WARM_UP_SHARE = 0.2  # Of a training run's steps: they come while queues fill and memory grows.


def parser(module, description):
    """An argument parser with what all benchmarks take."""
    result = argparse.ArgumentParser(prog=f'python -m {module}', description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    result.add_argument('--dataset', default='cifar10', help='which of them')
    result.add_argument('--batch_size', type=int, default=128, help='images in a batch')
    result.add_argument('--net', default='tutorial', help='which network')
    return result


def measure(what, side, options, **flags):
    """What one process of `benchmarks.measure` found, and the time when it was started."""
    started = time.time()
    command = [sys.executable, '-m', 'benchmarks.measure', f'--what={what}', f'--side={side}',
               f'--data_dir={options.data_dir}', f'--dataset={options.dataset}',
               f'--net={options.net}']
    flags.setdefault('batch_size', options.batch_size)
    command += [f'--{name}={value}' for name, value in flags.items()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=_ROOT)
    if done.returncode:
        sys.exit(done.returncode)  # It has said why on standard error.
    return {**json.loads(done.stdout.splitlines()[-1]), 'started': started}


def in_turn(what, options, sides=('ours', 'tutorial'), **flags):
    """Measures the sides in turn: dictionary from side to the list of what was found."""
    found = {side: [] for side in sides}
    for turn in range(options.turns):
        for side in sides:
            print(f'\r{what}: {turn + 1} of {options.turns}, {side} ', end='', file=sys.stderr)
            found[side].append(measure(what, side, options, **flags))
    print('\r' + 40 * ' ' + '\r', end='', file=sys.stderr)
    return found


def seconds_to_step_0(script, options, **flags):
    """Seconds from the start of a training script to its line for step 0, in a folder of its own.

    Args:
        script: such as 'cifar10_train.py'.
        options: the parsed command line.
        **flags: of the script.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = {'data_dir': options.data_dir, 'dataset': options.dataset, 'max_steps': 1,
                 'validate_every': 0, 'train_dir': os.path.join(folder, 'train'), **flags}
        started = time.time()
        with subprocess.Popen(
                [sys.executable, script, *(f'--{name}={value}' for name, value in flags.items())],
                stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
            times = [time.time() for line in process.stdout if ': step 0, ' in line]
    if process.returncode:
        sys.exit(process.returncode)  # It has said why on standard error.
    return times[0] - started


def rate(run):
    """Images/s of a training run, all its hooks included, after warming up."""
    ended = run['ended'][int(_WARM_UP_SHARE * len(run['ended'])):]
    return run['images_per_step'] * (len(ended) - 1) / (ended[-1] - ended[0])


def heading():
    """Hardware and versions."""
    with open('/proc/cpuinfo') as stream:
        names = [line.split(': ')[1].strip() for line in stream if line.startswith('model name')]
    return (f'{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores; '
            f'TensorFlow {metadata.version("tensorflow")}, NumPy {metadata.version("numpy")}, '
            f'Python {platform.python_version()}, {platform.system()} {platform.release()}')
