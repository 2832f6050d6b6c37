"""Runs of classification.py that were stopped or killed, and resume."""
import json
import os
import pathlib
import re
import shutil
import signal

from cifar10_lib import checkpoints, errors
from classification_lib import recipes, run

import numpy as np
import pytest
import small_nets
import spawn
from absl import flags
from small_runs import STEPS, figures, own_images, precision, ran, rows, started, values

FLAGS = flags.FLAGS
pytestmark = pytest.mark.usefixtures('small_rows')


@pytest.fixture
def stopped(monkeypatch):
    """A function that runs a small network, with flags, until SIGTERM in its second validation."""
    def function(**options):
        row = recipes.TABLE[options.get('net', 'small')]
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            # A validation of 130 images has 9 batches of 16.
            patch.setitem(recipes.TABLE, row.name, row._replace(
                prepare=small_nets.signalling(signal.SIGTERM, 9 + 4)))
            ran(**options)
        assert end.value.code == 128 + signal.SIGTERM
        return pathlib.Path(options.get('train_dir', 'run'))

    return function


def content(folder):
    """run.json, but for what differs between two runs that are the same."""
    return {**run.read(str(folder)), 'written': None}


def test_a_resumed_run_is_the_same_as_one_without_a_stop(monkeypatch):
    """The same images in the same order, so the same numbers. Another seed has another order."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        distort=small_nets.prepare))
    expected = values(ran(max_steps=13, train_dir='whole'))
    for steps in (3, 8, 13):  # Within the first epoch, and the second.
        resumed = ran(max_steps=steps, train_dir='resumed', log_frequency=1)
    found = values(resumed)
    for name in ('bn/moving_mean', 'bn/moving_variance'):  # Of the images.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    np.testing.assert_allclose(found['linear/weights'], expected['linear/weights'], atol=1e-3)
    assert [row['step'] for row in rows(resumed)] == list(range(1, 14))
    other = values(ran(max_steps=13, train_dir='other', seed=2))['bn/moving_mean']
    assert abs(other / expected['bn/moving_mean'] - 1).max() > 1e-4


def test_a_resume_without_flags_continues_the_run(stopped, capsys):
    own_images(count=130)  # 8.1 steps of 16 per epoch.
    settings = {'dataset': '.', 'learning_rate': 0.5, 'use_bf16': True, 'warmup_epoch': 2.0,
                'max_steps': 20, 'net': 'steps', 'batch_size': 16}
    whole, folder = ran(train_dir='whole', **settings), stopped(**settings)
    assert values(whole)['steps'] == pytest.approx(10)
    assert values(folder)['global_step'] == 17
    capsys.readouterr()
    started()
    out = capsys.readouterr().out
    assert 'Resuming from run at step 17, until step 20.' in out and '(was' not in out
    for name, value in values(folder).items():
        np.testing.assert_array_equal(value, values(whole)[name], err_msg=name)
    assert content(folder) == content(whole)
    assert figures(folder, 'validation_error') == figures(whole, 'validation_error')


def test_a_run_on_few_images(monkeypatch, stopped, capsys):
    """The row's steps of 512 images become 100 steps of all 20, which a resume continues."""
    own_images(count=20)
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(batch_size=512))
    folder = stopped(dataset='.')
    out = capsys.readouterr().out
    assert ('Few images: --batch_size=20 --learning_rate=0.0003906 --epochs=100. Give these flags '
            'to choose others.\n') in out
    assert '100 steps of 20 images, by 1 worker(s), are 100 epochs.\n' in out
    started()
    assert 'Few images' not in capsys.readouterr().out
    assert values(folder)['global_step'] == 100
    assert {row['learning_rate'] for row in rows(folder) if row['learning_rate']} == {0.000390625}
    ran(dataset='.', batch_size=32, max_steps=1, train_dir='given')
    out = capsys.readouterr().out
    assert 'Few images' not in out and 'A step takes more than the 20 training images' in out
    assert run.read('given')['learning_rate'] == 0.01


def test_flags_of_a_resume(half_bright, capsys):
    """What may change is named, and recorded; what may not is refused, and nothing changes."""
    folder = ran(max_steps=2, learning_rate=0.01)
    images = half_bright.parent.rename('moved') / half_bright.name / 'data_batch_1.bin'
    FLAGS.data_dir = 'moved'
    capsys.readouterr()
    started(learning_rate=0.1, max_steps=4)
    assert re.findall('Resuming with .*', capsys.readouterr().out) == [
        'Resuming with --max_steps=4 (was 2).', 'Resuming with --learning_rate=0.1 (was 0.01).']
    assert figures(folder, 'learning_rate')[-1] == (4, pytest.approx(0.1))
    assert run.read(str(folder))['learning_rate'] == 0.1
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    with pytest.raises(errors.UserError, match='batch_size 16, not 8: change that back, choose'):
        started(max_steps=6, batch_size=8)
    images.write_bytes(images.read_bytes()[:-1] + b'\xff')
    with pytest.raises(errors.UserError, match=r'images_checksum \w+, not \w+'):
        started(max_steps=6)
    assert {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()} == before


def test_the_initial_checkpoint_of_a_run_that_has_begun(capsys):
    """It is recorded, and has no later effect. It need not be there any more."""
    ran(max_steps=2, train_dir='first')
    folder = ran(max_steps=1, initial_checkpoint='first')
    assert '--initial_checkpoint has no effect' not in capsys.readouterr().out
    ran(max_steps=2, train_dir='second')
    ran(max_steps=2, initial_checkpoint='second')
    assert '--initial_checkpoint has no effect on a run that has begun' in capsys.readouterr().out
    with pytest.raises(errors.UserError, match='No checkpoint in no/such/folder'):
        ran(max_steps=3, initial_checkpoint='no/such/folder')
    shutil.rmtree('first')
    ran(max_steps=3, initial_checkpoint='first')
    assert 'has no effect' not in capsys.readouterr().out
    assert run.read(str(folder))['initial_checkpoint'] == 'first'


def test_another_type_in_a_run_that_resumes():
    """It takes the place of the former one."""
    ran(max_steps=1, use_bf16=True)
    for steps, options, expected in (
            (2, {}, 'use_bf16'), (3, {'use_fp16': True}, 'use_fp16'),
            (4, {'type_config': 'float'}, None), (5, {'use_bf16': True}, 'use_bf16')):
        started(max_steps=steps, **options)
        assert [name for name in ('use_fp16', 'use_bf16') if run.read('run')[name]] == (
            [expected] if expected else [])


def test_a_run_of_version_1(capsys):
    """Its run.json had two levels, and no warm-up. It is evaluated, on its own images, but cannot
    continue."""
    own_images()
    folder = ran(max_steps=2, dataset='.')
    found = run.read(str(folder))
    (folder / 'run.json').write_text(json.dumps({
        'net': found['net'], 'classes': found['classes'], 'dataset': 'halves',
        'settings': {'dataset': os.getcwd(), 'learning_rate': None, 'seed': 1}}))
    started(evaluate=True)
    assert ' on 60 images of halves (test).' in capsys.readouterr().out
    with pytest.raises(errors.UserError, match='a run of version 1, which cannot continue'):
        started(max_steps=3)
    ran(max_steps=1, train_dir='new', initial_checkpoint='run', dataset='.')
    assert 'Starting with run/model.ckpt-2; new: none.' in capsys.readouterr().out


def test_runs_that_cannot_continue_are_refused():
    """One of the tutorial, and one whose checkpoints were removed, maybe to save room."""
    folder = ran(max_steps=2)
    (folder / 'run.json').rename('run.json')
    with pytest.raises(errors.UserError, match="holds a run of the tutorial's programs"):
        started(max_steps=4)
    os.rename('run.json', folder / 'run.json')
    for path in [*folder.glob('model.ckpt*'), folder / 'checkpoint']:
        path.unlink()
    with pytest.raises(errors.UserError, match='no checkpoint from which it could resume'):
        started(max_steps=4)


@pytest.mark.parametrize('epochs', [3.0, 2.0])
def test_a_signal_in_a_validation(stopped, capsys, epochs):
    """That of step 10, also as the last one. The next start makes it first, and once."""
    folder = stopped(net='steps', epochs=epochs)
    assert values(folder)['global_step'] == values(folder)['steps'] == 10
    capsys.readouterr()
    started(log_frequency=2)
    out = capsys.readouterr().out
    assert re.findall(r'epoch (\d).* validation error', out) == ['2', '3'][:int(epochs) - 1]
    assert out.count('Validating step 10, which has no validation yet.\n') == 1
    assert [row['step'] for row in rows(folder)] == STEPS[:3 * int(epochs)]
    assert [step for step, _ in figures(folder, 'validation_error')] == [5, 10, 15][:int(epochs)]
    assert run.read(str(folder / 'best'))['step'] == 5 * epochs
    assert (folder / 'params.h5').exists()


# Ends the process after the k-th call of a function whose arguments fit.
_KILLED = '''
import os, signal, sys
sys.path.insert(0, {folder!r})
import small_nets
import tensorflow.compat.v1 as tf
from classification_lib import recipes, run
recipes.TABLE['steps'] = small_nets.STEPS._replace(
    prepare=small_nets.signalling(signal.SIGKILL, {batch}))
calls = 0
def killing(function, fits=lambda *_: True):
    def killed(*arguments, **options):
        global calls
        found = function(*arguments, **options)
        calls += fits(*arguments)
        if calls == {calls}:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return killed
{change}
'''


@pytest.mark.slow
@pytest.mark.parametrize('change, calls, best', [
    ('', 0, 5),  # In the middle of the validation.
    ('tf.train.Saver.save = killing(tf.train.Saver.save, lambda *words: "/best/" in words[2])', 2,
     5),
    ('run.write = killing(run.write, lambda folder, *_: folder.endswith("best"))', 2, 10),
    ('run.Best.offer = killing(run.Best.offer)', 2, 10),
    ('run.Log.validated = killing(run.Log.validated)', 2, 10),
    ('run.Log.validated = killing(run.Log.validated)', 3, 15)])
def test_a_kill_in_a_validation(capsys, change, calls, best):
    """The best checkpoint and its error stay one thing; nothing is missing or twice at the end.

    The network makes 5 of 15 parts right after 5 steps, 10 after 10 and all after 15.
    """
    program = spawn.gently('classification.py', change=_KILLED.format(
        folder=os.path.dirname(__file__), batch=0 if change else 9 + 4, calls=calls, change=change))
    folder = pathlib.Path('run')
    done = spawn.fork([*program, '-n', 'steps', f'--data_dir={FLAGS.data_dir}', '-m', 'run', '-s',
                       '1', '--epochs=3', '--log_frequency=2'])
    assert done.returncode == -signal.SIGKILL, done.stderr
    for step in (best, 15):
        capsys.readouterr()
        started(evaluate=True, best=True)
        out = capsys.readouterr().out
        found = run.read(str(folder / 'best'))
        assert found['step'] == step and f'/best/{found["checkpoint"]} on 130' in out
        assert precision(out) == pytest.approx(1 - found['validation_error'], abs=5e-4)
        path = run.best_checkpoint(str(folder / 'best'))
        assert checkpoints.newest(path).values['steps'] == step
        started(log_frequency=2)
    assert [row['step'] for row in rows(folder)] == STEPS
    whole = ran(net='steps', epochs=3.0, train_dir='whole')
    assert figures(folder, 'validation_error') == figures(whole, 'validation_error')
    assert (folder / 'params.h5').exists()
