"""Kills training at random moments, again and again, and checks what is left each time.

One run, restarted after each kill. A third of the kills come at any time, the start included; a
third while a checkpoint is written; a third around the end, when the last checkpoint is written.

Expected: the newest checkpoint is intact and whole, the next start resumes from it, and no more
steps are repeated than lie between two checkpoints. A signal other than KILL must end the run after
the current step, with its exit code and that step saved.

    pytest tests/faults/test_kills.py --kills=100 --timeout=0 -k SIGKILL

kills one run a hundred times.
"""
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
                f'{{"last_step": {last}, "pause": 0.01, "size": 2500000}}']

    _drill(tmp_path / 'run', command, number, request.config.getoption('kills') or 3)


@pytest.mark.parametrize('script', ['cifar10_train.py', 'cifar10_multi_gpu_train.py'])
def test_the_tutorial(request, tmp_path, script):
    """Edited to save every twenty steps."""
    project = copies.copy_with(tmp_path / 'project', {
        script: {'checkpoint_dir=FLAGS.train_dir,':
                 'checkpoint_dir=FLAGS.train_dir, save_checkpoint_steps=20,'},
        'cifar10.py': {'INITIAL_LEARNING_RATE = 0.1 ': 'INITIAL_LEARNING_RATE = 0.01 '},
        'cifar10_input.py': {'_FOR_TRAIN = 50000': '_FOR_TRAIN = 200'}})
    data_dir = request.config.getoption('data_dir')
    if not data_dir:
        data_dir = tmp_path / 'data'
        record_files.write_noise(data_dir)

    def command(last):
        return [project / script, f'--data_dir={data_dir}', f'--train_dir={tmp_path}/run',
                '--batch_size=8', f'--max_steps={last}', '--log_frequency=1']

    _drill(tmp_path / 'run', command, signal.SIGKILL, request.config.getoption('kills') or 3)


def _drill(folder, command, number, kills):
    """Kills a run again and again; `command` gives Python's arguments for a last step."""
    folder.mkdir()
    draw = random.Random(1)
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
        print(f'{moment}\n{out[-2000:]}{error[-2000:]}')  # Shown if the test fails.
        steps, saved = [int(step) for step in _STEP.findall(out)], _newest(folder)
        assert saved >= before
        if steps:
            assert steps[0] == before
            assert steps[-1] + 1 - saved <= _INTERVAL
        if number != signal.SIGKILL and (process.returncode or moment != 'the end'):
            # The latter before the session, or after it.
            assert process.returncode in (128 + number, -number)
            assert not steps or saved == steps[-1] + 1
        # Python shows one if Ctrl-C arrives while it imports TensorFlow.
        assert 'Traceback' not in error or (not steps and 'import' in error)


def _newest(folder):
    """The step of the newest checkpoint, which must be intact and whole; 0 if there isn't one."""
    found = checkpoints.newest(str(folder))
    if found is None:
        return 0
    assert found.path == checkpoints.candidates(str(folder))[0]
    assert all(np.isfinite(value).all() for value in found.values.values())
    if 'w' in found.values:
        counting.latest(folder)
    return checkpoints.step(found)


def _is_writing(folder, step):
    """Whether there are files of a checkpoint beyond a step, temporary ones included."""
    found = (re.match(r'model\.ckpt-(\d+)', name) for name in os.listdir(folder))
    return any(match and int(match.group(1)) > step for match in found)
