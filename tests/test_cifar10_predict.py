import json
import os
import shutil
import signal
import subprocess

import image_files
import numpy as np
import plain
import pytest
import record_files
import spawn
import tensorflow.compat.v1 as tf
from absl import app, flags
from absl.testing import flagsaver

import cifar10_export
import cifar10_predict
import cifar10_train
from cifar10_lib.datasets import images
from cifar10_lib.program import errors

FLAGS = flags.FLAGS
IMAGES = [image for _, image in record_files.noise(7, seed=3)]


@pytest.fixture
def network(tmp_path):
    """Sets the flags for a checkpoint with random weights; returns them, raw and averaged."""
    values = plain.save_checkpoint(tmp_path / 'train')
    with flagsaver.flagsaver(checkpoint_dir=str(tmp_path / 'train'), batch_size=3, json=True):
        yield values


@pytest.fixture
def pictures_(tmp_path):
    """Paths of files with `IMAGES`, in a separate folder."""
    (tmp_path / 'pictures').mkdir()
    paths = [tmp_path / 'pictures' / f'{index}.png' for index in range(len(IMAGES))]
    for path, image in zip(paths, IMAGES):
        image_files.png(path, image)
    return [str(path) for path in paths]


def plain_probabilities(values):
    """float32 [images, 10] for `IMAGES`, from TensorFlow's own operations."""
    with tf.Graph().as_default(), tf.Session() as session:
        net = tf.image.per_image_standardization(
            tf.cast(np.stack(IMAGES)[:, 4:28, 4:28], tf.float32))
        return session.run(tf.nn.softmax(plain.logits(
            net, {name: tf.constant(value) for name, value in values.items()})))


def check(out, paths, expected, top_k=3):
    """Compares lines of JSON with probabilities, float [images, 10]."""
    found = [json.loads(line) for line in out.splitlines()]
    assert [line['image'] for line in found] == paths
    for line, probabilities in zip(found, expected):
        order = np.argsort(-probabilities)[:top_k].tolist()
        assert [one['label'] for one in line['predictions']] == order
        assert [one['class'] for one in line['predictions']] == [
            CLASSES[label] for label in order]
        np.testing.assert_allclose([one['probability'] for one in line['predictions']],
                                   probabilities[order], atol=1e-5)


CLASSES = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck']


@pytest.mark.parametrize('use_moving_averages', [False, True])
def test_probabilities_equal_the_plain_networks(network, pictures_, capsys, use_moving_averages):
    """Seven images in batches of three."""
    with flagsaver.flagsaver(use_moving_averages=use_moving_averages):
        assert cifar10_predict.predict(pictures_) == 0
    check(capsys.readouterr().out, pictures_, plain_probabilities(network[use_moving_averages]))


def test_a_saved_model_needs_neither_checkpoint_nor_data_set(
        network, pictures_, tmp_path, capsys):
    with flagsaver.flagsaver(export_dir=str(tmp_path / 'model')):
        cifar10_export.export()
    capsys.readouterr()
    with flagsaver.flagsaver(saved_model=str(tmp_path / 'model'), checkpoint_dir='/nonexistent',
                             dataset='cifar100', top_k=99):
        assert cifar10_predict.predict(pictures_) == 0
        check(capsys.readouterr().out, pictures_, plain_probabilities(network[1]), top_k=10)
        labels = tmp_path / 'model' / 'assets.extra' / 'labels.txt'
        labels.write_text('Käfer\n', encoding='latin-1')
        with pytest.raises(errors.DataError, match='labels.txt is not text in UTF-8'):
            cifar10_predict.predict(pictures_)
        labels.write_text((1 << 20) * '\n' + 'x')
        with pytest.raises(errors.DataError, match='labels.txt is larger than 1 MB'):
            cifar10_predict.predict(pictures_)


def test_the_best_checkpoint(half_bright, pictures_, capsys):
    with flagsaver.flagsaver(validate_every=1, json=True):
        cifar10_train.train()
        for name in os.listdir(FLAGS.train_dir):
            if name.startswith('model.ckpt'):
                os.remove(os.path.join(FLAGS.train_dir, name))
        os.remove(os.path.join(FLAGS.train_dir, 'checkpoint'))
        with pytest.raises(app.UsageError, match=f'No checkpoint in {FLAGS.train_dir}: train'):
            cifar10_predict.predict(pictures_)
        capsys.readouterr()
        with flagsaver.flagsaver(best=True):
            assert cifar10_predict.predict(pictures_[:1]) == 0
        assert json.loads(capsys.readouterr().out)['image'] == pictures_[0]
        shutil.rmtree(os.path.join(FLAGS.train_dir, 'best'))
        with flagsaver.flagsaver(best=True), pytest.raises(
                app.UsageError, match='train/best: train with --validate_every'):
            cifar10_predict.predict(pictures_)


def test_a_run_of_another_net_is_rejected(network, pictures_, tmp_path):
    (tmp_path / 'train' / 'run.json').write_text(
        json.dumps({'net': 'local', 'dataset': 'cifar10', 'settings': {}}))
    with flagsaver.flagsaver(net='tutorial'), pytest.raises(
            app.UsageError, match='--net=local --dataset=cifar10, not with --net=tuto'):
        cifar10_predict.predict(pictures_)


def test_folders_and_patterns(network, pictures_, tmp_path, capsys):
    folder = tmp_path / 'pictures'
    (folder / 'notes.txt').write_text('none')
    (folder / 'Näme with [brackets].png').write_bytes((folder / '0.png').read_bytes())
    words = [str(folder), str(folder / '[12].png'), str(folder / 'Näme with [brackets].png'),
             pictures_[3], pictures_[3]]
    assert cifar10_predict.predict(words) == 0
    found = [json.loads(line)['image'] for line in capsys.readouterr().out.splitlines()]
    assert found == [*pictures_, words[2], *pictures_[1:3], words[2], *words[3:]]


@pytest.mark.parametrize('word', ['', '*.png'])
def test_a_folder_or_a_pattern_without_images(network, tmp_path, word):
    (tmp_path / 'notes.txt').touch()
    with pytest.raises(app.UsageError, match='No image in .*; expected files named .jpg'):
        cifar10_predict.predict([os.path.join(tmp_path, word)])


@pytest.mark.parametrize('word, words', [
    ('-', '"-" is not a file: save the image to a file first'),
    ('https://example.com/cat.jpg?size=9', '"https://.*size=9" is not a file: save the image to'),
    ('sorted', r'No image in sorted; for the images in its folders, pass "sorted/\*/\*"')])
def test_words_that_other_programs_accept(network, pictures_, tmp_path, monkeypatch, word, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'sorted').mkdir()
    (tmp_path / 'pictures').rename(tmp_path / 'sorted' / 'cat')
    with pytest.raises(app.UsageError, match=words):
        cifar10_predict.predict([word])
    assert len(cifar10_predict._paths('sorted/*/*')) == len(IMAGES)


def test_unreadable_images_are_skipped(network, pictures_, capfd):
    for index, data in ((1, b'text'), (3, b''), (4, b''), (5, b'')):  # Including a whole batch.
        with open(pictures_[index], 'wb') as stream:
            stream.write(data)
    os.mkfifo(os.path.join(os.path.dirname(pictures_[0]), '9.png'))  # Without a writer.
    words = [os.path.join(os.path.dirname(pictures_[0]), '*.png'), '/nonexistent.png']
    assert cifar10_predict.predict(words) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)['image'] for line in out.splitlines()] == [
        pictures_[0], pictures_[2], pictures_[6]]
    assert [line.split(' is ')[0].split(' cannot ')[0] for line in err.splitlines()] == [
        f'cifar10_predict.py: {path}' for path in
        [pictures_[1], *pictures_[3:6], pictures_[0].replace('0.png', '9.png'), '/nonexistent.png']]


def test_the_table_has_80_columns(network, pictures_, tmp_path, capsys):
    long = tmp_path / ('long ' * 20 + 'x.png')
    strange = tmp_path / 'str\x1b[2Jange.png'
    for path in (long, strange):
        image_files.png(path, IMAGES[0])
    with flagsaver.flagsaver(json=False, top_k=2):
        assert cifar10_predict.predict([str(long), str(strange)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80
    assert lines[0].split() == ['image', 'probability', 'class']
    assert lines[1].startswith('...') and ' long x.png  ' in lines[1]
    assert 'str?[2Jange.png  ' in lines[3]
    probabilities = plain_probabilities(network[1])[0]
    first, second = np.argsort(-probabilities)[:2]
    assert lines[1].split()[-2:] == [f'{probabilities[first]:.4f}', CLASSES[first]]
    assert lines[2].split() == [f'{probabilities[second]:.4f}', CLASSES[second]]


def test_long_names_of_classes_are_shortened(capsys):
    cifar10_predict._table(['x' * 50], ['y' * 90])('x' * 50, [(0, 'y' * 90, 0.5)])
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [60, 80]
    assert lines[1].endswith('yyy...')


def test_wide_characters_stay_aligned(capsys):
    """Each of these characters takes two of a terminal's columns."""
    cifar10_predict._table(['\u732b.png', 50 * '\u72ac'], [])('\u732b.png', [(0, 'cat', 0.5)])
    cifar10_predict._table([50 * '\u72ac'], [])(50 * '\u72ac', [(0, 50 * '\u732b', 0.5)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == '\u732b.png' + 34 * ' ' + '  ' + '     0.5000  cat'
    assert lines[3] == '...' + 18 * '\u72ac' + '   ' + '     0.5000  ' + 11 * '\u732b' + '...'


@pytest.mark.parametrize('content, words', [
    (None, 'SavedModel file does not exist.*: export a SavedModel with cifar10_export'),
    (b'text', 'Cannot parse.*: export a SavedModel with cifar10_export')])
def test_an_unreadable_saved_model(pictures_, tmp_path, content, words):
    if content:
        (tmp_path / 'saved_model.pb').write_bytes(content)
    with flagsaver.flagsaver(saved_model=str(tmp_path)), pytest.raises(OSError, match=words):
        cifar10_predict.predict(pictures_)


def test_a_saved_model_of_another_program(pictures_, tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        one = tf.placeholder(tf.float32, [None])
        tf.saved_model.simple_save(session, str(tmp_path / 'model'), {'x': one}, {'y': 2 * one})
    with flagsaver.flagsaver(saved_model=str(tmp_path / 'model')), pytest.raises(
            app.UsageError, match='has no signature of images and probabilities: export one'):
        cifar10_predict.predict(pictures_)


@pytest.mark.slow
def test_as_a_user(network, pictures_, tmp_path):
    """Arguments before and after flags; the exit code reports a broken image."""
    (tmp_path / 'text.jpg').write_text('text')
    done = spawn.run_script(
        'cifar10_predict.py', pictures_[0], '--top_k=1', str(tmp_path / 'text.jpg'),
        f'--checkpoint_dir={FLAGS.checkpoint_dir}')
    assert done.returncode == 1
    assert done.stderr == (
        f'cifar10_predict.py: {tmp_path}/text.jpg is damaged or truncated, or not an image '
        f'({", ".join(images._FORMATS)})\n')
    assert len(done.stdout.splitlines()) == 2
    done = spawn.run_script('cifar10_predict.py')
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr == (
        'cifar10_predict.py: got no arguments; expected IMAGE... (see --help)\n')


@pytest.mark.slow
def test_a_closed_pipe_and_a_full_disk(network, pictures_):
    """`... | head -1` exits silently, like other programs. A full disk is an error."""
    command = [spawn.ROOT / 'cifar10_predict.py', *pictures_, '--batch_size=1',
               f'--checkpoint_dir={FLAGS.checkpoint_dir}']
    with open('/dev/full', 'w') as full:
        done = spawn.run(command, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (
        1, 'cifar10_predict.py: cannot write to standard output: No space left on device\n')
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, 'w') as pipe:
        done = spawn.run(command, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, '')
