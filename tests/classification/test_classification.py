"""classification.py as one worker, on small images; most tests train a small network."""
import os
import re
import signal

from cifar10_lib import errors
from classification_lib import recipes, run

import copies
import h5py
import numpy as np
import outcomes
import psutil
import pytest
import small_nets
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from small_runs import AVERAGE, figures, own_images, precision, ran, rows, values
from tensorflow.python.client import session

FLAGS = flags.FLAGS
pytestmark = pytest.mark.usefixtures('small_rows')


def test_a_run(capsys):
    """Two epochs of 80 images are ten steps of 16; validated after five and ten."""
    folder = ran(epochs=2.0)
    out = capsys.readouterr().out
    assert '10 steps of 16 images, by 1 worker(s), are 2 epochs.\n' in out
    assert len(re.findall(
        r'^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step \d+, loss = \d+\.\d\d, training error = '
        r'0\.\d{4} \(\d+\.\d examples/sec; \d\.\d{3} sec/batch\)$', out, re.MULTILINE)) == 6
    assert re.findall(r'epoch (.*), training error = 0\.\d{4}, validation error = 0\.\d{4}$', out,
                      re.MULTILINE) == ['1', '2']
    assert [(row['step'], row['epoch']) for row in rows(folder)] == [
        (2, 0.4), (4, 0.8), (5, 1.0), (6, 1.2), (8, 1.6), (10, 2.0)]
    assert [step for step, _ in figures(folder, 'validation_error')] == [5, 10]
    assert {row['learning_rate'] for row in rows(folder)} == {0.01}
    assert rows(folder)[-1]['training_error'] < rows(folder)[0]['training_error']
    found = run.read(str(folder))
    assert (found['net'], found['dataset'], len(found['classes'])) == ('small', 'cifar10', 10)
    assert found['seed'] == 1 and found['max_steps'] == 10


def test_the_files_of_a_run(capsys):
    """The parameters are those of the last checkpoint, and TensorBoard has four curves. A second
    start trains nothing, and writes what is missing."""
    folder = ran(epochs=1.0)
    assert sorted(entry.name for entry in folder.iterdir() if 'model' not in entry.name
                  and 'events' not in entry.name) == [
        '.lock', 'best', 'checkpoint', 'graph.pbtxt', 'metrics.csv', 'params.h5', 'run.json']
    stored = values(folder)
    with h5py.File(folder / 'params.h5') as stream:
        assert stream.attrs['global_step'] == stored['global_step'] == 5
        for name in ('bn/gamma', 'bn/beta', 'linear/weights'):
            np.testing.assert_array_equal(stream['weights/' + name], stored[name])
            np.testing.assert_array_equal(stream['averages/' + name], stored[name + AVERAGE])
        np.testing.assert_array_equal(stream['statistics/bn/moving_mean'], stored['bn/moving_mean'])
        names = []
        stream.visit(names.append)
        assert not [name for name in names if 'Adam' in name]
    curves = outcomes.summaries(folder)
    assert 'metrics/validation_error' in curves[5]
    assert {f'metrics/{name}' for name in ('training_loss', 'training_error', 'learning_rate')} <= {
        tag for found in curves.values() for tag in found}
    parameters = (folder / 'params.h5').read_bytes()
    (folder / 'params.h5').unlink()  # As if it was killed before it wrote the last file.
    ran(epochs=1.0)
    assert 'Nothing to do: ' in capsys.readouterr().out
    assert (folder / 'params.h5').read_bytes() == parameters
    assert [row['step'] for row in rows(folder)] == [2, 4, 5]


def test_restart(tmp_path):
    folder = ran(epochs=2.0)
    (folder / 'notes.txt').write_text('mine')
    (folder / 'best' / 'notes.txt').write_text('mine')
    for name in ('best/model.ckpt-again-5.index', 'metrics.csv.0123456789abcdef.part'):
        (folder / name).write_text('')  # Of a step made again; of a start that was killed.
    ran(max_steps=3, restart=True, validate_every=0, batch_size=8)
    assert [row['step'] for row in rows(folder)] == [2, 3]
    assert [path.name for path in (folder / 'best').iterdir()] == ['notes.txt']
    assert not list(folder.glob('*.part'))
    assert values(folder)['global_step'] == 3
    assert (folder / 'notes.txt').read_text() == 'mine'
    # The new run has a best checkpoint of its own, although its error is higher.
    ran(epochs=2.0, restart=True)
    ran(max_steps=1, restart=True, learning_rate=1e-5)
    assert run.read(str(folder / 'best'))['step'] == 1


@pytest.mark.parametrize('averages', [True, False])
def test_validation_and_evaluation_have_the_same_figure(monkeypatch, capsys, averages):
    """On images that are hard enough for a figure other than 0 and 1."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        averages=averages, learning_rate=lambda: 1e-5))
    folder = ran(max_steps=3, batch_size=8)
    measured = rows(folder)[-1]['validation_error']
    ran(evaluate=True)
    out = capsys.readouterr().out
    assert precision(out) == pytest.approx(1 - measured, abs=5e-4)
    assert f'Evaluated {folder}/model.ckpt-3 on 130 images of cifar10 (test).\n' in out


def test_evaluation_of_the_best(half_bright, capsys):
    """With the names of classes in batches.meta.txt, beside generated images."""
    names = ['below', 'above', *'cdefghij']
    (half_bright / 'batches.meta.txt').write_text('\n'.join(names) + '\n\n')
    folder = ran(epochs=2.0)
    assert run.read(str(folder))['classes'] == names
    assert run.read(str(folder / 'best'))['step'] == min(
        (error, step) for step, error in figures(folder, 'validation_error'))[1]
    ran(evaluate=True, best=True, per_class=True)
    out = capsys.readouterr().out
    assert '/best/model.ckpt-' in out and precision(out) > 0.9
    assert re.search(r'^below +65 ', out, re.MULTILINE)
    assert re.search(r'^j +0 +0 +0 +nan +nan$', out, re.MULTILINE)


def test_held_out_images(capsys, half_bright):
    """8 of 80: 72 are left for training, in 4.5 steps of 16."""
    folder = ran(epochs=2.0, validate_on='held_out')
    assert '9 steps of 16 images, by 1 worker(s), are 2 epochs.' in capsys.readouterr().out
    assert [step for step, _ in figures(folder, 'validation_error')] == [5, 9]
    ran(evaluate=True, validate_on='held_out')
    assert 'on 8 images of cifar10 (held_out).' in capsys.readouterr().out
    ran(max_steps=1, train_dir='all')
    with pytest.raises(errors.UserError, match='^all/.* was not trained with --validate_on=held'):
        ran(evaluate=True, validate_on='held_out', train_dir='all')
    images = half_bright / 'data_batch_1.bin'
    images.write_bytes(images.read_bytes()[:-1] + b'\xff')
    with pytest.raises(errors.UserError, match='^run/.* on the images in .*: restore those'):
        ran(evaluate=True, validate_on='held_out')
    ran(evaluate=True)  # The test images are the same.


def test_a_new_run_starts_with_the_weights_of_another(capsys):
    expected = values(ran(epochs=2.0, train_dir='first'))
    started = values(ran(
        max_steps=1, train_dir='second', initial_checkpoint='first', learning_rate=0.0))
    assert 'Starting with first/model.ckpt-10; new: none.\n' in capsys.readouterr().out
    for name in ('linear/weights', 'bn/gamma'):
        for suffix in ('', AVERAGE):
            np.testing.assert_allclose(
                started[name + suffix], expected[name + AVERAGE], rtol=1e-5, atol=1e-7)
    assert started['global_step'] == 1


@pytest.mark.parametrize('classes', ['ab', 'abc'])
def test_what_does_not_fit_starts_as_in_a_run_from_nothing(monkeypatch, classes):
    """The last layer, for other classes, with the value of the row."""
    own_images(list(classes))
    ran(max_steps=5, train_dir='first', dataset='.')
    own_images()
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        initial_values=lambda images: {
            'linear/weights': np.full([768, 2], images.ndim, np.float32),
            'bn/beta': np.ones(3, np.float32)}))
    options = {'max_steps': 1, 'dataset': '.', 'initial_checkpoint': 'first', 'learning_rate': 0.0}
    found = values(ran(**options))
    assert (found['linear/weights'] == 4).all()
    np.testing.assert_array_equal(found['bn/beta'], values('first')['bn/beta' + AVERAGE])
    with pytest.raises(errors.UserError, match='has no layer of this network'):
        ran(**options, net='steps', train_dir='other')


@pytest.mark.parametrize('save_steps, saved', [(1, 1), (100, 0)])
def test_a_loss_that_is_not_finite(monkeypatch, save_steps, saved):
    """In the second step. The checkpoint before it stays, and the line names a variable."""
    monkeypatch.setitem(recipes.TABLE, 'steps', small_nets.STEPS._replace(
        loss=lambda logits, labels: tf.sqrt(0.25 - tf.reduce_min(logits))))  # 1, then NaN.
    with pytest.raises(FloatingPointError, match='^Training diverged: steps : Tensor had NaN '):
        ran(net='steps', max_steps=50, save_checkpoint_steps=save_steps, log_frequency=1)
    assert [row['step'] for row in rows('run')] == [1]
    assert values('run')['steps'] == saved


@pytest.mark.parametrize('net, steps, rate', [('airbench94', 15, 0.1), ('tutorial', 30, 0.03)])
def test_networks_learn_images_of_ones_own(capsys, net, steps, rate):
    """Two classes, bright above or below. The evaluation uses the run's own images."""
    own_images()
    folder = ran(net=net, dataset='.', max_steps=steps, batch_size=15, learning_rate=rate)
    assert run.read(str(folder))['dataset'] == os.getcwd()
    assert any(name.endswith(AVERAGE) for name in values(folder)) == (net == 'tutorial')
    with h5py.File(folder / 'params.h5') as stream:  # All layers, whitening included.
        for name, value in values(folder).items():
            if name.endswith('/weights'):
                np.testing.assert_array_equal(stream['weights/' + name], value)
    ran(evaluate=True)
    out = capsys.readouterr().out
    assert precision(out) > 0.9
    assert 'on 60 images of halves (test).' in out


@pytest.mark.parametrize('options, message', [
    ({'net': 'cifar100_resnet23', 'dataset': 'cifar10'}, 'name two data sets'),
    ({'dataset': 'nowhere'}, '"nowhere" is not a data set'),
    ({'evaluate': True, 'train_dir': 'nowhere'}, 'No checkpoint in nowhere'),
    ({'per_class': True}, '--best and --per_class are for --evaluate: add it'),
    ({'initial_checkpoint': 'nowhere', 'max_steps': 1}, 'No checkpoint in nowhere')])
def test_mistakes(options, message):
    with pytest.raises(errors.UserError, match=message):
        ran(**options)


# A maintainer's edits.

@pytest.fixture
def edited(tmp_path):
    """A function that runs a copy of classification.py with these lines at its end."""
    def function(lines, **options):
        project = copies.copy_with(tmp_path / 'copy', {})
        with open(project / 'classification.py', 'a') as stream:
            stream.write(lines)
        with copies.imported(project) as import_:
            copy = import_('classification')
            import_('classification_lib.recipes').TABLE['steps'] = small_nets.STEPS
            return ran(main=copy.main, net='steps', epochs=2.0, **options)

    return function


def test_a_loop_that_logs_no_steps(edited):
    """It validates, and keeps the best."""
    folder = edited('run.Log.add = lambda *_: None')
    assert [step for step, _ in figures(folder, 'validation_error')] == [5, 10]
    assert run.read(str(folder / 'best'))['step'] == values(folder / 'best')['steps'] == 10


def test_a_loop_that_does_not_validate(edited):
    """Every step has its row."""
    folder = edited('run.Log.validated = lambda *_: None', log_frequency=5)
    assert [step for step, _ in figures(folder, 'training_loss')] == [5, 10]
    assert not figures(folder, 'validation_error')


def test_a_summary_beside_the_loop(edited):
    folder = edited('''
unedited = make_steps
def make_steps(worker, settings, first_step, graph, *others):
    tf.summary.scalar('mine', graph.figures['training_loss'])
    unedited(worker, settings, first_step, graph, *others)
''')
    assert 'mine' in {tag for values in outcomes.summaries(folder).values() for tag in values}


def test_a_hook_that_ends_the_run(edited):
    """After its fourth step, which is saved and logged."""
    folder = edited('''
class Hook(tf.train.SessionRunHook):
    steps = 0
    def after_run(self, run_context, run_values):
        self.steps += 1
        if self.steps == 4:
            run_context.request_stop()

unedited = session.training_session
def training_session(*, hooks, **options):
    return unedited(hooks=[*hooks, Hook()], **options)
session.training_session = training_session
''', log_frequency=10)
    assert values(folder)['steps'] == 4
    assert [step for step, _ in figures(folder, 'training_loss')] == [4]


def test_a_step_is_one_run_that_fetches_a_few_numbers_and_keeps_no_memory(monkeypatch):
    """A batch of 49 kB that each step kept would be 49 MB more after a thousand steps."""
    runs, process, do_run = [], psutil.Process(), session.BaseSession._do_run

    def counted(*arguments, **options):
        fetched = do_run(*arguments, **options)
        runs.append(([getattr(each, 'size', 1) for each in fetched], process.memory_info().rss))
        return fetched

    monkeypatch.setattr(session.BaseSession, '_do_run', counted)
    ran(max_steps=1300, validate_every=0, log_frequency=50)
    assert 1300 <= len(runs) < 1400
    assert all(sum(sizes) < 8 for sizes, _ in runs[-1020:-20])  # Numbers, no arrays.
    assert runs[-20][1] - runs[-1020][1] < 20e6


# The program in a process of its own.

@pytest.mark.parametrize('words, message', [
    (['--epochs=1', '--max_steps=1'], 'epochs'), (['-c', 'gpu'], 'TensorFlow finds no GPU')])
def test_mistakes_are_one_line(words, message):
    spawn.expect_one_line(
        spawn.fork_script('classification.py', *words, CUDA_VISIBLE_DEVICES='-1'), message)


@pytest.mark.parametrize('name', ['SLURM_STEP_NUM_TASKS', 'WORLD_SIZE', 'HOROVOD_SIZE'])
def test_a_launcher_without_mpi(monkeypatch, name):
    """Its processes would all train alone, and in one folder. For a single one, that is right."""
    monkeypatch.setenv(name, '2')
    with pytest.raises(errors.UserError, match=f'{name}=2: .* by mpirun, or by srun --mpi=pmix'):
        ran(max_steps=1)
    assert not os.path.exists('run')
    monkeypatch.setenv(name, '1')
    assert values(ran(net='steps', max_steps=1))['steps'] == 1


@pytest.mark.slow
def test_the_example_is_interrupted_and_resumes(half_bright):
    """The published command: ResNet-23 on CIFAR-10, results in tmp.monitor. Ctrl-C saves."""
    words = ['classification.py', '-c', 'cpu', '-n', 'cifar10_resnet23', '--context', 'cudnn',
             '-b16', '-e', '1', '--with-all-reduce-callback', f'--data_dir={FLAGS.data_dir}',
             '--log_frequency=1']
    started = spawn.start([spawn.ROOT / words[0], *words[1:], '--max_steps=100000'])
    shown = spawn.read_until(started, 'step 3, ')
    started.send_signal(signal.SIGINT)
    out, _ = spawn.ended(started, 130)
    assert shown.startswith('Training on the CPU.\n100000 steps of 16 images, by 1 worker(s), ')
    step = int(re.search(r'Saved step (\d+) in', out)[1])
    done = spawn.run_script(*words, f'--max_steps={step + 2}')
    assert (done.returncode, done.stderr) == (0, '')
    assert f'Resuming from tmp.monitor at step {step}, until step {step + 2}.' in done.stdout
    assert [row['step'] for row in rows('tmp.monitor')] == list(range(1, step + 3))
    assert {'metrics.csv', 'params.h5', 'run.json'} <= set(os.listdir('tmp.monitor'))
    assert 'affine/weights' + AVERAGE in values('tmp.monitor')  # Averages are its result.
