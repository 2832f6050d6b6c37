"""Gives every flag of every script senseless values.

Expected: one line, exit code 1, and nothing written. Values that make sense for a flag are left
out: any word can name a new folder.
"""
import os
import random
import re

import image_files
import pytest
import record_files
import spawn

import running

_VALUES = {'nonsense': 'x?y', 'empty': '', 'negative': '-1', 'huge': '1' + 30 * '0',
           'a fraction': '1.5', 'not a number': 'nan', 'infinite': 'inf',
           'a path to nothing': '/proc/nothing/here'}

# Values that make sense, by flag.
_NAMES = set(_VALUES) - {'empty', 'a path to nothing'}
_SENSIBLE = {
    'train_dir': _NAMES, 'eval_dir': _NAMES, 'export_dir': _NAMES,
    'data_dir': set(_VALUES) - {'empty'},  # A folder to download to; some scripts read no data.
    'runs': set(_VALUES) - {'empty'},  # Only two pictures use it.
    'data_url': set(_VALUES) - {'empty'},  # Only a download uses it.
    **{name: {'a fraction'} for name in (
        'learning_rate', 'warmup_epochs', 'bucket_mb', 'start_timeout', 'step_timeout')}}

# Flags that a script requires besides the one being tried. DIR is a folder with `data` in the
# layout of CIFAR-10, `train`, a run on it, and `sorted`, images of classes; NEW is an empty folder.
_DATA = ['--data_dir=DIR/data', '--batch_size=8']
_TRAIN = [*_DATA, '--train_dir=NEW/train', '--max_steps=1']
_COMMANDS = {
    'cifar10_train.py': _TRAIN,
    'cifar10_multi_gpu_train.py': _TRAIN,
    'cifar10_distributed_train.py': [*_TRAIN, '--num_workers=2'],
    'cifar10_eval.py': [*_DATA, '--checkpoint_dir=DIR/train', '--eval_dir=NEW/eval', '--run_once'],
    'cifar10_predict.py': ['DIR/sorted/a', '--checkpoint_dir=DIR/train'],
    'cifar10_export.py': ['--checkpoint_dir=DIR/train', '--export_dir=NEW/model'],
    'cifar10_convert.py': ['DIR/sorted', 'NEW/set'],
    'cifar10_plot.py': ['--picture=samples', *_DATA, '--output=NEW/samples.png']}


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """The folder that `_COMMANDS` call DIR."""
    folder = tmp_path_factory.mktemp('flags')
    record_files.write_noise(folder / 'data')
    image_files.write_sorted(folder / 'sorted')
    done = running.train(folder, '--max_steps=1')
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.drill('Flags')
@pytest.mark.parametrize('script', _COMMANDS)
def test_senseless_values(request, prepared, tmp_path, tally, how_many, script):
    cases = [(flag, value) for flag in _flags(script) for name, value in _VALUES.items()
             if name not in _SENSIBLE.get(flag, ())]
    count = how_many(8, None)
    if count:
        draw = random.Random(request.config.getoption('seed'))
        cases = draw.sample(cases, min(count, len(cases)))
    for flag, value in cases:
        arguments = [word.replace('NEW', str(tmp_path)).replace('DIR', str(prepared))
                     for word in _COMMANDS[script] if not word.startswith(f'--{flag}=')]
        done = spawn.run_script(script, *arguments, f'--{flag}={value}', cwd=tmp_path)
        running.expect_one_line(done)
        assert os.listdir(tmp_path) == [], f'--{flag}={value}'
        tally('refused in one line')


def _flags(script):
    """Names of the flags that `--help` lists."""
    text = spawn.run_script(script, '--help').stdout
    found = re.findall(r'^  (?:-\w,)?--(?:\[no\])?(\w+):', text, re.MULTILINE)
    assert 'device' in found or script == 'cifar10_convert.py', found
    return found
