"""Starts the processes that the benchmarks measure, and reads what they print."""
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def output(words, launcher=()):
    """What Python prints under a launcher, and its use of resources; `SystemExit` if it fails."""
    # The launcher may be that of the virtual environment.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    with subprocess.Popen([*launcher, sys.executable, '-u', *words], cwd=ROOT, text=True,
                          env={**os.environ, 'PATH': path},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f'{" ".join(words)}: exit code {process.returncode}\n{text[-1000:]}')
    return text, usage


def _command(name, options, **flags):
    """Words of a script ('NAME.py') or module with the flags that all of them share."""
    words = [name] if name.endswith('.py') else ['-m', name]
    flags = {'data_dir': options.data_dir, 'batch_size': options.batch_size, **flags}
    return [*words, *options.flags, *(f'--{key}={value}' for key, value in flags.items())]


def measure(options, *words, **flags):
    """The result of `benchmarks.measure` with these flags, a dictionary."""
    command = _command('benchmarks.measure', options, net=options.net, **flags)
    return json.loads(output([*command, *words])[0].splitlines()[-1])


def train(options, name=None, workers=1):
    """Trains for --steps in a new folder, with a script or module, by default ours of --net.

    With several `workers`, under mpirun. Returns {'start': seconds until the line of the first
    step, 'peak': memory in MB, 'rate': images per second after a fifth of the steps}.
    """
    flags = {'max_steps': options.steps, 'log_frequency': 1}
    launcher = []
    if workers > 1:
        launcher = ['mpirun', '-n', str(workers), '--oversubscribe', '--allow-run-as-root']
    if workers > 1 or (name is None and options.net != 'tutorial'):
        name = 'classification.py'
        flags |= {'net': options.net, 'validate_every': 0}
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        text, usage = output(_command(
            name or 'cifar10_train.py', options, train_dir=folder, **flags), launcher)
    times = [datetime.datetime.fromisoformat(found).timestamp()
             for found in re.findall(r'^(\S+ \S+): step \d+\b', text, re.MULTILINE)]
    warm = times[len(times) // 5:]
    return {'start': times[0] - begin, 'peak': usage.ru_maxrss / 1024,
            'rate': workers * options.batch_size * (len(warm) - 1) / (warm[-1] - warm[0])}
