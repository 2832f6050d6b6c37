"""Kills training at random moments, again and again, and looks at what is left each time.

    python -m drills.kills 100 --data_dir=/tmp/cifar10_data
    python -m drills.kills 30 --flags=--num_gpus=2 --script=cifar10_multi_gpu_train.py
    python -m drills.kills 30 --flags=--num_workers=2 --script=cifar10_distributed_train.py
    python -m drills.kills 50 --signal=TERM
    python -m drills.kills 50 --signal=INT

One run, started anew after each kill. A third of the kills come at any time, the start included, a
third while a checkpoint is written, a third around the end, when the last checkpoint and params.h5
are written; of several processes any may be the one. Wanted: the newest checkpoint is whole, the
next start goes on from it, no more than the steps between two checkpoints are made anew, and
metrics.csv has neither gap nor double. A signal other than KILL must end the run within five
seconds, with its exit code and the step reached saved.
"""
import itertools
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

from drills import trial
from runs import checkpoints
from runs import metrics

_STEP = re.compile(r': step (\d+), loss')
_INTERVAL = 20  # Steps between checkpoints.
_MOMENTS = ('any time', 'a checkpoint', 'the end')


def main():
    options = _options()
    with tempfile.TemporaryDirectory(prefix='drill-run-') as folder:
        title = f'SIG{options.signal} of {options.script} {options.flags}'.strip()
        return trial.run(title, cases(options, folder), options)


def _options():
    parser = trial.parser('kills', __doc__)
    parser.add_argument('count', type=int, help='how many kills')
    parser.add_argument('--script', default='cifar10_train.py', help='which trainer')
    parser.add_argument('--flags', default='', help='further flags of it')
    parser.add_argument('--signal', default='KILL', choices=['KILL', 'TERM', 'INT'])
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', help='folder of the data sets')
    parser.add_argument('--dataset', default='cifar10', help='which of them')
    parser.add_argument('--longest', type=float, default=12.0,
                        help='seconds after which a start is killed at the latest')
    return parser.parse_args()


def cases(options, run_folder):
    """Kills of one run in `run_folder`, at one moment of `_MOMENTS` after another."""
    draw = random.Random(options.seed)
    moments = itertools.islice(itertools.cycle(_MOMENTS), options.count)
    for count, moment in enumerate(moments):
        yield f'{count}, {moment}', lambda folder, moment=moment: _kill(
            options, run_folder, moment, draw)


def _kill(options, run_folder, moment, draw):
    """Starts, kills and checks once; returns how far it had come."""
    before = _step(checkpoints.latest(run_folder, report=False))
    last = before + (draw.randint(5, 60) if moment == 'the end' else 1000000)
    with tempfile.TemporaryFile('w+') as log:
        process = subprocess.Popen(
            [sys.executable, options.script, f'--data_dir={options.data_dir}',
             f'--dataset={options.dataset}', f'--train_dir={run_folder}', '--log_frequency=1',
             f'--save_checkpoint_steps={_INTERVAL}', '--batch_size=32', f'--max_steps={last}',
             *shlex.split(options.flags)],
            cwd=trial.ROOT, stdout=log, stderr=log, preexec_fn=trial.signals_as_in_a_terminal)
        with trial.killed_at_the_end(process):
            _await(moment, process, run_folder, before, last, draw, options.longest)
            if process.poll() is None:  # Else it has ended by itself.
                target = draw.choice([process.pid, *_children(process.pid)])
                os.kill(target, getattr(signal, f'SIG{options.signal}'))
            began = time.monotonic()
            code = process.wait(timeout=120)
            seconds = time.monotonic() - began
        log.seek(0)
        out = log.read()
    steps = [int(step) for step in _STEP.findall(out)]
    newest = checkpoints.candidates(run_folder)[:1]
    after = checkpoints.latest(run_folder, report=False)
    faults = _faults(before, [after] == newest or not newest, _step(after), steps)
    faults += _faults_of_metrics(run_folder, _step(after))
    if options.signal != 'KILL' and (code or moment != 'the end'):  # Code 0: it was done.
        faults += _faults_of_signal(code, options.signal, seconds, _step(after), steps)
    if 'Traceback' in out:
        faults.append('there is a traceback')
    if faults:
        raise trial.Fault('; '.join(faults) + f', after\n{out[-2000:]}')
    return _how_far(steps, moment, last)


def _await(moment, process, folder, before, last, draw, longest):
    """Returns when it is time to kill, or when the process has ended."""
    begins = {'any time': lambda: True, 'a checkpoint': lambda: _is_writing(folder, before),
              'the end': lambda: _is_writing(folder, last - 1)}[moment]
    until = time.monotonic() + 60
    while process.poll() is None and not begins() and time.monotonic() < until:
        time.sleep(0.001)
    longest = {'any time': longest, 'a checkpoint': 0.1, 'the end': 0.5}[moment]
    until = time.monotonic() + draw.uniform(0.0, longest)
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.001)


def _is_writing(folder, step):
    """Whether files of a checkpoint beyond a step are there: at first they have other names."""
    found = (re.match(r'model\.ckpt-(\d+)', name) for name in os.listdir(folder))
    return any(match and int(match.group(1)) > step for match in found)


def _children(pid):
    with open(f'/proc/{pid}/task/{pid}/children') as stream:
        return [int(word) for word in stream.read().split()]


def _step(path):
    return checkpoints.step(path) if path else 0


def _faults(before, newest_is_whole, after, steps):
    """What is wrong with the checkpoints after a kill: list of lines."""
    faults = []
    if not newest_is_whole:
        faults.append('the newest checkpoint is damaged')
    if after < before:
        faults.append(f'step {before} was saved, {after} is')
    if steps and steps[0] != before:
        faults.append(f'it went on from step {steps[0]}, not from {before}')
    if steps and steps[-1] + 1 - after > _INTERVAL:
        faults.append(f'{steps[-1] + 1} steps were made, {after} are saved')
    return faults


def _faults_of_metrics(folder, saved):
    """What is wrong with metrics.csv: a start drops the rows beyond the checkpoint, no others."""
    rows = [row['step'] for row in metrics.read(os.path.join(folder, 'metrics.csv'))]
    faults = []
    if rows != sorted(set(rows)):
        faults.append(f'metrics.csv has the steps {rows[-10:]}')
    if saved and saved not in rows:
        faults.append(f'metrics.csv lacks step {saved}, which is saved; it has {rows[-10:]}')
    gaps = [step for earlier, step in zip([0, *rows], rows) if step - earlier > _INTERVAL]
    if gaps:
        faults.append(f'metrics.csv has a gap before {gaps}')
    return faults


def _faults_of_signal(code, name, seconds, saved, steps):
    """What is wrong with an end by a signal that can be caught."""
    number = getattr(signal, f'SIG{name}')
    faults = []
    if code not in (128 + number, -number):  # The latter when all was done; shells show the same.
        faults.append(f'exit code {code}, wanted {128 + number}')
    if seconds > 5:
        faults.append(f'it took {seconds:.1f} seconds to end')
    if steps and saved != steps[-1] + 1:
        faults.append(f'{steps[-1] + 1} steps were made, {saved} are saved')
    return faults


def _how_far(steps, moment, last):
    if not steps:
        return 'before the first step'
    if moment == 'the end' and steps[-1] + 1 == last:
        return 'around the last save'
    return 'around a save' if moment == 'a checkpoint' else 'between steps'


if __name__ == '__main__':
    sys.exit(main())
