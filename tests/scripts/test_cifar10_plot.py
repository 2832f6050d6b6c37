import json
import os
import pathlib

import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver
from PIL import Image

import cifar10
import cifar10_convert
import cifar10_eval
import cifar10_plot
import cifar10_train
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
    """One half is bright: up to 209 in the original images, up to white in distorted ones. Only the
    last file has red trucks."""
    red = [209, 0, 0]
    record_files.write(half_bright / 'data_batch_5.bin',
                       16 * [(9, np.full([32, 32, 3], red, np.uint8))])
    for picture, brightest in (('samples', 209), ('distorted', 255)):
        image = plot(tmp_path / f'{picture}.png', picture)
        shown = image[(np.ptp(image.astype(int), axis=2) > 20)]  # Colours: images, not text.
        assert len(shown) > 10000
        assert abs(int(shown.max()) - brightest) <= 1
        assert has(image, red) == (picture == 'samples')


@pytest.mark.slow
def test_samples_and_distorted_images_of_a_run(half_bright, tmp_path):
    """The run's images are all red."""
    red = np.full([10, 32, 32, 3], [209, 0, 0], np.uint8)
    np.savez(tmp_path / 'red.npz', x_train=red, y_train=np.arange(10) % 2, x_test=red[:1],
             y_test=[0], classes=['red', 'also red'])
    cifar10_convert.convert(f'{tmp_path}/red.npz', str(tmp_path / 'red'))
    run = tmp_path / 'run'
    with flagsaver.flagsaver(dataset=str(tmp_path / 'red'), train_dir=str(run), max_steps=1,
                             batch_size=2):
        cifar10_train.main()
    assert not has(plot(tmp_path / 'a.png', 'samples'), [209, 0, 0])
    for given in (run, run / 'model.ckpt-1'):
        assert has(plot(tmp_path / 'b.png', 'samples', runs=[str(given)]), [209, 0, 0])


@pytest.mark.slow
def test_a_trained_run(trained, tmp_path, capsys):
    """All pictures of a run that learned to distinguish its two classes."""
    run, evaluated = FLAGS.train_dir, FLAGS.eval_dir
    with flagsaver.flagsaver(run_once=True):
        cifar10_eval.main()
        with flagsaver.flagsaver(use_moving_averages=False, eval_dir=f'{evaluated}/raw'):
            cifar10_eval.main()
    raw = plot(tmp_path / 'curves.png', 'curves', runs=[run, f'{evaluated}/raw'])
    assert has(raw, VERMILION)
    capsys.readouterr()
    assert plot(tmp_path / 'filters.png', 'filters', runs=[run]).shape[1] == 640
    assert plot(tmp_path / 'confusion.png', 'confusion', runs=[run]).std() > 20
    both = plot(tmp_path / 'curves.png', 'curves', runs=[run, evaluated])
    assert has(both, BLUE) and has(both, VERMILION)  # Training's, evaluation's.
    zeros = plot(tmp_path / 'sparsity.png', 'sparsity', runs=[run])
    assert has(zeros, [0x00, 0x9E, 0x73])  # local3's line, the third.
    predicted = plot(tmp_path / 'predictions.png', 'predictions', runs=[run])
    shown = predicted[np.ptp(predicted.astype(int), axis=2) > 20]
    assert len(shown) > 10000  # Three images of each class.
    assert capsys.readouterr().out.splitlines() == [
        f'Wrote {tmp_path}/{name}.png.'
        for name in ('filters', 'confusion', 'curves', 'sparsity', 'predictions')]
    os.remove(os.path.join(run, 'metrics.csv'))  # Its event file is not that of an evaluation.
    with pytest.raises(app.UsageError, match='has no metrics.csv of a training run and no event'):
        plot(tmp_path / 'curves.png', 'curves', runs=[run])


def test_a_network_of_a_fixed_batch_size(trained, tmp_path, monkeypatch):
    """Six images in a batch of eight, and 130 images in batches of eight."""
    inference, pictures = cifar10.inference, ('predictions', 'confusion')
    expected = [plot(tmp_path / 'a.png', each, runs=[FLAGS.train_dir]) for each in pictures]
    monkeypatch.setattr(cifar10, 'inference', lambda images: tf.reshape(
        inference(images), [FLAGS.batch_size, 10]))
    found = [plot(tmp_path / 'b.png', each, runs=[FLAGS.train_dir]) for each in pictures]
    for ours, theirs in zip(found, expected):
        np.testing.assert_array_equal(ours, theirs)


def rows(run, *figures):
    """Writes a metrics.csv with these figures, dictionaries; those that are left out are empty."""
    os.makedirs(run, exist_ok=True)
    metrics.start(os.path.join(run, 'metrics.csv'), 0)
    with open(os.path.join(run, 'metrics.csv'), 'ab') as stream:
        for each in figures:
            metrics.write(stream, each)


BLUE, VERMILION = [0x00, 0x72, 0xB2], [0xD5, 0x5E, 0x00]


def has(image, colour):
    return (image == colour).all(axis=2).any()


def test_curves_show_losses_and_errors_without_means_over_few_steps(tmp_path):
    """After a checkpoint at step 290, the row at 300 covers only ten steps; its loss is absurd."""
    losses = {100: 2.0, 200: 1.5, 290: 1.2, 300: 1.2, 400: 1.0}
    first = [{'step': step, 'training_loss': loss} for step, loss in losses.items()]
    rows(tmp_path / 'a', *first)
    before = plot(tmp_path / 'a.png', 'curves', runs=[str(tmp_path / 'a')])
    assert has(before, BLUE) and not has(before, VERMILION)
    first[3]['training_loss'] = 1e6
    rows(tmp_path / 'a', *first)
    np.testing.assert_array_equal(
        plot(tmp_path / 'b.png', 'curves', runs=[str(tmp_path / 'a')]), before)
    first[3]['validation_error'] = 0.5
    rows(tmp_path / 'a', *first)
    assert has(plot(tmp_path / 'c.png', 'curves', runs=[str(tmp_path / 'a')]), VERMILION)


def test_filters_are_the_averaged_weights(tmp_path):
    """The averages of one filter are red above and 0 (grey) below; its raw weights are green."""
    weights = np.zeros([2, 2, 3, 1], np.float32)
    weights[..., 1, :] = 1
    averages = np.zeros([2, 2, 3, 1], np.float32)
    averages[0, :, 0] = 0.1
    plain.save(tmp_path / 'model.ckpt', {
        'conv1/weights': weights, 'conv1/weights/ExponentialMovingAverage': averages,
        'global_step': 5})
    image = plot(tmp_path / 'a.png', 'filters', runs=[str(tmp_path)]).astype(int)
    assert (abs(image - [255, 127, 127]) <= 1).all(axis=2).sum() > 1000
    assert (abs(image - [127, 127, 127]) <= 1).all(axis=2).sum() > 1000
    assert not (image == [127, 255, 127]).all(axis=2).any()


def test_validations_by_epoch(tmp_path):
    """Of two runs, both in the legends; rows without a validation are left out."""
    runs = [str(tmp_path / name) for name in ('_a', 40 * 'b')]
    for run, images_per_step in zip(runs, (50, 100)):
        rows(run, *({'step': step, 'epoch': step * images_per_step / 1000, 'validation_error': raw,
                     'validation_error_averaged': averaged} for step, raw, averaged in (
                         (10, 0.5, 0.75), (15, None, None), (20, 0.25, 0.375))))
    image = plot(tmp_path / 'validation.png', 'validation', runs=runs)
    assert image.shape[1] == 800
    for part in (image[:300], image[300:]):  # By step, the runs would coincide.
        assert all(has(half, BLUE) and has(half, VERMILION) for half in np.split(part, 2, axis=1))


@pytest.mark.parametrize('speeds, images', [((1000, 8000), 50000), ((1000, 1000), 6250)])
def test_validations_by_minutes(tmp_path, speeds, images):
    """Two runs of the same errors by epoch, one of which needs an eighth of the time: it is as many
    times as fast, or has an eighth of the images."""
    runs = [str(tmp_path / name) for name in 'ab']
    for run, images_per_second in zip(runs, speeds):
        rows(run, *({'step': epoch, 'epoch': epoch, 'validation_error': error,
                     'validation_error_averaged': error, 'images_per_second': images_per_second}
                    for epoch, error in ((1, 0.5), (2, 0.25))))
    pathlib.Path(runs[1], 'run.json').write_text(
        json.dumps({'settings': {'training_images': images}}))
    image = plot(tmp_path / 'validation.png', 'validation', runs=runs, by='minutes')
    blue, vermilion = (np.flatnonzero((image[:300, :400] == colour).all(axis=2).any(axis=0))
                       for colour in (BLUE, VERMILION))
    assert vermilion.max() < blue.min()  # 0.1 and 0.2 minutes, 0.8 and 1.7.


@pytest.mark.parametrize('options, message', [
    ({'picture': None}, '--picture is missing; expected samples'),
    ({'picture': 'curves', 'runs': ['', '']}, '--runs has 0 folders'),
    ({'picture': 'filters', 'runs': ['a', 'b']},
     r'--runs has 2 folders \(a, b\); --picture=filters expects one'),
    ({'picture': 'curves', 'runs': ['nowhere']}, 'nowhere has no metrics.csv'),
    ({'picture': 'validation', 'runs': ['nowhere']},
     'nowhere has no metrics.csv with validations: train with --validate_every=1, or choose'),
    ({'picture': 'sparsity', 'runs': ['nowhere']},
     'nowhere has no event file with conv1/conv1/sparsity: choose another run'),
    ({'picture': 'samples', 'output': 'a.pdf'}, '--output is a.pdf; expected a name that ends')])
def test_mistakes(options, message, tmp_path, monkeypatch):
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
