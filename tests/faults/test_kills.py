"""Kills training at random moments, again and again, and checks what is left each time.

One run, restarted after each kill. A third of the kills come at any time, the start included; a
third while a checkpoint is written; a third around the end, when the last checkpoint is written.

Expected: the newest checkpoint is intact and whole, the next start resumes from it, and no more
steps are repeated than lie between two checkpoints. A signal other than KILL must end the run after
the current step, with its exit code and that step saved.

    pytest tests/faults/test_kills.py --kills=100 --timeout=0 -k SIGKILL -rP

kills one run a hundred times, and prints how far training had got each time.
"""
import collections
import contextlib
import os
import random
import re
import signal
import time

from cifar10_lib import checkpoints

import copies
import counting
import numpy as np
import pytest
import record_files
import spawn

_STEP = re.compile(r': step (\d+), loss')
_INTERVAL = 20  # Steps between checkpoints.
_MOMENTS = ('any time', 'a checkpoint', 'the end')


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT],
                         ids=lambda number: number.name)
def test_a_trainer_that_counts(request, tmp_path, number):
    """Checkpoints of 10 MB, which take as long to write as several steps."""
    def command(last):
        return [spawn.HELPERS / 'counting.py', tmp_path / 'run',
                f'{{"max_steps": {last}, "pause": 0.01, "size": 2500000}}']

    _drill(tmp_path / 'run', command, number, request.config.getoption('kills') or 3)


@pytest.mark.parametrize('script', ['cifar10_train.py', 'cifar10_multi_gpu_train.py'])
def test_the_tutorial(request, tmp_path, script):
    """Edited to save every twenty steps."""
    project = copies.copy_with(tmp_path / 'project', {
        script: {'restart=FLAGS.restart)': 'restart=FLAGS.restart, save_checkpoint_steps=20)'},
        'cifar10.py': {'INITIAL_LEARNING_RATE = 0.1 ': 'INITIAL_LEARNING_RATE = 0.01 '},
        'cifar10_input.py': {'_FOR_TRAIN = 50000': '_FOR_TRAIN = 200'}})
    data_dir = request.config.getoption('data_dir')
    if not data_dir:
        data_dir = tmp_path / 'data'
        record_files.write_noise(data_dir)
    more = []
    if script == 'cifar10_train.py':
        more = ['--log_frequency=1']

    def command(last):
        return [project / script, f'--data_dir={data_dir}', f'--train_dir={tmp_path}/run',
                '--batch_size=8', f'--max_steps={last}', *more]

    _drill(tmp_path / 'run', command, signal.SIGKILL, request.config.getoption('kills') or 3)


def _drill(folder, command, number, kills):
    """Kills a run again and again; `command` gives Python's arguments for a last step."""
    folder.mkdir()
    draw, reached = random.Random(1), collections.Counter()
    seconds = 12.0  # To the first new checkpoint, in the last start that wrote one.
    for count in range(kills):
        moment, before = _MOMENTS[count % len(_MOMENTS)], _newest(folder)
        last = before + 1000000
        if moment == 'the end':
            last = before + draw.randint(5, 60)
        # Its output fits into the pipe until it is read.
        process, began = spawn.start(command(last)), time.monotonic()
        if moment != 'any time':
            step = before if moment == 'a checkpoint' else last - 1
            while process.poll() is None and not _is_writing(folder, step):
                assert time.monotonic() < began + spawn.PATIENCE, 'no checkpoint'
                time.sleep(0.001)
            seconds = time.monotonic() - began
        longest = {'any time': 1.5 * seconds, 'a checkpoint': 0.1, 'the end': 0.3}[moment]
        with contextlib.suppress(spawn.subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.0, longest))
        process.send_signal(number)
        out, error = process.communicate(timeout=spawn.PATIENCE)
        steps = [int(step) for step in _STEP.findall(out)]
        faults = _faults(folder, before, steps)
        if number != signal.SIGKILL and (process.returncode or moment != 'the end'):
            faults += _signal_faults(process.returncode, number, _newest(folder), steps)
        # Python shows one if Ctrl-C arrives while it imports TensorFlow.
        if 'Traceback' in error and (steps or 'import' not in error):
            faults.append('a traceback')
        assert not faults, f'{moment}: {"; ".join(faults)}\n{out[-2000:]}{error[-2000:]}'
        reached[_how_far(steps, moment, last)] += 1
    print(dict(reached))


def _newest(folder):
    found = checkpoints.newest(str(folder))
    if found is None:
        return 0
    if 'w' in found.values:
        counting.latest(folder)  # Checks that it is whole.
    return checkpoints.step(found)


def _is_writing(folder, step):
    """Whether there are files of a checkpoint beyond a step, temporary ones included."""
    found = (re.match(r'model\.ckpt-(\d+)', name) for name in os.listdir(folder))
    return any(match and int(match.group(1)) > step for match in found)


def _faults(folder, before, steps):
    """Faults of the checkpoints after a kill: list of lines."""
    faults, after, found = [], _newest(folder), checkpoints.newest(str(folder))
    if found and found.path != checkpoints.candidates(str(folder))[0]:
        faults.append('the newest checkpoint is damaged')
    if found and not all(np.isfinite(value).all() for value in found.values.values()):
        faults.append('it is not finite')
    if after < before:
        faults.append(f'step {before} was saved before, {after} is now')
    if steps and steps[0] != before and len(steps) > 1 and steps[1] == steps[0] + 1:
        faults.append(f'resumed from step {steps[0]}; expected {before}')
    if steps and steps[-1] + 1 - after > _INTERVAL:
        faults.append(f'trained to step {steps[-1] + 1}, saved {after}')
    return faults


def _signal_faults(code, number, saved, steps):
    """Faults of a run that ended by a signal that it can catch."""
    faults = []
    if code not in (128 + number, -number):  # The latter before the session, or after it.
        faults.append(f'exit code {code}; expected {128 + number}')
    if steps and saved != steps[-1] + 1:
        faults.append(f'trained to step {steps[-1] + 1}, saved {saved}')
    return faults


def _how_far(steps, moment, last):
    if not steps:
        return 'before the first step'
    if moment == 'the end' and steps[-1] + 1 == last:
        return 'around the last save'
    return 'around a save' if moment == 'a checkpoint' else 'between steps'
