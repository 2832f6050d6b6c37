"""classification.py as one worker, on small images; most tests train a small network."""
import json
import os
import pathlib
import re
import signal

from cifar10_lib import checkpoints, console, recipes, run

import h5py
import numpy as np
import pytest
import record_files
import running
import small_nets
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import classification

FLAGS = flags.FLAGS
AVERAGE = '/ExponentialMovingAverage'
DEFAULTS = {'net': 'small', 'epochs': None, 'max_steps': None, 'log_frequency': 2, 'seed': 1}


@pytest.fixture(autouse=True)
def _rows(monkeypatch, half_bright):
    """80 images for training, 130 for the test, of two of ten classes."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE)
    FLAGS['batch_size'].unparse()


def ran(**options):
    """Runs classification.py with the flags; returns the folder of the run."""
    with flagsaver.flagsaver(**{**DEFAULTS, **options}):
        classification.main()
        return pathlib.Path(FLAGS.train_dir)


def rows(folder):
    return run.read_metrics(str(folder))


def values(folder):
    return checkpoints.newest(str(folder)).values


def precision(out):
    return float(re.search(r'precision @ 1 = (\S+)$', out, re.MULTILINE)[1])


def test_a_run(capsys):
    """Two epochs of 80 images are ten steps of 16; validated after five and ten."""
    folder = ran(epochs=2.0)
    out = capsys.readouterr().out
    assert '10 steps of 16 images are 2 epochs.\n' in out
    assert len(re.findall(
        r'^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: step \d+, loss = \d+\.\d\d, training error = '
        r'0\.\d{4} \(\d+\.\d examples/sec; \d\.\d{3} sec/batch\)$', out, re.MULTILINE)) == 6
    assert re.findall(r'epoch (.*), training error = 0\.\d{4}, validation error = 0\.\d{4}$', out,
                      re.MULTILINE) == ['1', '2']
    assert [row['step'] for row in rows(folder)] == [2, 4, 5, 6, 8, 10]
    assert [row['epoch'] for row in rows(folder)] == [0.4, 0.8, 1.0, 1.2, 1.6, 2.0]
    assert [row['step'] for row in rows(folder) if row['validation_error'] is not None] == [5, 10]
    assert {row['learning_rate'] for row in rows(folder)} == {0.01}
    assert rows(folder)[-1]['training_error'] < rows(folder)[0]['training_error']
    found = run.read(str(folder))
    assert (found['net'], found['dataset'], len(found['classes'])) == ('small', 'cifar10', 10)
    assert found['settings']['seed'] == 1 and found['settings']['max_steps'] == 10
    assert sorted(entry.name for entry in folder.iterdir() if 'model' not in entry.name
                  and 'events' not in entry.name) == [
        '.lock', 'best', 'checkpoint', 'graph.pbtxt', 'metrics.csv', 'params.h5', 'run.json']


def test_parameters_are_those_of_the_last_checkpoint():
    folder = ran(epochs=1.0)
    stored = values(folder)
    assert stored['global_step'] == 5
    with h5py.File(folder / 'params.h5') as stream:
        assert stream.attrs['global_step'] == 5
        for name in ('bn/gamma', 'bn/beta', 'linear/weights'):
            np.testing.assert_array_equal(stream['weights/' + name], stored[name])
            np.testing.assert_array_equal(stream['averages/' + name], stored[name + AVERAGE])
        np.testing.assert_array_equal(stream['statistics/bn/moving_mean'], stored['bn/moving_mean'])


def test_curves_for_tensorboard():
    folder = ran(epochs=2.0)
    tags = {}
    for path in folder.glob('events*'):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tags.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert [step for step, _ in tags['metrics/validation_error']] == [5, 10]
    for name in ('training_loss', 'training_error', 'learning_rate'):
        assert 'metrics/' + name in tags
    assert 'Precision @ 1' not in tags  # The evaluation's.


def test_a_resumed_run_is_the_same_as_one_without_a_stop(monkeypatch):
    """Without random distortions: the same images in the same order, so the same numbers."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        distort=small_nets.prepare))
    whole = ran(max_steps=13, train_dir='whole')
    for steps in (3, 8, 13):  # Within the first epoch, and the second.
        resumed = ran(max_steps=steps, train_dir='resumed', log_frequency=1)
    expected = values(whole)
    for name, value in values(resumed).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert [row['step'] for row in rows(resumed)] == list(range(1, 14))
    assert run.read(str(resumed))['settings']['first_step'] == 8


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    (tmp_path / 'work').mkdir()
    monkeypatch.chdir(tmp_path / 'work')


def test_a_seed_repeats_a_run(monkeypatch):
    """But for the distortions, which threads race for."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        distort=small_nets.prepare, learning_rate=1e-4))
    first, second, other = (values(ran(max_steps=4, train_dir=name, seed=seed))['linear/weights']
                            for name, seed in (('a', 7), ('b', 7), ('c', 8)))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)
    assert not np.allclose(first, other, rtol=1e-4, atol=1e-6)


def test_a_finished_run_ends_at_once(capsys):
    folder = ran(max_steps=4)
    before = values(folder)
    (folder / 'params.h5').unlink()  # As if it was killed before it wrote the last file.
    capsys.readouterr()
    ran(max_steps=4)
    assert 'Nothing to do: ' in capsys.readouterr().out
    assert (folder / 'params.h5').exists()
    np.testing.assert_array_equal(values(folder)['linear/weights'], before['linear/weights'])


def test_restart(capsys):
    folder = ran(epochs=2.0)
    (folder / 'notes.txt').write_text('mine')
    ran(max_steps=3, restart=True, validate_every=0, batch_size=8)
    assert [row['step'] for row in rows(folder)] == [2, 3]
    assert not list((folder / 'best').iterdir())
    assert values(folder)['global_step'] == 3
    assert (folder / 'notes.txt').read_text() == 'mine'


@pytest.mark.parametrize('changed, message', [
    ({'batch_size': 8}, 'batch_size 16, not 8'), ({'net': 'tutorial'}, 'net small, not tutorial'),
    ({'validate_on': 'held_out'}, 'validate_on test, not held_out'),
    ({'seed': 2}, 'seed 1, not 2')])
def test_a_run_does_not_continue_otherwise(changed, message):
    folder = ran(max_steps=2)
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    with pytest.raises(console.UserError, match=message):
        ran(**{'max_steps': 4, **changed})
    assert {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()} == before


def test_other_images_are_refused(half_bright):
    ran(max_steps=2)
    record_files.write(half_bright / 'data_batch_1.bin', record_files.half_bright(16, seed=9))
    with pytest.raises(console.UserError, match=r'images_checksum \w+, not \w+'):
        ran(max_steps=4)
    record_files.write(half_bright / 'data_batch_1.bin', record_files.half_bright(17, seed=9))
    with pytest.raises(console.UserError, match='training_images 80, not 81'):
        ran(max_steps=4)


@pytest.mark.parametrize('averages', [True, False])
def test_validation_and_evaluation_have_the_same_figure(monkeypatch, capsys, averages):
    """On images that are hard enough for a figure other than 0 and 1."""
    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(
        averages=averages, learning_rate=1e-5))
    folder = ran(max_steps=3, batch_size=8)
    measured = rows(folder)[-1]['validation_error']
    ran(evaluate=True)
    out = capsys.readouterr().out
    assert precision(out) == pytest.approx(1 - measured, abs=5e-4)
    assert f'Evaluated {folder}/model.ckpt-3 on 130 images of CIFAR-10 (test).\n' in out


def test_evaluation_of_the_best(capsys):
    folder = ran(epochs=2.0)
    assert run.read(str(folder / 'best'))['step'] == min(
        (row['validation_error'], row['step']) for row in rows(folder)
        if row['validation_error'] is not None)[1]
    capsys.readouterr()
    ran(evaluate=True, best=True, per_class=True)
    out = capsys.readouterr().out
    assert '/best/model.ckpt-' in out and precision(out) > 0.9
    assert re.search(r'^class +images +predicted', out, re.MULTILINE)
    assert re.search(r'^truck +0 +0 +0 +- +-$', out, re.MULTILINE)


def test_held_out_images(capsys):
    """8 of 80: 72 are left for training, in 4.5 steps of 16."""
    folder = ran(epochs=2.0, validate_on='held_out')
    assert '9 steps of 16 images are 2 epochs.' in capsys.readouterr().out
    assert [row['step'] for row in rows(folder) if row['validation_error'] is not None] == [5, 9]
    ran(evaluate=True, validate_on='held_out')
    assert 'on 8 images of CIFAR-10 (held_out).' in capsys.readouterr().out


def test_a_new_run_starts_with_the_weights_of_another(capsys):
    first = ran(epochs=2.0, train_dir='first')
    expected = values(first)
    capsys.readouterr()
    second = ran(max_steps=1, train_dir='second', initial_checkpoint='first', learning_rate=0.0)
    assert re.search(r'^Starting with first/model\.ckpt-10; new: none\.$', capsys.readouterr().out,
                     re.MULTILINE)
    for name in ('linear/weights', 'bn/gamma'):
        for suffix in ('', AVERAGE):
            np.testing.assert_allclose(
                values(second)[name + suffix], expected[name + AVERAGE], rtol=1e-5, atol=1e-7)
    assert values(second)['global_step'] == 1


def test_names_of_generated_images(half_bright, capsys):
    """batches.meta.txt beside the records has the names of the classes."""
    names = ['below', 'above', *'cdefghij']
    (half_bright / 'batches.meta.txt').write_text('\n'.join(names) + '\n\n')
    folder = ran(max_steps=2)
    assert run.read(str(folder))['classes'] == names
    ran(evaluate=True, per_class=True)
    assert 'below' in capsys.readouterr().out


def test_a_loss_that_is_not_finite(monkeypatch):
    """From the fourth step on. The checkpoint stays, and the run says so in one line."""
    def loss(logits, labels):
        steps = tf.cast(tf.train.get_global_step(), tf.float32)
        return small_nets.RECIPE.loss(logits, labels) + tf.sqrt(2.5 - steps)

    monkeypatch.setitem(recipes.TABLE, 'small', small_nets.RECIPE._replace(loss=loss))
    with pytest.raises(FloatingPointError) as error:
        ran(max_steps=50, save_checkpoint_steps=1)
    assert '\n' not in str(error.value)
    stored = values(FLAGS.train_dir)
    assert stored['global_step'] in (2, 3)
    assert all(np.isfinite(value).all() for value in stored.values())


def test_blank_images_train_airbench94(tmp_path):
    """Its whitening had NaN weights for them."""
    folder = tmp_path / 'pages'
    folder.mkdir()
    pages = np.full([60, 3073], 255, np.uint8)
    pages[:, 0] = np.arange(60) % 2
    pages[1::2, 500:502] = 0
    for name in ('train.bin', 'test.bin'):
        pages.tofile(folder / name)
    (folder / 'dataset.json').write_text(json.dumps({
        'name': 'pages', 'classes': ['blank', 'dot'], 'train_files': {'train.bin': 60},
        'test_files': {'test.bin': 60}}))
    trained = ran(net='airbench94', dataset=str(folder), max_steps=2, batch_size=8)
    stored = values(trained)
    assert abs(stored['whitening/weights']).max() > 1
    assert all(np.isfinite(value).all() for value in stored.values())
    assert run.read(str(trained))['settings']['dataset'] == str(folder)
    FLAGS['batch_size'].unparse()
    ran(evaluate=True)  # On the run's own images.


def test_the_tutorials_network_is_a_row():
    folder = ran(net='tutorial', max_steps=2, batch_size=8, learning_rate=0.03)
    found = values(folder)
    assert found['conv1/weights'].shape == (5, 5, 3, 64)
    assert found['softmax_linear/biases' + AVERAGE].shape == (10,)


@pytest.mark.parametrize('options, message', [
    ({'net': 'cifar100_resnet23', 'dataset': 'cifar10'}, 'name two data sets'),
    ({'dataset': 'nowhere'}, '"nowhere" is not a data set'),
    ({'evaluate': True, 'train_dir': 'nowhere'}, 'No checkpoint in nowhere'),
    ({'initial_checkpoint': 'nowhere', 'max_steps': 1}, 'No checkpoint in nowhere')])
def test_mistakes(options, message):
    with pytest.raises(console.UserError, match=message):
        ran(**options)


# The program in a process of its own.

def test_help_begins_with_the_flags_that_matter():
    for flag in ('-h', '--help'):
        done = spawn.run_script('classification.py', flag)
        assert (done.returncode, done.stderr) == (0, '')
    listed = re.findall(r'^    (?:-(\w), )?--(\w+) ', done.stdout, re.MULTILINE)
    assert listed[:10] == [
        ('n', 'net'), ('', 'dataset'), ('b', 'batch_size'), ('', 'epochs'), ('l', 'learning_rate'),
        ('e', 'warmup_epoch'), ('c', 'device'), ('m', 'train_dir'), ('', 'validate_on'),
        ('', 'evaluate')]
    for short, name in listed[:10]:
        defined = f'--{name}:'
        if name == 'evaluate':
            defined = '--[no]evaluate:'
        if short:
            defined = f'-{short},{defined}'
        assert f'  {defined} ' in done.stdout


@pytest.mark.slow
def test_the_example_from_start_to_end(half_bright):
    """The published command: ResNet-23 on CIFAR-10, results in tmp.monitor."""
    done = spawn.run_script('classification.py', '-c', 'cpu', '-n', 'cifar10_resnet23', '--context',
                            'cudnn', '-b', '16', '-e', '1', '--with-all-reduce-callback',
                            f'--data_dir={FLAGS.data_dir}', '--max_steps=2')
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.startswith('Training on the CPU.\n2 steps of 16 images are 0.4 epochs.\n')
    assert {'metrics.csv', 'params.h5', 'run.json'} <= set(os.listdir('tmp.monitor'))


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_resumes(half_bright):
    words = ['classification.py', '-c', 'cpu', '-n', 'tutorial', '-b', '8', '-l', '0.03',
             f'--data_dir={FLAGS.data_dir}', '--log_frequency=1']
    with running.running(*words, '--max_steps=100000') as started:
        started.await_text('step 3, ')
        started.process.send_signal(signal.SIGINT)
        done = started.result()
    assert done.returncode == 130
    step = int(re.search(r'Saved step (\d+) in', done.stdout)[1])
    assert not os.path.exists('tmp.monitor/params.h5')
    done = spawn.run_script(*words, f'--max_steps={step + 2}')
    assert (done.returncode, done.stderr) == (0, '')
    assert f'Resuming from tmp.monitor/model.ckpt-{step}.' in done.stdout
    steps = [row['step'] for row in rows('tmp.monitor')]
    assert steps == list(range(1, step + 3))


@pytest.mark.parametrize('words, message', [
    (['--nett=small'], 'nett'), (['-n', 'lenet'], '--net=lenet is not a network'),
    (['--epochs=1', '--max_steps=1'], 'epochs'), (['-c', 'tpu'], 'tpu'),
    (['-c', 'gpu'], 'TensorFlow finds no GPU')])
def test_mistakes_are_one_line(words, message):
    if words[-1] == 'gpu' and tf.config.list_physical_devices('GPU'):
        pytest.skip('a GPU')
    running.expect_one_line(spawn.run_script('classification.py', *words), message)
