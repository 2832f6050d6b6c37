"""Damages a run's latest checkpoint, and starts training, evaluation and export.

    python -m drills.damage

The run has checkpoints of three steps. Wanted: the newest whole one is taken, which a line says;
where none is whole one line says that, and the exit code is 1; and in each case every file is still
there.
"""
import functools
import os
import sys

from program import startup  # noqa: F401, first: it imports TensorFlow quietly.

from drills import small_data
from drills import trial
from runs import metrics

_STEPS = (10, 20, 30)
_DATA = 'data-00000-of-00001'


def _cut(data):
    return data[:len(data) // 2]


def _zeros(data):
    return bytes(len(data))


def _nothing(data):
    del data
    return b''


# What befalls the files of a checkpoint: dictionary from name to {ending: change, None removes}.
_DAMAGES = {
    'data cut': {_DATA: _cut}, 'data zeroed': {_DATA: _zeros}, 'data empty': {_DATA: _nothing},
    'data missing': {_DATA: None}, 'index cut': {'index': _cut}, 'index zeroed': {'index': _zeros},
    'index empty': {'index': _nothing}, 'index missing': {'index': None},
    'all missing': {_DATA: None, 'index': None, 'meta': None}}

# What befalls the file `checkpoint`: nothing is damaged, and the latest is found without it.
_STATES = {
    'empty': b'', 'missing': None, 'no text': bytes(range(256)),
    'of nothing': b'model_checkpoint_path: "model.ckpt-99"\n',
    'of nowhere': b'model_checkpoint_path: "/nowhere/model.ckpt-99"\n', 'no path': b'path: 7\n',
    'of an earlier one': b'model_checkpoint_path: "model.ckpt-20"\n'}

_READERS = {
    'cifar10_train.py': lambda folder: [*small_data.train_flags(folder), '--max_steps=31'],
    'cifar10_eval.py': lambda folder: [
        f'--data_dir={folder}/data', f'--checkpoint_dir={folder}/train', '--run_once',
        f'--eval_dir={folder}/eval'],
    'cifar10_export.py': lambda folder: [
        f'--checkpoint_dir={folder}/train', f'--export_dir={folder}/model']}


def main():
    return trial.run('Damage', cases(), trial.parser('damage', __doc__).parse_args())


def cases():
    for script in _READERS:
        for name, changes in _DAMAGES.items():
            yield f'{script}, {name}', functools.partial(_damaged, script, changes, _STEPS[-1:])
        yield f'{script}, data of two cut', functools.partial(
            _damaged, script, _DAMAGES['data cut'], _STEPS[1:])
        yield f'{script}, data of all cut', functools.partial(
            _damaged, script, _DAMAGES['data cut'], _STEPS)
        for name, state in _STATES.items():
            yield f'{script}, checkpoint {name}', functools.partial(_state, script, name, state)


def _run(folder):
    """A run of the three checkpoints in the folder `train`."""
    small_data.write(f'{folder}/data')
    done = small_data.train(folder, f'--max_steps={_STEPS[-1]}', '--save_checkpoint_steps=10')
    if done.returncode:
        raise trial.Fault(done.stderr)
    os.remove(f'{folder}/train/params.h5')


def _damaged(script, changes, steps, folder):
    _run(folder)
    for step in steps:
        for ending, change in changes.items():
            _change(f'{folder}/train/model.ckpt-{step}.{ending}', change)
    whole = [step for step in (0, *_STEPS) if step not in steps]
    if len(steps) == len(_STEPS):
        _change(f'{folder}/train/model.ckpt-0.index', _nothing)
        whole = []
    return _reads(script, folder, whole[-1] if whole else None, tells=True)


def _state(script, name, state, folder):
    _run(folder)
    _change(f'{folder}/train/checkpoint', None if state is None else lambda data: state)
    step = 20 if name == 'of an earlier one' else _STEPS[-1]
    return _reads(script, folder, step, tells=name.startswith('of no'))


def _change(path, change):
    if change is None:
        os.remove(path)
        return
    with open(path, 'r+b') as stream:
        data = change(stream.read())
        stream.seek(0)
        stream.truncate()
        stream.write(data)


def _reads(script, folder, step, tells):
    """Runs a script, which is to take the checkpoint of a step; None where none is whole."""
    before = {path for path in trial.contents(f'{folder}/train') if 'model.ckpt-' in path}
    done = trial.script(script, *_READERS[script](folder))
    gone = before - set(trial.contents(f'{folder}/train'))
    if gone:
        raise trial.Fault(f'{gone} are gone')
    if step is None:
        trial.wanted_one_line(done, 'damaged', 'no checkpoint', f'{folder}/train')
        return 'refused in one line'
    if 'eval' in script:
        found = list(metrics.read_scalars(f'{folder}/eval', 'Precision @ 1'))
        if found != [step]:
            raise trial.Fault(f'wanted step {step}, evaluated were {found}')
    if 'export' in script and f'model.ckpt-{step} as a SavedModel' not in done.stdout:
        raise trial.Fault(f'wanted step {step}, came {done.stdout}')
    said = f'using model.ckpt-{step}.' in done.stdout
    resumed = f'Resuming from {folder}/train/model.ckpt-{step}.' in done.stdout
    if done.returncode or said != tells or ('train' in script and not resumed):
        raise trial.Fault(f'wanted step {step}, told: {tells}; came code {done.returncode} and\n'
                          f'{done.stdout[-1500:]}{done.stderr[-1500:]}')
    return 'took the newest whole one' + ', and said so' * said


if __name__ == '__main__':
    sys.exit(main())
