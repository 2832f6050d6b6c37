"""Damages a run's latest checkpoint, then starts training, evaluation and export.

The run has checkpoints of three steps. Expected: the newest intact one is used, and a line reports
it. If none is intact, one line reports that and the exit code is 1. No file is ever removed.
"""
import os
import shutil

import pytest
import record_files

from drills import helpers
from cifar10_lib.runs import events

_STEPS = (10, 20, 30)
_DATA = 'data-00000-of-00001'


def _cut(data):
    return data[:len(data) // 2]


def _zeros(data):
    return bytes(len(data))


def _nothing(data):
    del data
    return b''


# What happens to the files of a checkpoint: {ending: change}, where None removes the file.
_ONE_DAMAGED = {
    'data cut': {_DATA: _cut}, 'data zeroed': {_DATA: _zeros}, 'data empty': {_DATA: _nothing},
    'data missing': {_DATA: None}, 'index cut': {'index': _cut}, 'index zeroed': {'index': _zeros},
    'index empty': {'index': _nothing}, 'index missing': {'index': None},
    'all missing': {_DATA: None, 'index': None, 'meta': None}}
_DAMAGES = {
    **{name: (changes, _STEPS[-1:]) for name, changes in _ONE_DAMAGED.items()},
    'data of two cut': ({_DATA: _cut}, _STEPS[1:]),
    'data of all cut': ({_DATA: _cut}, (0, *_STEPS))}

# Contents of the file `checkpoint`; the checkpoints are intact, and the latest is found without it.
_STATES = {
    'empty': b'', 'missing': None, 'not text': bytes(range(256)),
    'names nothing': b'model_checkpoint_path: "model.ckpt-99"\n',
    'names nothing anywhere': b'model_checkpoint_path: "/nowhere/model.ckpt-99"\n',
    'no path': b'path: 7\n', 'names an earlier one': b'model_checkpoint_path: "model.ckpt-20"\n'}

_READERS = {
    'cifar10_train.py': lambda folder: [*helpers.train_flags(folder), '--max_steps=31'],
    'cifar10_eval.py': lambda folder: [
        f'--data_dir={folder}/data', f'--checkpoint_dir={folder}/train', '--run_once',
        f'--eval_dir={folder}/eval'],
    'cifar10_export.py': lambda folder: [
        f'--checkpoint_dir={folder}/train', f'--export_dir={folder}/model']}

drill = pytest.mark.drill('Damage', short=4)
readers = pytest.mark.parametrize('script', _READERS)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with `data`, and `whole`, the untouched copy of a run in `train`."""
    folder = tmp_path_factory.mktemp('damage')
    record_files.write_noise(folder / 'data')
    done = helpers.train(folder, f'--max_steps={_STEPS[-1]}', '--save_checkpoint_steps=10')
    assert done.returncode == 0, done.stderr
    os.remove(folder / 'train' / 'params.h5')
    os.rename(folder / 'train', folder / 'whole')
    return folder


@pytest.fixture
def folder(trained):
    """`trained`, with the run in its place; `checkpoint` there holds absolute paths."""
    shutil.copytree(trained / 'whole', trained / 'train')
    yield trained
    for name in ('train', 'eval', 'model'):
        shutil.rmtree(trained / name, ignore_errors=True)


@pytest.mark.slow
@drill
@pytest.mark.parametrize('damage', _DAMAGES)
@readers
def test_damaged_checkpoints(folder, tally, script, damage):
    changes, steps = _DAMAGES[damage]
    for step in steps:
        for ending, change in changes.items():
            _change(f'{folder}/train/model.ckpt-{step}.{ending}', change)
    whole = [step for step in (0, *_STEPS) if step not in steps]
    tally(_read(script, folder, whole[-1] if whole else None, is_reported=True))


@pytest.mark.slow
@drill
@pytest.mark.parametrize('state', _STATES)
@readers
def test_a_damaged_state_file(folder, tally, script, state):
    content = _STATES[state]
    _change(f'{folder}/train/checkpoint', None if content is None else lambda data: content)
    step = 20 if state == 'names an earlier one' else _STEPS[-1]
    tally(_read(script, folder, step, is_reported=state.startswith('names nothing')))


def _change(path, change):
    if change is None:
        os.remove(path)
        return
    with open(path, 'r+b') as stream:
        data = change(stream.read())
        stream.seek(0)
        stream.truncate()
        stream.write(data)


def _read(script, folder, step, is_reported):
    """Runs a script, which must use the checkpoint of a step, or none if `step` is None."""
    before = {path for path in helpers.contents(f'{folder}/train') if 'model.ckpt-' in path}
    done = helpers.run_script(script, *_READERS[script](folder))
    assert before <= set(helpers.contents(f'{folder}/train')), 'it removed files'
    if step is None:
        helpers.expect_one_line(done, 'damaged', 'all checkpoints', f'{folder}/train')
        return 'refused in one line'
    output = done.stdout[-1500:] + done.stderr[-1500:]
    assert done.returncode == 0, output
    reported = f'using model.ckpt-{step}.' in done.stdout
    assert reported == is_reported, output
    if 'eval' in script:
        assert list(events.read_scalars(f'{folder}/eval', 'Precision @ 1')) == [step]
    elif 'export' in script:
        assert f'model.ckpt-{step} as a SavedModel' in done.stdout, output
    else:
        assert f'Resuming from {folder}/train/model.ckpt-{step}.' in done.stdout, output
    return 'used the newest intact one' + ', and reported it' * reported
