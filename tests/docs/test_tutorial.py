"""The walk-through: its quotations are the code, its examples print what it says, and its solutions
of the exercises do what it says."""
import importlib
import json
import re
import runpy

from cifar10_lib import checkpoints

import copies
import nbformat
import numpy as np
import outcomes
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from PIL import Image

import cifar10_convert
from docs import figures, notebook

FLAGS = flags.FLAGS
TUTORIAL = (spawn.ROOT / 'docs/tutorial.md').read_text()


def commented(word):
    """(rest of the comment, code) of each block below a comment that begins with a word."""
    return [(block['comment'].partition(' ')[2], block['code'])
            for block in notebook.blocks(TUTORIAL)
            if (block['comment'] or '').split()[:1] == [word]]


@pytest.mark.parametrize('path, quotation', [
    pytest.param(*block, id=block[0]) for block in commented('quote')])
def test_quotations_are_the_code(path, quotation):
    """A quotation may leave out lines, where it has `...`."""
    text, place = (spawn.ROOT / path).read_text(), 0
    for part in quotation.removeprefix(f'# {path}\n').split('\n...\n'):
        place = text.index(part.rstrip('\n') + '\n', place)  # Raises ValueError.


@pytest.mark.parametrize('path', sorted({path for path, _ in commented('output')}))
def test_examples_print_what_the_text_shows(path, tmp_path, capsys):
    """A program that is quoted in stages has an output below each; here, it is typed in from the
    text."""
    program = spawn.ROOT / path
    if path == 'docs/examples/trainer.py':
        program = tmp_path / 'typed.py'
        program.write_text('\n'.join(code for each, code in commented('quote') if each == path))
    runpy.run_path(str(program))
    assert capsys.readouterr().out == ''.join(
        output for each, output in commented('output') if each == path)


def test_the_everyday_words(capsys):
    """The line 2x + 1 is fitted. With `is_training` false, only the update outside has counted."""
    runpy.run_path(str(spawn.ROOT / 'docs/examples/everyday.py'))
    assert capsys.readouterr().out.split() == [
        'mean', 'loss', '=', '0.14', '/model.ckpt-100', '4.97', '6.95', '0', '1', '1024']


def test_figures_show_what_tensorflow_computes():
    for draw in (figures.convolution, figures.gradient):
        assert (spawn.ROOT / f'docs/{draw.__name__}.svg').read_text() == draw()


def solved(folder, *numbers):
    """Copies the project to a folder, with the solutions of these exercises."""
    edits = {}
    for number in numbers:
        exercise = TUTORIAL.split(f'### Exercise {number}: ')[1].split('\n##')[0]
        for block in notebook.blocks(exercise):
            if block['language'] == 'diff':
                for path, hunks in re.findall(r'^# (\S+)\n(.*?)(?=^# |\Z)', block['code'],
                                              re.MULTILINE | re.DOTALL):
                    edits.setdefault(path, {}).update(
                        _old_and_new(hunk, path) for hunk in re.split(r'^\.\.\.\n', hunks,
                                                                      flags=re.MULTILINE))
    return copies.copy_with(folder / 'project', edits)


def _old_and_new(hunk, path):
    """The lines of a diff with a space or a minus, and those with a space or a plus. `-    ...`
    stands for all lines of the file between its neighbours."""
    lines = hunk.splitlines(keepends=True)
    old, new = (''.join(line[1:] for line in lines if line[0] in (' ', sign)) for sign in '-+')
    start, left_out, end = old.partition('    ...\n')
    if left_out:
        text = (spawn.ROOT / path).read_text()
        old = start + text.partition(start)[2].partition(end)[0] + end
    return old, new


def predicted(import_, tmp_path, capsys):
    """Probabilities by class, the most probable first, that cifar10_predict.py of a copy prints for
    a picture of noise."""
    pixels = np.random.RandomState(1).randint(0, 256, [32, 32, 3])
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / 'cat.png')
    predict = import_('cifar10_predict').predict
    capsys.readouterr()
    with flagsaver.flagsaver(json=True, top_k=10):
        assert predict([str(tmp_path / 'cat.png')]) == 0
    predictions = json.loads(capsys.readouterr().out)['predictions']
    return {each['class']: each['probability'] for each in predictions}


def evaluated(import_, capsys):
    """The precision that cifar10_eval.py of a copy prints for the run in --checkpoint_dir."""
    evaluate = import_('cifar10_eval').evaluate
    with flagsaver.flagsaver(run_once=True):
        evaluate()
    return float(capsys.readouterr().out.rpartition('precision @ 1 = ')[2])


@pytest.mark.slow
def test_softmax_in_inference_keeps_the_classes_and_squeezes_the_probabilities(
        half_bright, tmp_path, capsys):
    """Of a network that was trained before the edit, and is certain: its logits are about 0 to 9.
    The new probabilities lie between 1 / (e + 9) and e / (e + 9)."""
    values = plain.weights(seed=1) | {'softmax_linear/biases': np.arange(10, dtype=np.float32)}
    averages = {name + checkpoints.AVERAGE: value for name, value in values.items()}
    (tmp_path / 'train').mkdir()
    plain.save(tmp_path / 'train/model.ckpt-1', {**values, **averages, 'global_step': np.int64(1)})
    before = predicted(importlib.import_module, tmp_path, capsys)
    with copies.imported(solved(tmp_path, 1)) as import_:
        after = predicted(import_, tmp_path, capsys)
    assert list(after) == list(before)
    assert max(before.values()) > 0.4 > 0.233 > max(after.values())
    assert min(after.values()) > 0.085 > min(before.values())


@pytest.mark.slow
@pytest.mark.parametrize('number, parameters', [(2, 2112970), (7, 1387786), (8, 1068298)])
def test_runs_of_solutions_are_evaluated_and_predicted(
        half_bright, tmp_path, capsys, number, parameters):
    """With a short queue, exercise 3's."""
    with copies.imported(solved(tmp_path, 3, number)) as import_:
        train = import_('cifar10_train').train
        with flagsaver.flagsaver(max_steps=2):
            train()
        assert 'Filling queue with 500 CIFAR images' in capsys.readouterr().out
        assert 0 <= evaluated(import_, capsys) <= 1
        assert sum(predicted(import_, tmp_path, capsys).values()) == pytest.approx(1, abs=1e-4)
    assert parameters == sum(
        value.size for name, value in checkpoints.newest(FLAGS.train_dir).values.items()
        if name.endswith(checkpoints.AVERAGE))


@pytest.mark.slow
def test_evaluation_of_raw_weights(half_bright, tmp_path, capsys):
    """The checkpoint's averages are others."""
    plain.save_checkpoint(FLAGS.train_dir)
    FLAGS.data_dir = str(tmp_path / 'noise')
    record_files.write_noise(FLAGS.data_dir)
    raw, averaged = (outcomes.precision(FLAGS.train_dir, use) for use in (False, True))
    assert raw != averaged
    assert evaluated(importlib.import_module, capsys) == pytest.approx(averaged, abs=1e-3)
    with copies.imported(solved(tmp_path, 4)) as import_:
        assert evaluated(import_, capsys) == pytest.approx(raw, abs=1e-3)


@pytest.mark.slow
def test_digits_are_read_and_not_mirrored(half_bright, tmp_path, capsys):
    """From an .npz file, as the exercise says. All rows of the pictures rise from left to right, so
    those of their crops do, too."""
    random = np.random.RandomState(1)
    arrays = {name: random.randint(0, 256, [count, 32, 32, 3]).astype(np.uint8)
              for name, count in (('x_train', 30), ('x_test', 20))}
    np.savez(tmp_path / 'svhn.npz', y_train=np.arange(30) % 10, y_test=np.arange(20) % 10, **arrays)
    folder = tmp_path / 'svhn/cifar-10-batches-bin'
    cifar10_convert.convert(str(tmp_path / 'svhn.npz'), str(folder))
    (folder / 'batches.meta.txt').write_text(''.join(f'{digit}\n' for digit in range(10)))

    pixels = np.tile(np.arange(32, dtype=np.uint8)[:, np.newaxis], [40, 32, 1, 3])
    with copies.imported(solved(tmp_path, 6)) as import_:
        train = import_('cifar10_train').train
        with flagsaver.flagsaver(data_dir=str(tmp_path / 'svhn'), max_steps=1):
            train()
            assert 'Filling queue with 29302 CIFAR images' in capsys.readouterr().out
            evaluated(import_, capsys)
            assert sorted(predicted(import_, tmp_path, capsys)) == list('0123456789')
        with tf.Graph().as_default(), tf.Session() as session:
            images = session.run(import_('cifar10_input').distort(tf.constant(pixels)))
    assert images.shape == (40, 24, 24, 3) and (np.diff(images, axis=2) > 0).all()


def test_the_notebook_is_that_of_the_text():
    """Made by `python docs/notebook.py`, with the output of every cell that prints."""
    made = nbformat.read(spawn.ROOT / 'docs/tutorial.ipynb', as_version=4)
    assert [(cell.cell_type, cell.source) for cell in made.cells] == notebook.cells(TUTORIAL), (
        'run: python docs/notebook.py')
    for cell in made.cells:
        if cell.cell_type == 'code' and re.search(r'^ *(!|print|show)', cell.source, re.MULTILINE):
            assert cell.outputs, cell.source
            assert all(output.output_type != 'error' for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path, monkeypatch):
    """From top to bottom, with 11 steps: it trains, evaluates, predicts and shows pictures."""
    monkeypatch.setenv('TUTORIAL_STEPS', '11')
    monkeypatch.setenv('TUTORIAL_DATA_DIR', str(tmp_path / 'data'))
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    made = notebook.build(TUTORIAL)
    notebook.execute(made)
    outputs = json.dumps([cell.get('outputs') for cell in made.cells])
    for expected in ('step 10, loss = ', 'precision @ 1 = ', '3.944056', 'image/jpeg',
                     'image/svg+xml', '2 towers', 'With queue runners: 3 numbers.'):
        assert expected in outputs
