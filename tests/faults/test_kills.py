"""Kills training at random moments, again and again, and checks what is left each time.

One run, restarted after each kill. A third of the kills come at any time, the start included; a
third while a checkpoint is written; a third around the end, when the last checkpoint and params.h5
are written. If there are several processes, any of them may be killed.

Expected: the newest checkpoint is intact, the next start resumes from it, no more steps are
repeated than lie between two checkpoints, and metrics.csv has no gaps or duplicates. A signal other
than KILL must end the run after the current step, with its exit code and that step saved.

    pytest tests/faults/test_kills.py --kills=100 --timeout=0 --data_dir=/tmp/cifar10_data \\
        -k SIGKILL -rP

kills one run a hundred times, and prints how far training had got each time.
"""
import collections
import contextlib
import dataclasses
import os
import random
import re
import signal
import time

import pytest
import record_files
import running
import spawn

from cifar10_lib.runs import checkpoints, metrics

_STEP = re.compile(r': step (\d+), loss')
_INTERVAL = 20  # Steps between checkpoints.
_MOMENTS = ('any time', 'a checkpoint', 'the end')


def _case(name, signal_, script='cifar10_train.py', flags=(), kills=2):
    """A parameter set; `kills` are the kills by default."""
    return pytest.param(signal_, script, flags, kills, id=name)


@pytest.mark.parametrize('signal_, script, flags, kills', [
    _case('SIGKILL', signal.SIGKILL, kills=3),
    _case('SIGTERM', signal.SIGTERM, kills=3),
    _case('SIGINT', signal.SIGINT),
    _case('two towers', signal.SIGKILL, 'cifar10_multi_gpu_train.py', ['--num_gpus=2']),
    _case('two workers', signal.SIGKILL, 'cifar10_distributed_train.py',
          ['--num_workers=2', '--step_timeout=20', f'--start_timeout={spawn.PATIENCE}'])])
def test_kills(request, tmp_path, signal_, script, flags, kills):
    data_dir = request.config.getoption('data_dir')
    if not data_dir:
        data_dir = tmp_path / 'data'
        record_files.write_noise(data_dir)
    flags = [f'--data_dir={data_dir}', f'--train_dir={tmp_path}/train', '--log_frequency=1',
             f'--save_checkpoint_steps={_INTERVAL}', '--batch_size=32', *flags]
    (tmp_path / 'train').mkdir()
    run = _Run(str(tmp_path / 'train'), script, flags, random.Random(1))
    reached = collections.Counter()
    for count in range(request.config.getoption('kills') or kills):
        reached[run.kill(signal_, _MOMENTS[count % len(_MOMENTS)])] += 1
    print(dict(reached))


@dataclasses.dataclass
class _Run:
    """A run that is started and killed again and again."""
    folder: str
    script: str
    flags: list
    draw: random.Random
    start_seconds: float = 12.0  # To the first new checkpoint, in the last start that wrote one.

    def kill(self, signal_, moment):
        """Starts, kills and checks once; returns how far training had got."""
        before = _step(checkpoints.latest(self.folder))
        last = before + (self.draw.randint(5, 60) if moment == 'the end' else 1000000)
        with running.running(self.script, *self.flags, f'--max_steps={last}') as trainer:
            self._await(moment, trainer, before, last)
            with contextlib.suppress(ProcessLookupError):  # It has just ended.
                if not trainer.has_ended():
                    pid = trainer.process.pid
                    os.kill(self.draw.choice([pid, *spawn.workers(pid)]), signal_)
            printed = len(_STEP.findall(trainer.out()))
            done = trainer.result()
        steps = [int(step) for step in _STEP.findall(done.stdout)]
        newest = checkpoints.candidates(self.folder)[:1]
        latest = checkpoints.latest(self.folder)
        after = _step(latest)
        faults = _checkpoint_faults(before, [latest] == newest or not newest, after, steps)
        faults += _metrics_faults(self.folder, after)
        if signal_ != signal.SIGKILL and (done.returncode or moment != 'the end'):
            faults += _signal_faults(done.returncode, signal_, after, steps, printed)
        if 'Traceback' in done.stdout + done.stderr:
            faults.append('a traceback')
        assert not faults, f'{"; ".join(faults)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}'
        return _how_far(steps, moment, last)

    def _await(self, moment, trainer, before, last):
        """Waits until it is time to kill, or the script has ended."""
        began = time.monotonic()
        if moment != 'any time':
            step = before if moment == 'a checkpoint' else last - 1
            while not trainer.has_ended() and not self._is_writing(step):
                assert time.monotonic() < began + spawn.PATIENCE, 'no checkpoint'
                time.sleep(0.001)
            self.start_seconds = time.monotonic() - began
        longest = {'any time': 1.5 * self.start_seconds, 'a checkpoint': 0.1, 'the end': 0.5}
        end = time.monotonic() + self.draw.uniform(0.0, longest[moment])
        while not trainer.has_ended() and time.monotonic() < end:
            time.sleep(0.001)

    def _is_writing(self, step):
        """Whether there are files of a checkpoint beyond a step, temporary ones included."""
        found = (re.match(r'model\.ckpt-(\d+)', name) for name in os.listdir(self.folder))
        return any(match and int(match.group(1)) > step for match in found)


def _step(path):
    return checkpoints.step(path) if path else 0


def _checkpoint_faults(before, newest_is_whole, after, steps):
    """Faults of the checkpoints after a kill: list of lines."""
    faults = []
    if not newest_is_whole:
        faults.append('the newest checkpoint is damaged')
    if after < before:
        faults.append(f'step {before} was saved before, {after} is now')
    if steps and steps[0] != before:
        faults.append(f'resumed from step {steps[0]}; expected {before}')
    if steps and steps[-1] + 1 - after > _INTERVAL:
        faults.append(f'trained to step {steps[-1] + 1}, saved {after}')
    return faults


def _metrics_faults(folder, saved):
    """Faults of metrics.csv, from which a start drops the rows beyond the checkpoint."""
    rows = [row['step'] for row in metrics.read(os.path.join(folder, 'metrics.csv'))]
    faults = []
    if rows != sorted(set(rows)):
        faults.append(f'metrics.csv has the steps {rows[-10:]}')
    if saved and saved not in rows:
        faults.append(f'metrics.csv lacks the saved step {saved}: {rows[-10:]}')
    gaps = [step for earlier, step in zip([0, *rows], rows) if step - earlier > _INTERVAL]
    if gaps:
        faults.append(f'metrics.csv has gaps before {gaps}')
    return faults


def _signal_faults(code, signal_, saved, steps, printed):
    """Faults of a run that ended by a signal that it can catch, after so many steps."""
    faults = []
    if code not in (128 + signal_, -signal_):  # The latter after the last save.
        faults.append(f'exit code {code}; expected {128 + signal_}')
    if len(steps) > printed + 2:  # The current one, and one that had begun unseen.
        faults.append(f'made {len(steps) - printed} more steps')
    if steps and saved != steps[-1] + 1:
        faults.append(f'trained to step {steps[-1] + 1}, saved {saved}')
    return faults


def _how_far(steps, moment, last):
    if not steps:
        return 'before the first step'
    if moment == 'the end' and steps[-1] + 1 == last:
        return 'around the last save'
    return 'around a save' if moment == 'a checkpoint' else 'between steps'
