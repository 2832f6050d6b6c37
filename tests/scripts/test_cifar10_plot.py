import os

import numpy as np
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver
from PIL import Image

import cifar10_eval
import cifar10_plot
from cifar10_lib.datasets import table
from cifar10_lib.evaluation import pictures
from cifar10_lib.runs import metrics

FLAGS = flags.FLAGS


def plot(path, picture, **options):
    """Plots a picture; returns its pixels, uint8 [height, width, 3]."""
    with flagsaver.flagsaver(picture=picture, output=str(path), **options):
        cifar10_plot.plot()
    assert [name for name in os.listdir(path.parent) if name.endswith('.part')] == []
    return np.asarray(Image.open(path).convert('RGB'))


@pytest.mark.slow
def test_samples_and_distorted_show_the_images(half_bright, tmp_path):
    """One half is bright: up to 209 in the original images, up to white in distorted ones."""
    for picture, brightest in (('samples', 209), ('distorted', 255)):
        image = plot(tmp_path / f'{picture}.png', picture)
        shown = image[(np.ptp(image.astype(int), axis=2) > 20)]  # Colours: images, not text.
        assert len(shown) > 10000
        assert abs(int(shown.max()) - brightest) <= 1


@pytest.mark.slow
def test_a_trained_run(trained, tmp_path, capsys):
    """All pictures of a run that learned to distinguish its two classes."""
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.evaluate()
    run, evaluated = FLAGS.train_dir, FLAGS.eval_dir
    capsys.readouterr()
    assert plot(tmp_path / 'filters.png', 'filters', runs=[run]).shape[1] == 640
    assert plot(tmp_path / 'confusion.png', 'confusion', runs=[run]).std() > 20
    both = plot(tmp_path / 'curves.png', 'curves', runs=[run, evaluated])
    for colour in ([0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00]):  # Training's, evaluation's.
        assert (both == colour).all(axis=2).any()
    zeros = plot(tmp_path / 'sparsity.png', 'sparsity', runs=[run])
    assert (zeros == [0x00, 0x9E, 0x73]).all(axis=2).any()  # local3's line, the third.
    predicted = plot(tmp_path / 'predictions.png', 'predictions', runs=[run])
    shown = predicted[np.ptp(predicted.astype(int), axis=2) > 20]
    assert len(shown) > 10000  # Three images of each class.
    assert capsys.readouterr().out.splitlines() == [
        f'Wrote {tmp_path}/{name}.png.'
        for name in ('filters', 'confusion', 'curves', 'sparsity', 'predictions')]
    os.remove(os.path.join(run, 'metrics.csv'))  # Its event file is not that of an evaluation.
    with pytest.raises(app.UsageError, match='has no metrics.csv of a training run and no event'):
        plot(tmp_path / 'curves.png', 'curves', runs=[run])


def orange(path):
    """Which pixels are more or less orange, bool [height, width]: edges are soft."""
    red, _, blue = np.moveaxis(np.asarray(Image.open(path).convert('RGB')).astype(int), 2, 0)
    return red - blue > 100


def test_wrong_predictions_are_orange(tmp_path):
    black = np.zeros([4, 4, 3])
    pictures.grid(str(tmp_path / 'a.png'), [
        [(black, 'cat 90%', True), (black, 'dog 50%\nnot cat', False)]], 'title')
    found = orange(tmp_path / 'a.png').any(axis=0)
    middle = len(found) // 2
    assert not found[:middle].any() and found[middle:].any()


def test_the_legend_is_below_the_axes(tmp_path):
    """It covers no curve: the frame's lower edge is the last long black line."""
    pictures.curves(str(tmp_path / 'a.png'), [4, 4], [
        ([('a', 1, None, {0: 0.0, 1: 1.0})], 'title', 'y', 'x')])
    image = np.asarray(Image.open(tmp_path / 'a.png').convert('RGB'))
    edge = np.flatnonzero((image < 60).all(axis=2).sum(axis=1) > 200)[-1]
    assert orange(tmp_path / 'a.png')[edge + 1:].any()


def test_means_over_few_steps_are_dropped():
    """After a checkpoint at step 290, the row at 300 covers only ten steps."""
    rows = [{'step': step} for step in (100, 200, 290, 300, 400)]
    assert [row['step'] for row in cifar10_plot._over_many_steps(rows)] == [100, 200, 290, 400]
    assert cifar10_plot._over_many_steps(rows[:1]) == rows[:1]
    assert cifar10_plot._over_many_steps([]) == []


def save(folder, **variables):
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in {**variables, 'global_step': 5}.items():
            tf.Variable(value, name=name)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / 'model.ckpt'))


@pytest.mark.parametrize('weights', [np.ones([5, 5, 1, 4], np.float32), np.float32(1)])
def test_filters_that_cannot_be_drawn(tmp_path, weights):
    save(tmp_path, **{'conv1/weights': weights})
    with pytest.raises(app.UsageError, match='has no conv1/weights of three colours to draw'):
        plot(tmp_path / 'a.png', 'filters', runs=[str(tmp_path)])


@pytest.mark.filterwarnings('error')
def test_absurd_values_are_drawn_without_warnings(tmp_path, capfd):
    save(tmp_path, **{'conv1/weights': np.zeros([5, 5, 3, 4], np.float32)})
    plot(tmp_path / 'a.png', 'filters', runs=[str(tmp_path)])
    figures = ['9007199254740992,1,1,1,3.4e38,-3.4e38,3.4e38,,1', '0,,,,-3.4e38,1e-320,-0,,',
               'nan,1,1,1,1,1,1,1,1', '7,1,1,1,1e308,-1e308,nan,1,1', '8,1,1,1,inf,1,1,1,1',
               '\0,\0']
    (tmp_path / 'metrics.csv').write_text('\n'.join(figures) + '\n')
    plot(tmp_path / 'b.png', 'curves', runs=[str(tmp_path)])
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize(('runs', 'colours'), [(1, [1, 2]), (2, [0, 0, 1, 1])])
def test_curves_show_both_validation_errors(tmp_path, monkeypatch, runs, colours):
    drawn = []
    monkeypatch.setattr(pictures, 'curves', lambda *arguments: drawn.extend(arguments[-1]))
    metrics.Metrics(str(tmp_path), 0).append(**{
        **dict.fromkeys(metrics.COLUMNS), 'step': 100, 'validation_error': 0.5,
        'validation_error_averaged': 0.25})
    with flagsaver.flagsaver(runs=[str(tmp_path)] * runs):
        cifar10_plot.curves(None)
    _, (errors, *_) = drawn
    assert [(name.split(', ', 1)[1], points) for name, *_, points in errors] == runs * [
        ('validation, raw', {100: 0.5}), ('validation, averaged', {100: 0.25})]
    assert [colour for _, colour, *_ in errors] == colours


def test_filters_are_the_averaged_weights(tmp_path):
    """The averages of one filter are red above and 0 (grey) below; its raw weights are green."""
    weights = np.zeros([2, 2, 3, 1], np.float32)
    weights[..., 1, :] = 1
    averages = np.zeros([2, 2, 3, 1], np.float32)
    averages[0, :, 0] = 0.1
    save(tmp_path, **{
        'conv1/weights': weights, 'conv1/weights/ExponentialMovingAverage': averages})
    image = plot(tmp_path / 'a.png', 'filters', runs=[str(tmp_path)]).astype(int)
    assert (abs(image - [255, 127, 127]) <= 1).all(axis=2).sum() > 1000
    assert (abs(image - [127, 127, 127]) <= 1).all(axis=2).sum() > 1000
    assert not (image == [127, 255, 127]).all(axis=2).any()


def test_validations_by_epoch(tmp_path):
    """Of two runs; rows without a validation are left out."""
    runs = [str(tmp_path / name) for name in 'ab']
    for run, images_per_step in zip(runs, (50, 100)):
        os.mkdir(run)
        table = metrics.Metrics(run, step=0)
        for step, raw, averaged in ((10, 0.5, 0.75), (15, None, None), (20, 0.25, 0.375)):
            table.append(**dict.fromkeys(metrics.COLUMNS) | {
                'step': step, 'epoch': step * images_per_step / 1000, 'validation_error': raw,
                'validation_error_averaged': averaged})
    assert cifar10_plot._validations(runs[0]) == ({0.5: 0.5, 1: 0.25}, {0.5: 0.75, 1: 0.375})
    assert cifar10_plot._validations(runs[1]) == ({1: 0.5, 2: 0.25}, {1: 0.75, 2: 0.375})
    image = plot(tmp_path / 'validation.png', 'validation', runs=runs)
    assert image.shape[1] == 800
    for half in np.split(image, 2, axis=1):
        for colour in ([0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00]):
            assert (half == colour).all(axis=2).any()


@pytest.mark.parametrize('runs, names', [
    (['a/b/'], ['b']), (['a/b'], ['b']), (['a/b/', 'a/c'], ['b', 'c']), (['.'], ['b']),
    (['a/b/', 'd/b'], ['a/b', 'd/b'])])
def test_names_of_runs(tmp_path, monkeypatch, runs, names):
    monkeypatch.chdir(tmp_path)
    if runs == ['.']:
        (tmp_path / 'b').mkdir()
        monkeypatch.chdir('b')
    with flagsaver.flagsaver(runs=runs):
        assert cifar10_plot._named_runs() == list(zip(names, runs))


@pytest.mark.parametrize('options, message', [
    ({'picture': None}, '--picture is missing; expected samples'),
    ({'picture': 'filters', 'runs': ['a', 'b']},
     r'--runs has 2 folders \(a, b\); --picture=filters expects one'),
    ({'picture': 'filters', 'runs': ['nowhere']}, 'No checkpoint in nowhere'),
    ({'picture': 'curves', 'runs': ['nowhere']}, 'nowhere has no metrics.csv'),
    ({'picture': 'validation', 'runs': ['nowhere']},
     'nowhere has no metrics.csv with validations: train with --validate_every=1, or choose'),
    ({'picture': 'predictions', 'runs': ['nowhere']}, 'No checkpoint in nowhere'),
    ({'picture': 'sparsity', 'runs': ['nowhere']}, 'nowhere has no event file with conv1/spars'),
    ({'picture': 'samples', 'output': 'a.pdf'}, '--output is a.pdf; expected a name that ends'),
    ({'picture': 'samples', 'output': 'a.png'}, '--output=a.png is a folder; expected the name')])
def test_mistakes(options, message, tmp_path, monkeypatch):
    (tmp_path / 'a.png').mkdir()
    monkeypatch.chdir(tmp_path)
    with flagsaver.flagsaver(**options), pytest.raises(app.UsageError, match=message):
        cifar10_plot.plot()


@pytest.mark.slow
def test_without_matplotlib_is_one_line(tmp_path):
    code = ("import runpy, sys; sys.modules['matplotlib'] = None; sys.argv[1:] = "
            "['--picture=samples']; runpy.run_path('cifar10_plot.py', run_name='__main__')")
    done = spawn.run(['-c', code], cwd=spawn.ROOT, capture_output=True)
    assert done.returncode == 1
    assert done.stderr.endswith('This picture requires Matplotlib, which is not installed: '
                                'pip install matplotlib\n')
    assert done.stderr.count('\n') == 1


@pytest.mark.slow
def test_the_script_as_a_user_runs_it(tmp_path):
    record_files.write_noise(tmp_path, row=table.CIFAR100)
    done = spawn.run_script('cifar10_plot.py', f'--data_dir={tmp_path}', '--dataset=cifar100',
                            '--picture=samples', cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.endswith('Wrote samples.png.\n')
    assert (tmp_path / 'samples.png').exists()
