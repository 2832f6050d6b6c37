"""Checkpoints that are found, intact or damaged, moved and of other programs; params.h5."""
import os
import pathlib
import shutil

from cifar10_lib import checkpoints, console, run

import h5py
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

import cifar10_eval

FLAGS = flags.FLAGS


def save_steps(folder, *steps):
    """Saves checkpoints as a run does, with the file `checkpoint`; returns their paths."""
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.Variable(0, dtype=tf.int64, name='global_step')
        weights = tf.Variable(tf.random.uniform([1000]), name='w')
        saver = tf.train.Saver([step, weights])
        session.run(weights.initializer)
        paths = []
        for value in steps:
            step.load(value, session)
            paths.append(saver.save(session, f'{folder}/model.ckpt', global_step=value))
        return paths


def newest(folder):
    """The file name of the newest intact checkpoint."""
    found = checkpoints.newest(str(folder))
    assert os.path.dirname(found.path) == str(folder)
    return os.path.basename(found.path)


# ---- The step


@pytest.mark.parametrize('name, values', [
    ('a', {'global_step': np.array(77, np.int32)}), ('a', {'global_step': np.float32(77)}),
    ('run-3/model.ckpt-77', {})])
def test_the_step(name, values):
    """Of any type; scripts of 2015 named the variable differently."""
    assert checkpoints.step(checkpoints.Found(name, values)) == 77


@pytest.mark.parametrize('value, found', [
    (np.float32(np.nan), 'nan'), (np.float32(3.5), '3.5'), (np.int64(-3), '-3'), (None, 'None')])
def test_an_invalid_step(value, found):
    values = {} if value is None else {'global_step': np.array(value)}
    with pytest.raises(console.UserError, match=(
            f'^run/a is not a checkpoint of a training run: its global_step is {found}; expected a '
            'whole number$')):
        checkpoints.step(checkpoints.Found('run/a', values))


# ---- Which checkpoint


def test_a_folder_without_checkpoints(tmp_path):
    for folder in (tmp_path, tmp_path / 'none', tmp_path / 'file' / 'none'):
        assert checkpoints.newest(str(folder)) is None
        (tmp_path / 'file').touch()


def test_a_checkpoint_that_a_path_names(tmp_path, monkeypatch):
    fifth, seventh = save_steps(tmp_path, 5, 7)
    for path in (fifth, f'{fifth}.index', f'{fifth}.meta', f'{fifth}.data-00000-of-00001'):
        assert checkpoints.candidates(path) == [fifth]
        assert checkpoints.newest(path).path == fifth
    assert checkpoints.named(str(tmp_path)) is None and checkpoints.named(fifth[:-1]) is None
    monkeypatch.chdir(tmp_path)
    assert checkpoints.newest('model.ckpt-5').path == './model.ckpt-5'
    assert checkpoints.newest('.').path == './model.ckpt-7' and seventh.endswith('7')


def test_steps_are_numbers(tmp_path):
    save_steps(tmp_path, 5, 9, 10, 100)
    (tmp_path / 'checkpoint').unlink()
    assert [path[-3:] for path in checkpoints.candidates(str(tmp_path))] == ['100', '-10', 't-9',
                                                                              't-5']


def test_checkpoints_of_tensorflows_first_format(tmp_path):
    """One file each; also without the file `checkpoint`."""
    with tf.Session() as session:
        session.run(tf.get_variable('w', [2]).initializer)
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
        for step in (5, 10):
            saver.save(session, str(tmp_path / 'model.ckpt'), global_step=step)
    (tmp_path / 'checkpoint').unlink()
    path = f'{tmp_path}/model.ckpt-10'
    assert checkpoints.candidates(str(tmp_path)) == [path, f'{tmp_path}/model.ckpt-5']
    found = checkpoints.newest(str(tmp_path))
    assert found.path == path and checkpoints.step(found) == 10
    assert found.values['w'].shape == (2,)


@pytest.mark.parametrize('state, step', [
    (b'', 7), (bytes(50), 7), (b'\xff\xfe nonsense', 7), (None, 7),
    (b'model_checkpoint_path: ""\n', 7), (b'model_checkpoint_path: ".."\n', 7),
    (b'model_checkpoint_path: "model.ckpt-9"\n', 7),
    # As edited to return to an earlier step.
    (b'model_checkpoint_path: "model.ckpt-5"\nall_model_checkpoint_paths: "model.ckpt-7"\n', 5),
    # As written on another machine: absolute, of Windows, of a drive, of a name with quotes.
    (b'model_checkpoint_path: "/home/k\\303\\244fer/run/model.ckpt-5"\n', 5),
    (b'model_checkpoint_path: "runs\\\\first\\\\model.ckpt-5"\n', 5),
    (b'model_checkpoint_path: "C:\\\\runs\\\\model.ckpt-5"\r\n', 5),
    (b'model_checkpoint_path: "//server/share/a \\"b\\"/model.ckpt-5"\n', 5)])
def test_the_state_file(tmp_path, state, step):
    save_steps(tmp_path, 5, 7)
    (tmp_path / 'checkpoint').unlink()
    if state is not None:
        (tmp_path / 'checkpoint').write_bytes(state)
    assert newest(tmp_path) == f'model.ckpt-{step}'


@pytest.mark.parametrize('name', ['run[1]', 'a\\b', 'käfer 猫', 'what?*'])
def test_reading_works_in_any_folder(trained, tmp_path, capsys, name):
    """TensorFlow's reader takes some names for patterns, even of another run."""
    folder = tmp_path / 'runs' / name
    shutil.copytree(FLAGS.train_dir, folder)
    save_steps(tmp_path / 'runs' / 'run1', 99)
    found = checkpoints.newest(str(folder))
    assert (found.path, checkpoints.step(found)) == (f'{folder}/model.ckpt-10', 10)
    for path, value in checkpoints.read(f'{FLAGS.train_dir}/model.ckpt-10').items():
        np.testing.assert_array_equal(found.values[path], value)
    with flagsaver.flagsaver(run_once=True, checkpoint_dir=str(folder)):
        cifar10_eval.evaluate()
    assert 'precision @ 1 = ' in capsys.readouterr().out


# ---- Damage


def overwrite(path, change):
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))


# An index file is a LevelDB table. Its last 48 bytes are the offsets and sizes of two blocks, as
# numbers with seven bits per byte, the lowest first; padding to 40 bytes; and a mark of 8 bytes.
# Here the block that lists all others claims 2^60 bytes.
_FOOTER = bytes([0, 0, 0, *8 * [0x80], 0x10]).ljust(40, b'\0')
_DATA, _INDEX = 'model.ckpt-7.data-00000-of-00001', 'model.ckpt-7.index'

# Damage to a folder with checkpoints 5 and 7: from its name to a function of the folder.
DAMAGES = {
    'data truncated': lambda folder: overwrite(folder / _DATA, lambda data: data[:-100]),
    'one bit': lambda folder: overwrite(
        folder / _DATA, lambda data: data[:500] + bytes([data[500] ^ 4]) + data[501:]),
    'data missing': lambda folder: (folder / _DATA).unlink(),
    'index empty': lambda folder: (folder / _INDEX).write_bytes(b''),
    'index of exabytes': lambda folder: overwrite(
        folder / _INDEX, lambda data: data[:-48] + _FOOTER + data[-8:]),
    'index missing': lambda folder: (folder / _INDEX).unlink()}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_checkpoint_is_skipped(tmp_path, capfd, damage):
    _, seventh = save_steps(tmp_path, 5, 7)
    DAMAGES[damage](tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert newest(tmp_path) == 'model.ckpt-5'
    error = capfd.readouterr().err
    if damage != 'index missing':  # Then it is not a checkpoint.
        line, = (line for line in error.splitlines()
                 if f': {seventh} is damaged, or was just removed (' in line)
        assert line.endswith('): using model.ckpt-5')
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_all_damaged(tmp_path):
    for path in save_steps(tmp_path, 5, 7):
        pathlib.Path(f'{path}.index').write_bytes(b'')
    with pytest.raises(console.UserError, match=(
            r'model.ckpt-7 is damaged, .*\); .*model.ckpt-5 is damaged.*: all checkpoints in '
            f'{tmp_path} are damaged. Restore one, or start over in another folder$')):
        checkpoints.newest(str(tmp_path))
    with pytest.raises(checkpoints.Unreadable):
        checkpoints.read(f'{tmp_path}/model.ckpt-7')


# ---- Values


def test_the_error_names_the_first_variables_that_do_not_fit():
    variables = {name: tf.get_variable(name, [2])
                 for name in [*'abcd', *(f'v{number}' for number in range(99))]}
    values = {'a': np.zeros(3), 'b': np.array([1, np.inf]), 'c': np.zeros(2), 'fine': np.zeros(1)}
    with pytest.raises(console.UserError, match=(
            r'^run/a does not fit this network: a has shape \[3\]; expected \[2\]; b is not finite'
            r'; d is missing; v0 is missing; v1 .{200,400} is missing; .*\.\.\.\. Do this$')):
        checkpoints.check_fit(checkpoints.Found('run/a', values), variables, 'Do this')


def test_params_h5(tmp_path):
    """After one step of Adam, with averages and the statistics of a batch norm.

    Adam's first step equals its rate, 0.5; the average is halfway between 1 and 0.5. Adam's state
    and the averages of losses are left out.
    """
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable('layer/weights', initializer=[[1.0, 2.0], [3.0, 4.0]])
    for name in ('layer/bn/moving_mean', 'layer/bn/moving_variance', 'loss/avg'):
        tf.get_variable(name, initializer=[5.0, 6.0], trainable=False)
    update = tf.train.AdamOptimizer(0.5).minimize(tf.reduce_sum(weights), step)
    with tf.control_dependencies([update]):
        train_op = tf.train.ExponentialMovingAverage(0.5).apply([weights])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    path, names = tmp_path / 'params.h5', []
    run.write_parameters(str(path), values, {'layer/weights'})
    assert [entry.name for entry in tmp_path.iterdir()] == ['params.h5']
    with h5py.File(path) as stream:
        stream.visititems(lambda name, node: names.append(name) if hasattr(node, 'shape') else None)
        assert sorted(names) == [
            'averages/layer/weights', 'statistics/layer/bn/moving_mean',
            'statistics/layer/bn/moving_variance', 'weights/layer/weights']
        np.testing.assert_allclose(stream['weights/layer/weights'], [[0.5, 1.5], [2.5, 3.5]],
                                   rtol=1e-6)
        np.testing.assert_allclose(stream['averages/layer/weights'], [[0.75, 1.75], [2.75, 3.75]],
                                   rtol=1e-6)
        assert stream['statistics/layer/bn/moving_mean'][:].tolist() == [5, 6]
        assert stream['weights/layer/weights'].dtype == np.float32
        assert dict(stream.attrs) == {'global_step': 1}
